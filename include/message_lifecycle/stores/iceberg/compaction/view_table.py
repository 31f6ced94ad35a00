"""The table of a compacted view, and the input of a compaction, from the metadata of the log and the view."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, NestedField, TimestamptzType

from message_lifecycle.model.errors import CompactedTableMissing, PartlyUnavailable, Refused, UnknownTopic
from message_lifecycle.model.message import ViewState
from message_lifecycle.model.names import TopicName
from message_lifecycle.operations.compaction import CompactionRules
from message_lifecycle.stores.iceberg import parsed, segments
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.columns import SCHEMA as TOPIC_SCHEMA
from message_lifecycle.stores.iceberg.compaction import PartitionJob
from message_lifecycle.stores.iceberg.fence import Walk
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import COMPACTED, DUE_AT, HORIZONS, MEMORIES, VIEW_SETTINGS, offsets_of
from message_lifecycle.stores.iceberg.segments import FileMetrics
from message_lifecycle.stores.iceberg.table_folder import TableDocument, absolute, location_prefix, reading
from message_lifecycle.stores.iceberg.tasks import InputFile, Store, Vector
from message_lifecycle.stores.iceberg.witness import state_of_document

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

# The schema of the compacted table: a topic's columns, and two columns of compaction.


DELETE_HORIZON, REMEMBERED = 16, 17

SCHEMA = Schema(
    *TOPIC_SCHEMA.fields,
    # The earliest time at which compaction may drop a retained tombstone (CMP-7); null in every other row.
    NestedField(DELETE_HORIZON, "delete_horizon", TimestamptzType(), required=False),
    # A row without a message, which keeps a late event from bringing its key back (CMP-12).
    NestedField(REMEMBERED, "remembered", BooleanType(), required=False),
    schema_id=0,
)


# Find the table of a compacted view, and read the state from its newest commit (CMP-4).


RAW_PROPERTY = "lifecycle._raw-table"
"""The uuid of the topic's table that the view belongs to."""


def state_of(tables: Tables, name: TopicName) -> ViewState | None:
    """Return the view's state from the metadata document alone; None without any compaction so far.

    Another engine may rewrite the view's files and expire its history. The table's own witness then still keeps the horizons (MSG-4).

    Raises:
        CompactedTableMissing: The table is missing, or another writer has changed its rows.
        LogStateLost, LogRolledBack: The view's horizons are unknown.
    """
    document, place = document_of(tables, name), (name.namespace, name.table(COMPACTED))
    if document is None:
        return None
    found = state_of_document(document, ".".join(place), HORIZONS, lambda: tables.pointers.file_io(place, document.location))
    if found is None:
        return None
    changed = next((one for one in found.foreign if one.operation != "replace"), None)
    if changed is not None:
        raise CompactedTableMissing(str(name), f"another writer has changed its rows (snapshot {changed.snapshot_id}, {changed.operation})")
    summary, state = next(document.summaries(), {}), found.state
    due_at = state.get(DUE_AT)
    hidden = _summary_count(summary, "total-position-deletes")
    return ViewState(
        table_uuid=document.uuid,
        snapshot_id=int(document.content["current-snapshot-id"]),
        horizons=offsets_of(state[HORIZONS], HORIZONS),
        rows=_summary_count(summary, "total-records") - hidden - _summary_count(state, MEMORIES),
        hidden_rows=hidden,
        size_bytes=_summary_count(summary, "total-files-size"),
        due_at=None if due_at is None else parsed.instant(due_at, DUE_AT),
        settings_hash=state.get(VIEW_SETTINGS, ""),
    )


def document_of(tables: Tables, name: TopicName) -> TableDocument | None:
    """Return the table's metadata; None without a table.

    Raises:
        CompactedTableMissing: The table's metadata cannot be read, or it belongs to a topic that was dropped.
    """
    try:
        document = tables.document(name, kind=COMPACTED)
    except UnknownTopic:
        return None
    except (OSError, ValueError) as error:
        raise CompactedTableMissing(str(name), f"its metadata cannot be read ({type(error).__name__})") from error
    if document.properties.get(RAW_PROPERTY) != tables.document(name).uuid:
        raise CompactedTableMissing(
            str(name), f"the table {name.namespace}.{name.table(COMPACTED)} in its place is of a topic that was dropped; drop it, too"
        )
    return document


def memories(table: Java) -> int:
    """Return how many rows of the view's newest snapshot are memories. Raises as `fence.newest_state`."""
    return _summary_count(Walk(table).state(HORIZONS) or {}, MEMORIES)


def _summary_count(summary: Mapping[str, str], key: str) -> int:
    return parsed.count(summary, key)


# Build the input of a compaction from the metadata of the log and its view, without reading data and without a JVM.


_BOUNDS = ("file_path", "record_count", "null_value_counts", "lower_bounds")


class UnreadableDeletes(Refused):
    """The table has deletes that this engine does not apply. Ignoring them would restore messages."""

    def __init__(self, table: str, kind: str) -> None:
        self.table, self.kind = table, kind
        super().__init__(
            f"table {table} holds {kind}, which compaction does not apply, so nothing was compacted. Rewrite the files that they "
            "concern first (Iceberg's `rewrite_data_files` with `delete-file-threshold` 1)."
        )


