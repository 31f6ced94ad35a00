"""A compacted view in memory: its commits, one after the other, and what is staged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import uuid4

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.rows import ViewReason
from message_lifecycle.model.view import ViewRow
from message_lifecycle.operations.compaction_fold import Folded
from message_lifecycle.stores.memory.log import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewCommit:
    """The view after one commit, and the plan that it carries."""

    rows: Mapping[Position, ViewRow]
    horizons: Mapping[int, int]
    due_at: Instant | None
    settings_hash: str
    plan_id: str
    removed: tuple[tuple[ViewReason, int], ...]


@dataclass(slots=True, kw_only=True)
class View:
    """A snapshot's id is its place among the commits; none: nothing was ever compacted."""

    uuid: str = field(default_factory=lambda: str(uuid4()))
    commits: list[ViewCommit] = field(default_factory=list)
    staged: dict[str, Folded] = field(default_factory=dict)

    @property
    def horizons(self) -> Mapping[int, int]:
        return self.commits[-1].horizons if self.commits else {}
