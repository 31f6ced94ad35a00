"""A topic's tables: what they remember of their past, how they are deleted and brought back whole, and what lies in the quarantine.

Reclaiming is planned from their past: which files it alone needs (DEL-7). The quarantine holds rows that broke a rule (QUA-1).
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
    """`carries`: whose word stands in its summary (a writer's progress, our own state): they look for it in the newest ancestor that has it.
    `main_left_at`: when another became the newest of main in its place, the last time; None: main's log does not tell."""

    snapshot_id: int
    parent_id: int | None
    at: Instant
    carries: tuple[str, ...] = ()
    main_left_at: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefFact:
    """A branch or a tag, with its own rules, or the table's where it has none; None: no rule. Durations in microseconds."""

    name: str
    snapshot_id: int
    is_branch: bool
    max_ref_age_us: int | None = None
    max_snapshot_age_us: int | None = None
    min_snapshots: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHistory:
    """One table of a topic. `table`: its kind, empty for the log itself. `refs` with main among them, where the table has a snapshot."""

    table: str
    table_uuid: str
    snapshots: tuple[SnapshotFact, ...]
    refs: tuple[RefFact, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseQuestion:
    """Which files of a table may go if `kept` alone of its snapshots stay.

    Metadata files replaced before `metadata_before` count as loose, and files that nothing names if they last changed before
    `orphans_before`. At the most `limit` files are told."""

    table: str
    kept: tuple[int, ...]
    metadata_before: Instant
    orphans_before: Instant
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseFiles:
    """The answer. `files`: name, kind and bytes of each, by name. `total_files` and `total_bytes`: of all that lies below the table's
    location. `more`: there are others beyond the limit."""

    table: str
    files: tuple[tuple[str, str, int], ...]
    total_files: int
    total_bytes: int
    more: bool = False


AskLoose = Callable[[LooseQuestion], LooseFiles]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimFacts:
    """`needed_since`: the beginning of the oldest ingest or plan that is still open; nothing younger may go. `undoable_since`: the same of
    plans that can still be taken back by the ledger's clock, which may have recorded a commit long after it was made. `held`: what holds
    the whole topic, in words. `accepted`: the settings under which its removals were last accepted; None: unknown."""

    topic: TopicName
    tables: tuple[TableHistory, ...]
    snapshot_id: int | None
    needed_since: Instant | None = None
    undoable_since: Instant | None = None
    held: tuple[str, ...] = ()
    heeded: tuple[str, ...] = ()
    accepted: Mapping[str, Value | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTable:
    """One of a topic's tables. `table`: its kind, empty for the log itself. `rows`: those that a reader sees; `size_bytes`: of its data
    files."""

    table: str
    table_uuid: str
    snapshot_id: int | None
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A topic that the plan deleted, and that was not brought back. `table_uuid`: of its log; `settings`: its own; `ledger`: as
    `ports.Topic.ledger`."""

    plan_id: str
    topic: TopicName
    table_uuid: str
    deleted_at: Instant
    settings: Mapping[str, Value]
    ledger: tuple[str, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic(Deletion):
    """With its tables, the log first, and what they hold."""

    tables: tuple[TopicTable, ...]

    @property
    def rows(self) -> int:
        """Of the log."""
        return sum(table.rows for table in self.tables if not table.table)

    @property
    def size_bytes(self) -> int:
        return sum(table.size_bytes for table in self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remnant:
    """What a deletion has taken away and that lies there without its log. Where somebody has dropped that, nothing brings it back or reclaims
    it; else the log stands at its place, as the deletion has died, or another table has the name. `tables`: names in the catalog."""

    plan_id: str
    topic: TopicName
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """All that lies below the location of one of a deleted topic's tables. `location` and `metadata`: as `DropTable` has them.

    `files`: name, role (as `RemoveFiles` has it) and bytes of each, by name; `young`: of those that nothing names, the first that is not
    old enough to be nobody's."""

    table: TopicTable
    location: str = ""
    metadata: str = ""
    files: tuple[tuple[str, str, int], ...] = ()
    young: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunReclaim:
    """What the catalog tells of a reclaim of a deleted topic that has begun: `locations` of its tables, which are forgotten; `removed`:
    its files have gone, and its outcome alone may not be written yet."""

    topic: TopicName
    locations: tuple[str, ...] = ()
    removed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedFacts:
    """A deleted topic that cannot be brought back any more. `held`: the legal holds on its name, in words; `readers`: who the ledger says
    reads it."""

    topic: DeletedTopic
    tables: tuple[TableFiles, ...]
    held: tuple[str, ...] = ()
    heeded: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineFile:
    """`oldest_at`, `newest_at`: when its rows were refused; None: the metadata does not say. `rows`: those still to be read."""

    name: str
    rows: int
    size_bytes: int
    oldest_at: Instant | None
    newest_at: Instant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineState:
    """The quarantine at its newest snapshot, by metadata alone. `snapshot_id` None: nothing was ever refused."""

    table_uuid: str
    snapshot_id: int | None
    files: tuple[QuarantineFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A row of the quarantine: where it stood in its source, why it was refused, and its raw text. `raw` None: nothing was kept."""

    at: Instant
    batch: str
    file: str
    position: int
    code: str
    reason: str | None
    raw: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCount:
    """How many rows of one file of a batch are in the quarantine by this code."""

    at: Instant
    batch: str
    file: str
    code: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CameBack:
    """What an undo has brought back to the quarantine, by the `times` at which it was refused, spans in order of which none meet;
    `detail`: what lets it go (DEL-7)."""

    times: tuple[tuple[int, int], ...]
    detail: str

    def may_be(self, file: QuarantineFile) -> bool:
        """Whether a row of the file may have come back: an erasure, or another writer, may have written the file anew since."""
        if file.oldest_at is None or file.newest_at is None:
            return True
        at = bisect_right(self.times, int(file.newest_at), key=itemgetter(0)) - 1
        return at >= 0 and self.times[at][1] >= file.oldest_at


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineReturning:
    """Files that a plan took and that are not in the quarantine now, with the oldest and newest time of their rows. `source_id`: the
    snapshot that holds them. `present`: rows that it took and that are there again already."""

    source_id: int
    files: tuple[tuple[QuarantineFile, tuple[Instant, Instant]], ...]
    present: int
