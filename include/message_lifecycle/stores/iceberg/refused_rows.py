"""The quarantine next to a topic: refused rows as tasks write them, and as a person reads them."""

from __future__ import annotations

import heapq
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from message_lifecycle.model.errors import UnknownTopic
from message_lifecycle.model.instants import Instant, from_datetime
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.tables import RefusedCount, RefusedRow
from message_lifecycle.stores.iceberg import new_table
from message_lifecycle.stores.iceberg.append import (
    AlreadyThere,
    MayCommit,
    Place,
    Written,
    base_of,
    commit_staged,
    find_batch_commit,
    new_files_place,
    remove_leftovers,
    store_of,
)
from message_lifecycle.stores.iceberg.catalog import Tables, side_table_properties
from message_lifecycle.stores.iceberg.data_files import data_file
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.java import entries
from message_lifecycle.stores.iceberg.layout import QUARANTINE, ROW_GROUPS
from message_lifecycle.stores.iceberg.scratch import RowsFile
from message_lifecycle.stores.iceberg.shapes import QUARANTINE_SHAPE
from message_lifecycle.stores.iceberg.tasks import NewFile

if TYPE_CHECKING:
    from pyiceberg.table import Table

_COUNTED = ("at", "batch", "file", "code")


def counts_of(table: Table) -> Sequence[RefusedCount]:
    """Count the rows by batch, file and code, in order of their time."""
    counts: Counter[tuple[Instant, str, str, str]] = Counter()
    for row in _rows(table, {}, _COUNTED):
        counts[(from_datetime(row["at"]), row["batch"], row["file"], row["code"])] += 1
    return [RefusedCount(at=at, batch=batch, file=file, code=code, rows=rows) for (at, batch, file, code), rows in sorted(counts.items())]


def rows_of(table: Table, wanted: Mapping[str, str | None], *, limit: int) -> Sequence[RefusedRow]:
    """Return the first `limit` rows whose columns have the wanted values (None: any), in order of time, file and position."""
    columns = ("at", "batch", "file", "position", "code", "reason", "raw")
    found = (RefusedRow(**{**row, "at": from_datetime(row["at"])}) for row in _rows(table, wanted, columns))
    return heapq.nsmallest(limit, found, key=lambda row: (row.at, row.file, row.position, row.code))


def _rows(table: Table, wanted: Mapping[str, str | None], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    import pyarrow.compute as pc

    for batch in table.scan(selected_fields=tuple(columns)).to_arrow_batch_reader():
        for column, value in wanted.items():
            if value is not None:
                batch = batch.filter(pc.equal(batch.column(column), value))
        yield from batch.to_pylist()


# Writing rows that broke a rule, with their place in the source, the reason of the refusal, and their raw text.
#
# The first refused row creates the table. Every row of a batch carries the same `at`, so all of them reach their age together (QUA-1), and
# the whole file can be dropped.


_PROPERTIES: Mapping[str, str] = {
    "format-version": "3",
    **ROW_GROUPS,
    "commit.retry.num-retries": "20",
    "commit.retry.min-wait-ms": "50",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
    # Queries filter by the age of rows alone.
    "write.metadata.metrics.default": "none",
    "write.metadata.metrics.column.at": "full",
}


REFUSED = ("file", "position", "code", "reason", "raw")
"""Columns of a refused row."""
WriteRefused = Callable[[Place], Sequence[NewFile]]


def quarantine(engine: Engine, name: TopicName, write: WriteRefused, *, batch_id: str, may_commit: MayCommit, again: bool = False) -> bool:
    """Keep the refused rows of a batch, once. Return False if the batch has been here: then nothing changes.

    Args:
        engine: Runs the work in the JVM.
        name: The topic.
        write: Writes the rows as files of the quarantine.
        batch_id: The batch's id.
        may_commit: Raises an error if the batch may no longer be committed.
        again: An earlier run of the batch may have left files.
    """
    _create(engine, name)
    table = engine.table(name, kind=QUARANTINE)
    base = base_of(table)
    is_new = base.found(batch_id) is None
    if is_new:
        files = write(new_files_place(table, store_of(name, kind=QUARANTINE), batch_id))
        written = Written(files=[data_file(engine, table, "", new) for new in files], rows=sum(new.rows for new in files))
        try:
            commit_staged(base, written, batch_id=batch_id, properties={}, may_commit=may_commit)
        except AlreadyThere:
            is_new = False
        finally:
            engine.forget(name, kind=QUARANTINE)
    if again and (found := find_batch_commit(engine.table(name, kind=QUARANTINE), batch_id)) is not None:
        remove_leftovers(engine, name, found, kind=QUARANTINE)
    return is_new


def write_refused_batches(place: Place, number: int, rows: Iterable[pa.RecordBatch], *, batch_id: str, at: Instant) -> NewFile | None:
    """Write refused rows with the columns REFUSED as a file of the quarantine. Return None if there are none."""
    writing: RowsFile | None = None
    schema = QUARANTINE_SHAPE.schema.as_arrow()
    for batch in rows:
        if batch.num_rows:
            path = place.path(f"{number:05}-{secrets.token_hex(4)}.parquet")
            writing = writing or RowsFile(place.store, path, schema)
            count = batch.num_rows
            same = {"at": pa.repeat(pa.scalar(int(at), schema.field("at").type), count), "batch": pa.repeat(batch_id, count)}
            writing.add(
                pa.RecordBatch.from_arrays(
                    [(same[one.name] if one.name in same else batch[one.name]).cast(one.type) for one in schema], schema=schema
                )
            )
    return None if writing is None else writing.close()


def quarantined(name: TopicName, batch_id: str) -> Counter[tuple[str, str]]:
    """Count the rows of the batch in quarantine, by file and code."""
    with suppress(UnknownTopic):
        counts = counts_of(Tables().load(name, kind=QUARANTINE))
        return Counter({(one.file, one.code): one.rows for one in counts if one.batch == batch_id})
    return Counter()


def _create(engine: Engine, name: TopicName) -> None:
    """Make the quarantine unless it exists. Raises CommitUnknown if the result is unknown."""
    with suppress(UnknownTopic):
        engine.table(name, kind=QUARANTINE)
        return
    properties = {**_PROPERTIES, **side_table_properties(name, entries(engine.table(name).properties()))}
    # False means that another process made the quarantine first.
    new_table.create((name.namespace, name.table(QUARANTINE)), QUARANTINE_SHAPE, properties=properties, summary={})
