"""Where the messages lie that a person named, found by reading offsets or keys of the files that may hold them."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.request import PurgeKey, RemoveMessages, RemoveNullKeys, Request, TruncateLog, span_of
from message_lifecycle.model.rows import DueRows, Place, RemovalReason, RowAnswer, ranges_text
from message_lifecycle.stores.iceberg.data_rows import Vectors
from message_lifecycle.stores.iceberg.due_rows import still_shown
from message_lifecycle.stores.iceberg.file_names import absolute, location_prefix
from message_lifecycle.stores.iceberg.manifests import files_of
from message_lifecycle.stores.iceberg.segments import FileMetrics

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


def requested_rows(table: Table, snapshot: Snapshot, request: Request, *, as_of: Instant, unsealed: frozenset[Place]) -> RowAnswer:
    """See `ports.MessageReader.requested`."""
    vectors, prefix = Vectors(table, snapshot), location_prefix(table.location())
    files = sorted(files_of(table, snapshot))
    found: dict[FileMetrics, list[int]] = {}
    for file in files:
        if not _may_hold(file, request):
            continue
        path = absolute(prefix, file.name)
        with table.io.new_input(path).open() as stream:
            # A truncation asks for no key.
            columns = ["offset"] if isinstance(request, TruncateLog) else ["offset", "key"]
            rows = pq.ParquetFile(pa.PythonFile(stream, mode="r")).read(columns=columns)
        alive = np.ones(len(rows), np.bool_)
        alive[vectors[path]] = False
        offsets = rows.filter(pc.and_(pa.array(alive), _matches(rows, file.partition, request)))["offset"].to_pylist()
        if offsets:
            found[file] = sorted(offsets)
    if isinstance(request, PurgeKey) and request.keep is not None:
        found = _without_newest(found, request.keep)
    whole: dict[str, int] = {}
    for place, group in groupby(files, key=lambda file: (file.partition, file.segment)):
        of_segment = list(group)
        emptied = [file for file in of_segment if len(found.get(file, ())) == file.rows - file.deleted and file in found]
        if emptied and still_shown(of_segment, emptied, as_of, sealed=place not in unsealed):
            whole.update((file.name, file.size_bytes) for file in emptied)
    reason: RemovalReason = "purged" if isinstance(request, PurgeKey) else "removed"
    return RowAnswer(due=tuple(_due(file, offsets, reason, as_of) for file, offsets in found.items()), whole=whole)


def _may_hold(file: FileMetrics, request: Request) -> bool:
    low, high = file.first_offset, file.last_offset
    match request:
        case PurgeKey(before=before):
            return before is None or low is None or low < before
        case RemoveMessages(positions=positions):
            return any(partition == file.partition and (low is None or high is None or low <= at <= high) for partition, at in positions)
        case TruncateLog() | RemoveNullKeys():
            span = span_of(request)
            return request.partition == file.partition and (low is None or high is None or (low < span.stop and high >= span.start))
        case never:
            assert_never(never)


def _matches(rows: pa.Table, partition: int, request: Request) -> pa.ChunkedArray:
    match request:
        case RemoveMessages(positions=positions):
            return pc.is_in(rows["offset"], value_set=pa.array([o for p, o in positions if p == partition], pa.int64()))
        case PurgeKey(key=key, before=before):
            same = pc.fill_null(pc.equal(rows["key"], pa.scalar(key, rows["key"].type)), False)
            return same if before is None else pc.and_(same, pc.less(rows["offset"], before))
        case TruncateLog() | RemoveNullKeys():
            span = span_of(request)
            there = pc.and_(pc.greater_equal(rows["offset"], span.start), pc.less(rows["offset"], span.stop))
            return there if isinstance(request, TruncateLog) else pc.and_(there, pc.is_null(rows["key"]))
        case never:
            assert_never(never)


def _without_newest(found: dict[FileMetrics, list[int]], keep: int) -> dict[FileMetrics, list[int]]:
    """By position: a key lives in one partition (MSG-3); were it in several, each keeps its own."""
    kept: dict[int, list[int]] = {}
    for file, offsets in found.items():
        kept.setdefault(file.partition, []).extend(offsets)
    cut = {partition: set(sorted(offsets)[-keep:]) for partition, offsets in kept.items()}
    left = {file: [offset for offset in offsets if offset not in cut[file.partition]] for file, offsets in found.items()}
    return {file: offsets for file, offsets in left.items() if offsets}


def _due(file: FileMetrics, offsets: list[int], reason: RemovalReason, as_of: Instant) -> DueRows:
    return DueRows(
        partition=file.partition,
        base_offset=file.segment,
        file=file.name,
        reason=reason,
        taken=ranges_text(offsets),
        rows=len(offsets),
        first_offset=offsets[0],
        last_offset=offsets[-1],
        since=as_of,
    )
