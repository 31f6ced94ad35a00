"""The plan: a frozen value that names exactly what goes, why, and under which conditions (DEL-1).

It can be printed, stored, compared, approved and carried out; nothing in it is evaluated again later.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Literal

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.rows import Place, RemovalReason, ranges_of
from message_lifecycle.model.settings import Value

PLAN_FORMAT = 4

Operation = Literal[
    "message_cleaner", "retention", "message_request", "marker_generation", "compaction", "purge_compacted", "snapshot_with_purge"
]
MARKING: frozenset[Operation] = frozenset(("message_cleaner", "retention", "message_request", "marker_generation"))
"""Operations that may leave a key without a live message, and then make its marker (MRK-1, MRK-2)."""
CLEANING: frozenset[Operation] = frozenset(("message_cleaner", "retention"))
"""Operations that remove what the topic's own rules take, and after which nothing of it is left but what somebody holds (DEL-6)."""
Holder = Literal["consumer", "replica", "compaction", "budget", "earlier_segment", "unknown_time", "active_segment", "open_approval"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What must still be true where the plan is applied."""

    table_uuid: str
    snapshot_id: int | None
    end_offsets: tuple[tuple[int, int], ...]
    """The next offset to be given, per partition, when the plan was made: what lies at or above it came later (DEL-4)."""
    policy_hash: str
    code_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A limit that planning met: nothing at or above `offset` of the partition may go, because of `name`. None: no limit."""

    name: str
    partition: int
    offset: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SealSegment:
    """Close the active segment; a new, empty one starts at `next_offset` (EXP-3)."""

    partition: int
    base_offset: int
    next_offset: int
    kind: Literal["seal_segment"] = "seal_segment"


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSegments:
    """Remove every segment from `first_base` to `last_base` of a partition, whole (EXP-5).

    Between the two bases the plan's snapshot holds exactly `segments` segments, all of which go.
    """

    partition: int
    first_base: int
    last_base: int
    last_offset: int
    segments: int
    rows: int
    size_bytes: int
    newest_at: Instant | None
    """None: not known, and not asked by the reason."""
    reason: Literal["expiry", "compacted"] = "expiry"
    kind: Literal["drop_segments"] = "drop_segments"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRows:
    """Remove single messages of one data file, named by their offsets (TTL-7, EXP-5, CLK-4)."""

    partition: int
    base_offset: int
    file: str
    offsets: str
    """As `rows.ranges_text`."""
    first_offset: int
    last_offset: int
    rows: int
    reason: RemovalReason
    kind: Literal["remove_rows"] = "remove_rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepMarkers:
    """Make the markers still owed for what another writer removed in these snapshots, oldest first (MRK-2)."""

    removals: tuple[int, ...]
    kind: Literal["sweep_markers"] = "sweep_markers"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactPartition:
    """Bring the view's partition up from the horizon `after` to `through`; equal: nothing new, only what is due in the view goes."""

    partition: int
    after: int
    through: int
    rows: int
    kind: Literal["compact_partition"] = "compact_partition"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveViewRows:
    """Remove single messages of the compacted view, named by their offsets (PRG-1). `superseded`: of keys of which this very plan takes a
    newer message, not compacted yet, from the log (CMP-9)."""

    partition: int
    offsets: str
    """As `rows.ranges_text`."""
    rows: int
    reason: Literal["removed", "purged", "superseded"]
    kind: Literal["remove_view_rows"] = "remove_view_rows"


PurgeReason = Literal["purged_synced", "purged_age", "purged_count"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDocument:
    """What happens to one document (SNP-1, SNP-4, SNP-7, SNP-8).

    `seq`: its newest change when this was planned. `after`: the newest proved snapshot, from which the fold goes on (0: from nothing).
    `snapshot`: a new one at this server_seq. `epoch`: the document's from here on, raised by one where changes go. `dropped`: snapshots
    that go. `purged`: how many changes go, the first at `purge_from`, all below `purge_before`; `reason`: the bound that was the lowest.
    `bounds`: every bound that planning met, as (name, lowest server_seq that stays)."""

    document: str
    seq: int
    after: int
    snapshot: int | None
    epoch: int
    dropped: tuple[int, ...] = ()
    purge_from: int = 0
    purge_before: int = 0
    reason: PurgeReason | None = None
    bounds: tuple[tuple[str, int], ...] = ()
    kind: Literal["snapshot_document"] = "snapshot_document"

    @property
    def purged(self) -> int:
        return max(0, self.purge_before - self.purge_from)


Action = SealSegment | DropSegments | RemoveRows | SweepMarkers | CompactPartition | RemoveViewRows | SnapshotDocument


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
    view: ViewRequirements | None = None
    snapshots: SnapshotRequirements | None = None
    format: int = PLAN_FORMAT

    @property
    def is_empty(self) -> bool:
        return not self.actions

    @cached_property
    def of_log(self) -> bool:
        """Whether it changes the log, and not its compacted view alone."""
        return any(not isinstance(action, RemoveViewRows) for action in self.actions)

    @property
    def past_horizon(self) -> bool:
        """Whether an age takes messages that compaction has not seen (CMP-9)."""
        return self.operation == "message_cleaner" and self.view is not None

    def taking(self, partition: int, offset: int) -> DropSegments | RemoveRows | None:
        """The action that takes the message at this offset."""
        for action in self.actions:
            match action:
                case DropSegments() if action.partition == partition and action.first_base <= offset <= action.last_offset:
                    return action
                case RemoveRows() if action.partition == partition and action.first_offset <= offset <= action.last_offset:
                    if any(offset in run for run in ranges_of(action.offsets)):
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
    def view_removals(self) -> tuple[RemoveViewRows, ...]:
        return tuple(action for action in self.actions if isinstance(action, RemoveViewRows))

    @cached_property
    def row_removals(self) -> tuple[RemoveRows, ...]:
        return tuple(action for action in self.actions if isinstance(action, RemoveRows))

    @cached_property
    def expiring_by_row(self) -> frozenset[Place]:
        """Segments that expire but for messages that stay (EXP-5, CLK-4)."""
        return frozenset((action.partition, action.base_offset) for action in self.row_removals if action.reason == "expiry")

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

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no white space. `ledger.codec` reads it back."""
        return json.dumps(self, default=_fields_of, sort_keys=True, separators=(",", ":"))


def _fields_of(value: object) -> dict[str, object]:
    """A dataclass's own fields; what is in them, JSON asks for again. `asdict` copies all of it first, which takes ten times as long,
    and a plan may name 100,000 documents."""
    assert is_dataclass(value)
    return {field.name: getattr(value, field.name) for field in fields(value)}
