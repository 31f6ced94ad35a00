"""Messages past a view's horizons: their number and age (CMP-1), and older messages that a removal would make visible again (CMP-9).

Metadata answer most questions; only files that a limit cuts are read, and only some columns. No JVM is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.errors import CompactedTableMissing, PlanConflict
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NOTHING, OlderRows, Tail
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.compaction.view_table import (
    columns_of,
    files_by_partition,
    state_of,
    unreadable_file,
    vectors_by_file,
)
from message_lifecycle.stores.iceberg.data_files import is_named
from message_lifecycle.stores.iceberg.data_rows import UNKNOWN, FileRows, Vectors, read_rows
from message_lifecycle.stores.iceberg.evidence_files import longs
from message_lifecycle.stores.iceberg.layout import COMPACTED
from message_lifecycle.stores.iceberg.manifests import files_of
from message_lifecycle.stores.iceberg.relations import database
from message_lifecycle.stores.iceberg.segments import FileMetrics
from message_lifecycle.stores.iceberg.table_folder import absolute, location_prefix
from message_lifecycle.stores.iceberg.tasks import InputFile

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

# The cleaner may stop waiting for compaction (CMP-9). The functions below find the age of messages past the horizons, and older messages
# that a removal would make visible again.
#
# DuckDB compares the keys, because it spills to disk. DuckDB reads one file at a time and returns only positions in the view and in the
# log.


_IN_LOG = """
SELECT p."offset" FROM past AS p JOIN (SELECT key, min("offset") AS stays FROM past WHERE NOT goes GROUP BY key) AS s USING (key)
WHERE p.goes AND p."offset" > s.stays ORDER BY 1
"""
_IN_VIEW = """
SELECT r."offset" FROM rows AS r SEMI JOIN (SELECT key FROM past WHERE goes) AS p USING (key) WHERE NOT coalesce(r.remembered, false)
"""


def oldest_past(table: Table, log: LogState, horizons: Mapping[int, int]) -> Mapping[int, Instant]:
    """See `ports.ViewReader.oldest_past`. The bounds of files answer for most files.

    Some files mix in compacted or removed messages, or have unknown times. Such a file is read if it might hold an older message.
    """
    snapshot = None if log.snapshot_id is None else table.snapshot_by_id(log.snapshot_id)
    if snapshot is None:
        return {}
    oldest: dict[int, int] = {}
    unsure: list[FileMetrics] = []
    for file in _past(files_of(table, snapshot), horizons):
        bound = file.oldest_at
        whole = file.deleted == 0 and file.first_offset is not None and file.first_offset > horizons.get(file.partition, NOTHING)
        if whole and bound is not None and bound != 0:  # a time of 0 is unknown, and hides the oldest known time (CLK-4)
            oldest[file.partition] = min(bound, oldest.get(file.partition, bound))
        elif file.unknown_times != file.rows:
            unsure.append(file)
    reading = Reading(table, Vectors(table, snapshot))
    for file in sorted(unsure, key=lambda file: (file.partition, file.oldest_at or 0)):
        found = oldest.get(file.partition)
        if found is not None and file.oldest_at is not None and file.oldest_at >= found:
            continue
        rows = reading(file)
        times = np.asarray(rows.columns["append_time"], np.int64)
        known = times[rows.alive & (times != UNKNOWN) & (rows.offsets > horizons.get(file.partition, NOTHING))]
        if len(known):
            first = int(known.min())
            oldest[file.partition] = first if found is None else min(first, found)
    return {partition: Instant(time) for partition, time in oldest.items()}


def find_older_rows(tables: Tables, plan: Plan, horizons: Mapping[int, int], *, view_id: int) -> OlderRows:
    """See `ports.ViewReader.find_older_rows`.

    Args:
        tables: The tables of the catalog.
        plan: The plan, for its removals and the log's snapshot.
        horizons: The last compacted offset of each partition.
        view_id: The view's snapshot.

    Raises:
        PlanConflict: The log's snapshot is missing.
        CompactedTableMissing: A file of the view is missing or damaged.
        UnreadableFile: A file of the log is missing or damaged.
        UnreadableDeletes: A table has equality deletes, or position deletes of an older kind.
    """
    log, view = tables.load(plan.topic), tables.load(plan.topic, kind=COMPACTED)
    snapshot = log.snapshot_by_id(plan.requirements.snapshot_id or 0)
    if snapshot is None:
        raise PlanConflict("not yet made", f"its snapshot {plan.requirements.snapshot_id} is gone")
    of_view: dict[int, list[int]] = {}
    in_log: dict[int, list[int]] = {}
    view_files = files_by_partition(view, view.snapshot_by_id(view_id))
    for partition, files in _by_partition(log, snapshot, plan, horizons):
        with database() as connection:
            _read_log(connection, log, snapshot, files, plan, horizons.get(partition, NOTHING))
            in_log[partition] = [int(offset) for (offset,) in connection.execute(_IN_LOG).fetchall()]
            try:
                of_view[partition] = _older_in_view(connection, view, view_files.get(partition, ()))
            except (OSError, ValueError) as error:  # a file that is gone, or damaged; PyArrow's errors are ValueErrors
                raise CompactedTableMissing(str(plan.topic), f"{type(error).__name__}: {str(error).splitlines()[0]}") from error
    return OlderRows(of_view=of_view, in_log=in_log)


def older_rows_evidence(tables: Tables, plan: Plan, view_id: int) -> pa.Table:
    """Return the frame `outlived` with one row: older messages with the keys of removed messages that would stay.

    The frame counts them in the staged view `view_id`, and in the log past the horizons.
    """
    view = state_of(tables, plan.topic)
    found = find_older_rows(tables, plan, {} if view is None else view.horizons, view_id=view_id)
    row = {name: sum(map(len, offsets.values())) for name, offsets in (("in_view", found.of_view), ("in_log", found.in_log))}
    return longs([row])


def _past(files: Iterable[FileMetrics], horizons: Mapping[int, int]) -> Iterator[FileMetrics]:
    """Yield the files that may hold a message past the horizon of their partition."""
    for file in files:
        if file.deleted < file.rows and (file.last_offset is None or file.last_offset > horizons.get(file.partition, NOTHING)):
            yield file


def _by_partition(table: Table, snapshot: Snapshot, plan: Plan, horizons: Mapping[int, int]) -> Iterator[tuple[int, list[FileMetrics]]]:
    """Yield the files past the horizon, for each partition that loses messages by the plan."""
    touched = {partition for partition, _ in plan.log_commit.removed_runs()}
    files = sorted(file for file in _past(files_of(table, snapshot), horizons) if file.partition in touched)
    for partition, group in groupby(files, key=lambda file: file.partition):
        yield partition, list(group)


def _read_log(
    connection: duckdb.DuckDBPyConnection, table: Table, snapshot: Snapshot, files: Iterable[FileMetrics], plan: Plan, horizon: int
) -> None:
    """Fill `past` with the keys of the messages past the horizon, and whether the plan removes each message."""
    prefix, vectors = location_prefix(table.location()), vectors_by_file(table, snapshot)
    named: dict[str, list[RemoveRows]] = {}
    for action in plan.log_commit.mark:
        named.setdefault(action.file, []).append(action)
    connection.execute('CREATE TEMP TABLE past (key BLOB, "offset" BIGINT, goes BOOLEAN)')
    for file in files:
        path = absolute(prefix, file.name)
        try:
            rows = columns_of(table.io, InputFile(path=path, vector=vectors.get(path)), ("offset", "key"))
        except (OSError, ValueError) as error:  # PyArrow's errors are ValueErrors
            raise unreadable_file(".".join(table.name()), file.name, type(error).__name__) from error
        offsets = rows["offset"].to_numpy()
        goes = np.full(len(offsets), plan.drops(file.partition, file.segment))
        for action in named.get(file.name, ()):
            goes |= is_named(offsets, action.offsets)
        connection.register("rows", rows.append_column("goes", pa.array(goes)))
        connection.execute(f'INSERT INTO past SELECT key, "offset", goes FROM rows WHERE key IS NOT NULL AND "offset" > {horizon}')
        connection.unregister("rows")


def _older_in_view(connection: duckdb.DuckDBPyConnection, view: Table, files: Iterable[InputFile]) -> list[int]:
    """Return the offsets, ascending, of messages in these files of the view whose key loses a message."""
    found: list[int] = []
    for file in files:
        connection.register("rows", columns_of(view.io, file, ("offset", "key", "remembered")))
        found += [int(offset) for (offset,) in connection.execute(_IN_VIEW).fetchall()]
        connection.unregister("rows")
    return sorted(found)


# Count the messages past a view's horizons from metadata. Only files that a limit cuts are read, and only some columns (CMP-1).


def tails_of(table: Table, log: LogState, after: Mapping[int, int], *, as_of: Instant, latest_allowed_time: Instant) -> Sequence[Tail]:
    """Return one tail per partition, in order. See `_through` for where a tail ends. Raises UnreadableFile."""
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
        through = max(horizon, _through(reading, past[partition], horizon, end, as_of, latest_allowed_time))
        rows, size = 0, 0
        for file in past[partition]:
            mine = _rows_within(reading, file, horizon, through)
            rows += mine
            size += file.size_bytes * mine // file.rows if file.rows else 0
        found.append(Tail(partition=partition, after=horizon, through=through, rows=rows, size_bytes=size))
    return found


class Reading:
    """A reader of single files' columns that reads a file once."""

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


