"""Which messages of a table lie beyond its limits within their key (RET-4): by a window over key, rank and size, in a database that spills.

Files are read one at a time, by the table's own I/O, and only the columns that the limits need; what was read lies in DuckDB's file in a
scratch folder, not in memory. What goes comes back as runs of offsets by file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from message_lifecycle.model.rows import LimitReason
from message_lifecycle.model.rules import Limits
from message_lifecycle.stores.iceberg.data_rows import Longs
from message_lifecycle.stores.iceberg.left_rows import Files, Left
from message_lifecycle.stores.iceberg.scratch_database import scratch_database

if TYPE_CHECKING:
    import duckdb

_MEMORY = "1GB"
# The newest first, and those that have lapsed after all others; an unknown time adds nothing to the running maximum.
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


class GoneRuns:
    """By (index of the file, reason), the first and last offsets of the runs that go, ascending."""

    def __init__(self) -> None:
        self.runs: dict[tuple[int, LimitReason], list[tuple[Longs, Longs]]] = {}
        self.passes = self.most_records = self.most_bytes = 0


def beyond_of_keys(files: Files, left: Sequence[Left], limits: Limits) -> GoneRuns:
    """`most_records` and `most_bytes`: as of `BeyondRows`; `passes`: keys whose newest message alone passes the limit of bytes (RET-3)."""
    import pyarrow.compute as pc

    found = GoneRuns()
    with scratch_database(memory=_MEMORY) as connection:
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
    """Every offset of the runs."""
    first, last = (np.concatenate([run[at] for run in runs]) for at in (0, 1))
    lengths = last - first + 1
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.asarray(np.repeat(first, lengths) + np.arange(int(lengths.sum())) - starts, np.int64)


def _insert(connection: duckdb.DuckDBPyConnection, files: Files, at: int, left: Left) -> None:
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
    # A message without a key is in no group, but its time counts in its partition.
    connection.execute("INSERT INTO messages SELECT * FROM batch")
    connection.unregister("batch")
