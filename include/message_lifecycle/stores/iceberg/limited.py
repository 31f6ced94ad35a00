"""Apply the limits of one question, by their scope, to the messages that rules of age leave in a table's files (RET-4, DEL-9)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import LimitQuestion, Place, Reason
from message_lifecycle.model.reasons import LimitReason
from message_lifecycle.model.rules import Limits
from message_lifecycle.stores.iceberg.data_rows import Longs, Vectors
from message_lifecycle.stores.iceberg.limit_rows import (
    ExcessRows,
    Files,
    FileWithRemainingRows,
    exact_span,
    find_rows_beyond_group_limits,
)
from message_lifecycle.stores.iceberg.relations import scratch_database
from message_lifecycle.stores.iceberg.segments import FileMetrics

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcessOffsets:
    """Messages of one file beyond a limit, ascending."""

    file: FileMetrics
    reason: LimitReason
    offsets: Longs | range


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitResult:
    """The figures of `BeyondRows`, and `gone` by file and reason."""

    gone: tuple[ExcessOffsets, ...] = ()
    left: int = 0
    most_records: int = 0
    most_bytes: int = 0
    emptied: int = 0
    oversized: int = 0


class LimitSearch:
    """Collects the remaining messages of each file, then finds the messages beyond the limits."""

    def __init__(self, table: Table, vectors: Vectors, prefix: str, as_of: Instant, beyond: LimitQuestion) -> None:
        self.files = Files(table=table, vectors=vectors, prefix=prefix, as_of=as_of, beyond=beyond)
        self._left: list[FileWithRemainingRows] = []

    @property
    def dead(self) -> frozenset[Place]:
        return self.files.beyond.dead

    def add_by_bounds(self, file: FileMetrics) -> bool:
        """Add a file that loses no message to a rule of age.

        Returns:
            True: The file was added. False: only its columns show which messages have lapsed.
        """
        lapsed, alive = self.files.lapsed_by_bounds(file), file.rows - file.deleted
        if lapsed is not None:
            self.add(file, (0, alive) if lapsed else (alive, 0), ())
        return lapsed is not None

    def add(self, file: FileMetrics, left: tuple[int, int], reasons: tuple[Reason, ...]) -> None:
        """Add the remaining messages of a file.

        Args:
            file: The file's metadata.
            left: The number of messages that no reason removes: of messages that have not lapsed, and of lapsed ones.
            reasons: The rules that remove some of the file's other messages.
        """
        alive = file.rows - file.deleted
        self._left += [
            FileWithRemainingRows(file=file, rows=rows, lapsed=lapsed, all=rows == alive, reasons=reasons)
            for rows, lapsed in zip(left, (False, True), strict=True)
            if rows
        ]

    def find_excess(self) -> LimitResult:
        """Return the messages to remove from each file by number and by size, in order of offset."""
        limits = self.files.beyond.limits
        self._left.sort(key=lambda left: left.file)  # by (partition, segment, name)
        if limits.scope == "key":
            return self._search_by_key()
        if limits.scope == "topic":
            groups = [self._left]
        else:
            groups = [list(group) for _, group in groupby(self._left, key=lambda left: left.file.partition)]
        found = [find_rows_beyond_group_limits(self.files, group, limits) for group in groups]
        return LimitResult(
            gone=_merge_findings(self._with_offsets(entry) for group in found for entry in group.gone),
            left=sum(group.left for group in found),
            most_records=max((group.most_records for group in found), default=0),
            most_bytes=max((group.most_bytes for group in found), default=0),
            emptied=sum(group.emptied for group in found),
            oversized=sum(group.oversized for group in found),
        )

    def _search_by_key(self) -> LimitResult:
        limits = self.files.beyond.limits
        found = find_rows_beyond_key_limits(self.files, self._left, limits)
        gone = [
            ExcessOffsets(file=self._left[at].file, reason=reason, offsets=offsets_of(runs))
            for (at, reason), runs in sorted(found.runs.items())
        ]
        passes = found.passes
        return LimitResult(
            gone=_merge_findings(gone),
            left=sum(entry.rows for entry in self._left),
            most_records=found.most_records,
            most_bytes=found.most_bytes,
            emptied=0 if limits.min_keep else passes,
            oversized=passes if limits.min_keep else 0,
        )

    def _with_offsets(self, gone: ExcessRows) -> ExcessOffsets:
        """Add the offsets to removed messages. If a file loses all its remaining messages, its bounds give the offsets if they are exact."""
        offsets = gone.offsets
        if offsets is None:
            offsets = exact_span(gone.left)
        if offsets is None:
            offsets = self.files.rows_of(gone.left, ()).offsets
        return ExcessOffsets(file=gone.left.file, reason=gone.reason, offsets=offsets)


def _merge_findings(gone: Iterable[ExcessOffsets]) -> tuple[ExcessOffsets, ...]:
    """Join the findings by file and reason: lapsed and other messages of one file come separately."""
    by_file: dict[tuple[FileMetrics, LimitReason], list[ExcessOffsets]] = {}
    for entry in gone:
        by_file.setdefault((entry.file, entry.reason), []).append(entry)
    found = []
    for (file, reason), entries in sorted(by_file.items(), key=lambda item: (item[0][0], item[0][1] != "retention_count")):
        one = entries[0] if len(entries) == 1 else None
        offsets = one.offsets if one is not None else np.sort(np.concatenate([np.asarray(entry.offsets) for entry in entries]))
        found.append(ExcessOffsets(file=file, reason=reason, offsets=offsets))
    return tuple(found)


# Find the messages beyond a table's limits within their key (RET-4), with a window over key, rank and size, in a database that spills.
#
# The table's own I/O reads one file at a time, and only the columns that the limits need. The rows go to DuckDB's file in a scratch folder,
# not to memory. The result is runs of offsets by file.


# The newest messages come first, and lapsed ones after all others. An unknown time does not change the running maximum.
_RANKED = """
CREATE TABLE placed AS
SELECT file, key, size, "offset",
  row_number() OVER newest_first AS number, sum(size) OVER newest_first AS total
