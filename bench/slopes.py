"""Cost of each operation at 2, 8 and 32 million messages, and of each further gigabyte, by the command, from plan to verify.

Costs are those of whole processes (`bench.process_tree`). A slope leaves out the start of the processes: it divides the cost between two
sizes by the gigabytes between them. Two slopes that differ show a cost that is not linear. The files of TTL, retention and erasure stay for
the next run. Run: `python -m bench slopes [--only OPERATION ...] [--millions N ...] [--repeats N]`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from secrets import token_hex
from statistics import median

from tests.spark.lake import Lake

from bench import compaction, erasure, retention, size, ttl_rows
from bench.compaction_data import Log
from bench.compaction_topic import Topic
from bench.documents import AS_OF as FOLDED_AT
from bench.documents import CHANGES_EACH, made, stored_bytes
from bench.process_tree import Cost
from bench.whole_run import COMMAND, by_command, total
from lifecycle_local.environment import load_environment
from lifecycle_local.layout import find_layout
from message_lifecycle.app.wiring import lake as wired
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.iceberg.session import spark_session, sql_table

MILLION = 1_000_000
MILLIONS = (1,) if size.is_part() else (2, 8, 32)
KEYS = 20
"""Messages for each key in a log with versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The cost at one size.

    Attributes:
        gigabytes: The size of the topic's files before the run, in 10^9 bytes.
    """

    messages: int
    gigabytes: float
    costs: Sequence[Cost]

    def median_of(self, kind: str) -> float:
        return median(float(getattr(cost, kind)) for cost in self.costs)


class Bench:
    """Topics of every kind, in one lake with a ledger of its own."""

    def __init__(self, scratch: Path, make: Callable[[int], Topic]) -> None:
        self._scratch, self._make = scratch, make
        self._services, self._lake = wired(), Lake(spark_session("bench"), stream=f"bench-{token_hex(4)}")

    def drop(self) -> None:
        self._lake.drop()

    def unique(self, messages: int, repeats: int) -> Point:
        return self._compacted(Log(messages=messages, partitions=compaction.PARTITIONS, keys=None), repeats, COMMAND)

    def versions(self, messages: int, repeats: int) -> Point:
        return self._compacted(Log(messages=messages, partitions=compaction.PARTITIONS, keys=messages // KEYS), repeats, COMMAND)

    def one_core(self, messages: int, repeats: int) -> Point:
        return self._compacted(Log(messages=messages, partitions=compaction.PARTITIONS, keys=None), repeats, compaction.ONE_CORE)

    def ttl(self, messages: int, repeats: int) -> Point:
        segments, rows = _shape(messages)
        data = ttl_rows.generated(segments=segments)
        return self._run(data, rows, rows - rows // ttl_rows.DUE_EVERY, repeats, Instant(ttl_rows.NOW), {"allow_msg_ttl": True})

    def retention(self, messages: int, repeats: int) -> Point:
        segments, rows = _shape(messages)
        data = ttl_rows.generated("bench-retained", ascending=True, segments=segments)
        return self._run(data, rows, round(0.75 * rows), repeats, retention.newest(segments), retention.limits(segments))

    def erasure(self, messages: int, repeats: int) -> Point:
        segments, rows = _shape(messages)
        data = ttl_rows.generated(segments=segments)
        key = erasure.rare_keys(erasure.files_by_key(data))[0]
        files, costs = len(erasure.holding(data, [key])), []
        for _ in range(repeats):
            name = ttl_rows.prepared(self._services, self._lake, data)
            costs.append(erasure.erased(name, [key], files=files))
        return Point(messages=rows, gigabytes=_gigabytes(data), costs=costs)

    def documents(self, messages: int, repeats: int) -> Point:
        found, stored = [], 0
        for _ in range(repeats):
            name = made(self._services, TopicName(stream=self._lake.stream, topic=f"documents-{token_hex(4)}"), messages // CHANGES_EACH)
            stored = stored_bytes(name)
            found.append(total(by_command("run", str(name), "--as-of", format_instant(FOLDED_AT))))
            left = self._rows(name)
            assert left == messages // CHANGES_EACH, left  # the last change of each document
        return Point(messages=messages, gigabytes=stored / 1e9, costs=found)

    def _compacted(self, log: Log, repeats: int, way: str) -> Point:
        data, costs = compaction.generated(log, self._scratch), []
        for _ in range(repeats):
            topic = self._make(log.partitions)
            topic.append(log, data)
            costs.append(total(compaction.compact(way, topic)))
            assert topic.compacted()[0] > 0  # `bench compaction` compares the rows with DuckDB's
            topic.drop()
        return Point(messages=log.messages, gigabytes=_gigabytes(data), costs=costs)

    def _run(self, data: Path, rows: int, kept: int, repeats: int, as_of: Instant, settings: Mapping[str, Value]) -> Point:
        costs = []
        for _ in range(repeats):
            name = ttl_rows.prepared(self._services, self._lake, data, **settings)
            costs.append(total(ttl_rows.removed(COMMAND, name, as_of)))
            found = self._rows(name)
            assert found == kept, (found, kept)
        return Point(messages=rows, gigabytes=_gigabytes(data), costs=costs)

    def _rows(self, name: TopicName) -> int:
        ((found,),) = self._lake.session.sql(f"SELECT count(*) FROM {sql_table(name)}").collect()
        return int(found)


OPERATIONS: Mapping[str, Callable[[Bench, int, int], Point]] = {
    "compaction, unique keys": Bench.unique,
    "compaction, unique keys, one core": Bench.one_core,
    f"compaction, {KEYS} messages a key": Bench.versions,
    "TTL of 1 %": Bench.ttl,
    "retention of 25 %": Bench.retention,
    "erasure of a key": Bench.erasure,
    f"documents of {CHANGES_EACH} changes": Bench.documents,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    parser.add_argument("--millions", nargs="+", type=int, default=list(MILLIONS))
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args()
    load_environment()
    with _bench() as bench:
        for operation in given.only:
            print(f"{operation}: load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; medians of {given.repeats}")
            points = [
                _shown(OPERATIONS[operation](bench, size.of(millions * MILLION), given.repeats)) for millions in sorted(given.millions)
            ]
            _show_slope(points)
    return 0


@contextmanager
def _bench() -> Iterator[Bench]:
    scratch = find_layout().scratch / "bench-slopes"
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        with compaction.measuring(scratch) as make:
            bench = Bench(scratch, make)
            try:
                yield bench
            finally:
                bench.drop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _shown(point: Point) -> Point:
    memory = max(cost.memory_mb for cost in point.costs)
    print(
        f"  {point.messages:12,} messages, {point.gigabytes:6.2f} GB: CPU {point.median_of('cpu'):7.1f} s, clock {point.median_of('wall'):7.1f} s, "
        f"memory {memory:,.0f} MB",
        flush=True,
    )
    return point


def _show_slope(points: Sequence[Point]) -> None:
    for first, last in pairwise(points):
        gigabytes, millions = last.gigabytes - first.gigabytes, (last.messages - first.messages) / MILLION
        cpu, clock = (last.median_of(kind) - first.median_of(kind) for kind in ("cpu", "wall"))
        print(
            f"  from {first.messages:,} to {last.messages:,}: each further GB CPU {cpu / gigabytes:.1f} s, clock {clock / gigabytes:.1f} s; "
            f"each further million CPU {cpu / millions:.2f} s, clock {clock / millions:.2f} s",
            flush=True,
        )


def _shape(messages: int) -> tuple[int, int]:
    """Return the number of whole segments of each partition, at least one, and the number of their messages."""
    of_each = ttl_rows.PARTITIONS * ttl_rows.ROWS
    segments = max(1, messages // of_each)
    return segments, segments * of_each


def _gigabytes(data: Path) -> float:
    return sum(file.stat().st_size for file in data.rglob("*.parquet")) / 1e9


if __name__ == "__main__":
    sys.exit(main())
