"""Find every file that a set of a table's snapshots reads, without a JVM (DEL-7).

`document` is a table's metadata as JSON. File names are relative to the table's location (see `table_folder`). A manifest is read once,
however many snapshots list it, and only its name stays in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pyiceberg.avro.file import AvroFile
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, NestedField, PrimitiveType, StructType

from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.tables import RefFact, SnapshotFact, TableHistory
from message_lifecycle.stores.iceberg import parsed
from message_lifecycle.stores.iceberg.layout import END_OFFSETS, LEDGER, of_plan
from message_lifecycle.stores.iceberg.manifests import DELETED, FILE, LIST, DataFileContent
from message_lifecycle.stores.iceberg.table_files import ListedFile, owner_of
from message_lifecycle.stores.iceberg.table_folder import Metadata, TableDocument, Within, reading

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.io import FileIO


FileKind = Literal["data", "vector", "manifest", "list", "statistics", "metadata"]
"""`vector`: deletion vectors and every other kind of delete file. `metadata`: the metadata documents."""

# PyIceberg's reader must read every field that has fields of its own. Other fields are skipped unless the code requests them.
_OF_FILE = [
    NestedField(102, "partition", StructType(), required=True) if field.name == "partition" else field
    for field in FILE.fields
    if field.name in ("content", "file_path", "partition") or not isinstance(field.field_type, PrimitiveType)
]
_ENTRY = Schema(NestedField(0, "status", IntegerType(), required=True), NestedField(2, "data_file", StructType(*_OF_FILE), required=True))
_CONTENT, _PATH = ([field.name for field in _OF_FILE].index(name) for name in ("content", "file_path"))
_LISTED = Schema(*(field for field in LIST.fields if field.name in ("manifest_path", "partitions")))


class NamedFile(NamedTuple):
    """A file that history names. The same file may appear more than once.

    Attributes:
        kept: Whether one of the snapshots to keep names the file.
    """

    name: str
    kind: FileKind
    kept: bool = True


def snapshot_ids(document: Metadata) -> tuple[int, ...]:
    """Return the ids of the snapshots that the table remembers, in the order of the document, oldest first."""
    return tuple(int(snapshot["snapshot-id"]) for snapshot in document.get("snapshots") or ())


def reachable(io: FileIO, document: Metadata, snapshots: Collection[int]) -> Iterator[NamedFile]:
    """Yield every file that the given snapshots read: data, delete files, manifests, their lists, statistics.

    A missing manifest or list raises the read error. Its files are unknown then, so the caller must delete nothing.
    """
    return _walk(io, document, [(snapshot, True) for snapshot in _snapshots(document) if snapshot["snapshot-id"] in snapshots])


def all_named(io: FileIO, document: Metadata, *, kept: Collection[int]) -> Iterator[NamedFile]:
    """Yield the files of every snapshot that the table remembers, like `reachable`, whether `kept` or not.

    A file that both kinds of snapshots name appears as kept, and may also appear as not kept. Such a file stays.
    """
    return _walk(io, document, [(snapshot, snapshot["snapshot-id"] in kept) for snapshot in _snapshots(document)])


def _walk(io: FileIO, document: Metadata, snapshots: Iterable[tuple[Metadata, bool]]) -> Iterator[NamedFile]:
    within = Within(str(document["location"]))
    manifests: dict[str, bool] = {}
    stays = dict[int, bool]()
    for snapshot, kept in snapshots:
        stays[int(snapshot["snapshot-id"])] = kept
        # A table of format 1 may name its manifests instead of a list.
        listed = snapshot.get("manifest-list")
        for path in _manifests(io, listed) if listed else snapshot.get("manifests") or ():
            manifests[path] = manifests.get(path, False) or kept
        if listed:
            yield NamedFile(within.name(listed), "list", kept)
    for path, kept in manifests.items():
        yield NamedFile(within.name(path), "manifest", kept)
        for content, file in _live(io, path):
            yield NamedFile(within.name(file), "data" if content == DataFileContent.DATA else "vector", kept)
    for key in ("statistics", "partition-statistics"):
        for entry in document.get(key) or ():
            snapshot_id = int(entry["snapshot-id"])
            if snapshot_id in stays:
                yield NamedFile(within.name(entry["statistics-path"]), "statistics", stays[snapshot_id])


def _snapshots(document: Metadata) -> list[Metadata]:
    return list(document.get("snapshots") or ())


def _manifests(io: FileIO, manifest_list: str) -> Iterator[str]:
    with reading(manifest_list), AvroFile[Record](io.new_input(manifest_list), _LISTED) as reader:
        for record in reader:
            yield record._data[0]


def _live(io: FileIO, manifest: str) -> Iterator[tuple[int, str]]:
    """Yield content and path of a manifest's live files.

    An entry of a deleted file does not count: another manifest may still name the file.
    """
    with reading(manifest), AvroFile[Record](io.new_input(manifest), _ENTRY) as reader:
        for record in reader:
            status, file = record._data
            if status != DELETED:
                yield file._data[_CONTENT], file._data[_PATH]


# Read a table's history for reclaiming: snapshots, the writers whose progress they carry, branches and tags (MSG-4, DEL-7).


_MICROS = 1_000
_OURS = (END_OFFSETS, LEDGER)
_KAFKA_CONNECT = "kafka.connect."
# Keys that every commit writes again, so any of them is as good. The offsets matter, by control topic and group.
_OF_COMMIT = {f"{_KAFKA_CONNECT}{key}" for key in ("commit-id", "commitId", "task-id", "vtts", "valid-through-ts")}
_FLINK_CHECKPOINT, _FLINK_JOB, _FLINK_OPERATOR = "flink.max-committed-checkpoint-id", "flink.job-id", "flink.operator-id"
_SPARK_STREAM, _SPARK_EPOCH = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"
_FOREIGN = ("flink.", _KAFKA_CONNECT, "spark.sql.streaming.")


def progress_in(summary: Mapping[str, str]) -> Iterator[str]:
    """Yield the writers and readers that have a record in this summary.

    Readers of this table's state, and exactly-once writers, search for the newest ancestor with their own record. Other writers' keys are
    notes that no writer reads again.
    """
    for key in _OURS:
        if key in summary:
            yield key
    connect = [key for key in summary if key.startswith(_KAFKA_CONNECT)]
    offsets = [key for key in connect if key not in _OF_COMMIT]
    if connect:
        yield from sorted(offsets) or ["kafka.connect"]
    if _FLINK_CHECKPOINT in summary:
        yield f"flink job {summary.get(_FLINK_JOB, '?')} operator {summary.get(_FLINK_OPERATOR, '?')}"
    if _SPARK_EPOCH in summary:
        yield f"spark stream {summary.get(_SPARK_STREAM, '?')}"


def progress_records(summaries: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the records that other writers need, newest first.

    For each writer, the newest snapshot with its progress counts. The result has the keys of other writers in that snapshot's summary.
    """
    met, found = set(_OURS), list[dict[str, str]]()
    for summary in summaries:
        writers = set(progress_in(summary))
        if writers - met:
            found.append({key: value for key, value in summary.items() if key.startswith(_FOREIGN)})
        met |= writers
    return found