def _through(reading: Reading, files: list[FileMetrics], horizon: int, end: int, as_of: Instant, latest_allowed_time: Instant) -> int:
    """Return the end point: the last offset before the first message that is later than `as_of` (CMP-1).

    An unknown time counts as earlier. A future time (later than `latest_allowed_time`) also counts as earlier if a message behind it is not later
    than `as_of`. A wrong clock then wrote the future time (CLK-4).
    """
    ahead: list[int] = []
    for file in files:
        if file.newest_at is not None and file.newest_at <= as_of:
            continue
        offsets, times = _past_in(reading(file), horizon)
        end = min([end, *offsets[(times > as_of) & (times <= latest_allowed_time)].tolist()])
        ahead += offsets[times > latest_allowed_time].tolist()
    in_time = _last_in_time(reading, files, horizon, end, as_of) if ahead else NOTHING
    return min([end, *(offset for offset in ahead if offset > in_time)]) - 1


def _last_in_time(reading: Reading, files: list[FileMetrics], horizon: int, end: int, as_of: Instant) -> int:
    """Return the offset of the last message below `end` with a known time that is not later than `as_of`; NOTHING without one."""
    found = NOTHING
    for file in files:
        if (file.last_offset is not None and file.last_offset <= found) or (file.oldest_at is not None and file.oldest_at > as_of):
            continue
        offsets, times = _past_in(reading(file), horizon)
        found = max([found, *offsets[(times <= as_of) & (offsets < end)].tolist()])
    return found


def _past_in(rows: FileRows, horizon: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the offsets and times of the file's messages past the horizon, for messages with a known time."""
    times = np.asarray(rows.columns["append_time"], np.int64)
    known = rows.alive & (times != UNKNOWN) & (rows.offsets > horizon)
    return rows.offsets[known], times[known]


def _rows_within(reading: Reading, file: FileMetrics, horizon: int, through: int) -> int:
    """Count the file's messages past the horizon, up to the end point."""
    first, last = file.first_offset, file.last_offset
    if first is not None and last is not None:
        if first > through or last <= horizon:
            return 0
        if first > horizon and last <= through:
            return file.rows - file.deleted
    rows = reading(file)
    return int((rows.alive & (rows.offsets > horizon) & (rows.offsets <= through)).sum())
