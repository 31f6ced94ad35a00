"""Removing 200,000 overdue messages scattered over 20 million, from plan to verify, by the command and by a DAG run.

The peer is the code that anyone would write without a table format: DuckDB, on two threads, writes the same files again without the
messages. Figures are of whole processes (`bench.whole_run`), and medians. Run: `python -m bench ttl_rows`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.spark.lake import SECOND, Lake

from bench import size
from bench.compaction import own_ledger
from bench.process_tree import Cost, cost_of_module
from bench.whole_run import COMMAND, WAYS, Steps, by_command, by_dag_run, print_ways
from lifecycle_local.environment import load_environment
from lifecycle_local.layout import find_layout
from message_lifecycle.app.services import Services
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import lake as wired
from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import LogSummary
from message_lifecycle.stores.iceberg.session import spark_session, sql_table
from message_lifecycle.stores.iceberg.table_folder import local_path

PARTITIONS, SEGMENTS, ROWS = 4, size.of(80), 62_500
MESSAGES = PARTITIONS * SEGMENTS * ROWS
DUE_EVERY = 100
"""One message in so many is overdue; one in ten more lives longer."""
VALUE_BYTES = 36
REPEATS = size.repeats(3)
LIMIT = 0.5
NOW = 1_700_000_000 * SECOND
_START = NOW - 86_400 * SECOND


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    given = parser.parse_args()
    load_environment()
    return measure(
        generated(),
        given.repeats,
        settings={"allow_msg_ttl": True},
        as_of=Instant(NOW),
        kept=MESSAGES - MESSAGES // DUE_EVERY,
        kept_by_peer=[f"expires_at IS NULL OR epoch_us(expires_at) > {NOW}"],
        limit=LIMIT,
    )


def measure(
    data: Path, repeats: int, *, settings: Mapping[str, Value], as_of: Instant, kept: int, kept_by_peer: Sequence[str], limit: float
) -> int:
    """Measure the removal of single messages, ours and the peer's in turn, and print the figures.

    Args:
        data: The files of the topic.
        repeats: How often to measure.
        settings: The settings of the topic.
        as_of: The time to judge by.
        kept: How many messages both must keep.
        kept_by_peer: The SQL condition of the messages that the peer keeps: one, or one for each partition.
        limit: The greatest ratio of the CPU of the command to the peer's.

    Returns:
        The exit status: 1 if the command takes more CPU than `limit` allows.
    """
    total_bytes = sum(file.stat().st_size for file in data.rglob("*.parquet"))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {MESSAGES:,} messages, {total_bytes / 1e9:.2f} GB")
    rewritten = data.with_name(f"rewritten-{token_hex(4)}")
    ours: dict[str, list[Steps]] = {way: [] for way in WAYS}
    theirs: list[Cost] = []
    with own_ledger(data.parent):
        s, lake = wired(), Lake(spark_session("bench"), stream=f"bench-{token_hex(4)}")
        lake.session.sparkContext.setLogLevel("ERROR")
        try:
            for _ in range(repeats):
                for way, steps in ours.items():
                    name = prepared(s, lake, data, **settings)
                    steps.append(removed(way, name, as_of))
                    ((found,),) = lake.session.sql(f"SELECT count(*) FROM {sql_table(name)}").collect()
                    assert found == kept, (found, kept)
                theirs.append(cost_of_module("bench.rewrite_peer", str(data), str(rewritten), *kept_by_peer))
                assert sum(pq.read_metadata(file).num_rows for file in rewritten.iterdir()) == kept
        finally:
            lake.drop()
            shutil.rmtree(rewritten, ignore_errors=True)
    print(f"seconds, medians of {repeats} (each run)")
    return size.status(kept=print_ways(ours, theirs, "DuckDB rewrites") <= limit)


def removed(way: str, name: TopicName, as_of: Instant) -> Steps:
    """Remove what is due by that way."""
    if way == COMMAND:
        return by_command("run", str(name), "--as-of", format_instant(as_of))
    return by_dag_run("message_cleaner", name, as_of)


def generated(name: str = "bench-ttl", *, ascending: bool = False, segments: int = SEGMENTS) -> Path:
    """Return the folder of the files, and write them if they are not there: `<partition>/<base offset>.parquet`.

    Args:
        name: The name of the folder, which the number of messages follows.
        ascending: Give each segment later times than the segment before it.
        segments: The number of segments of each partition.
    """
    folder = find_layout().scratch / f"{name}-{PARTITIONS * segments * ROWS}"
    data = folder / "data"
    if not data.exists():
        making = folder / f"making-{token_hex(4)}"
        try:
            _write(making, segments, ascending=ascending)
            making.rename(data)
        except OSError:
            if not data.exists():  # otherwise another benchmark has written the files meanwhile
                raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return data


def _write(to: Path, segments: int, *, ascending: bool) -> None:
    schema = SCHEMA.as_arrow()
    for partition in range(PARTITIONS):
        (to / str(partition)).mkdir(parents=True)
        for segment in range(segments):
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


def prepared(s: Services, lake: Lake, data: Path, **settings: Value) -> TopicName:
    """Make a topic with links to the files, appended in one commit. No plan of the topic needs an approval."""
    name = TopicName.parse(f"{lake.stream}/t{token_hex(4)}")
    create_topic(s, name, partitions=PARTITIONS, settings={"message_expiry": 0, "max_removed_fraction": 1.0, **settings})
    table = engine_of_process().table(name)
    _append(table, _linked(data, local_path(str(table.location()))))
    return name


def _linked(data: Path, location: Path) -> Iterator[tuple[int, int, Path]]:
    for partition in range(PARTITIONS):
        for base in sorted(int(file.stem) for file in (data / str(partition)).iterdir()):
            to = location / "data" / f"partition={partition}" / f"segment={base}" / f"00000-{token_hex(4)}.parquet"
            to.parent.mkdir(parents=True)
            to.hardlink_to(data / str(partition) / f"{base}.parquet")
            yield partition, base, to


def _append(table: Java, files: Iterable[tuple[int, int, Path]]) -> None:
    """Append the files, which every partition has for the same segments."""
    jvm: Java = engine_of_process().jvm
    iceberg = jvm.org.apache.iceberg
    spec, metrics = table.spec(), iceberg.MetricsConfig.forTable(table)
    append, last = table.newAppend(), 0
    for partition, base, path in files:
        last = max(last, base)
        file = table.io().newInputFile(str(path))
        found = iceberg.parquet.ParquetUtil.fileMetrics(file, metrics)
        place = f"partition={partition}/segment={base}"
        described = iceberg.DataFiles.builder(spec).withPath(str(path)).withFormat("parquet").withFileSizeInBytes(path.stat().st_size)
        append.appendFile(described.withPartitionPath(place).withMetrics(found).build())
    newest = Instant(_START + 3600 * SECOND)
    active = ActiveSegment(base_offset=last, rows=ROWS, size_bytes=ROWS * (VALUE_BYTES + 8), newest_at=newest)
    state = LogSummary(end_offsets=dict.fromkeys(range(PARTITIONS), last + ROWS), active=dict.fromkeys(range(PARTITIONS), active))
    for key, value in state.to_properties().items():
        append.set(key, value)
    append.commit()


if __name__ == "__main__":
    sys.exit(main())
