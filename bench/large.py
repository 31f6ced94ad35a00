"""A topic of some gigabytes is compacted, expired and erased on the embedded cluster, at two sizes, so that the growth is measured.

There are three kinds of topics (`--kind`). Values are random bytes, which nothing compresses. Segments have about 64 MB.

- `versions`: values of 1,000 to 2,000 bytes in four partitions. Keys have four versions each, and a quarter of the segments is too old. The
  steps are whole command lines: `lifecycle compact`, `run` and `erase`, the last one with its approval.
- `keys`: values of 250 to 430 bytes in one partition. Each message has a key of its own. The step is `lifecycle compact`.
- `due`: as `versions`, but no segment is too old. One message in a hundred, at random places, has a lifetime of its own that is over. The
  step is `lifecycle run`.

The figures of a step: seconds of the clock and of CPU, the greatest memory of the driver (Python and Java together) and of each executor,
and the bytes that left and reached the store. versitygw, if installed, keeps objects as files. Our own store keeps objects in memory, which
is too little for more than a gigabyte or two. Run by name only: `python -m bench large [--gb 1 5]`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow.fs import FileSelector

from bench import gateway
from bench.process_tree import Used, children, watching
from lifecycle_local import cluster, embedded, postgres, processes, spark_cluster, stack
from lifecycle_local.environment import environment, merge_environment
from lifecycle_local.java import find_java
from lifecycle_local.layout import CLUSTER, STACK, Layout, find_layout, project_root, venv_bin, venv_python
from message_lifecycle.app.services import Services
from message_lifecycle.app.wiring import lake as wired
from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import LogSummary
from message_lifecycle.stores.iceberg.tasks import Store

TOMBSTONE_EVERY = 20
_SECOND = 1_000_000
_START = 1_700_000_000 * _SECOND
_SPAN_S = 400 * 3600
AS_OF = Instant(_START + _SPAN_S * _SECOND)
_START_SECONDS = 60.0
_GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A kind of topic.

    Attributes:
        partitions: The topic's partitions.
        segment_rows: The messages of each segment.
        value_bytes: The least and the greatest size of a value.
        versions: The messages of each key. 1: each message has a key of its own.
        old: The share of the time that is past expiry. 0: nothing expires.
        due: The share of the messages whose own lifetime is over.
        segments: The segments of each partition.
    """

    partitions: int = 4
    segment_rows: int = 42_000
    value_bytes: tuple[int, int] = (1_000, 2_000)
    versions: int = 4
    old: float = 0.0
    due: float = 0.0
    segments: int = 4

    def of_size(self, gigabytes: float) -> Shape:
        message = sum(self.value_bytes) / 2 * (1 - 1 / TOMBSTONE_EVERY)
        return replace(self, segments=max(4, round(gigabytes * _GB / message / self.segment_rows / self.partitions)))

    @property
    def rows(self) -> int:
        """The rows of each partition."""
        return self.segments * self.segment_rows

    @property
    def settings(self) -> dict[str, Value]:
        """The settings of the topic."""
        expiry = round(_SPAN_S * (1 - self.old)) if self.old else 0
        return {"message_expiry": expiry, "cleanup_policy": "compact,delete", "allow_msg_ttl": self.due > 0}

    def keys(self, partition: int, segment: int) -> NDArray[np.int64]:
        if self.versions == 1:  # multiples of the golden ratio lie far apart, so their highest 38 bits stay unique, in no order
            assert self.partitions == 1, "each partition would have the same keys"
            offsets = np.arange(segment * self.segment_rows, (segment + 1) * self.segment_rows, dtype=np.uint64)
            return np.asarray((offsets * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(26), np.int64)
        chance = np.random.default_rng((partition, segment))
        return chance.integers(0, self.rows // self.versions, self.segment_rows) * self.partitions + partition

    def table(self, partition: int, segment: int, schema: pa.Schema) -> pa.Table:
        rows, chance = self.segment_rows, np.random.default_rng((partition, segment, 1))
        base = segment * rows
        offsets = np.arange(base, base + rows)
        kinds = {field.name: field.type for field in schema}
        ends = np.concatenate([[0], np.cumsum(chance.integers(self.value_bytes[0], self.value_bytes[1] + 1, rows))]).astype(np.int32)
        values = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(chance.bytes(int(ends[-1])))])
        empty, due = chance.random(rows) < 1 / TOMBSTONE_EVERY, chance.random(rows) < self.due
        appended = _START + (offsets * (_SPAN_S * _SECOND)) // self.rows
        columns = {
            "partition": pa.array(np.full(rows, partition), pa.int32()),
            "offset": pa.array(offsets),
            "append_time": pa.array(appended).cast(kinds["append_time"]),
            "event_time": pa.nulls(rows, kinds["event_time"]),
            "key": pa.array([key_of(key) for key in self.keys(partition, segment).tolist()], kinds["key"]),
            "value": pc.if_else(pa.array(empty), pa.scalar(None, kinds["value"]), values.cast(kinds["value"])),
            "headers": pa.array([[]] * rows, kinds["headers"]),
            "size_bytes": pa.array(np.where(empty, 0, np.diff(ends)) + len(key_of(0))).cast(kinds["size_bytes"]),
            "segment": pa.array(np.full(rows, base)),
            "expires_at": pa.array(appended + _SECOND, mask=~due).cast(kinds["expires_at"]),
            "never": pa.nulls(rows, kinds["never"]),
            "origin_offset": pa.nulls(rows, kinds["origin_offset"]),
        }
        return pa.table([columns[field.name] for field in schema], schema=schema)


