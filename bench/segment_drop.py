"""Dropping 60 % of a topic's segments, next to `DELETE` by a range of segments and `expire_snapshots` in Spark, on an equal table.

First, facts, plan, stage and publish of the exact list of files are measured in this warm process, in turn with the peer. Then whole
processes are measured (`bench.whole_run`), from plan to verify, next to a plain Spark application. Figures are medians. The tables have no
data: the work is on metadata, and files are only named, apart from the three files that the gate samples. Run:
`python -m bench segment_drop [SEGMENTS ...]`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from statistics import median

from pyspark.sql import SparkSession
from tests.spark.lake import SECOND, Lake
from tests.spark.synthetic import Shape, append_segments, write_segment

from bench import size
from bench.compaction import own_ledger
from bench.process_tree import Cost, cost_of_module
from bench.segment_drop_peer import drop
from bench.whole_run import COMMAND, WAYS, Steps, by_command, by_dag_run, print_ways, total
from lifecycle_local.environment import load_environment
from lifecycle_local.layout import find_layout
from message_lifecycle.app.services import Services
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import lake as wired
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.ports import CommitContext
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.layout import CATALOG
from message_lifecycle.stores.iceberg.session import spark_session
from message_lifecycle.stores.iceberg.table_folder import local_path

SHARE = 0.6
ROWS = 10
# Wall seconds that this may take at the most.
LIMITS = {1_000: 0.5, 100_000: 5.0}
MAX_MEMORY_MB = 1024


@dataclass(slots=True)
class Times:
    """Wall and CPU seconds of each step, one entry a repeat; CPU of this process and the JVM."""

    wall: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), cpu_seconds()
        yield
        self.wall.setdefault(name, []).append(time.perf_counter() - wall)
        self.cpu.setdefault(name, []).append(cpu_seconds() - cpu)

    def total(self, kind: dict[str, list[float]]) -> float:
        """Median over repeats of the sum of the steps."""
        return median(map(sum, zip(*kind.values(), strict=True)))


def _processes() -> list[Path]:
    own = Path("/proc") / str(os.getpid())
    children = (own / "task" / str(os.getpid()) / "children").read_text().split()
    return [own, *(Path("/proc") / child for child in children)]


def cpu_seconds() -> float:
    ticks = 0
    for process in _processes():
        fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _going(shape: Shape) -> int:
    return int(shape.segments * SHARE)


def as_of(shape: Shape) -> Instant:
    return Instant(shape.start_us + shape.segments * shape.step_us)


def ours(lake: Lake, name: TopicName, shape: Shape, times: Times) -> None:
    store = lake.store()
    with times.step("facts and plan"):
        plan = lake.plan(name, as_of(shape) / SECOND)
    assert plan.expected.segments == _going(shape), plan.expected
    with times.step("stage"):
        staged = store.stage(plan)
    with times.step("publish"):
        published = store.publish(lake.verdict(plan, staged), CommitContext(ledger=lambda: ("bench", 1)))
    assert published.removed == (("expiry", _going(shape) * ROWS),), published


def peer(lake: Lake, name: TopicName, shape: Shape, times: Times) -> None:
    with times.step("DELETE and expire_snapshots"):
        drop(lake.session, *_arguments(name), _going(shape) * ROWS)


def _arguments(name: TopicName) -> tuple[str, str, str]:
    return CATALOG, name.namespace, name.table()


def _prepared(s: Services, lake: Lake, session: SparkSession, shape: Shape) -> TopicName:
    # Messages are one second apart. The expiry spans the remaining segments, so it removes every older message.
    expiry = (shape.segments - _going(shape)) * shape.step_us // SECOND
    name = TopicName.parse(f"{lake.stream}/t{token_hex(4)}")
    create_topic(s, name, partitions=1, settings={"undo_window": 1, "message_expiry": expiry, "max_removed_fraction": 1.0})
    append_segments(session, name, shape)
    for segment in {0, (_going(shape) - 1) // 2, _going(shape) - 1}:
        write_segment(local_path(Tables().load(name).location()), shape, segment)
    return name


def whole(way: str, name: TopicName, shape: Shape) -> Steps:
    if way == COMMAND:
        steps = by_command("run", str(name), "--as-of", format_instant(as_of(shape)))
    else:
        steps = by_dag_run("message_cleaner", name, as_of(shape))
    snapshot = Tables().load(name).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert int(snapshot.summary.additional_properties["total-data-files"]) == shape.segments - _going(shape)
    return steps


def _session() -> SparkSession:
    session = spark_session("bench")
    session.sparkContext.setLogLevel("ERROR")
    return session


def measure(session: SparkSession, s: Services, lake: Lake, segments: int, repeats: int) -> bool:
    shape = Shape(segments=segments, rows=ROWS)
    mine, theirs = Times(), Times()
    runs: list[tuple[Callable[[Lake, TopicName, Shape, Times], None], Times]] = [(ours, mine), (peer, theirs)]
    for _ in range(repeats):
        for run, times in runs:
            run(lake, _prepared(s, lake, session, shape), shape, times)
    print(f"\n{segments:,} segments, {int(segments * SHARE):,} are dropped; medians of {repeats}, in seconds, in this warm process")
    print(f"  {'':28}{'wall':>8}{'CPU':>8}")
    for label, times in (("", mine), ("peer: ", theirs)):
        for step in times.wall:
            print(f"  {label + step:28}{median(times.wall[step]):8.2f}{median(times.cpu[step]):8.2f}")
        print(f"  {label + 'all':28}{times.total(times.wall):8.2f}{times.total(times.cpu):8.2f}")
    wall = mine.total(mine.wall)
    print(f"  ratio to the peer: wall {wall / theirs.total(theirs.wall):.2f}, CPU {mine.total(mine.cpu) / theirs.total(theirs.cpu):.2f}")
    ways: dict[str, list[Steps]] = {way: [] for way in WAYS}
    applications: list[Cost] = []
    for _ in range(repeats):
        for way, found in ways.items():
            found.append(whole(way, _prepared(s, lake, session, shape), shape))
        last = _going(shape) * ROWS
        applications.append(cost_of_module("bench.segment_drop_peer", *_arguments(_prepared(s, lake, session, shape)), str(last)))
    print("  whole processes (each run)")
    print_ways(ways, applications, "DELETE and expire")
    memory = max(total(steps).memory_mb for steps in ways[COMMAND])
    print(f"  memory of the command: {memory:.0f} MB (limit {MAX_MEMORY_MB})")
    limit = LIMITS.get(segments)
    if limit is None:
        return True
    print(f"  limit {limit} s in the warm process: {'kept' if wall <= limit else 'MISSED'}")
    return wall <= limit and memory <= MAX_MEMORY_MB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("segments", nargs="*", type=int, default=[size.of(segments) for segments in sorted(LIMITS)])
    parser.add_argument("--repeats", type=int, default=size.repeats(3))
    arguments = parser.parse_args()
    load_environment()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores: above that, read CPU")
    with own_ledger(find_layout().scratch):
        return _measured(arguments.segments, arguments.repeats)


def _measured(sizes: Sequence[int], repeats: int) -> int:
    session, s = _session(), wired()
    lake = Lake(session, stream=f"bench-{token_hex(4)}")
    try:
        warm = Times()
        for run in (ours, peer):
            run(lake, _prepared(s, lake, session, shape := Shape(segments=size.of(1_000), rows=ROWS)), shape, warm)
        # Measure all sizes, even if one misses its limit.
        kept = [measure(session, s, lake, segments, repeats) for segments in sizes]
        return size.status(kept=all(kept))
    finally:
        lake.drop()


if __name__ == "__main__":
    sys.exit(main())
