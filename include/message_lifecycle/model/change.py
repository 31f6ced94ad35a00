"""What a plan does: an ordered list of changes, each of one table or of a topic's tables together, and each in one commit (DEL-1).

    CommitLog          messages leave the log or return to it, and its state moves
    CommitView         messages leave the compacted view or return to it, or a compaction brings it up to date
    CommitSnapshots    new snapshots of documents are made, old ones leave or return
    CommitChanges      changes of documents return
    CommitQuarantine   files of refused rows leave or return
    Rewrite            a table is written again without an erased key, and its history ends
    Forget             snapshots that nothing needs leave, and then files
    DeleteTables       a topic's tables lose their names, and an undo finds them
    RestoreTables      they get their names back
    DropTables         they are dropped for good, before their files are removed

A change names exactly what it touches: files and segments that go whole, and single rows by their offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Generic, Literal, TypeVar

from message_lifecycle.model.document import DocumentState
from message_lifecycle.model.erasure import TableKind
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import first_of, last_of, ranges_of
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.reasons import PurgeReason, RemovalReason

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Handlers(Generic[T]):
    """One function for each kind of change. `dispatch` of a change calls the right one, so no caller asks a change for its kind."""

    log: Callable[[CommitLog], T]
    view: Callable[[CommitView], T]
    snapshots: Callable[[CommitSnapshots], T]
    changes: Callable[[CommitChanges], T]
    quarantine: Callable[[CommitQuarantine], T]
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
    """Every segment from `first_base` to `last_base` of a partition goes, whole (EXP-5).

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Single messages of one partition, named by their offsets.

    Of the log they are those of one data file (TTL-7, EXP-5, CLK-4). The view says no file: where its messages lie is looked up."""

    partition: int
    offsets: str
    """As `rows.ranges_text`, never empty."""
    rows: int
    file: str = ""
    base_offset: int = 0
    """Of the segment; 0 where no file is said."""

    @property
    def first_offset(self) -> int:
        return first_of(self.offsets)

    @property
    def last_offset(self) -> int:
        return last_of(self.offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRows(Rows):
    """They are marked, so that no reader sees them. `superseded`: rows of the view whose key loses, by this plan, a newer message
    of the log that is not compacted yet (CMP-9)."""

    reason: RemovalReason


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRows(Rows):
    """What an earlier plan took comes back, each message as it was and at its old place (DEL-7).

    `file`: as the plan's source names it. `standing`: the table has it still, and marks are taken off it; else its content comes back
    under a fresh name, for a path that a table has let go may be deleted by any other engine."""

    size_bytes: int = 0
    """Of the file."""
    standing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactPartition:
    """Bring the view's partition up from the horizon `after` to `through`; equal: nothing new, only what is due in the view goes."""

    partition: int
    after: int
    through: int
    rows: int


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

    @property
    def purged(self) -> int:
        return max(0, self.purge_before - self.purge_from)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreDocument:
    """What an earlier plan took of one document comes back, each row as it was (DEL-7): changes from `changes_from` to before
    `changes_before`, or `snapshots` by their server_seq."""

    document: str
    changes_from: int = 0
    changes_before: int = 0
    snapshots: tuple[int, ...] = ()

    @property
    def changes(self) -> int:
        return max(0, self.changes_before - self.changes_from)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedFile:
    """One file of the quarantine, all of whose rows have reached their age (QUA-1); `oldest_at`, `newest_at`: when they were refused.

    It comes back as a copy under a fresh path (DEL-7)."""

    file: str
    rows: int
    size_bytes: int
    oldest_at: Instant
    newest_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit on one table, in the class of its table. Rows that it does not name stay as they are."""

    source_id: int | None = None
    """The table's snapshot that holds the rows which return."""

    @property
    def is_empty(self) -> bool:
        return not any(isinstance(named, tuple) and named for named in (getattr(self, field.name) for field in fields(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLog(Commit):
    """On the log."""

    seal: tuple[SealSegment, ...] = ()
    drop: tuple[DropSegments, ...] = ()
    mark: tuple[RemoveRows, ...] = ()
    back: tuple[RestoreRows, ...] = ()
    sweep: tuple[int, ...] = ()
    """Snapshots of another writer's removals, oldest first, for which markers are still owed (MRK-2)."""
    keep: str | None = None
    """The folder of an archive that keeps the removed messages (RET-7)."""
    kind: Literal["log"] = "log"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.log(self)

    def taken(self) -> Iterator[tuple[int, range]]:
        """Return runs of offsets that leave, each with its partition."""
        yield from ((run.partition, range(run.first_base, run.last_offset + 1)) for run in self.drop)
        yield from ((rows.partition, run) for rows in self.mark for run in ranges_of(rows.offsets))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitView(Commit):
    """On the compacted view."""

    mark: tuple[RemoveRows, ...] = ()
    back: tuple[RestoreRows, ...] = ()
    compact: tuple[CompactPartition, ...] = ()
    kind: Literal["view"] = "view"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.view(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSnapshots(Commit):
    """On the snapshots of documents. A second commit follows on their changes, which removes what the new snapshots cover (SNP-4)."""

    documents: tuple[SnapshotDocument, ...] = ()
    documents_back: tuple[RestoreDocument, ...] = ()
    kind: Literal["snapshots"] = "snapshots"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.snapshots(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitChanges(Commit):
    """On the changes of documents."""

    documents_back: tuple[RestoreDocument, ...] = ()
    kind: Literal["changes"] = "changes"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.changes(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitQuarantine(Commit):
    """On the quarantine."""

    files: tuple[QuarantinedFile, ...] = ()
    """Files that leave."""
    files_back: tuple[QuarantinedFile, ...] = ()
    kind: Literal["quarantine"] = "quarantine"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.quarantine(self)


AnyCommit = CommitLog | CommitView | CommitSnapshots | CommitChanges | CommitQuarantine


def non_empty(*commits: AnyCommit) -> tuple[AnyCommit, ...]:
    """Return the commits that change anything, in order."""
    return tuple(commit for commit in commits if not commit.is_empty)


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseRows(Rows):
    """One data file is written again without the rows of an erased key, wherever a ref or an open undo reads it (DEL-7, CMP-8).

    `offsets`: of all rows of the key in its bytes; `rows`: how many, `live`: of those, how many readers of main still see."""

    live: int
    reason: Literal["erased"] = "erased"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """A table's history ends: every ref ends on a snapshot without the erased key; all other snapshots go, and their files at once.

    `rows`: by file; `refs`: branches and tags with their snapshots; `undo`: plans whose undo is open, with the snapshot before each one's
    commit, for each of which a branch is made; `snapshots`: all that the table remembers; `files`: those with the key that history alone
    names."""

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
    """Files of one role that nothing that stays needs (DEL-7), named relative to the table's location.

    `role`: data, vector (a delete file), manifest, list (of manifests), statistics, metadata, or orphan (named by nothing)."""

    role: str
    files: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Snapshots and refs of one of the topic's tables are forgotten, and then files go (DEL-7). `table`: its kind, empty for the log.

    `kept`: how many snapshots stay, by the first reason that applies."""

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
    """One of a topic's tables; `table`: its kind, empty for the log.

    Of one that is forgotten for good, `location`: where its files lie, which no catalog tells afterwards; `metadata`: the newest of its
    documents below it, by which it is known that nothing came since. Both empty in a store without files."""

    table: str
    table_uuid: str
    snapshot_id: int | None
    rows: int
    size_bytes: int = 0
    location: str = ""
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfTables:
    """All tables of a topic, in one commit (DEL-7)."""

    tables: tuple[MovedTable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTables(OfTables):
    """They lose their names. An undo finds them."""

    kind: Literal["delete_tables"] = "delete_tables"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.delete_tables(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreTables(OfTables):
    """They get their names back."""

    kind: Literal["restore_tables"] = "restore_tables"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.restore_tables(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTables(OfTables):
    """They are dropped for good, before their files are removed."""

    kind: Literal["drop_tables"] = "drop_tables"

    def dispatch(self, handlers: Handlers[T]) -> T:
        return handlers.drop_tables(self)


Change = AnyCommit | Rewrite | Forget | DeleteTables | RestoreTables | DropTables


# What comes back when a plan is taken back, and what is remembered of it (DEL-7).


Range = tuple[int, int, int]
"""(partition, first offset, last offset), both included."""
QUARANTINE = -1
"""In place of a partition: not of the log, but of the quarantine, whose rows are known by when they were refused (microseconds)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returning:
    """Where the messages lie that a plan took and that are not in the log now. `source_id`: the snapshot that holds them; None: the plan
    took nothing from the log.

    `markers`: the plan's own that are still there. `present`: messages that it took and that are there again already."""

    source_id: int | None
    rows: tuple[RestoreRows, ...] = ()
    markers: tuple[RemoveRows, ...] = ()
    present: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturningView:
    """What a plan took from the compacted view and that is not in it now. `source_id`: the view's snapshot that holds it. `newest`: of each of their keys, by partition, the highest
    offset of them. `gone`: messages that it took and that no file has any more."""

    source_id: int | None = None
    rows: tuple[RestoreRows, ...] = ()
    newest: Mapping[tuple[int, bytes], int] = field(default_factory=dict)
    gone: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentsBefore:
    """Documents as they were before a plan's commits, by name, and the snapshots of both tables that show it; None: the plan took nothing
    from that table."""

    changes_id: int | None
    snapshots_id: int | None
    states: Mapping[str, DocumentState]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a plan has done to the log, by the table itself. `files`: names of the data files that its commit took out. Of an undo what is
    there when the table is read again: `rows` of its messages, `twice` those that are there more than once, `markers` of those that it
    takes away."""

    files: tuple[str, ...] = ()
    rows: int = 0
    twice: int = 0
    markers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """A plan that was taken back by the plan `undone_by`. What came back lies in `ranges`, and nothing takes it again until a person
    releases it."""

    plan_id: str
    topic: TopicName
    undone_by: str
    undone_at: Instant
    ranges: tuple[Range, ...]
    released_at: Instant | None = None
    released_by: str | None = None
    text: str | None = None


def lies_in(ranges: tuple[Range, ...], partition: int, offset: int) -> bool:
    return any(of == partition and first <= offset <= last for of, first, last in ranges)


def ranges_in(rows: Iterable[RestoreRows], files: Iterable[QuarantinedFile] = ()) -> tuple[Range, ...]:
    """The runs of offsets that come back, and times of refusal, in order; runs that meet, or of the log and its view lie on each other, are
    one."""
    spans = [(one.partition, run.start, run.stop - 1) for one in rows for run in ranges_of(one.offsets)]
    found: list[Range] = []
    for partition, first, last in sorted([*spans, *((QUARANTINE, file.oldest_at, file.newest_at) for file in files)]):
        if found and found[-1][0] == partition and found[-1][2] + 1 >= first:
            found[-1] = partition, found[-1][1], max(found[-1][2], last)
        else:
            found.append((partition, first, last))
    return tuple(found)