FROM (SELECT *, max(time) OVER (PARTITION BY lapsed, part ORDER BY "offset") AS newest FROM messages)
WHERE key IS NOT NULL
WINDOW newest_first AS (PARTITION BY key ORDER BY lapsed, newest DESC NULLS LAST, part DESC, "offset" DESC ROWS UNBOUNDED PRECEDING)
"""
_RUNS = """
SELECT file, reason, min("offset"), max("offset")
FROM (SELECT file, reason, "offset", "offset" - row_number() OVER (PARTITION BY file, reason ORDER BY "offset") AS run
      FROM (SELECT file, "offset", CASE WHEN $records IS NOT NULL AND number > $records THEN 'retention_count'
              WHEN $bytes IS NOT NULL AND total > $bytes THEN 'retention_bytes' END AS reason
            FROM placed WHERE NOT ($min_keep = 1 AND number = 1))
      WHERE reason IS NOT NULL)
GROUP BY file, reason, run ORDER BY file, reason, min("offset")
"""


_MOST = """
SELECT max(number), max(CASE WHEN $bytes IS NULL OR total > $bytes THEN 0 ELSE total END)
FROM placed
WHERE ($min_keep = 1 AND number = 1) OR (($records IS NULL OR number <= $records) AND ($bytes IS NULL OR total <= $bytes))
"""


class ExcessRuns:
    """By (index of the file, reason), the first and last offsets of the runs to remove, ascending."""

    def __init__(self) -> None:
        self.runs: dict[tuple[int, LimitReason], list[tuple[Longs, Longs]]] = {}
        self.passes = self.most_records = self.most_bytes = 0


def find_rows_beyond_key_limits(files: Files, left: Sequence[FileWithRemainingRows], limits: Limits) -> ExcessRuns:
    """Return the messages beyond the limits of their keys.

    `most_records` and `most_bytes` are as in `BeyondRows`. `passes` counts keys whose newest message alone exceeds the limit of bytes
    (RET-3).
    """
    import pyarrow.compute as pc

    found = ExcessRuns()
    with scratch_database(memory=files.memory) as connection:
        connection.execute(
            'CREATE TABLE messages (file INTEGER, part INTEGER, lapsed BOOLEAN, "offset" BIGINT, key BLOB, size BIGINT, time BIGINT)'
        )
        for at, entry in enumerate(left):
            _insert(connection, files, at, entry)
        connection.execute(_RANKED)
        given = {"records": limits.max_records, "bytes": limits.max_total_bytes, "min_keep": limits.min_keep}
        for batch in connection.sql(_RUNS, params=given).to_arrow_reader(100_000):
            indexes, first, last = (batch.column(at).to_numpy(zero_copy_only=False) for at in (0, 2, 3))
            of_count = np.asarray(pc.equal(batch.column(1), "retention_count"))
            for at, reason in {*zip(indexes.tolist(), batch.column(1).to_pylist(), strict=True)}:
                mine = (indexes == at) & (of_count == (reason == "retention_count"))
                found.runs.setdefault((at, reason), []).append((first[mine], last[mine]))
        if limits.max_total_bytes is not None:
            passes = connection.execute("SELECT count(*) FROM placed WHERE number = 1 AND total > ?", [limits.max_total_bytes]).fetchone()
            found.passes = 0 if passes is None else passes[0]
        most = connection.execute(_MOST, given).fetchone()
        found.most_records, found.most_bytes = (0, 0) if most is None else (int(most[0] or 0), int(most[1] or 0))
    return found


def offsets_of(runs: list[tuple[Longs, Longs]]) -> Longs:
    """Return every offset of the runs."""
    first, last = (np.concatenate([run[at] for run in runs]) for at in (0, 1))
    lengths = last - first + 1
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.asarray(np.repeat(first, lengths) + np.arange(int(lengths.sum())) - starts, np.int64)


def _insert(connection: duckdb.DuckDBPyConnection, files: Files, at: int, left: FileWithRemainingRows) -> None:
    import pyarrow as pa

    rows = files.rows_of(left, ("size_bytes", "append_time"))
    times, count = rows.columns["append_time"], len(rows.offsets)
    batch = pa.table(
        {
            "file": pa.array(np.full(count, at, np.int32)),
            "part": pa.array(np.full(count, left.file.partition, np.int32)),
            "lapsed": pa.array(np.full(count, left.lapsed)),
            "offset": pa.array(rows.offsets),
            "key": files.keys(left, rows),
            "size": pa.array(rows.columns["size_bytes"]),
            "time": pa.array(times, mask=times == np.iinfo(np.int64).min),
        }
    )
    connection.register("batch", batch)
    # A message without a key belongs to no group, but its time counts in its partition.
    connection.execute("INSERT INTO messages SELECT * FROM batch")
    connection.unregister("batch")
