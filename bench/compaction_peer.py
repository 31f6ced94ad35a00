"""DuckDB's plain two passes over bare files, with nothing else in the process: `python -m bench.compaction_peer FILES TO`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import duckdb


def peer(files: str, to: str) -> list[int]:
    """Count and sum of the offsets written."""
    folder = Path(to)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    connection = duckdb.connect(config={"threads": 2, "memory_limit": "8GB", "temp_directory": f"{folder}/spill"})
    log = f"read_parquet([{', '.join(repr(part) for part in files.split(','))}])"
    connection.execute(f'CREATE TEMP TABLE winners AS SELECT partition, max("offset") AS "offset" FROM {log} GROUP BY partition, key')
    connection.execute(
        f'COPY (SELECT * FROM {log} SEMI JOIN winners USING (partition, "offset") WHERE value IS NOT NULL '
        f"ORDER BY partition, \"offset\") TO '{folder}/view.parquet' (FORMAT parquet, COMPRESSION zstd)"
    )
    ((rows, total),) = connection.execute(f"SELECT count(*), sum(\"offset\")::BIGINT FROM '{folder}/view.parquet'").fetchall()
    return [rows, total]


if __name__ == "__main__":
    print(json.dumps(peer(*sys.argv[1:])))
