"""Removing 200,000 overdue messages scattered over 20 million: planned, staged and published in a fresh process.

The peer is the code that anyone would write without a table format: DuckDB, on two threads, writes the same files again without the
messages. Figures are CPU time of whole process trees, start and JVM included, and medians. Runs of their own measure the gate: its own
work, without the start of a session and without imports, as a share of a run's CPU. Run: `python -m bench ttl_rows`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from secrets import token_hex
from statistics import median
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from tests.spark.lake import SECOND, Lake

from bench import size
from bench.segment_drop import cpu_seconds as treecpu_seconds
from lifecycle_local.environment import load_environment
from lifecycle_local.layout import find_layout
from message_lifecycle.app.operations.registry import suite_of
from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.ports import CommitContext
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import LogSummary
from message_lifecycle.stores.iceberg.session import spark_session
from message_lifecycle.stores.iceberg.table_folder import local_path

PARTITIONS, SEGMENTS, ROWS = 4, size.of(80), 62_500
MESSAGES = PARTITIONS * SEGMENTS * ROWS
DUE_EVERY = 100
"""One message in so many is overdue; one in ten more lives longer."""
VALUE_BYTES = 36
REPEATS = size.repeats(3)
LIMIT = 0.5
GATE_LIMIT = 0.25
NOW = 2_000_000_000 * SECOND
_START = NOW - 86_400 * SECOND


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--remove", metavar="TOPIC", help=argparse.SUPPRESS)
    parser.add_argument("--rewrite", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--gate", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    load_environment()
    if given.remove:
        print(json.dumps(remove(TopicName.parse(given.remove), gate=given.gate)))
        return 0
    data = generated()
    if given.rewrite:
        rewrite(data, Path(given.rewrite))
        return 0
    return measure(data, given.repeats)


def measure(data: Path, repeats: int) -> int:
    total = sum(file.stat().st_size for file in data.rglob("*.parquet"))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {MESSAGES:,} messages, {total / 1e9:.2f} GB")
    session = spark_session("bench")
    session.sparkContext.setLogLevel("ERROR")
    lake = Lake(session, stream=f"bench-{token_hex(4)}")
    ours, theirs, steps, share = [], [], [], []
    rewritten = data.with_name(f"rewritten-{token_hex(4)}")
    try:
        for _ in range(repeats):
            cpu, told = _child("--remove", str(prepared(lake, data)))
            ours.append(cpu)
            steps.append(told)
            theirs.append(_child("--rewrite", str(rewritten))[0])
            assert sum(pq.read_metadata(file).num_rows for file in rewritten.iterdir()) == MESSAGES - MESSAGES // DUE_EVERY
            share.append(_child("--remove", str(prepared(lake, data)), "--gate")[1])
    finally:
        lake.drop()
        shutil.rmtree(rewritten, ignore_errors=True)
    print(f"CPU seconds, whole process tree, medians of {repeats} (each run)")
    print(f"  plan, stage, publish   {median(ours):6.2f}  {_each(ours)}")
    for step in steps[0]:
        print(f"    {step:20} {median(run[step] for run in steps):6.2f}")
    print(f"  DuckDB rewrites        {median(theirs):6.2f}  {_each(theirs)}")
    ratio = median(ours) / median(theirs)
    gate = median(run["gate"] for run in share) / median(ours)
    print(f"  ratio {ratio:.2f} (limit {LIMIT})")
    print(f"  the gate's own work    {median(run['gate'] for run in share):6.2f}, {gate:.0%} of a run (limit {GATE_LIMIT:.0%})")
    return size.status(kept=ratio <= LIMIT and gate <= GATE_LIMIT)


def _each(costs: Sequence[float]) -> str:
    return ", ".join(f"{cost:.1f}" for cost in costs)


def _child(*arguments: str) -> tuple[float, dict[str, float]]:
    """Return the CPU seconds of the process and its waited-for descendants, and the values that it printed last."""
    process = subprocess.Popen([sys.executable, "-m", "bench.ttl_rows", *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{arguments} ended with {os.waitstatus_to_exitcode(status)}")
    lines = said.strip().splitlines()
    return usage.ru_utime + usage.ru_stime, json.loads(lines[-1]) if lines else {}


def remove(name: TopicName, *, gate: bool) -> dict[str, float]:
    """CPU seconds of each step."""
    started, took = treecpu_seconds(), {}

    def done(step: str) -> None:
        nonlocal started
        now = treecpu_seconds()
        took[step], started = now - started, now

    took["start"] = started
    lake = Lake(spark_session("bench"), stream=name.stream)
    lake.session.sparkContext.setLogLevel("ERROR")
    store = lake.store()
    done("session")
    plan = lake.plan(name, NOW / SECOND)
    assert dict(plan.expected.removed) == {"ttl": MESSAGES // DUE_EVERY}, plan.expected
    done("plan")
    staged = store.stage(plan)
    done("stage")
    if gate:
        import great_expectations  # noqa: F401 - what it takes is told apart from what it does

        from message_lifecycle.gates.runner import GreatExpectationsGate

        done("gate's imports")
        policy = lake.policy(name)
        report = GreatExpectationsGate().judge(plan, staged, suite_of(plan, staged, policy), store.evidence(plan, staged, policy))
        assert report.judgement == "passed", [check for check in report.checks if not check.passed]
        done("gate")
    published = store.publish(lake.verdict(plan, staged), CommitContext(ledger=lambda: ("bench", 1)))
    assert sum(count for _, count in published.removed) == plan.expected.removed_rows
    done("publish")
    end(lake.session)
    return took


def end(session: SparkSession) -> None:
    """Wait for the JVM: only then does its CPU count as this process's."""
    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def rewrite(data: Path, to: Path) -> None:
    to.mkdir(exist_ok=True)
    connection = duckdb.connect(config={"threads": 2})
    for partition in range(PARTITIONS):
        connection.sql(
            f"COPY (SELECT * FROM read_parquet('{data}/{partition}/*.parquet') WHERE expires_at IS NULL OR epoch_us(expires_at) > {NOW}) "
            f"TO '{to}/{partition}.parquet' (FORMAT parquet, COMPRESSION zstd)"
        )