def history_of(document: TableDocument, table: str) -> TableHistory:
    """Return the history of a table. `table`: its kind, empty for the log itself."""
    content, properties = document.content, document.properties
    age, newest = properties.get("history.expire.max-snapshot-age-ms"), properties.get("history.expire.min-snapshots-to-keep")
    ref_age = properties.get("history.expire.max-ref-age-ms")
    left = _replaced_on_main_at(content)
    return TableHistory(
        table=table,
        table_uuid=document.uuid,
        snapshots=tuple(_snapshot(entry, left) for entry in content.get("snapshots") or ()),
        refs=tuple(
            RefFact(
                name=name,
                snapshot_id=parsed.whole(ref.get("snapshot-id"), f"the snapshot-id of ref {name}", least=-INT64_MAX),
                is_branch=ref.get("type") == "branch",
                max_ref_age_us=_micros(ref.get("max-ref-age-ms", ref_age), "max-ref-age-ms"),
                max_snapshot_age_us=_micros(ref.get("max-snapshot-age-ms", age), "max-snapshot-age-ms"),
                min_snapshots=parsed.whole(ref.get("min-snapshots-to-keep", newest or 1), "min-snapshots-to-keep", least=1),
            )
            for name, ref in sorted(_refs(document).items())
        ),
    )


def _refs(document: TableDocument) -> Mapping[str, Metadata]:
    """Return the refs. Documents of older writers have no ref for main, only its snapshot."""
    found = dict(document.content.get("refs") or {})
    if document.current_id is not None:
        found.setdefault("main", {"snapshot-id": document.current_id, "type": "branch"})
    return found


def _replaced_on_main_at(content: Metadata) -> dict[int, Instant]:
    """Return for each former head of main when another snapshot last replaced it.

    The table's snapshot log records the time. For catalogs without such a log, a plan's commit records the snapshot that it was made on
    (`STAGED_AS`). The other snapshot need not be its child.
    """
    went = [(entry["snapshot-id"], after) for entry, after in pairwise(content.get("snapshot-log") or ())]
    for snapshot in content.get("snapshots") or ():
        parent = snapshot.get("parent-snapshot-id")
        before, _ = of_plan(snapshot["snapshot-id"], parent, snapshot.get("summary") or {})
        went += [(before, snapshot)] if before != parent else []
    left: dict[int, Instant] = {}
    for snapshot_id, after in went:
        at = Instant(int(after["timestamp-ms"]) * _MICROS)
        left[int(snapshot_id)] = max(left.get(int(snapshot_id), at), at)
    return left


def _snapshot(entry: Metadata, left: Mapping[int, Instant]) -> SnapshotFact:
    parent = entry.get("parent-snapshot-id")
    return SnapshotFact(
        snapshot_id=int(entry["snapshot-id"]),
        parent_id=None if parent is None else int(parent),
        at=Instant(int(entry["timestamp-ms"]) * _MICROS),
        carries=tuple(progress_in(entry.get("summary") or {})),
        replaced_on_main_at=left.get(int(entry["snapshot-id"])),
    )