VERSIONS, KEYS, DUE = "versions", "keys", "due"
KINDS = {
    VERSIONS: Shape(old=0.25),
    KEYS: Shape(partitions=1, segment_rows=187_500, value_bytes=(250, 430), versions=1),
    DUE: Shape(due=0.01),
}


def key_of(number: int) -> bytes:
    return b"key-%012d" % number


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`read` and `written`: bytes of the store. None: the store does not count them."""

    wall: float
    used: Mapping[str, Used]
    read: int | None
    written: int
    report: str


DRIVER, EXECUTOR, STORE = "driver", "executor", "store and catalog"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, default=VERSIONS)
    parser.add_argument("--gb", nargs="+", type=float, default=[1, 5], help="sizes of the topic, in gigabytes of data files")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running, with its topics")
    given = parser.parse_args()
    os.environ.update({STACK: CLUSTER, "LIFECYCLE_HOME": str(project_root() / ".lifecycle" / "large")})
    os.environ.setdefault("LIFECYCLE_TOOLS", str(project_root() / ".lifecycle"))
    layout = find_layout()
    print(f"{gateway.name()}; {os.cpu_count()} cores; {shutil.disk_usage(project_root()).free / _GB:.0f} GB of disk free", flush=True)
    try:
        start(layout)
        s = wired()
        found = {size: measured(layout, s, given.kind, size) for size in given.gb}
    finally:
        if not given.keep:
            stack.down(layout)
            stack.remove_scratch(layout)
    for name in next(iter(found.values()))[1]:
        shown(name, {size: steps[name] for size, (_, steps) in found.items()}, {size: real for size, (real, _) in found.items()})
    return 0


def start(layout: Layout) -> None:
    """The embedded cluster; over versitygw where that is there."""
    layout.prepare()
    if gateway.program() is not None and not cluster.is_serving(layout):
        (layout.state / spark_cluster.MACHINES).mkdir(mode=0o700, exist_ok=True)
        for name in (cluster.STORE, cluster.REST):
            processes.choose_port(layout.ports_file, name)
        settings = environment(layout, java=find_java(layout), address=postgres.start(layout), airflow_port=0)
        command: list[str | Path] = [venv_python(), "-m", "bench.large_store", objects(layout)]
        started = processes.launch(layout, cluster.SERVER, command, merge_environment(settings), identity="")
        processes.wait_for_match(layout, started, cluster.READY, seconds=_START_SECONDS)
    embedded.up(layout, with_airflow=False)


def objects(layout: Layout) -> Path:
    return layout.state / "objects"


def measured(layout: Layout, s: Services, kind: str, size: float) -> tuple[float, dict[str, Step]]:
    """Return the gigabytes of the log, and the cost of each command."""
    shape, name = KINDS[kind].of_size(size), TopicName.parse(f"bench-{token_hex(4)}/large")
    began = time.perf_counter()
    real = fill(s, name, shape) / _GB
    print(f"{real:.2f} GB in {shape.partitions * shape.segments} files, {shape.partitions * shape.rows:,} messages, made in "
          f"{time.perf_counter() - began:.0f} s; load average {os.getloadavg()[0]:.1f}", flush=True)  # fmt: skip
    word, as_of = ["--by", "bench", "--output", "json"], ["--as-of", format_instant(AS_OF), "--why", "measured"]
    compact = {"compaction": (["compact", str(name), *as_of, *word], b"")}
    clean = (["run", str(name), *as_of, *word], b"")
    held = key_of(int(shape.keys(0, shape.segments - 1)[0]))
    erase = (["erase", "--topic", str(name), "--why", "measured", *word], held)
    deeds = {KEYS: compact, DUE: {"TTL": clean}, VERSIONS: {**compact, "expiry": clean, "erasure": erase}}[kind]
    steps = {}
    for deed, (arguments, given) in deeds.items():
        steps[deed] = step = run(layout, arguments, given)
        print(f"  {deed}: {line(step, real)}\n    {step.report}", flush=True)
    return real, steps


def fill(s: Services, name: TopicName, shape: Shape) -> int:
    """Make the topic, its log in one commit; the bytes of its files."""
    s.topics.create(name, partitions=shape.partitions, settings=shape.settings, ledger=s.ledger.next_identity(name))
    jvm = engine_of_process()
    table, store, schema = engine_of_process().table(name), Store.of(Tables().load(name)), SCHEMA.as_arrow()
    java: Java = jvm.jvm
    iceberg, whole = java.org.apache.iceberg, 0
    metrics, update = iceberg.MetricsConfig.forTable(table), table.newAppend()
    columns = [field.name for field in schema if field.name != "value"]
    for partition in range(shape.partitions):
        for segment in range(shape.segments):
            content, place = io.BytesIO(), f"partition={partition}/segment={segment * shape.segment_rows}"
            pq.write_table(shape.table(partition, segment, schema), content, compression="zstd", use_dictionary=columns)
            to = f"{table.location()}/data/{place}/{token_hex(8)}.parquet"
            store.write(to, content.getvalue())
            whole += content.tell()
            found = iceberg.parquet.ParquetUtil.fileMetrics(table.io().newInputFile(to), metrics)
            described = iceberg.DataFiles.builder(table.spec()).withPath(to).withFormat("parquet").withFileSizeInBytes(content.tell())
            update.appendFile(described.withPartitionPath(place).withMetrics(found).build())
    last = ActiveSegment(base_offset=shape.rows - shape.segment_rows, rows=shape.segment_rows, size_bytes=64_000_000, newest_at=AS_OF)
    each = range(shape.partitions)
    state = LogSummary(end_offsets=dict.fromkeys(each, shape.rows), active=dict.fromkeys(each, last))
    for key, value in state.to_properties().items():
        update.set(key, value)
    update.commit()
    return whole


def run(layout: Layout, arguments: Sequence[str], given: bytes) -> Step:
    before, began = stored(layout), time.perf_counter()
    process = subprocess.Popen([venv_bin() / "lifecycle", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with watching(lambda: roots(layout, process.pid)) as used:
        output, _ = process.communicate(given)
    wall = time.perf_counter() - began
    if process.returncode:
        raise RuntimeError(f"lifecycle {arguments[0]} ended with {process.returncode}: {output.decode()}")
    after = stored(layout)
    written = sum(size for name, size in after.files.items() if name not in before.files)
    sent = None if before.passed is None or after.passed is None else after.passed - before.passed
    # The gateway writes incoming bytes to its files, and reads outgoing bytes from them.
    read = None if sent is None else max(0, sent - written)
    return Step(wall=wall, used=used, read=read, written=written, report=outcome(json.loads(output)))


def roots(layout: Layout, driver: int) -> dict[str, list[int]]:
    found = {DRIVER: [driver]}
    for number in range(spark_cluster.WORKERS):
        worker = processes.find_component(layout, f"spark-worker-{number}")
        found[f"{EXECUTOR} {number}"] = [] if worker is None else children(worker.process.pid)
    serving = processes.find_component(layout, cluster.SERVER)
    found[STORE] = [] if serving is None else [serving.process.pid]
    return found


@dataclass(frozen=True, slots=True)
class Stored:
    """Sizes of all objects by name, and the bytes that versitygw has given to others or written to its disk (None: it is not that)."""

    files: Mapping[str, int]
    passed: int | None


def stored(layout: Layout) -> Stored:
    if not objects(layout).is_dir():
        below = FileSelector(cluster.BUCKET, recursive=True)
        there = cluster.files(layout, cluster.root_key(layout)).get_file_info(below)
        return Stored({file.path: file.size or 0 for file in there}, None)
    files = {str(path): path.stat().st_size for path in objects(layout).rglob("*") if path.is_file()}
    server = processes.find_component(layout, cluster.SERVER)
    assert server is not None, "it was started"
    for pid in children(server.process.pid):
        if "versitygw" in Path(f"/proc/{pid}/cmdline").read_text():
            counters = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
            return Stored(files, int(counters["wchar"]))
    return Stored(files, None)


def outcome(report: dict[str, object]) -> str:
    """Return the command's report in one line. Raises RuntimeError if the command did something else than requested."""
    outcomes = report.get("outcomes", [report])
    assert isinstance(outcomes, list)
    for one in outcomes:
        if one.get("outcome", one.get("name")) != "published":
            raise RuntimeError(json.dumps(report))
    return "; ".join(json.dumps({key: one.get(key) for key in ("outcome", "removed")}) for one in outcomes)


