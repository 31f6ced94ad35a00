"""Erasing one key from 20 million messages in 320 files: the erasure rewrites only the files with the key.

A fresh process plans, stages, judges, publishes and verifies. The peer is DuckDB on two threads. DuckDB does not know which files have the
key, so it writes all files again without the key. Figures are of whole process trees, and medians. Neither process imports anything of this
benchmark (`bench.erasure_run`). Run: `python -m bench erasure`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from secrets import token_hex
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tests.spark.lake import Lake

from bench import size
from bench.compaction import own_ledger
from bench.process_tree import Cost, cost_of_module
from bench.ttl_rows import MESSAGES, PARTITIONS, ROWS, SEGMENTS, generated, prepared
from lifecycle_local.environment import load_environment
from message_lifecycle.app.wiring import lake as configured_lake
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.session import spark_session
from message_lifecycle.stores.iceberg.table_folder import local_path

REPEATS = size.repeats(3)
FILES = 8
"""So many files, at the most, hold the key that is chosen."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    given = parser.parse_args()
    load_environment()
    return measure(generated(), given.repeats)


def measure(data: Path, repeats: int) -> int:
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {MESSAGES:,} messages in {PARTITIONS * SEGMENTS} files")
    with own_ledger(data.parent):
        return _measured(data, repeats)


def _measured(data: Path, repeats: int) -> int:
    key, holding = rare_key(data)
    s = configured_lake()
    lake = Lake(spark_session("bench"), stream=f"bench-{token_hex(4)}")
    lake.session.sparkContext.setLogLevel("ERROR")
    rewritten = data.with_name(f"rewritten-{token_hex(4)}")
    ours: list[Cost] = []
    theirs: list[Cost] = []
    try:
        for _ in range(repeats):
            name = prepared(lake, data)
            found = s.topics.describe(name).ledger
            assert found is not None, "its first commit names one"
            s.ledger.accept(name, found)
            before = files_of(name)
            request_id = token_hex(16)
            digests = s.key_secret(True).digests([key])
            s.ledger.add_erasure(request_id, digests, topics=[name], forbid=False, requested_by="bench", why="bench")
            ours.append(cost_of_module("bench.erasure_run", "erase", str(name), request_id))
            after = files_of(name)
            assert len(before.keys() - after.keys()) == holding, "other files were written again than those that hold the key"
            assert all(after[file] == before[file] for file in before.keys() & after.keys()), "a file that stays was written again"
            theirs.append(cost_of_module("bench.erasure_run", "rewrite", str(data), str(rewritten), key.decode()))
            shutil.rmtree(rewritten)
    finally:
        lake.drop()
        shutil.rmtree(rewritten, ignore_errors=True)
    print(f"medians of {repeats}; the key is in {holding} files of {ROWS:,} messages; seconds of CPU, and of the clock")
    for label, costs in (("erase", ours), ("DuckDB rewrites all", theirs)):
        print(f"  {label:20} {median(cost.cpu for cost in costs):6.2f} {median(cost.wall for cost in costs):6.2f}")
    print("  files written again: exactly those that hold the key")
    return 0


def rare_key(data: Path) -> tuple[bytes, int]:
    """A key that some files hold, and few, and how many."""
    found: dict[bytes, int] = {}
    for file in sorted(data.rglob("*.parquet")):
        for key in pc.unique(pq.read_table(file, columns=["key"])["key"].cast(pa.binary())).to_pylist():
            found[key] = found.get(key, 0) + 1
    return max(((key, files) for key, files in found.items() if files <= FILES), key=lambda one: (one[1], one[0]))


def files_of(name: TopicName) -> dict[str, tuple[int, int]]:
    """Inode and time of every data file of the topic, by name."""
    root = local_path(Tables().load(name).location())
    return {str(path.relative_to(root)): (path.stat().st_ino, path.stat().st_mtime_ns) for path in root.rglob("*.parquet")}


if __name__ == "__main__":
    sys.exit(main())
