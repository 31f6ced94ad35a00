"""Erasing one key, and ten keys in one request, from 20 million messages in 320 files: only the files with a key are rewritten.

`lifecycle erase` records the request, plans, stages, judges, publishes and verifies, in one process. The peer is DuckDB on two threads.
DuckDB does not know which files have the key, so it writes all files again without the key. Ten keys share each search. They are measured
twice: ten keys in the files of the one key, and ten keys in other files. Figures are of whole processes, and medians. Run:
`python -m bench erasure`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import nlargest
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
from bench.whole_run import by_command, total
from lifecycle_local.environment import load_environment
from message_lifecycle.app.wiring import lake as configured_lake
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.session import spark_session
from message_lifecycle.stores.iceberg.table_folder import local_path

REPEATS = size.repeats(3)
FILES = 8
"""So many files, at the most, hold a key that is chosen."""
KEYS = 10
LIMIT = 1.5
"""CPU of an erasure of ten keys in one request over that of one key in the same files, at the most."""


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
    found = files_by_key(data)
    spread = rare_keys(found)
    one, together = spread[:1], [spread[0], *keys_beside(data, spread[0], found)]
    s = configured_lake()
    lake = Lake(spark_session("bench"), stream=f"bench-{token_hex(4)}")
    lake.session.sparkContext.setLogLevel("ERROR")
    rewritten = data.with_name(f"rewritten-{token_hex(4)}")
    requests = {"erase one key": one, f"erase {KEYS} keys there": together, f"erase {KEYS} keys": spread}
    costs: dict[str, list[Cost]] = {label: [] for label in (*requests, "DuckDB rewrites all")}
    try:
        for _ in range(repeats):
            for label, keys in requests.items():
                costs[label].append(erased(prepared(s, lake, data), keys, files=len(holding(data, keys))))
            costs["DuckDB rewrites all"].append(
                cost_of_module("bench.rewrite_peer", str(data), str(rewritten), f"key != '{one[0].decode()}'::BLOB")
            )
            shutil.rmtree(rewritten)
    finally:
        lake.drop()
        shutil.rmtree(rewritten, ignore_errors=True)
    print(f"medians of {repeats}; files of {ROWS:,} messages; seconds of CPU, and of the clock")
    for label, some in costs.items():
        files = f"{len(holding(data, requests[label]))} files" if label in requests else ""
        print(f"  {label:20} {median(cost.cpu for cost in some):6.2f} {median(cost.wall for cost in some):6.2f}  {files}")
    print("  files written again: exactly those that hold a key")
    cpu = [median(cost.cpu for cost in costs[label]) for label in requests]
    ratio = cpu[1] / cpu[0]
    print(f"  {KEYS} keys over one key, CPU: in the same files {ratio:.2f} (limit {LIMIT}), in files of their own {cpu[2] / cpu[0]:.2f}")
    return size.status(kept=ratio <= LIMIT)


def erased(name: TopicName, keys: Sequence[bytes], *, files: int) -> Cost:
    """Erase the keys by one request. `files`: how many files hold a key."""
    before = files_of(name)
    cost = total(by_command("erase", "--topic", str(name), given="".join(f"{key.decode()}\n" for key in keys)))
    after = files_of(name)
    assert len(before.keys() - after.keys()) == files, "other files were written again than those that hold a key"
    assert all(after[file] == before[file] for file in before.keys() & after.keys()), "a file that stays was written again"
    return cost


def files_by_key(data: Path) -> dict[bytes, int]:
    """Return how many files hold each key."""
    found: dict[bytes, int] = {}
    for file in sorted(data.rglob("*.parquet")):
        for key in keys_of(file):
            found[key] = found.get(key, 0) + 1
    return found


def rare_keys(found: Mapping[bytes, int]) -> list[bytes]:
    """Return the keys that the most files hold, but at most `FILES`: as many as one request names here."""
    return nlargest(KEYS, (key for key, files in found.items() if files <= FILES), key=lambda key: (found[key], key))


def keys_beside(data: Path, key: bytes, found: Mapping[bytes, int]) -> list[bytes]:
    """Return other keys that only files with this key hold, those in the most files first."""
    beside = Counter(other for file in holding(data, [key]) for other in keys_of(file))
    return nlargest(
        KEYS - 1, (other for other, files in beside.items() if files == found[other] and other != key), key=lambda one: (found[one], one)
    )


def holding(data: Path, keys: Sequence[bytes]) -> list[Path]:
    """Return the files that hold one of the keys."""
    wanted = pa.array(keys, pa.binary())
    return [file for file in sorted(data.rglob("*.parquet")) if pc.any(pc.is_in(column_of(file), value_set=wanted)).as_py()]


def keys_of(file: Path) -> list[bytes]:
    return list(pc.unique(column_of(file)).to_pylist())


def column_of(file: Path) -> pa.ChunkedArray:
    return pq.read_table(file, columns=["key"])["key"].cast(pa.binary())


def files_of(name: TopicName) -> dict[str, tuple[int, int]]:
    """Inode and time of every data file of the topic, by name."""
    root = local_path(Tables().load(name).location())
    return {str(path.relative_to(root)): (path.stat().st_ino, path.stat().st_mtime_ns) for path in root.rglob("*.parquet")}


if __name__ == "__main__":
    sys.exit(main())
