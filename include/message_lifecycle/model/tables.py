"""A topic's tables: their history, their deletion and return, and the quarantine.

Reclaiming is planned from the history: it removes the files that only expired history needs (DEL-7). The quarantine holds refused rows (QUA-1).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFact:
    """A snapshot of a table."""

    snapshot_id: int
    parent_id: int | None
    at: Instant
    carries: tuple[str, ...] = ()
    """Writers whose progress the summary holds. A writer reads the newest ancestor that has its progress."""
    replaced_on_main_at: Instant | None = None
    """When the snapshot last stopped being the head of main. None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefFact:
    """A branch or a tag with its rules of retention: its own, or the table's. None: no rule. Durations are in microseconds."""

    name: str
    snapshot_id: int
    is_branch: bool
    max_ref_age_us: int | None = None
    max_snapshot_age_us: int | None = None
    min_snapshots: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHistory:
    """The history of one table of a topic."""

    table: str
    """The kind of the table. Empty: the log."""
    table_uuid: str
    snapshots: tuple[SnapshotFact, ...]
    refs: tuple[RefFact, ...]
    """Every branch and tag. Main is one of them if the table has a snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSize:
    """The size of a topic's log after one of its snapshots, by the snapshot's summary.

    Attributes:
        bytes: The size of the data files and delete files.
        added: The messages that the snapshot appended, without markers and restored messages.
    """

    snapshot_id: int
    at: Instant
    messages: int
    bytes: int
    added: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseQuestion:
    """The question: which files of a table can be removed if only the snapshots in `kept` stay?"""

    table: str
    kept: tuple[int, ...]
    metadata_before: Instant
    """Metadata files count as loose if they were replaced before this time."""
    orphans_before: Instant
    """Files that no metadata name count as loose if they last changed before this time."""
    limit: int
    """The most files in an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseFiles:
    """The answer to a `LooseQuestion`."""

    table: str
    files: tuple[tuple[str, str, int], ...]
    """(name, kind, bytes) of each loose file, sorted by name."""
    total_files: int
    """The number of files below the table's location."""
    total_bytes: int
    more: bool = False
    """There are more loose files than the limit."""


AskLoose = Callable[[LooseQuestion], LooseFiles]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimFacts:
    """Facts for the plan of a reclaim."""

    topic: TopicName
    tables: tuple[TableHistory, ...]
    snapshot_id: int | None
    needed_since: Instant | None = None
    """The start of the oldest open ingest or plan. Younger files stay."""
    undoable_since: Instant | None = None
    """The start of the oldest plan that an undo can still take back. The ledger may have recorded its commit much later."""
    held: tuple[str, ...] = ()
    """Descriptions of the holds on the whole topic."""
    heeded: tuple[str, ...] = ()
    accepted: Mapping[str, Value | None] | None = None
    """The settings with the last accepted removals. None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTable:
    """One of a topic's tables."""

    table: str
    """The kind of the table. Empty: the log."""
    table_uuid: str
    snapshot_id: int | None
    rows: int
    """Rows that readers see."""
    size_bytes: int
    """Bytes of the data files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A topic that a plan deleted and no undo has restored."""

    plan_id: str
    topic: TopicName
    table_uuid: str
    """The uuid of the log."""
    deleted_at: Instant
    settings: Mapping[str, Value]
    """The topic's own settings."""
    ledger: tuple[str, int] | None
    """See `ports.Topic.ledger`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic(Deletion):
    """A deleted topic with its tables."""

    tables: tuple[TopicTable, ...]
    """The log comes first."""

    @property
    def rows(self) -> int:
        """Rows of the log."""
        return sum(table.rows for table in self.tables if not table.table)

    @property
    def size_bytes(self) -> int:
        return sum(table.size_bytes for table in self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remnant:
    """Tables of a deleted topic whose log is not next to them.

    Either someone has dropped the log, and then nothing restores or reclaims these tables. Or the log still has its name, because the run
    that deleted the topic died or another table had taken the name.
    """

    plan_id: str
    topic: TopicName
    tables: tuple[str, ...]
    """Names in the catalog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """The files below the location of one table of a deleted topic. See `MovedTable` for `location` and `metadata`."""

    table: TopicTable
    location: str = ""
    metadata: str = ""
    files: tuple[tuple[str, str, int], ...] = ()
    """(name, role, bytes) of each file, sorted by name. See `RemoveFiles` for roles."""
    young: str | None = None
    """The first file that no metadata name and that is too young to be an orphan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunReclaim:
    """The catalog's record of an unfinished reclaim of a deleted topic."""

    topic: TopicName
    locations: tuple[str, ...] = ()
    """The locations of the dropped tables."""
    removed: bool = False
    """Every file is gone. Only the outcome may be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedFacts:
    """A deleted topic that no undo can restore any more."""

    topic: DeletedTopic
    tables: tuple[TableFiles, ...]
    held: tuple[str, ...] = ()
    """Descriptions of the legal holds on the topic's name."""
    heeded: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    """Readers of the topic that the ledger knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineFile:
    """A data file of the quarantine."""

    name: str
    rows: int
    """Rows that readers still see."""
    size_bytes: int
    oldest_at: Instant | None
    """When the first row was refused. None: the metadata do not say."""
    newest_at: Instant | None
    """When the last row was refused. None: the metadata do not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineState:
    """The quarantine at its newest snapshot, as its metadata describe it."""

    table_uuid: str
    snapshot_id: int | None
    """None: no row was ever refused."""
    files: tuple[QuarantineFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A row of the quarantine: its place in its source, the reason of the refusal, and its raw text (None: not kept)."""

    at: Instant
    batch: str
    file: str
    position: int
    code: str
    reason: str | None
    raw: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCount:
    """The number of quarantined rows of one file of a batch with this code."""

    at: Instant
    batch: str
    file: str
    code: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredQuarantineRows:
    """Rows that an undo has restored to the quarantine (DEL-7)."""

    times: tuple[tuple[int, int], ...]
    """Spans of the times when the rows were refused, ascending and apart from each other."""
    detail: str
    """How a person lets the rows leave again."""

    def may_be(self, file: QuarantineFile) -> bool:
        """Return True if the file may hold a restored row. An erasure or another writer may have rewritten the file since."""
        if file.oldest_at is None or file.newest_at is None:
            return True
        at = bisect_right(self.times, int(file.newest_at), key=itemgetter(0)) - 1
        return at >= 0 and self.times[at][1] >= file.oldest_at


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineReturning:
    """The rows that a plan removed from the quarantine and that an undo can restore."""

    source_id: int
    """The snapshot that holds the files."""
    files: tuple[tuple[QuarantineFile, tuple[Instant, Instant]], ...]
    """Removed files, each with the oldest and the newest time of its rows."""
    present: int
    """Removed rows that the quarantine has again already."""