def unreadable_file(table: str, file: str, reason: str) -> PartlyUnavailable:
    """A data file of the log is gone or damaged."""
    return PartlyUnavailable(
        f"table {table}: its data file {file} cannot be read ({reason}), so nothing was compacted; the view is as it was. "
        "Bring the file back from a copy and run again.",
        code="UnreadableFile",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file with the offsets from its bounds; None: the metadata have no bounds."""

    file: InputFile
    first_offset: int | None
    last_offset: int | None


def sources(table: Table, snapshot: Snapshot | None, rules: CompactionRules) -> dict[int, list[Source]]:
    """Return the data files of a snapshot by partition, in the order of their offsets. Raises UnreadableDeletes."""
    from message_lifecycle.stores.iceberg.manifests import files_of

    if snapshot is None:
        return {}
    prefix, vectors, horizons = location_prefix(table.location()), vectors_by_file(table, snapshot), _past_horizon(table, snapshot, rules)
    store = Store.of(table)
    found: dict[int, list[Source]] = {}
    for metrics in files_of(table, snapshot):
        path = absolute(prefix, metrics.name)
        due = segments.first_times(rules.dead, metrics).some <= rules.as_of
        file = InputFile(
            path=path,
            size_bytes=metrics.size_bytes,
            vector=vectors.get(path),
            may_be_due=due or horizons.get(path, False),
            store=store,
        )
        if metrics.deleted < metrics.rows:
            found.setdefault(metrics.partition, []).append(
                Source(file=file, first_offset=metrics.first_offset, last_offset=metrics.last_offset)
            )
    for files in found.values():
        files.sort(key=lambda source: (source.first_offset is None, source.first_offset))
    return found


def partition_job(
    partition: int, log: Mapping[int, list[Source]], view: Mapping[int, list[Source]], *, after: int, through: int, rewrite: bool
) -> PartitionJob:
    """Return the work of one partition: the whole view, and the log's files that may hold a message after `after` up to `through`."""
    tail = [
        source
        for source in log.get(partition, ())
        if (source.last_offset is None or source.last_offset > after) and (source.first_offset is None or source.first_offset <= through)
    ]
    whole = all(
        source.first_offset is not None and source.last_offset is not None and source.first_offset > after and source.last_offset <= through
        for source in tail
    )
    old = tuple(source.file for source in view.get(partition, ()))
    files = tuple(source.file for source in tail)
    return PartitionJob(partition=partition, after=after, through=through, view=old, tail=files, rewrite=rewrite, whole_tail=whole)


def files_by_partition(
    table: Table, snapshot: Snapshot | None, wanted: Callable[[FileMetrics], bool] = lambda _: True
) -> dict[int, list[InputFile]]:
    """Return the wanted data files of a snapshot with their deletion vectors. Raises UnreadableDeletes."""
    from message_lifecycle.stores.iceberg.manifests import files_of

    found: dict[int, list[InputFile]] = {}
    if snapshot is not None:
        prefix, vectors, store = location_prefix(table.location()), vectors_by_file(table, snapshot), Store.of(table)
        for metrics in filter(wanted, files_of(table, snapshot)):
            path = absolute(prefix, metrics.name)
            found.setdefault(metrics.partition, []).append(
                InputFile(path=path, size_bytes=metrics.size_bytes, vector=vectors.get(path), store=store)
            )
    return found


def columns_of(io: FileIO, file: InputFile, columns: Sequence[str]) -> pa.Table:
    """Return columns of a file's live rows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from message_lifecycle.stores.iceberg.puffin import marked

    with reading(file.path), io.new_input(file.path).open() as stream:
        rows = pq.ParquetFile(pa.PythonFile(stream, mode="r")).read(columns=list(columns))
    alive = np.ones(len(rows), np.bool_)
    if file.vector is not None:
        alive[marked(file.vector)] = False
    return rows.filter(pa.array(alive))


def vectors_by_file(table: Table, snapshot: Snapshot) -> dict[str, Vector]:
    """Return the deletion vectors of a snapshot, by the path of their data file. Raises UnreadableDeletes."""
    return dict(_each_vector(table, snapshot))


def _each_vector(table: Table, snapshot: Snapshot) -> Iterator[tuple[str, Vector]]:
    from message_lifecycle.stores.iceberg.manifests import VECTORS, DataFileContent, ManifestContent, listed

    name, store = ".".join(table.name()), Store.of(table)
    for content, path, form, referenced, offset, length in listed(table, snapshot, VECTORS, content=ManifestContent.DELETES):
        if content == DataFileContent.EQUALITY_DELETES:
            raise UnreadableDeletes(name, "equality deletes")
        if str(form).upper().rpartition(".")[2] != "PUFFIN" or referenced is None:
            raise UnreadableDeletes(name, "position deletes of an older kind")
        yield referenced, Vector(path=path, offset=offset, length=length, store=store)


def _past_horizon(table: Table, snapshot: Snapshot, rules: CompactionRules) -> dict[str, bool]:
    """Return by path whether a file of a view may hold a tombstone that is due (CMP-7)."""
    return {path: horizon is None or horizon <= rules.as_of for path, horizon in delete_horizons(table, snapshot)}


def delete_horizons(table: Table, snapshot: Snapshot) -> Iterator[tuple[str, int | None]]:
    """Yield the earliest delete horizon of each file of a view that may have one; None: the metadata have no bound."""
    from message_lifecycle.stores.iceberg.manifests import listed, picking

    if DELETE_HORIZON not in {field.field_id for field in table.schema().fields}:
        return
    for path, rows, nulls, lower in listed(table, snapshot, picking(*_BOUNDS)):
        if (nulls or {}).get(DELETE_HORIZON) != rows:
            bound = (lower or {}).get(DELETE_HORIZON)
            yield path, None if bound is None else int.from_bytes(bound, "little", signed=True)