def generated(name: str = "bench-ttl-rows", *, ascending: bool = False) -> Path:
    """Return the folder of the files, and write them if they are not there: `<partition>/<base offset>.parquet`.

    Args:
        name: The name of the folder, which the number of messages follows.
        ascending: Give each segment later times than the segment before it.
    """
    folder = find_layout().scratch / f"{name}-{MESSAGES}"
    data = folder / "data"
    if not data.exists():
        making = folder / f"making-{token_hex(4)}"
        try:
            _write(making, ascending=ascending)
            making.rename(data)
        except OSError:
            if not data.exists():  # otherwise another benchmark has written the files meanwhile
                raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return data


def _write(to: Path, *, ascending: bool) -> None:
    schema = SCHEMA.as_arrow()
    for partition in range(PARTITIONS):
        (to / str(partition)).mkdir(parents=True)
        for segment in range(SEGMENTS):
            later = segment * 3600 * SECOND if ascending else 0
            rows = _rows(partition, segment * ROWS, schema, later)
            pq.write_table(rows, to / str(partition) / f"{segment * ROWS}.parquet", compression="zstd")


def _rows(partition: int, base: int, schema: pa.Schema, later: int) -> pa.Table:
    chance = np.random.default_rng((partition, base))
    offsets = np.arange(base, base + ROWS)
    own = np.isin(np.arange(ROWS), chance.choice(ROWS, ROWS // DUE_EVERY + ROWS // 10, replace=False))
    due = own.copy()
    due[np.flatnonzero(own)[chance.permutation(own.sum())[: ROWS // 10]]] = False
    appended = _START + later + np.sort(chance.integers(0, 3600 * SECOND, ROWS))
    expires = np.where(due, NOW - chance.integers(0, 3600 * SECOND, ROWS), NOW + chance.integers(1, 86_400 * SECOND, ROWS))
    keys = chance.zipf(1.3, ROWS) % 1_000_000
    ttl = pa.array([[{"name": "Nats-TTL", "value": b"24h"}] if one else [] for one in own.tolist()], schema.field("headers").type)
    values = pa.Array.from_buffers(pa.binary(VALUE_BYTES), ROWS, [None, pa.py_buffer(chance.bytes(ROWS * VALUE_BYTES))])
    moment = schema.field("append_time").type
    columns = {
        "partition": pa.array(np.full(ROWS, partition), pa.int32()),
        "offset": pa.array(offsets),
        "append_time": pa.array(appended).cast(moment),
        "event_time": pa.nulls(ROWS, moment),
        "key": pa.array([b"key-%d" % key for key in keys.tolist()], schema.field("key").type),
        "value": values.cast(schema.field("value").type),
        "headers": ttl,
        "size_bytes": pa.array(np.full(ROWS, VALUE_BYTES + 8)),
        "segment": pa.array(np.full(ROWS, base)),
        "expires_at": pa.array(expires, mask=~own).cast(moment),
        "never": pa.nulls(ROWS, pa.bool_()),
        "origin_offset": pa.nulls(ROWS, pa.int64()),
    }
    return pa.table([columns[field.name] for field in schema], schema=schema)


def prepared(lake: Lake, data: Path, **settings: Value) -> TopicName:
    """Make a topic with links to the files, appended in one commit. `settings`: of the topic, by default TTL."""
    name = lake.topic(partitions=PARTITIONS, message_expiry=0, **(settings or {"allow_msg_ttl": True}))
    table = engine_of_process().table(name)
    _append(table, _linked(data, local_path(str(table.location()))))
    return name


def _linked(data: Path, location: Path) -> Iterator[tuple[int, int, Path]]:
    for partition in range(PARTITIONS):
        for base in range(0, SEGMENTS * ROWS, ROWS):
            to = location / "data" / f"partition={partition}" / f"segment={base}" / f"00000-{token_hex(4)}.parquet"
            to.parent.mkdir(parents=True)
            to.hardlink_to(data / str(partition) / f"{base}.parquet")
            yield partition, base, to


def _append(table: Java, files: Iterator[tuple[int, int, Path]]) -> None:
    jvm: Java = engine_of_process().jvm
    iceberg = jvm.org.apache.iceberg
    spec, metrics = table.spec(), iceberg.MetricsConfig.forTable(table)
    append = table.newAppend()
    for partition, base, path in files:
        file = table.io().newInputFile(str(path))
        found = iceberg.parquet.ParquetUtil.fileMetrics(file, metrics)
        place = f"partition={partition}/segment={base}"
        described = iceberg.DataFiles.builder(spec).withPath(str(path)).withFormat("parquet").withFileSizeInBytes(path.stat().st_size)
        append.appendFile(described.withPartitionPath(place).withMetrics(found).build())
    last = (SEGMENTS - 1) * ROWS
    newest = Instant(_START + 3600 * SECOND)
    active = ActiveSegment(base_offset=last, rows=ROWS, size_bytes=ROWS * (VALUE_BYTES + 8), newest_at=newest)
    state = LogSummary(end_offsets=dict.fromkeys(range(PARTITIONS), last + ROWS), active=dict.fromkeys(range(PARTITIONS), active))
    for key, value in state.to_properties().items():
        append.set(key, value)
    append.commit()


if __name__ == "__main__":
    sys.exit(main())
