"""The file lists of two snapshots as the gate judges them, from their manifests alone.

Java staged the change and PyIceberg reads it here: an implementation that misread the other would show. With the planner it shares
the decoding of Avro, not what is made of a file's bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from message_lifecycle.stores.iceberg.columns import APPEND_TIME, EXPIRES_AT, NEVER, OFFSET
from message_lifecycle.stores.iceberg.manifests import DELETED, Row, entries, picking

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

FILES = pa.schema(
    {
        "content": pa.int32(),
        "name": pa.string(),
        "partition": pa.int32(),
        "segment": pa.int64(),
        "written": pa.int64(),
        "size_bytes": pa.int64(),
        "spec_id": pa.int32(),
        "content_offset": pa.int64(),
        "content_size": pa.int64(),
        "belongs_to": pa.string(),
        "first_offset": pa.int64(),
        "last_offset": pa.int64(),
        "oldest_at": pa.int64(),
        "newest_at": pa.int64(),
        "unknown_times": pa.int64(),
        "never": pa.bool_(),
        "without_never": pa.int64(),
        "expires_from": pa.int64(),
        "without_expiry": pa.int64(),
    }
)
"""One row per data or delete file; `content` as Iceberg numbers it, `belongs_to` the data file of a deletion vector. Times in
microseconds. `unknown_times`, `without_never`, `without_expiry` count messages that have no such value. Null: the metadata does
not say."""

_pick = picking(
    "content",
    "file_path",
    "partition",
    "record_count",
    "file_size_in_bytes",
    "content_offset",
    "content_size_in_bytes",
    "referenced_data_file",
    "null_value_counts",
    "lower_bounds",
    "upper_bounds",
)
_CHUNK = 10_000
"""Files that are objects of Python at a time: a log may have a hundred thousand."""
_NONE: Mapping[int, Any] = {}


def files_of_both(table: Table, was: Snapshot, now: Snapshot) -> tuple[pa.Table, pa.Table]:
    """The files of both snapshots, as `FILES`. A manifest that they share is read once."""
    lists = [snapshot.manifests(table.io) for snapshot in (was, now)]
    read = {manifest.manifest_path: manifest for manifests in lists for manifest in manifests}
    found = {path: _files(table.io, manifest) for path, manifest in read.items()}
    before, after = (pa.concat_tables([FILES.empty_table(), *(found[manifest.manifest_path] for manifest in each)]) for each in lists)
    return before, after


def _files(io: FileIO, manifest: ManifestFile) -> pa.Table:
    live = (_row(file, manifest.partition_spec_id) for status, _, file in entries(io, manifest, _pick) if status != DELETED)
    return pa.Table.from_batches(_batches(live), schema=FILES)


def _batches(rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
    while chunk := list(islice(rows, _CHUNK)):
        columns = zip(*chunk, strict=True)
        yield pa.record_batch([pa.array(column, field.type) for column, field in zip(columns, FILES, strict=True)], schema=FILES)


def _row(file: Row, spec_id: int) -> Row:
    """In the order of `FILES`."""
    content, path, place, written, size_bytes, content_offset, content_size, belongs_to, nulls, lowest, highest = file
    partition, segment = place
    low, high, without = lowest or _NONE, highest or _NONE, nulls or _NONE
    never = high.get(NEVER)
    return (
        content,
        path,
        partition,
        segment,
        written,
        size_bytes,
        spec_id,
        content_offset,
        content_size,
        belongs_to,
        _number(low.get(OFFSET)),
        _number(high.get(OFFSET)),
        _number(low.get(APPEND_TIME)),
        _number(high.get(APPEND_TIME)),
        without.get(APPEND_TIME),
        any(never) if never else None,
        without.get(NEVER),
        _number(low.get(EXPIRES_AT)),
        without.get(EXPIRES_AT),
    )


def _number(bound: bytes | None) -> int | None:
    """A whole number or a time as a manifest writes it: two's complement, the lowest byte first."""
    return None if not bound else int.from_bytes(bound, "little", signed=True)
