"""DuckDB, on two threads, writes the files of every partition again without some messages, with nothing else in the process:
`python -m bench.rewrite_peer DATA TO CONDITION [CONDITION ...]`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import duckdb


def rewrite(data: str, to: str, conditions: list[str]) -> int:
    """Return how many partitions were written.

    Args:
        data: A folder with one folder of Parquet files for each partition.
        to: The folder of the new files.
        conditions: The SQL condition of the messages to keep: one for all partitions, or one for each of them.
    """
    Path(to).mkdir(exist_ok=True)
    connection = duckdb.connect(config={"threads": 2})
    partitions = sorted((path for path in Path(data).iterdir() if path.is_dir()), key=lambda path: int(path.name))
    assert len(conditions) in (1, len(partitions)), conditions
    for at, partition in enumerate(partitions):
        connection.execute(
            f"COPY (SELECT * FROM read_parquet('{partition}/*.parquet') WHERE {conditions[at % len(conditions)]}) "
            f"TO '{to}/{partition.name}.parquet' (FORMAT parquet, COMPRESSION zstd)"
        )
    return len(partitions)


if __name__ == "__main__":
    _, data, to, *conditions = sys.argv
    print(json.dumps(rewrite(data, to, conditions)))
