"""Two-pass compaction with its gate, from process start to committed snapshot, next to DuckDB's plain two passes over the same files.

A run and its gate are two processes, as in Airflow. The figures state both and their sum, which a user waits for.

The peer runs in a process of its own, on two threads. DuckDB finds the latest offset of each key, and then copies those rows in order to
bare Parquet files, without a commit. A figure is a ratio of medians of the same run. CPU time is the time of whole process trees, JVM and
workers included. Run: `python -m bench compaction [--messages N] [--only SET ...]`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from statistics import median

from bench import size
from bench.compaction_data import Log
from bench.compaction_topic import Measured, Run
from bench.process_tree import Cost, cost_of_module
from lifecycle_local.environment import load_environment
from lifecycle_local.layout import find_layout
from message_lifecycle.app.config import LEDGER_URL
from message_lifecycle.app.wiring import lake as wired
from message_lifecycle.ledger import migrate_ledger
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.session import spark_session
from message_lifecycle.stores.iceberg.view_file import drop_stream

FURTHER = 10
"""At a part of the size, starting processes takes longer than ten times as many messages."""
MESSAGES, KEYS, PARTITIONS = size.of(20_000_000, further=FURTHER), size.of(1_000_000, further=FURTHER), 4
REPEATS = size.repeats(3)
MEMORY_MB = 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    """A log, the tail that is new at a second compaction (None: compacted for the first time), and the limits.

    `cpu`, `wall`: the greatest ratio to the peer, without the gate. `whole_cpu`, `whole_wall`: the same with the gate. `beside`: wall
    ratio to another set's, without the gate. `whole_only`: another set runs the same code, so a part of the size leaves it out."""

    log: Log
    tail: Log | None = None
    cpu: float | None = None
    wall: float | None = None
    whole_cpu: float | None = None
    whole_wall: float | None = None
    beside: tuple[str, float] | None = None
    memory_mb: int | None = None
    whole_only: bool = False


@dataclass(slots=True)
class Found:
    """Costs of each run."""

    ours: list[Run] = field(default_factory=list)
    theirs: list[Cost] = field(default_factory=list)


