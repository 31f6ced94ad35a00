"""Changes and snapshots of a document topic in memory: every version is kept, as the snapshots of a table are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from uuid import uuid4

from message_lifecycle.model.document import Change

Changes = Mapping[str, tuple[Change, ...]]
"""Ascending, by document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRow:
    """`state` None: the epoch was raised, and no snapshot made."""

    server_seq: int
    epoch: int
    state: bytes | None


Snapshots = Mapping[str, tuple[SnapshotRow, ...]]
"""In the order in which they came, by document."""
Rows = TypeVar("Rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentCommit(Generic[Rows]):
    """A table after one commit. `plan_id` None: changes came, and none went."""

    rows: Mapping[str, tuple[Rows, ...]]
    plan_id: str | None = None
    removed: tuple[tuple[str, int], ...] = ()
    restored: int = 0
    """Rows that came back with an undo."""
    purges: bool = False
    """Of the snapshots' table: a commit of the changes' table belongs to it."""


@dataclass(slots=True, kw_only=True)
class DocumentTable(Generic[Rows]):
    """A snapshot's id is its place among the commits; none: nothing was ever written."""

    uuid: str = field(default_factory=lambda: str(uuid4()))
    commits: list[DocumentCommit[Rows]] = field(default_factory=list)

    @property
    def snapshot_id(self) -> int | None:
        return len(self.commits) - 1 if self.commits else None

    def rows(self, snapshot_id: int | None) -> Mapping[str, tuple[Rows, ...]]:
        return {} if snapshot_id is None else self.commits[snapshot_id].rows

    @property
    def head(self) -> Mapping[str, tuple[Rows, ...]]:
        return self.rows(self.snapshot_id)

    def carrying(self, plan_id: str) -> tuple[int, DocumentCommit[Rows]] | None:
        return next(((at, commit) for at, commit in enumerate(self.commits) if commit.plan_id == plan_id), None)


@dataclass(slots=True, kw_only=True)
class StagedTables:
    """What a plan has made. `changes`, `snapshots`: every document's as they are to be."""

    changes: Changes
    snapshots: Snapshots
    blocked: tuple[tuple[str, str], ...]


@dataclass(slots=True, kw_only=True)
class DocumentLog:
    """Both tables of a topic, and what is staged by plan id."""

    changes: DocumentTable[Change] = field(default_factory=lambda: DocumentTable[Change]())
    snapshots: DocumentTable[SnapshotRow] = field(default_factory=lambda: DocumentTable[SnapshotRow]())
    staged: dict[str, StagedTables] = field(default_factory=dict)


def states_of(rows: tuple[SnapshotRow, ...]) -> dict[int, bytes]:
    """Snapshots by server_seq, ascending."""
    return {row.server_seq: row.state for row in sorted(rows, key=lambda row: row.server_seq) if row.state is not None}


def epoch_of(rows: tuple[SnapshotRow, ...]) -> int:
    """The first is 0 (SNP-7)."""
    return max((row.epoch for row in rows), default=0)