def line(step: Step, gigabytes: float) -> str:
    cpu = {DRIVER: 0.0, EXECUTOR: 0.0, STORE: 0.0}
    for name, used in step.used.items():
        cpu[next(kind for kind in cpu if name.startswith(kind))] += used.cpu
    memory = ", ".join(f"{used.memory_mb:,.0f}" for name, used in step.used.items() if name.startswith(EXECUTOR))
    read = "not known" if step.read is None else f"{step.read / _GB:.2f}"
    return (
        f"wall {step.wall:.1f} s ({step.wall / gigabytes:.1f} s/GB); CPU driver {cpu[DRIVER]:.1f}, executors {cpu[EXECUTOR]:.1f}, {STORE} "
        f"{cpu[STORE]:.1f} s; memory driver {step.used[DRIVER].memory_mb:,.0f} MB, executors {memory} MB; GB read {read}, written "
        f"{step.written / _GB:.2f}"
    )


def shown(name: str, steps: Mapping[float, Step], real: Mapping[float, float]) -> None:
    """The growth from the smallest to the largest size, by gigabyte."""
    least, most = min(steps), max(steps)
    if least == most:
        return
    more = real[most] - real[least]
    small, large = steps[least], steps[most]

    def grows(kind: str, what: str) -> float:
        before, after = ([float(getattr(used, what)) for one, used in step.used.items() if one.startswith(kind)] for step in (small, large))
        return (max(after) - max(before) if what == "memory_mb" else sum(after) - sum(before)) / more

    print(
        f"{name}, by each gigabyte more: wall {(large.wall - small.wall) / more:.1f} s; CPU driver {grows(DRIVER, 'cpu'):.1f}, executors "
        f"{grows(EXECUTOR, 'cpu'):.1f} s; memory driver {grows(DRIVER, 'memory_mb'):.0f} MB, the largest executor "
        f"{grows(EXECUTOR, 'memory_mb'):.0f} MB"
    )


if __name__ == "__main__":
    sys.exit(main())
