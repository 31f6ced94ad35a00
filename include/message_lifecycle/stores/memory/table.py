"""A topic in memory: its versions, the commits between them, and what is staged beside them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

from message_lifecycle.model.marker import Marker
from message_lifecycle.model.outcome import Published
from message_lifecycle.ports import Topic
from message_lifecycle.stores.memory.log import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    snapshot_id: int
    operation: str
    plan_id: str | None
    counts: tuple[tuple[str, int], ...] = ()
    files: tuple[str, ...] = ()
    markers: int = 0
    cancelled: int = 0
    restored: int = 0


@dataclass(slots=True, kw_only=True)
class Table:
    topic: Topic
    head: Version
    versions: dict[int, Version]
    commits: list[Commit]
    staged: dict[str, tuple[int, Version]] = field(default_factory=dict)
    markers: dict[str, tuple[Marker, ...]] = field(default_factory=dict)

    @property
    def snapshot_id(self) -> int:
        return self.commits[-1].snapshot_id

    def commit(self, version: Version, **what: object) -> Commit:
        made = Commit(snapshot_id=self.snapshot_id + 1, **what)  # type: ignore[arg-type]  # fields of Commit by name
        self.head = version
        self.versions[made.snapshot_id] = deepcopy(version)
        self.commits.append(made)
        return made


def published_by(plan_id: str, commit: Commit) -> Published:
    return Published(
        plan_id=plan_id,
        snapshot_id=commit.snapshot_id,
        removed=commit.counts,
        markers=commit.markers,
        cancelled_markers=commit.cancelled,
        restored=commit.restored,
    )
