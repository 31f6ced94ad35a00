"""The changes of a plan, in order. A change is one commit on one table, or on all tables of a topic (DEL-1).

    CommitLog           Messages leave the log. The state of the log moves.
    ReturnToLog         Messages return to the log.
    CompactView         A compaction updates the compacted view.
    RemoveFromView      Messages leave the compacted view.
    ReturnToView        Messages return to the compacted view.
    CommitSnapshots     Documents get new snapshots, and old snapshots leave. Then changes leave that the snapshots cover.
    ReturnSnapshots     Snapshots of documents return.
    ReturnChanges       Changes of documents return.
    CommitQuarantine    Files of refused rows leave the quarantine.
    ReturnToQuarantine  Files of refused rows return to the quarantine.
    Rewrite             A table is rewritten without an erased key, and its history ends.
    Forget              Unneeded snapshots expire, and then their files are removed.
    DeleteTables        A topic's tables lose their names. An undo finds them.
    RestoreTables       The tables get their names back.
    DropTables          The tables are dropped for good, before their files are removed.

A change names exactly what it touches: whole files, whole segments, and single rows by their offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import ClassVar, Generic, Literal, TypeVar

from message_lifecycle.model.erasure import TableKind
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import highest_offset, lowest_offset, parse_ranges_text
from message_lifecycle.model.reasons import PurgeReason, RemovalReason

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers(Generic[T]):
    """One function for each kind of change. `dispatch` of a change calls the right one, so no caller asks a change for its kind."""

    log: Callable[[CommitLog], T]
    log_return: Callable[[ReturnToLog], T]
    view: Callable[[CompactView], T]
    view_removal: Callable[[RemoveFromView], T]
    view_return: Callable[[ReturnToView], T]
    snapshots: Callable[[CommitSnapshots], T]
    snapshots_return: Callable[[ReturnSnapshots], T]
    changes_return: Callable[[ReturnChanges], T]
    quarantine: Callable[[CommitQuarantine], T]
    quarantine_return: Callable[[ReturnToQuarantine], T]
    rewrite: Callable[[Rewrite], T]
    forget: Callable[[Forget], T]
    delete_tables: Callable[[DeleteTables], T]
    restore_tables: Callable[[RestoreTables], T]
    drop_tables: Callable[[DropTables], T]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealSegment:
    """Close the active segment; a new, empty one starts at `next_offset` (EXP-3)."""

    partition: int
    base_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSegments:
    """Remove whole every segment from `first_base` to `last_base` of a partition (EXP-5).

    The plan's snapshot holds exactly `segments` segments between the two bases. The plan removes every one.
    """

    partition: int
    first_base: int
    last_base: int
    last_offset: int
    segments: int
    rows: int
    size_bytes: int
    newest_at: Instant | None
    """None: unknown. The reason does not need this time."""
    reason: Literal["expiry", "compacted"] = "expiry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Single messages of one partition, named by their offsets.

    Messages of the log belong to one data file (TTL-7, EXP-5, CLK-4). Messages of the view name no file, so the commit finds their files.
    """

    partition: int
    offsets: str
    """As `message.ranges_text`, never empty."""
    rows: int
    file: str = ""
    base_offset: int = 0
    """The base offset of the segment. 0 if `file` is empty."""

    @property
    def first_offset(self) -> int:
        return lowest_offset(self.offsets)

    @property
    def last_offset(self) -> int:
        return highest_offset(self.offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRows(Rows):
    """Mark the rows as deleted, so that no reader sees them.

    The reason `superseded` is for rows of the view. The plan removes a newer message of their key that compaction has not read yet (CMP-9).
    """

    reason: RemovalReason


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRows(Rows):
    """Restore messages that an earlier plan removed, each unchanged and at its old place (DEL-7).

    Attributes:
        file: The name of the file in the plan's source.
        size_bytes: The size of the file.
        standing: True if the table still has the file. The commit then only removes the delete marks. Otherwise the content returns under a
            fresh name, because another engine may delete a path that the table has dropped.
    """

    size_bytes: int = 0
    standing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactPartition:
    """Bring the view's partition up from the horizon `after` to `through`.

    If both are equal, the log has nothing new. Only due messages then leave the view.
    """

    partition: int
    after: int
    through: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDocument:
    """The planned change of one document (SNP-1, SNP-4, SNP-7, SNP-8).

    Attributes:
        seq: The newest change of the document at planning time.
        after: The newest proved snapshot, where the fold starts. 0: the fold starts from nothing.
        snapshot: The server_seq of a new snapshot. None: no new snapshot.
        epoch: The new epoch of the document. A purge of changes raises the epoch by one.
        dropped: Snapshots that leave.
        purge_from: The first change that leaves.
        purge_before: Every change that leaves is below this server_seq.
        reason: The name of the lowest bound.
        bounds: Every bound that planning met, as (name, lowest server_seq that stays).
    """

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

    @property
    def purged(self) -> int:
        return max(0, self.purge_before - self.purge_from)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreDocument:
    """Restore the rows of one document that an earlier plan removed, each unchanged (DEL-7).

    Attributes:
        changes_from: The first change that returns.
        changes_before: Every change that returns is below this server_seq.
        snapshots: The snapshots that return, by server_seq.
    """

    document: str
    changes_from: int = 0
    changes_before: int = 0
    snapshots: tuple[int, ...] = ()

    @property
    def changes(self) -> int:
        return max(0, self.changes_before - self.changes_from)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedFile:
    """One file of the quarantine. Every row of the file has reached its age (QUA-1), or came in again by a replay.

    An undo restores the file as a copy under a fresh path (DEL-7). `oldest_at` and `newest_at` say when the rows were refused.
    """

    file: str
    rows: int
    size_bytes: int
    oldest_at: Instant
    newest_at: Instant


class _Change:
    """A change of a plan."""

    __slots__ = ()

    later_stores: ClassVar[tuple[str, ...]] = ()
    """Stores of further commits. The store of the change's kind makes the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(_Change):
    """One commit on one table. The commit leaves rows alone that it does not name."""

    @property
    def is_empty(self) -> bool:
        return not any(isinstance(named, tuple) and named for named in (getattr(self, field.name) for field in fields(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Return(Commit):
    """A commit of an undo, which returns rows from the table's history."""

    source_id: int | None = None
    """The table's snapshot that holds the returning rows. None: no row returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLog(Commit):
    """One commit on the log, which loses the named messages."""

    seal: tuple[SealSegment, ...] = ()
    drop: tuple[DropSegments, ...] = ()
    mark: tuple[RemoveRows, ...] = ()
    sweep: tuple[int, ...] = ()
    """Snapshots of removals by another writer, oldest first. The log still owes markers for them (MRK-2)."""
    keep: str | None = None
    """The folder of an archive that keeps the removed messages (RET-7)."""
    kind: Literal["log"] = "log"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.log(self)

    def removed_runs(self) -> Iterator[tuple[int, range]]:
        """Return runs of offsets that leave, each with its partition."""
        yield from ((run.partition, range(run.first_base, run.last_offset + 1)) for run in self.drop)
        yield from ((rows.partition, run) for rows in self.mark for run in parse_ranges_text(rows.offsets))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnToLog(Return):
    """One commit on the log, which gets the named messages back and loses the markers of the undone plan."""

    back: tuple[RestoreRows, ...] = ()
    mark: tuple[RemoveRows, ...] = ()
    """The markers."""
    kind: Literal["log_return"] = "log_return"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.log_return(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactView(Commit):
    """One commit on the compacted view: a compaction."""

    compact: tuple[CompactPartition, ...] = ()
    kind: Literal["view"] = "view"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.view(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveFromView(Commit):
    """One commit on the compacted view, which loses the named messages."""

    mark: tuple[RemoveRows, ...] = ()
    kind: Literal["view_removal"] = "view_removal"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.view_removal(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnToView(Return):
    """One commit on the compacted view, which gets the named messages back."""

    back: tuple[RestoreRows, ...] = ()
    kind: Literal["view_return"] = "view_return"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.view_return(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSnapshots(Commit):
    """One commit on the snapshots of documents, and a second commit, on the changes, that removes what the new snapshots cover (SNP-4)."""

    later_stores = ("changes",)
    documents: tuple[SnapshotDocument, ...] = ()
    kind: Literal["snapshots"] = "snapshots"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.snapshots(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnSnapshots(Return):
    """One commit on the snapshots of documents, which get the named snapshots back."""

    documents: tuple[RestoreDocument, ...] = ()
    kind: Literal["snapshots_return"] = "snapshots_return"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.snapshots_return(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnChanges(Return):
    """One commit on the changes of documents, which get the named changes back."""

    documents: tuple[RestoreDocument, ...] = ()
    kind: Literal["changes_return"] = "changes_return"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.changes_return(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitQuarantine(Commit):
    """One commit on the quarantine, which loses the named files."""

    files: tuple[QuarantinedFile, ...] = ()
    kind: Literal["quarantine"] = "quarantine"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.quarantine(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnToQuarantine(Return):
    """One commit on the quarantine, which gets the named files back."""

    files: tuple[QuarantinedFile, ...] = ()
    kind: Literal["quarantine_return"] = "quarantine_return"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.quarantine_return(self)


AnyCommit = (
    CommitLog
    | ReturnToLog
    | CompactView
    | RemoveFromView
    | ReturnToView
    | CommitSnapshots
    | ReturnSnapshots
    | ReturnChanges
    | CommitQuarantine
    | ReturnToQuarantine
)


def non_empty_commits(*commits: AnyCommit) -> tuple[AnyCommit, ...]:
    """Return the commits that change anything, in order."""
    return tuple(commit for commit in commits if not commit.is_empty)


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseRows(Rows):
    """Rewrite one data file without the rows of an erased key. A ref or an open undo reads the file (DEL-7, CMP-8).

    Attributes:
        offsets: The offsets of every row of the key in the file's bytes.
        rows: The number of these rows.
        live: The number of these rows that readers of main still see.
    """

    live: int
    reason: Literal["erased"] = "erased"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite(_Change):
    """End a table's history.

    Every ref then ends on a snapshot without the erased key. The other snapshots and their files leave at once.

    Attributes:
        rows: The rows of the key, file by file.
        refs: Branches and tags with their snapshots.
        undo: Plans with an open undo, each with the snapshot before its commit. The commit makes a branch for each plan.
        snapshots: Every snapshot that the table remembers.
        files: Files with the key that only the history names.
    """

    table: TableKind
    table_uuid: str
    rows: tuple[EraseRows, ...]
    refs: tuple[tuple[str, int], ...]
    undo: tuple[tuple[str, int], ...]
    snapshots: tuple[int, ...]
    files: tuple[str, ...]
    kind: Literal["rewrite"] = "rewrite"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.rewrite(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveFiles:
    """Remove files of one role that no remaining snapshot needs (DEL-7). Names are relative to the table's location.

    Attributes:
        role: data, vector (a delete file), manifest, list (of manifests), statistics, metadata, or orphan (a file that nothing names).
    """

    role: str
    files: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget(_Change):
    """Expire snapshots and refs of one of the topic's tables, and then remove files (DEL-7).

    Attributes:
        table: The kind of the table. Empty for the log.
        kept: The number of snapshots that stay, by the first reason that applies.
    """

    table: str
    table_uuid: str
    snapshots: tuple[int, ...] = ()
    refs: tuple[str, ...] = ()
    kept: tuple[tuple[str, int], ...] = ()
    files: tuple[RemoveFiles, ...] = ()
    kind: Literal["forget"] = "forget"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.forget(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedTable:
    """One of a topic's tables.

    Attributes:
        table: The kind of the table. Empty for the log.
        location: The folder of the files, in the plan of a final removal only. No catalog knows the folder afterwards.
        metadata: The newest metadata file below the location, in the same plan. If this file is still the newest, no commit came since.

    `location` and `metadata` are empty in a store without files.
    """

    table: str
    table_uuid: str
    snapshot_id: int | None
    rows: int
    size_bytes: int = 0
    location: str = ""
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfTables(_Change):
    """One commit on all tables of a topic (DEL-7)."""

    tables: tuple[MovedTable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTables(OfTables):
    """The tables lose their names. An undo finds them."""

    kind: Literal["delete_tables"] = "delete_tables"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.delete_tables(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreTables(OfTables):
    """The tables get their names back."""

    kind: Literal["restore_tables"] = "restore_tables"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.restore_tables(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTables(OfTables):
    """The tables are dropped for good, before their files are removed."""

    forgets: tuple[Forget, ...]
    """The files, table by table."""
    kind: Literal["drop_tables"] = "drop_tables"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.drop_tables(self)


Change = AnyCommit | Rewrite | Forget | DeleteTables | RestoreTables | DropTables