def sets(messages: int, keys: int) -> dict[str, Set]:
    unique = Log(messages=messages, partitions=PARTITIONS, keys=None)
    one, ten = (replace(unique, messages=messages // part, first=unique.rows) for part in (100, 10))
    return {
        "log": Set(log=Log(messages=messages, partitions=PARTITIONS, keys=keys), cpu=1.5, wall=1.5, whole_cpu=3.0, whole_wall=3.0),
        "one partition": Set(log=Log(messages=messages, partitions=1, keys=keys), beside=("log", 1.5), whole_only=True),
        "unique": Set(log=unique, cpu=1.2, wall=1.2, whole_cpu=2.0, whole_wall=3.0, memory_mb=MEMORY_MB),
        "1 % new": Set(log=unique, tail=one, cpu=0.3),
        "10 % new": Set(log=unique, tail=ten, cpu=0.45, whole_only=True),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--keys", type=int)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--only", nargs="+", metavar="SET")
    parser.add_argument("--keep", action="store_true", help="leave the generated files for the next run")
    given = parser.parse_args()
    load_environment()
    chosen = sets(given.messages, given.keys or given.messages * KEYS // MESSAGES)
    unknown = set(given.only or ()) - set(chosen)
    if unknown:
        parser.error(f"no such set: {', '.join(sorted(unknown))}; there are {', '.join(chosen)}")
    return measure(
        {name: one for name, one in chosen.items() if (name in given.only if given.only else not (one.whole_only and size.is_part()))},
        given.repeats,
        keep=given.keep,
    )


def measure(chosen: dict[str, Set], repeats: int, *, keep: bool) -> int:
    scratch = find_layout().scratch / "bench-compaction"
    scratch.mkdir(parents=True, exist_ok=True)
    walls, missed = dict[str, float](), 0
    try:
        with measuring(scratch) as make:
            for name, one in chosen.items():
                found = runs(make, one, scratch, repeats)
                walls[name] = median(run.compaction.wall for run in found.ours)
                missed += shown(name, one, found, walls)
    finally:
        if not keep:
            shutil.rmtree(scratch, ignore_errors=True)
    return size.status(kept=not missed)


@contextmanager
def measuring(scratch: Path) -> Iterator[Callable[[int], Measured]]:
    """Yield a function that makes a topic with so many partitions. The topics and their ledger end with the block."""
    with own_ledger(scratch):
        session = spark_session("bench")
        session.sparkContext.setLogLevel("ERROR")
        # Found now: at the block's end the environment may be that of another lake.
        services, stream, catalog = wired(), f"bench-{token_hex(4)}", Tables().catalog
        made = list[Measured]()

        def make(partitions: int) -> Measured:
            made.append(Measured.make(session, services, TopicName.parse(f"{stream}/{len(made)}"), partitions))
            return made[-1]

        try:
            yield make
        finally:
            drop_stream(catalog, TopicName.parse(f"{stream}/any").namespace)


@contextmanager
def own_ledger(scratch: Path) -> Iterator[None]:
    """Let this process and its children use a new ledger, and remove the ledger after the block."""
    folder = scratch / f"ledger-{token_hex(4)}"
    folder.mkdir(parents=True)
    before = os.environ.get(LEDGER_URL)
    os.environ[LEDGER_URL] = f"sqlite:///{folder}/ledger.sqlite"
    try:
        migrate_ledger(os.environ[LEDGER_URL])
        yield
    finally:
        if before is None:
            del os.environ[LEDGER_URL]
        else:
            os.environ[LEDGER_URL] = before
        shutil.rmtree(folder)


def runs(make: Callable[[int], Measured], one: Set, scratch: Path, repeats: int) -> Found:
    """Ours and the peers' in turn, each from the same state; what they leave is compared."""
    topic, folders = make(one.log.partitions), [generated(one.log, scratch)]
    topic.append(one.log, folders[0])
    if one.tail is not None:
        topic.compact()
        folders.append(generated(one.tail, scratch))
        topic.append(one.tail, folders[1])
    files = ",".join(f"{folder}/*/*.parquet" for folder in folders)
    found = Found()
    for _ in range(repeats):
        found.ours.append(topic.measured(scratch))
        found.theirs.append(cost_of_module("bench.compaction_peer", files, str(scratch / "peer")))
        assert found.ours[-1].made == found.theirs[-1].said, (found.ours[-1].made, found.theirs[-1].said)
    topic.drop()
    return found


def shown(name: str, one: Set, found: Found, walls: dict[str, float]) -> int:
    """Print the figures, and return the number of missed limits."""
    runs, theirs = [run.compaction for run in found.ours], found.theirs
    gates, whole = [run.gate for run in found.ours], [run.whole for run in found.ours]
    print(f"{name}: load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; medians of {len(runs)} (each run)")
    for kind, costs in (("ours", whole), ("- run", runs), ("- gate", gates), ("DuckDB", theirs)):
        memory = median(cost.memory_mb for cost in costs)
        print(f"  {kind:9} CPU {_of(costs, 'cpu')}  wall {_of(costs, 'wall')}  memory {memory:,.0f} MB")
    print("  wall of steps: " + ", ".join(f"{step} {median(run.said[step] for run in runs):.2f}" for step in runs[0].said))
    bounds = [
        ("cpu", _ratio("cpu", whole, theirs), one.whole_cpu),
        ("wall", _ratio("wall", whole, theirs), one.whole_wall),
        ("cpu without the gate", _ratio("cpu", runs, theirs), one.cpu),
        ("wall without the gate", _ratio("wall", runs, theirs), one.wall),
    ]
    if one.beside is not None and one.beside[0] in walls:
        bounds.append((f"wall beside {one.beside[0]!r}", walls[name] / walls[one.beside[0]], one.beside[1]))
    if one.memory_mb is not None:
        bounds.append(("memory, the most in MB,", max(cost.memory_mb for cost in whole), one.memory_mb))
    for what, figure, limit in bounds:
        print(f"  {what} {figure:,.2f}" + (f" (limit {limit:,})" if limit else ""))
    sys.stdout.flush()
    return sum(limit is not None and figure > limit for _, figure, limit in bounds)


def _ratio(kind: str, mine: list[Cost], theirs: list[Cost]) -> float:
    ours, peers = ([float(getattr(cost, kind)) for cost in costs] for costs in (mine, theirs))
    return median(ours) / median(peers)


def _of(costs: list[Cost], kind: str) -> str:
    each = [getattr(cost, kind) for cost in costs]
    return f"{median(each):.2f} ({', '.join(f'{one:.1f}' for one in each)})"


def generated(log: Log, scratch: Path) -> Path:
    """The log's files, made once."""
    folder = scratch / f"{log.messages}-{log.partitions}-{log.keys}-{log.first}"
    if not folder.exists():
        making = folder.with_name("making")
        shutil.rmtree(making, ignore_errors=True)
        log.write(making)
        making.rename(folder)
    return folder


if __name__ == "__main__":
    sys.exit(main())