def _micros(milliseconds: object, key: str) -> int | None:
    return None if milliseconds is None else parsed.whole(milliseconds, key) * _MICROS


# Compare the files that a table's history names with the files in its folder, and find files that no kept snapshot needs.
#
# Either list may have a million files, so both are in a scratch database, not in memory.


_MEMORY = "256MB"
_BATCH = 50_000
# A checksum file shares the fate of its file: queries search for `owner`.
_TABLES = """
CREATE TABLE named (name VARCHAR, kind VARCHAR, kept BOOLEAN);
CREATE TABLE listed (name VARCHAR, owner VARCHAR, size_bytes BIGINT, changed_at_ms BIGINT);
"""


Row = tuple[Any, ...]
"""What a query of DuckDB finds."""


class LooseFile(NamedTuple):
    """A file that may be removed: named only by snapshots that are not kept, or by nothing (`orphan`)."""

    name: str
    kind: str
    size_bytes: int


class Inventory:
    """Two lists of files in a scratch database. Create it with `inventory`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        connection.execute(_TABLES)

    def add_named(self, files: Iterable[NamedFile]) -> None:
        self._insert("named", ("name", "kind", "kept"), files)

    def add_listed(self, files: Iterable[ListedFile]) -> None:
        rows = ((file.name, owner_of(file.name), file.size_bytes, file.changed_at_ms) for file in files)
        self._insert("listed", ("name", "owner", "size_bytes", "changed_at_ms"), rows)

    def count_kept(self) -> int:
        """Count the files that a kept snapshot names."""
        return self._one("SELECT count(DISTINCT name) FROM named WHERE kept")

    def missing(self, limit: int, *, name: str | None = None) -> list[str]:
        """Return files within the location that a kept snapshot names and that the listing lacks.

        Args:
            limit: Return at most so many names.
            name: Search for this name only.
        """
        found = self._rows(
            "SELECT DISTINCT named.name FROM named ANTI JOIN listed ON named.name = listed.name "
            "WHERE kept AND NOT starts_with(named.name, '/') AND NOT contains(named.name, ':/') AND named.name = coalesce(?, named.name) "
            "ORDER BY named.name LIMIT ?",
            [name, limit],
        )
        return [name for (name,) in found]

    def unneeded(self) -> Iterator[tuple[str, FileKind]]:
        """Yield name and kind of each file that only removed snapshots name, in order. Files outside the location are included."""
        yield from self._stream("SELECT name, any_value(kind) FROM named GROUP BY name HAVING NOT bool_or(kept) ORDER BY name")

    def going(self, limit: int, *, metadata: bool = False) -> list[LooseFile]:
        """Return listed files that history names but no kept snapshot does, in order, at most `limit`.

        Args:
            limit: Return at most so many files.
            metadata: True: only the table's own documents. False: all other files.
        """
        found = self._rows(
            "SELECT listed.name, kind, size_bytes FROM listed JOIN "
            "(SELECT name, any_value(kind) AS kind FROM named GROUP BY name HAVING NOT bool_or(kept)) AS gone ON owner = gone.name "
            "WHERE (kind = 'metadata') = ? ORDER BY listed.name LIMIT ?",
            [metadata, limit],
        )
        return [LooseFile(*row) for row in found]

    def orphans(self, *, before_ms: int, limit: int) -> list[LooseFile]:
        """Return listed files that no snapshot names and that last changed before a time, in order."""
        found = self._rows(
            "SELECT listed.name, 'orphan', size_bytes FROM listed ANTI JOIN named ON owner = named.name "
            "WHERE changed_at_ms < ? ORDER BY listed.name LIMIT ?",
            [before_ms, limit],
        )
        return [LooseFile(*row) for row in found]

    def totals(self) -> tuple[int, int]:
        """Return the number and the bytes of all listed files."""
        found = self._rows("SELECT count(*), coalesce(sum(size_bytes), 0) FROM listed", [])
        return int(found[0][0]), int(found[0][1])

    def _insert(self, table: str, columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
        import pyarrow as pa

        left = iter(rows)
        while batch := list(islice(left, _BATCH)):
            # DuckDB reads the table under this name.
            self._connection.register("batch", pa.table(dict(zip(columns, map(list, zip(*batch, strict=True)), strict=True))))
            self._connection.execute(f"INSERT INTO {table} SELECT * FROM batch")
            self._connection.unregister("batch")

    def _one(self, statement: str) -> int:
        return int(self._rows(statement, [])[0][0])

    def _rows(self, statement: str, values: Sequence[int | str | None]) -> list[Row]:
        return self._connection.execute(statement, values).fetchall()

    def _stream(self, statement: str) -> Iterator[Row]:
        found = self._connection.execute(statement)
        while batch := found.fetchmany(_BATCH):
            yield from batch


@contextmanager
def inventory() -> Iterator[Inventory]:
    from message_lifecycle.stores.iceberg.relations import scratch_database

    with scratch_database(memory=_MEMORY) as connection:
        yield Inventory(connection)
