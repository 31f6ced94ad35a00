"""Retention by age, number and size together on 20 million messages: planned, staged and published in a fresh process.

The peer is DuckDB on two threads, which writes the kept messages again. The benchmark gives DuckDB the cut, so DuckDB need not find it.
Figures are of whole process trees, start and JVM included, and medians. Run: `python -m bench retention`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from secrets import token_hex
from statistics import median

import duckdb
import pyarrow.parquet as pq
from tests.spark.lake import Lake

from bench import size
from bench.process_tree import Cost, cost_of_module, cpu_of_tree
from bench.ttl_rows import MESSAGES, PARTITIONS, ROWS, SEGMENTS, VALUE_BYTES, end, generated, prepared
from lifecycle_local.environment import load_environment
from message_lifecycle.model.names import TopicName
from message_lifecycle.ports import CommitContext
from message_lifecycle.stores.iceberg.session import spark_session

REPEATS = size.repeats(3)
LIMIT = 0.6
_DAY = 86_400
AS_OF = 2_000_000_000 + SEGMENTS * 3600 - _DAY
"""Seconds: when the newest message came."""
MESSAGE_BYTES = VALUE_BYTES + 8
SETTINGS = {
    # About a tenth is too old, what is beyond the count as much again, and a twentieth does not fit: each limit cuts in other files.
    "max_age_seconds": 0.9 * SEGMENTS * 3600,
    "max_records": round(0.8 * MESSAGES) + 7,
    "max_total_bytes": round(0.75 * MESSAGES) * MESSAGE_BYTES + 13,
}
KEPT = round(0.75 * MESSAGES)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--remove", metavar="TOPIC", help=argparse.SUPPRESS)
    parser.add_argument("--rewrite", nargs=3, metavar=("DATA", "FOLDER", "CUTS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    load_environment()
    if given.remove:
        print(json.dumps(remove(TopicName.parse(given.remove))))
        return 0
    if given.rewrite:
        data, to, cuts = given.rewrite
        rewrite(Path(data), Path(to), json.loads(cuts))
        return 0
    return measure(generated("bench-retention", ascending=True), given.repeats)


def measure(data: Path, repeats: int) -> int:
    total = sum(file.stat().st_size for file in data.rglob("*.parquet"))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {MESSAGES:,} messages, {total / 1e9:.2f} GB")
    session = spark_session("bench")
    session.sparkContext.setLogLevel("ERROR")
    lake = Lake(session, stream=f"bench-{token_hex(4)}")
    rewritten = data.with_name(f"rewritten-{token_hex(4)}")
    ours: list[Cost] = []
    theirs: list[Cost] = []
    try:
        for _ in range(repeats):
            ours.append(cost_of_module("bench.retention", "--remove", str(prepared(lake, data, **SETTINGS))))
            cuts = json.dumps(ours[-1].said["cuts"])
            theirs.append(cost_of_module("bench.retention", "--rewrite", str(data), str(rewritten), cuts))
            assert sum(pq.read_metadata(file).num_rows for file in rewritten.iterdir()) == KEPT
    finally:
        lake.drop()
        shutil.rmtree(rewritten, ignore_errors=True)
    print(f"medians of {repeats}; seconds of CPU of the whole process tree, and of the clock")
    for label, costs in (("plan, stage, publish", ours), ("DuckDB rewrites", theirs)):
        each = ", ".join(f"{cost.cpu:.1f}" for cost in costs)
        print(f"  {label:22} {median(c.cpu for c in costs):6.2f} {median(c.wall for c in costs):6.2f}  (CPU each: {each})")
    for step in ours[0].said["steps"]:
        print(f"    {step:20} {median(cost.said['steps'][step] for cost in ours):6.2f}")
    cpu, wall = (median(getattr(c, what) for c in ours) / median(getattr(c, what) for c in theirs) for what in ("cpu", "wall"))
    print(f"  ratio of CPU {cpu:.2f} (limit {LIMIT}), of the clock {wall:.2f}; memory {max(c.memory_mb for c in ours):.0f} MB")
    return size.status(kept=cpu <= LIMIT)


def remove(name: TopicName) -> dict[str, object]:
    """CPU seconds of each step, and the first offset that each partition keeps."""
    took: dict[str, float] = {}
    started = cpu_of_tree()

    def done(step: str) -> None:
        nonlocal started
        now = cpu_of_tree()
        took[step], started = now - started, now

    took["start"] = started
    lake = Lake(spark_session("bench"), stream=name.stream)
    lake.session.sparkContext.setLogLevel("ERROR")
    done("session")
    plan = lake.plan(name, AS_OF)
    assert plan.expected.rows_in - plan.expected.removed_rows == KEPT, plan.expected
    assert {reason for reason, _ in plan.expected.removed} == {"retention_age", "retention_count", "retention_bytes"}, plan.expected
    done("plan")
    store = lake.store()
    staged = store.stage(plan)
    done("stage")
    published = store.publish(lake.verdict(plan, staged), CommitContext(ledger=lambda: ("bench", 1)))
    assert sum(count for _, count in published.removed) == plan.expected.removed_rows
    done("publish")
    end(lake.session)
    cuts = [max(action.last_offset for action in plan.log_commit.mark if action.partition == p) + 1 for p in range(PARTITIONS)]
    return {"steps": took, "cuts": cuts}


def rewrite(data: Path, to: Path, cuts: list[int]) -> None:
    to.mkdir(exist_ok=True)
    connection = duckdb.connect(config={"threads": 2})
    for partition, first in enumerate(cuts):
        # Files that are all gone are not opened.
        files = [str(data / str(partition) / f"{base}.parquet") for base in range(first // ROWS * ROWS, SEGMENTS * ROWS, ROWS)]
        connection.sql(
            f'COPY (SELECT * FROM read_parquet({files}) WHERE "offset" >= {first}) '
            f"TO '{to}/{partition}.parquet' (FORMAT parquet, COMPRESSION zstd)"
        )


if __name__ == "__main__":
    sys.exit(main())
