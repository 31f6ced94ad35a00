"""What lies past a view's horizons: by metadata, and by reading no more than the columns of files that a limit cuts (CMP-1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.view import NOTHING, Tail
from message_lifecycle.stores.iceberg.compaction.inputs import unreadable_file
from message_lifecycle.stores.iceberg.data_rows import FileRows, Vectors, read_rows
from message_lifecycle.stores.iceberg.file_names import absolute, location_prefix
from message_lifecycle.stores.iceberg.manifests import files_of
from message_lifecycle.stores.iceberg.rule_columns import UNKNOWN
from message_lifecycle.stores.iceberg.segments import FileMetrics

if TYPE_CHECKING:
    from pyiceberg.table import Table


def tails_of(table: Table, log: LogState, after: Mapping[int, int], *, as_of: Instant) -> Sequence[Tail]:
    """One per partition, in order. Raises UnreadableFile. A message later than `as_of` ends it, also one that lies in the middle of a file."""
    ends = {partition: end for partition, end in log.end_offsets.items() if end - 1 > after.get(partition, NOTHING)}
    past: dict[int, list[FileMetrics]] = {partition: [] for partition in ends}
    snapshot = None if log.snapshot_id is None or not ends else table.snapshot_by_id(log.snapshot_id)
    if snapshot is not None:
        for file in files_of(table, snapshot):
            if file.partition in past and (file.last_offset is None or file.last_offset > after.get(file.partition, NOTHING)):
                past[file.partition].append(file)
    found = []
    for partition, end in sorted(log.end_offsets.items()):
        horizon = after.get(partition, NOTHING)
        if partition not in past or snapshot is None:
            found.append(Tail(partition=partition, after=horizon, through=max(horizon, end - 1), rows=0, size_bytes=0))
            continue
        reading = Reading(table, Vectors(table, snapshot))
        through = max(horizon, _through(reading, past[partition], horizon, end, as_of))
        rows, size = 0, 0
        for file in past[partition]:
            mine = _rows_within(reading, file, horizon, through)
            rows += mine
            size += file.size_bytes * mine // file.rows if file.rows else 0
        found.append(Tail(partition=partition, after=horizon, through=through, rows=rows, size_bytes=size))
    return found


class Reading:
    """Columns of single files, each read once."""

    def __init__(self, table: Table, vectors: Vectors) -> None:
        self._table, self._vectors = table, vectors
        self._read: dict[str, FileRows] = {}

    def __call__(self, file: FileMetrics) -> FileRows:
        if file.name not in self._read:
            path = absolute(location_prefix(self._table.location()), file.name)
            try:
                self._read[file.name] = read_rows(self._table.io, path, self._vectors[path], ("append_time",))
            except (OSError, ValueError) as error:  # PyArrow's errors are ValueErrors
                raise unreadable_file(".".join(self._table.name()), file.name, type(error).__name__) from error
        return self._read[file.name]


def _through(reading: Reading, files: list[FileMetrics], horizon: int, end: int, as_of: Instant) -> int:
    """The end point: the last offset before the first message that is later than `as_of`; unknown times count as earlier."""
    first_late = end
    for file in files:
        if file.newest_at is not None and file.newest_at <= as_of:
            continue
        rows = reading(file)
        times = np.asarray(rows.columns["append_time"], np.int64)
        late = rows.offsets[rows.alive & (times != UNKNOWN) & (times > as_of) & (rows.offsets > horizon)]
        if len(late):
            first_late = min(first_late, int(late.min()))
    return first_late - 1


def _rows_within(reading: Reading, file: FileMetrics, horizon: int, through: int) -> int:
    """Messages of the file past the horizon, up to the end point."""
    first, last = file.first_offset, file.last_offset
    if first is not None and last is not None:
        if first > through or last <= horizon:
            return 0
        if first > horizon and last <= through:
            return file.rows - file.deleted
    rows = reading(file)
    return int((rows.alive & (rows.offsets > horizon) & (rows.offsets <= through)).sum())
