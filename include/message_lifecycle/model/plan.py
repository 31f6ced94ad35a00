"""The plan: a frozen value that names exactly what goes, why, and under which conditions (DEL-1).

It can be printed, stored, compared, approved and carried out; nothing in it is evaluated again later.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Literal

from message_lifecycle.model.actions import (
    Action,
    CompactPartition,
    DeleteTable,
    DropSegments,
    DropTable,
    EraseRows,
    EraseTable,
    ExpireSnapshots,
    RemoveFiles,
    RemoveRows,
    RemoveViewRows,
    RestoreDocument,
    RestoreQuarantined,
    RestoreRows,
    RestoreViewRows,
    ReturnTable,
    SnapshotDocument,
    SweepMarkers,
)
from message_lifecycle.model.erasure import ErasureOf
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.rows import Place, RemovalReason, ranges_of
from message_lifecycle.model.settings import Value

PLAN_FORMAT = 5
"""Raised with every change of what a plan's text may say; `ledger.codec` then needs a step from the one before."""

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
MARKING: frozenset[Operation] = frozenset(("message_cleaner", "retention", "message_request", "marker_generation"))
"""Operations that may leave a key without a live message, and then make its marker (MRK-1, MRK-2)."""
CLEANING: frozenset[Operation] = frozenset(("message_cleaner", "retention"))
"""Operations that remove what the topic's own rules take, and after which nothing of it is left but what somebody holds (DEL-6)."""
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
    """What must still be true where the plan is applied."""

    table_uuid: str
    snapshot_id: int | None
    end_offsets: tuple[tuple[int, int], ...]
    """The next offset to be given, per partition, when the plan was made: what lies at or above it came later (DEL-4)."""
    policy_hash: str
    code_version: str
    heeded: tuple[str, ...] = ()
    """Ids of the legal holds that stood when the plan was made, sorted: one that is placed later makes it plan again (DEL-8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A limit that planning met: nothing at or above `offset` of the partition may go, because of `name`. None: no limit."""

    name: str
    partition: int
    offset: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRequirements:
    """The compacted view that a plan builds on, and how (CMP-4, CMP-5, CMP-7).

    `table_uuid` and `snapshot_id` None: there is none yet. `rewrite`: written anew, else kept with what goes marked in it.
    `tombstones_until`: the delete horizon of the tombstones that this run meets first; None: they are left out at once."""

    table_uuid: str | None
    snapshot_id: int | None
    rows: int
    rewrite: bool = False
    tombstones_until: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequirements:
    """The table of snapshots that a plan builds on; None: there is none yet. The changes' table stands in `Requirements`.

    `settings_hash`: of the settings below the topic's, users' and documents' (SNP-9)."""

    table_uuid: str | None
    snapshot_id: int | None
    settings_hash: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Data files that go whole, by name, relative to the table's location. `digest` is over the sorted names."""

    files: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(sorted(self.files)).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Counts the deed is held to; None = unknown, never counted as zero."""

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
    """Overdue messages that stay, and what holds them (DEL-6): a run of segments, or single messages of one segment."""

    partition: int
    first_base: int
    last_offset: int
    rows: int
    overdue_since: Instant | None
    holder: Holder
    detail: str
    reason: RemovalReason = "expiry"
    """Segments are held from `expiry`; anything else is about single messages."""


# Not slotted: the id is kept once it is known, for a plan may name 60,000 files.
@dataclass(frozen=True, kw_only=True)
class Plan:
    """See the module. `asks`: why a person's word is needed whatever the counts (DEL-3).

    `due_since`: when the first of what goes became due. `next_due_at`: when this topic can next have something to remove (None: only after a change)."""

    operation: Operation
    topic: TopicName
    as_of: Instant
    policy: tuple[tuple[str, Value | None], ...]
    requirements: Requirements
    bounds: tuple[Bound, ...]
    actions: tuple[Action, ...]
    selection: Selection
    expected: Expected
    held: tuple[Held, ...]
    warnings: tuple[str, ...]
    asks: tuple[str, ...]
    more: bool
    due_since: Instant | None
    next_due_at: Instant | None
    parent: str | None = None
    """The plan that an undo takes back, or that deleted the topic whose tables a reclaim takes."""
    spared: tuple[tuple[int, str], ...] = ()
    """By partition, offsets as `ranges_text` that stay whatever the rules say, where the topic makes markers: an older marker among them
    is not replaced (MRK-5, DEL-8)."""
    view: ViewRequirements | None = None
    snapshots: SnapshotRequirements | None = None
    erasure: ErasureOf | None = None
    source_id: int | None = None
    """Of an undo: the snapshot of the log, of the changes of documents, or of the quarantine, that holds what comes back."""
    format: int = PLAN_FORMAT
    """In which it was recorded; what that format did not say has the value that it had then, or None."""

    @property
    def is_older(self) -> bool:
        """Whether an earlier version planned it: what judged it then may have known less than what would judge it now."""
        return self.format < PLAN_FORMAT

    @property
    def is_empty(self) -> bool:
        return not self.actions

    @cached_property
    def of_log(self) -> bool:
        """Whether it changes the log, and not its compacted view alone."""
        return any(not isinstance(action, RemoveViewRows | RestoreViewRows) for action in self.actions)

    @property
    def of_view(self) -> bool:
        """Whether it changes single messages of the compacted view; a compaction makes a new one."""
        return bool(self.view_removals or self.view_returns)

    @property
    def past_horizon(self) -> bool:
        """Whether an age takes messages that compaction has not seen (CMP-9)."""
        return self.operation == "message_cleaner" and self.view is not None

    def taking(self, partition: int, offset: int) -> DropSegments | RemoveRows | EraseRows | None:
        """The action that takes the message at this offset."""
        for action in self.actions:
            match action:
                case DropSegments() if action.partition == partition and action.first_base <= offset <= action.last_offset:
                    return action
                case RemoveRows() if action.partition == partition and action.first_offset <= offset <= action.last_offset:
                    if any(offset in run for run in ranges_of(action.offsets)):
                        return action
                case EraseRows(table="log") if action.partition == partition and any(offset in run for run in ranges_of(action.offsets)):
                    return action
                case _:
                    pass
        return None

    @cached_property
    def compactions(self) -> tuple[CompactPartition, ...]:
        return tuple(action for action in self.actions if isinstance(action, CompactPartition))

    @cached_property
    def documents(self) -> tuple[SnapshotDocument, ...]:
        return tuple(action for action in self.actions if isinstance(action, SnapshotDocument))

    @cached_property
    def document_returns(self) -> tuple[RestoreDocument, ...]:
        return tuple(action for action in self.actions if isinstance(action, RestoreDocument))

    @property
    def of_quarantine(self) -> bool:
        """Whether it changes the quarantine beside the topic, and not the topic."""
        return self.operation == "quarantine" or bool(self.quarantine_returns)

    @property
    def of_documents(self) -> bool:
        """Whether it makes, purges or brings back changes and snapshots of documents."""
        return self.snapshots is not None

    @property
    def things(self) -> str:
        """What it counts, in a word: what its topic holds, which the settings say also where the topic goes or comes back whole."""
        if self.of_quarantine:
            return "rows"
        return "changes" if self.of_documents or dict(self.policy).get("fold") is not None else "messages"

    @cached_property
    def quarantine_returns(self) -> tuple[RestoreQuarantined, ...]:
        return tuple(action for action in self.actions if isinstance(action, RestoreQuarantined))

    @cached_property
    def view_removals(self) -> tuple[RemoveViewRows, ...]:
        return tuple(action for action in self.actions if isinstance(action, RemoveViewRows))

    @cached_property
    def view_returns(self) -> tuple[RestoreViewRows, ...]:
        return tuple(action for action in self.actions if isinstance(action, RestoreViewRows))

    @cached_property
    def erased_rows(self) -> tuple[EraseRows, ...]:
        return tuple(action for action in self.actions if isinstance(action, EraseRows))

    @cached_property
    def erased_tables(self) -> tuple[EraseTable, ...]:
        return tuple(action for action in self.actions if isinstance(action, EraseTable))

    @cached_property
    def expiries(self) -> tuple[ExpireSnapshots, ...]:
        return tuple(action for action in self.actions if isinstance(action, ExpireSnapshots))

    @cached_property
    def file_removals(self) -> tuple[RemoveFiles, ...]:
        return tuple(action for action in self.actions if isinstance(action, RemoveFiles))

    @cached_property
    def row_removals(self) -> tuple[RemoveRows, ...]:
        return tuple(action for action in self.actions if isinstance(action, RemoveRows))

    @cached_property
    def restored(self) -> tuple[RestoreRows, ...]:
        return tuple(action for action in self.actions if isinstance(action, RestoreRows))

    @cached_property
    def restored_rows(self) -> int:
        """Messages that come back to the log, changes of documents, or rows of the quarantine."""
        of_log = sum(action.rows for action in self.restored) + sum(action.changes for action in self.document_returns)
        of_log += sum(action.rows for action in self.quarantine_returns)
        return of_log + sum(action.rows for action in self.returned_tables if not action.table)

    @property
    def restored_snapshots(self) -> int:
        return sum(len(action.snapshots) for action in self.document_returns)

    @property
    def restored_view_rows(self) -> int:
        return sum(action.rows for action in self.view_returns)

    @cached_property
    def moved_tables(self) -> tuple[DeleteTable | ReturnTable, ...]:
        """Of a whole topic that goes or comes back."""
        return (*self.deleted_tables, *self.returned_tables)

    @cached_property
    def deleted_tables(self) -> tuple[DeleteTable, ...]:
        return tuple(action for action in self.actions if isinstance(action, DeleteTable))

    @cached_property
    def returned_tables(self) -> tuple[ReturnTable, ...]:
        return tuple(action for action in self.actions if isinstance(action, ReturnTable))

    @cached_property
    def dropped_tables(self) -> tuple[DropTable, ...]:
        """Of a deleted topic that goes for good."""
        return tuple(action for action in self.actions if isinstance(action, DropTable))

    @cached_property
    def expiring_by_row(self) -> frozenset[Place]:
        """Segments that expire but for messages that stay (EXP-5, CLK-4)."""
        return frozenset((action.partition, action.base_offset) for action in self.row_removals if action.reason == "expiry")

    def skips(self, partition: int, base_offset: int) -> bool:
        """Whether a legal hold or an undone plan keeps the segment, so that those behind it may go all the same (EXP-5)."""
        return any(
            entry.partition == partition and entry.reason == "expiry" and entry.first_base <= base_offset <= entry.last_offset
            for entry in self.held
            if entry.holder in ("hold", "undone_plan")
        )

    def spares(self, partition: int, offset: int) -> bool:
        """Whether a marker at this offset stays whatever replaces it; see `spared`."""
        runs = self._spared_runs.get(partition, [])
        at = bisect_right(runs, offset, key=lambda run: run.start) - 1
        return at >= 0 and offset in runs[at]

    @cached_property
    def _spared_runs(self) -> dict[int, list[range]]:
        return {partition: list(ranges_of(text)) for partition, text in self.spared}

    @cached_property
    def swept(self) -> tuple[int, ...]:
        """Snapshots of another writer's removals for which markers may be owed."""
        return tuple(snapshot for action in self.actions if isinstance(action, SweepMarkers) for snapshot in action.removals)

    def drops(self, partition: int, base_offset: int) -> bool:
        """Whether the segment goes whole, because it has expired. Asked once for every file that goes."""
        firsts, lasts = self._dropped.get(partition, ([], []))
        at = bisect_right(firsts, base_offset) - 1
        return at >= 0 and base_offset <= lasts[at]

    @cached_property
    def _dropped(self) -> dict[int, tuple[list[int], list[int]]]:
        """First and last bases of the runs of segments that go, in order, per partition; no two runs overlap."""
        found: dict[int, tuple[list[int], list[int]]] = {}
        runs = (action for action in self.actions if isinstance(action, DropSegments))
        for action in sorted(runs, key=lambda run: (run.partition, run.first_base)):
            firsts, lasts = found.setdefault(action.partition, ([], []))
            firsts.append(action.first_base)
            lasts.append(action.last_base)
        return found

    @cached_property
    def plan_id(self) -> str:
        """Hash of the whole plan: equal plans are one plan."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:32]

    def known_as(self, plan_id: str) -> Plan:
        """Under the id that it was recorded by. It is the hash of the text as it was then: of an earlier format, or with a name in it that
        an erasure has taken out since."""
        known = replace(self)
        known.__dict__["plan_id"] = plan_id
        return known

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no white space. `ledger.codec` reads it back."""
        return json.dumps(self, default=_fields_of, sort_keys=True, separators=(",", ":"))


def _fields_of(value: object) -> dict[str, object]:
    """A dataclass's own fields; what is in them, JSON asks for again. `asdict` copies all of it first, which takes ten times as long,
    and a plan may name 100,000 documents."""
    assert is_dataclass(value)
    return {field.name: getattr(value, field.name) for field in fields(value)}
