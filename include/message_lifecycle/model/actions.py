"""What a plan does, action by action: a closed union, each kind of which names exactly what it changes (DEL-1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from message_lifecycle.model.erasure import TableKind
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.rows import RemovalReason


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseRows:
    """Write one data file again without the rows of an erased key, wherever a ref or an open undo reads it (DEL-7, CMP-8).

    `offsets`: of all rows of the key in its bytes, as `rows.ranges_text`; `rows`: how many, `live`: of those, how many readers of main
    still see."""

    table: TableKind
    partition: int
    base_offset: int
    file: str
    offsets: str
    rows: int
    live: int
    reason: Literal["erased"] = "erased"
    kind: Literal["erase_rows"] = "erase_rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseTable:
    """End a table's history: every ref is left on a snapshot that reads nothing of the key, all others go, and their files at once.

    `refs`: branches and tags with their snapshots; `undo`: plans whose undo is open, with the snapshot before each one's commit, for
    each of which a branch is made; `snapshots`: all that the table remembers; `files`: those with the key that history alone names."""

    table: TableKind
    table_uuid: str
    refs: tuple[tuple[str, int], ...]
    undo: tuple[tuple[str, int], ...]
    snapshots: tuple[int, ...]
    files: tuple[str, ...]
    kind: Literal["erase_table"] = "erase_table"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRows:
    """Bring back messages that an earlier plan took out of one data file, each as it was and at its old place (DEL-7).

    `file`: as the plan's source names it. `standing`: the table has it still, and marks are taken off it; else its content comes back
    under a fresh name, for a path that a table has let go may be deleted by any other engine."""

    partition: int
    base_offset: int
    file: str
    offsets: str
    """As `rows.ranges_text`."""
    first_offset: int
    last_offset: int
    rows: int
    size_bytes: int
    """Of the file."""
    standing: bool
    kind: Literal["restore_rows"] = "restore_rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreViewRows:
    """Bring back messages that an earlier plan took from the compacted view, each as it was (DEL-7). `source_id`: the view's snapshot that
    holds them; where they lie in it is looked up by their offsets."""

    partition: int
    offsets: str
    """As `rows.ranges_text`."""
    rows: int
    source_id: int
    kind: Literal["restore_view_rows"] = "restore_view_rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreDocument:
    """Bring back what an earlier plan took of one document, each row as it was (DEL-7): changes from `changes_from` to before
    `changes_before`, and `snapshots` by their server_seq. `source_id`: the snapshot of their table that holds those; of the changes the
    plan says it."""

    document: str
    changes_from: int = 0
    changes_before: int = 0
    snapshots: tuple[int, ...] = ()
    source_id: int | None = None
    kind: Literal["restore_document"] = "restore_document"

    @property
    def changes(self) -> int:
        return max(0, self.changes_before - self.changes_from)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireSnapshots:
    """Forget these snapshots and refs of one of the topic's tables (DEL-7). `table`: its kind, empty for the log itself.

    `kept`: how many snapshots stay, by the first reason that applies."""

    table: str
    table_uuid: str
    snapshots: tuple[int, ...]
    refs: tuple[str, ...]
    kept: tuple[tuple[str, int], ...]
    kind: Literal["expire_snapshots"] = "expire_snapshots"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveFiles:
    """Remove these files of one of the topic's tables, which nothing that stays needs (DEL-7); named relative to the table's location.

    `role`: data, vector (a delete file), manifest, list (of manifests), statistics, metadata, or orphan (named by nothing)."""

    table: str
    table_uuid: str
    role: str
    files: tuple[str, ...]
    size_bytes: int
    kind: Literal["remove_files"] = "remove_files"


@dataclass(frozen=True, slots=True, kw_only=True)
class DropQuarantined:
    """Remove one file of the quarantine, all of whose rows have reached their age (QUA-1); `oldest_at`, `newest_at`: when they were refused."""

    file: str
    rows: int
    size_bytes: int
    oldest_at: Instant
    newest_at: Instant
    kind: Literal["drop_quarantined"] = "drop_quarantined"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreQuarantined:
    """Bring back one file of the quarantine that an earlier plan took, as a copy under a fresh path (DEL-7); `oldest_at`, `newest_at`: when
    its rows were refused. What snapshot holds it the plan says."""

    file: str
    rows: int
    size_bytes: int
    oldest_at: Instant
    newest_at: Instant
    kind: Literal["restore_quarantined"] = "restore_quarantined"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTable:
    """Take one of the topic's tables out of its names, all of them in one commit (DEL-7). `table`: its kind, empty for the log itself."""

    table: str
    table_uuid: str
    snapshot_id: int | None
    rows: int
    size_bytes: int
    kind: Literal["delete_table"] = "delete_table"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnTable:
    """Give one of a deleted topic's tables its name again, all of them in one commit (DEL-7)."""

    table: str
    table_uuid: str
    snapshot_id: int | None
    rows: int
    size_bytes: int
    kind: Literal["return_table"] = "return_table"


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTable:
    """Forget one of a deleted topic's tables for good, all of them in one commit, before their files go (DEL-7).

    `location`: where its files lie, which no catalog tells afterwards; `metadata`: the newest of its documents below it, by which it is
    known that nothing came since. Both empty in a store without files."""

    table: str
    table_uuid: str
    snapshot_id: int | None
    rows: int
    location: str = ""
    metadata: str = ""
    kind: Literal["drop_table"] = "drop_table"


Action = (
    SealSegment
    | DropSegments
    | RemoveRows
    | SweepMarkers
    | CompactPartition
    | RemoveViewRows
    | SnapshotDocument
    | RestoreRows
    | RestoreViewRows
    | RestoreDocument
    | EraseRows
    | EraseTable
    | ExpireSnapshots
    | RemoveFiles
    | DropQuarantined
    | RestoreQuarantined
    | DeleteTable
    | ReturnTable
    | DropTable
)
