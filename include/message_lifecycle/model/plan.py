"""The plan: a frozen value that names exactly what leaves, why, and under which conditions (DEL-1).

The program can print, store, compare, approve and execute a plan. Execution evaluates no part of it again.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Any, Literal, TypeVar

from message_lifecycle.model.change import (
    Change,
    Commit,
    CommitLog,
    CommitQuarantine,
    CommitSnapshots,
    CompactView,
    DeleteTables,
    DropSegments,
    DropTables,
    EraseRows,
    Forget,
    MovedTable,
    RemoveFiles,
    RemoveFromView,
    RemoveRows,
    RestoreDocument,
    RestoreTables,
    ReturnChanges,
    ReturnSnapshots,
    ReturnToLog,
    ReturnToQuarantine,
    ReturnToView,
    Rewrite,
)
from message_lifecycle.model.erasure import ErasureOf, TableKind
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Place, is_offset_in_ranges, parse_ranges_text
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.reasons import RemovalReason
from message_lifecycle.model.setting_list import Value, settings_have_documents

PLAN_FORMAT = 11
"""The format of a plan's text. From the first release on, a change of the format raises this number and keeps the older ones readable."""

_Kind = TypeVar("_Kind")
_Commit = TypeVar("_Commit", bound=Commit)

Operation = Literal[
    "message_cleaner",
    "retention",
    "message_request",
    "marker_generation",
    "compaction",
    "purge_compacted",
    "snapshot_with_purge",
    "erasure",
    "undo",
    "reclaim",
    "quarantine",
    "topic_delete",
]
Holder = Literal[
    "consumer",
    "replica",
    "compaction",
    "budget",
    "earlier_segment",
    "unknown_time",
    "active_segment",
    "open_approval",
    "hold",
    "undone_plan",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """Conditions that must still hold when the plan is applied."""

    table_uuid: str
    snapshot_id: int | None
    end_offsets: tuple[tuple[int, int], ...]
    """The next free offset of each partition at planning time. Messages at or above it came later (DEL-4)."""
    policy_hash: str
    code_version: str
    heeded: tuple[str, ...] = ()
    """Ids of the active legal holds at planning time, sorted. A later hold makes the run plan again (DEL-8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A limit that planning met. No message at or above `offset` of the partition may leave, because of `name`.

    Attributes:
        offset: None: no limit.
    """

    name: str
    partition: int
    offset: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRequirements:
    """The compacted view that a plan builds on (CMP-4, CMP-5, CMP-7).

    Attributes:
        table_uuid: None: the view does not exist yet.
        snapshot_id: None: the view does not exist yet.
        rewrite: True: the commit rewrites the view. False: the commit keeps its files and marks the leaving rows in them.
        tombstones_until: The delete horizon for tombstones that this run meets for the first time. None: the run drops them at once.
    """

    table_uuid: str | None
    snapshot_id: int | None
    rows: int
    rewrite: bool = False
    tombstones_until: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequirements:
    """The table of snapshots that a plan builds on. `Requirements` has the table of changes.

    Attributes:
        table_uuid: None: the table does not exist yet.
        snapshot_id: None: the table does not exist yet.
        settings_hash: The hash of the settings of users and documents (SNP-9).
    """

    table_uuid: str | None
    snapshot_id: int | None
    settings_hash: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Data files that leave whole, by name, relative to the table's location. `digest` covers the sorted names."""

    files: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(sorted(self.files)).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The counts that the result must match. None: unknown, and never counted as zero."""

    rows_in: int
    removed: tuple[tuple[str, int], ...]
    removed_bytes: int | None
    bytes_in: int | None
    segments: int

    @property
    def removed_rows(self) -> int:
        return sum(count for _, count in self.removed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Overdue messages that stay, and their holder (DEL-6): a run of segments, or single messages of one segment."""

    partition: int
    first_base: int
    last_offset: int
    rows: int
    overdue_since: Instant | None
    holder: Holder
    detail: str
    reason: RemovalReason = "expiry"
    """`expiry` or `compacted` for whole segments. Any other reason is about single messages."""


# Not slotted: the plan caches its id, because a plan may name 60,000 files.
@dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan. See the module.

    Attributes:
        asks: Reasons that always require approval, whatever the counts (DEL-3).
        due_since: When the first of the leaving messages became due.
        next_due_at: When this topic can next have something to remove. None: only after a change.
    """

    operation: Operation
    topic: TopicName
    as_of: Instant
    policy: tuple[tuple[str, Value | None], ...]
    requirements: Requirements
    bounds: tuple[Bound, ...]
    changes: tuple[Change, ...]
    """In the order of their commits. If a run dies between two commits, no reader sees a forbidden state."""
    selection: Selection
    expected: Expected
    held: tuple[Held, ...]
    warnings: tuple[str, ...]
    asks: tuple[str, ...]
    more: bool
    due_since: Instant | None
    next_due_at: Instant | None
    reasons: tuple[RemovalReason, ...] = ()
    """The allowed reasons for removals of this plan. The gate accepts no other."""
    parent: str | None = None
    """The plan that an undo takes back. For a reclaim of a deleted topic's tables, the plan that deleted the topic."""
    parent_operation: Operation | None = None
    """The operation of the parent."""
    spared: tuple[tuple[int, str], ...] = ()
    """By partition, offsets as `ranges_text` that stay whatever the rules say, if the topic makes markers. No plan replaces an older marker
    at these offsets (MRK-5, DEL-8).
    """
    view: ViewRequirements | None = None
    snapshots: SnapshotRequirements | None = None
    erasure: ErasureOf | None = None
    format: int = PLAN_FORMAT

    @property
    def is_empty(self) -> bool:
        return not self.changes

    @property
    def takes_back(self) -> str | None:
        """The plan that an undo takes back. None for any other operation.

        A reclaim of a deleted topic's tables also has a parent: the deletion.
        """
        return None if self.is_irreversible else self.parent

    @property
    def parent_id(self) -> str:
        """The parent of an undo, or of a reclaim of a deleted topic."""
        assert self.parent is not None, "the plan names its parent"
        return self.parent

    def _all(self, kind: type[_Kind]) -> tuple[_Kind, ...]:
        return tuple(change for change in self.changes if isinstance(change, kind))

    def _commit(self, kind: type[_Commit]) -> _Commit:
        return next(iter(self._all(kind)), kind())

    # The commit on each table. An empty commit stands for a table that the plan leaves alone.

    @cached_property
    def log_commit(self) -> CommitLog:
        return self._commit(CommitLog)

    @cached_property
    def log_return(self) -> ReturnToLog:
        return self._commit(ReturnToLog)

    @cached_property
    def view_commit(self) -> CompactView:
        return self._commit(CompactView)

    @cached_property
    def view_removal(self) -> RemoveFromView:
        return self._commit(RemoveFromView)

    @cached_property
    def view_return(self) -> ReturnToView:
        return self._commit(ReturnToView)

    @cached_property
    def snapshots_commit(self) -> CommitSnapshots:
        return self._commit(CommitSnapshots)

    @cached_property
    def snapshots_return(self) -> ReturnSnapshots:
        return self._commit(ReturnSnapshots)

    @cached_property
    def changes_return(self) -> ReturnChanges:
        return self._commit(ReturnChanges)

    @cached_property
    def quarantine_commit(self) -> CommitQuarantine:
        return self._commit(CommitQuarantine)

    @cached_property
    def quarantine_return(self) -> ReturnToQuarantine:
        return self._commit(ReturnToQuarantine)

    @property
    def marked(self) -> tuple[RemoveRows, ...]:
        """Single messages that leave the log: by a removal, or markers by an undo."""
        return (*self.log_commit.mark, *self.log_return.mark)

    @property
    def changes_log(self) -> bool:
        """True if the plan changes the log, not only its compacted view."""
        return bool(self._all(CommitLog) or self._all(ReturnToLog))

    @property
    def archives(self) -> bool:
        """True if an archive keeps the messages first (RET-7). Messages that a person asked to remove are never archived."""
        return self.log_commit.keep is not None

    @property
    def rewrites(self) -> tuple[Rewrite, ...]:
        return self._all(Rewrite)

    def rewrites_of(self, table: TableKind) -> tuple[Rewrite, ...]:
        return tuple(change for change in self.rewrites if change.table == table)

    @property
    def erased(self) -> Iterator[tuple[TableKind, EraseRows]]:
        """The erased rows file by file, with the kind of their table."""
        return ((change.table, rows) for change in self.rewrites for rows in change.rows)

    def erased_of(self, table: TableKind) -> tuple[EraseRows, ...]:
        return tuple(rows for kind, rows in self.erased if kind == table)

    @property
    def forgets(self) -> tuple[Forget, ...]:
        return (*self._all(Forget), *(forget for change in self._all(DropTables) for forget in change.forgets))

    @property
    def file_removals(self) -> Iterator[RemoveFiles]:
        return (files for change in self.forgets for files in change.files)

    @property
    def deleted_tables(self) -> tuple[MovedTable, ...]:
        return tuple(table for change in self._all(DeleteTables) for table in change.tables)

    @property
    def restored_tables(self) -> tuple[MovedTable, ...]:
        return tuple(table for change in self._all(RestoreTables) for table in change.tables)

    @property
    def dropped_tables(self) -> tuple[MovedTable, ...]:
        return tuple(table for change in self._all(DropTables) for table in change.tables)

    @property
    def moved_tables(self) -> tuple[MovedTable, ...]:
        """The tables of a topic that is deleted or restored whole."""
        return self.deleted_tables or self.restored_tables

    @property
    def is_beside(self) -> bool:
        """True if the plan takes long and runs next to the log, while the topic's other operations continue (CMP-10)."""
        return bool(self.view_commit.compact)

    @property
    def continues_after_crash(self) -> bool:
        """True if a later run continues this plan after a run died between two commits.

        False for a plan that makes snapshots of documents. New snapshots remove nothing, and a new plan builds on them.
        """
        return not self.snapshots_commit.documents

    @property
    def is_irreversible(self) -> bool:
        """True if a started plan cannot be rolled back. Any later run then finishes it, whatever anyone has answered since."""
        return bool(self.dropped_tables)

    @property
    def past_horizon(self) -> bool:
        """True if the plan removes messages by age that compaction has not seen (CMP-9)."""
        return "expiry" in self.reasons and self.view is not None

    def removal_at(self, partition: int, offset: int) -> DropSegments | RemoveRows | EraseRows | None:
        """Return the part of the plan that removes the message at this offset of the log."""
        for run in self.log_commit.drop:
            if run.partition == partition and run.first_base <= offset <= run.last_offset:
                return run
        marked: tuple[RemoveRows | EraseRows, ...] = (*self.marked, *self.erased_of("log"))
        for rows in marked:
            if rows.partition == partition and is_offset_in_ranges(rows.offsets, offset):
                return rows
        return None

    @property
    def of_documents(self) -> bool:
        """True if the plan makes, purges or restores changes and snapshots of documents."""
        return self.snapshots is not None

    @property
    def things(self) -> str:
        """The unit of the plan's counts: rows, changes or messages.

        The topic's settings decide even if the topic leaves or returns whole.
        """
        if self.quarantine_commit.files or self.quarantine_return.files:
            return "rows"
        return "changes" if self.of_documents or settings_have_documents(dict(self.policy)) else "messages"

    @property
    def documents_back(self) -> tuple[RestoreDocument, ...]:
        """Documents that return, of changes and of snapshots. A document that gets both back is listed twice."""
        return (*self.changes_return.documents, *self.snapshots_return.documents)

    @cached_property
    def restored_rows(self) -> int:
        """The number of messages that return to the log or with their topic, changes of documents, or rows of the quarantine."""
        rows = sum(part.rows for part in self.log_return.back) + sum(file.rows for file in self.quarantine_return.files)
        rows += sum(part.changes for part in self.changes_return.documents)
        return rows + sum(table.rows for table in self.restored_tables if not table.table)

    @property
    def restored_snapshots(self) -> int:
        return sum(len(part.snapshots) for part in self.snapshots_return.documents)

    @property
    def restored_view_rows(self) -> int:
        return sum(part.rows for part in self.view_return.back)

    @cached_property
    def expiring_by_row(self) -> frozenset[Place]:
        """Segments that expire except for messages that stay (EXP-5, CLK-4)."""
        return frozenset((rows.partition, rows.base_offset) for rows in self.log_commit.mark if rows.reason == "expiry")

    def skips(self, partition: int, base_offset: int) -> bool:
        """Return True if a legal hold or an undone plan keeps the segment. Expired segments behind it may still leave (EXP-5)."""
        return any(
            entry.partition == partition and entry.reason == "expiry" and entry.first_base <= base_offset <= entry.last_offset
            for entry in self.held
            if entry.holder in ("hold", "undone_plan")
        )

    def keeps_marker(self, partition: int, offset: int) -> bool:
        """Return True if a marker at this offset stays, whatever replaces it. See `spared`."""
        runs = self._spared_runs.get(partition, [])
        at = bisect_right(runs, offset, key=lambda run: run.start) - 1
        return at >= 0 and offset in runs[at]

    @cached_property
    def _spared_runs(self) -> dict[int, list[range]]:
        return {partition: list(parse_ranges_text(text)) for partition, text in self.spared}

    def drops(self, partition: int, base_offset: int) -> bool:
        """Return True if the expired segment leaves whole. Callers ask once for every file that leaves."""
        firsts, lasts = self._dropped.get(partition, ([], []))
        at = bisect_right(firsts, base_offset) - 1
        return at >= 0 and base_offset <= lasts[at]

    @cached_property
    def _dropped(self) -> dict[int, tuple[list[int], list[int]]]:
        """First and last bases of the dropped runs of segments, in order, per partition. Runs do not overlap."""
        found: dict[int, tuple[list[int], list[int]]] = {}
        for run in sorted(self.log_commit.drop, key=lambda run: (run.partition, run.first_base)):
            firsts, lasts = found.setdefault(run.partition, ([], []))
            firsts.append(run.first_base)
            lasts.append(run.last_base)
        return found

    @cached_property
    def plan_id(self) -> str:
        """Hash of the whole plan. Equal plans are one plan."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:32]

    def known_as(self, plan_id: str) -> Plan:
        """Return the plan under its recorded id: the hash of its text before an erasure removed a name from it."""
        known = replace(self)
        known.__dict__["plan_id"] = plan_id
        return known

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no white space. `ledger.codec` reads it back."""
        return json.dumps(self, default=fields_of, sort_keys=True, separators=(",", ":"))


def fields_of(value: Any) -> dict[str, object]:
    """Return a dataclass's own fields. JSON calls this again for nested values.

    `asdict` copies everything first and takes ten times as long, and a plan may name 100,000 documents.
    """
    return {name: getattr(value, name) for name in _names(value.__class__)}


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))
