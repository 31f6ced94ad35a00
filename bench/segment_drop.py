"""Dropping 60 % of a topic's segments: facts, plan, stage and publish of the exact list of files, in one warm application.

The peer is the code that anyone would write first in Spark on an equal table: `DELETE` by a range of segments, then `expire_snapshots`.
Ours and the peer run in this process, one after the other. Figures are medians, with their ratio to the peer's. Then ours and the peer run
once in a process of their own, from its start to its end; there, ours needs no Spark. The tables have no data: the work is on metadata, and
the files are only named. Run: `python -m bench segment_drop [SEGMENTS ...]`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from statistics import median
from typing import cast

from pyspark.sql import SparkSession
from tests.spark.lake import SECOND, Lake
from tests.spark.synthetic import Shape, append_segments

from bench import size
from lifecycle_local.environment import load_environment
from message_lifecycle.model.names import TopicName
from message_lifecycle.ports import CommitContext
from message_lifecycle.stores.iceberg.layout import CATALOG
from message_lifecycle.stores.iceberg.session import spark_session, sql_table

SHARE = 0.6
ROWS = 10
# Wall seconds that this may take at the most.
LIMITS = {1_000: 0.5, 100_000: 5.0}
MAX_RESIDENT_MB = 1024


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


def _resident_mb() -> float:
    """Highest resident memory of this process and its JVM so far."""
    lines = [line for process in _processes() for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM")]
    return sum(int(line.split()[1]) for line in lines) / 1024


def _going(shape: Shape) -> int:
    return int(shape.segments * SHARE)


def ours(lake: Lake, name: TopicName, shape: Shape, times: Times) -> None:
    as_of = (shape.start_us + shape.segments * shape.step_us) / SECOND
    store = lake.store()
    with times.step("facts and plan"):
        plan = lake.plan(name, as_of)
    assert plan.expected.segments == _going(shape), plan.expected
    with times.step("stage"):
        staged = store.stage(plan)
    with times.step("publish"):
        published = store.publish(lake.verdict(plan, staged), CommitContext(ledger=lambda: ("bench", 1)))
    assert published.removed == (("expiry", _going(shape) * ROWS),), published


def peer(lake: Lake, name: TopicName, shape: Shape, times: Times) -> None:
    cut = _going(shape) * ROWS
    with times.step("DELETE"):
        lake.session.sql(f"DELETE FROM {sql_table(name)} WHERE partition = 0 AND segment < {cut}")
    with times.step("expire_snapshots"):
        lake.session.sql(
            f"CALL {CATALOG}.system.expire_snapshots(table => '{name.namespace}.{name.table()}', older_than => TIMESTAMP '2100-01-01', retain_last => 1)"
        ).collect()


def _prepared(lake: Lake, session: SparkSession, shape: Shape) -> TopicName:
    # Messages are one second apart. The expiry spans the remaining segments, so it removes every older message.
    name = lake.topic(undo_window=1, message_expiry=(shape.segments - _going(shape)) * shape.step_us // SECOND)
    append_segments(session, name, shape)
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A process that does nothing but one drop: seconds from its start to its end, and the memory of it and its JVM."""

    wall: float
    cpu: float
    resident_mb: float


def _driver(lake: Lake, session: SparkSession, shape: Shape, who: str) -> Driver:
    name = _prepared(lake, session, shape)
    command = [sys.executable, "-m", "bench.segment_drop", "--driver", str(name), "--who", who, str(shape.segments)]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    cpu, resident_mb = map(float, done.stdout.split()[-2:])
    return Driver(wall=time.perf_counter() - began, cpu=cpu, resident_mb=resident_mb)


def drive(name: TopicName, shape: Shape, who: str) -> None:
    if who == "peer":
        peer(Lake(_session(), stream=name.stream), name, shape, Times())
    else:
        ours(Lake(cast("SparkSession", None), stream=name.stream), name, shape, Times())  # it asks for none
    print(f"{cpu_seconds():.2f} {_resident_mb():.0f}")


def _session() -> SparkSession:
    session = spark_session("bench")
    session.sparkContext.setLogLevel("ERROR")
    return session


def measure(session: SparkSession, lake: Lake, segments: int, repeats: int) -> bool:
    shape = Shape(segments=segments, rows=ROWS)
    mine, theirs = Times(), Times()
    runs: list[tuple[Callable[[Lake, TopicName, Shape, Times], None], Times]] = [(ours, mine), (peer, theirs)]
    for _ in range(repeats):
        for run, times in runs:
            run(lake, _prepared(lake, session, shape), shape, times)
    print(f"\n{segments:,} segments, {int(segments * SHARE):,} go; medians of {repeats}, in seconds")
    print(f"  {'':28}{'wall':>8}{'CPU':>8}")
    for label, times in (("", mine), ("peer: ", theirs)):
        for step in times.wall:
            print(f"  {label + step:28}{median(times.wall[step]):8.2f}{median(times.cpu[step]):8.2f}")
        print(f"  {label + 'all':28}{times.total(times.wall):8.2f}{times.total(times.cpu):8.2f}")
    wall = mine.total(mine.wall)
    print(f"  ratio to the peer: wall {wall / theirs.total(theirs.wall):.2f}, CPU {mine.total(mine.cpu) / theirs.total(theirs.cpu):.2f}")
    mine_alone, theirs_alone = (_driver(lake, session, shape, who) for who in ("ours", "peer"))
    for label, driver in (("a process of its own", mine_alone), ("peer: a process of its own", theirs_alone)):
        print(f"  {label:28}{driver.wall:8.2f}{driver.cpu:8.2f}  {driver.resident_mb:.0f} MB")
    print(f"  ratio to the peer: wall {mine_alone.wall / theirs_alone.wall:.2f}, CPU {mine_alone.cpu / theirs_alone.cpu:.2f}")
    resident = mine_alone.resident_mb
    print(f"  Python and JVM: {resident:.0f} MB (limit {MAX_RESIDENT_MB})")
    limit = LIMITS.get(segments)
    if limit is None:
        return True
    print(f"  limit {limit} s: {'kept' if wall <= limit else 'MISSED'}")
    return wall <= limit and resident <= MAX_RESIDENT_MB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("segments", nargs="*", type=int, default=[size.of(segments) for segments in sorted(LIMITS)])
    parser.add_argument("--repeats", type=int, default=size.repeats(3))
    parser.add_argument("--driver", metavar="TOPIC", help=argparse.SUPPRESS)
    parser.add_argument("--who", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    load_environment()
    if arguments.driver:
        drive(TopicName.parse(arguments.driver), Shape(segments=arguments.segments[0], rows=ROWS), arguments.who)
        return 0
    session = _session()
    lake = Lake(session, stream=f"bench-{token_hex(4)}")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores: above that, read CPU")
    try:
        warm = Times()
        for run in (ours, peer):
            run(lake, _prepared(lake, session, shape := Shape(segments=size.of(1_000), rows=ROWS)), shape, warm)
        # Measure all sizes, even if one misses its limit.
        kept = [measure(session, lake, segments, arguments.repeats) for segments in arguments.segments]
        return size.status(kept=all(kept))
    finally:
        lake.drop()


if __name__ == "__main__":
    sys.exit(main())
