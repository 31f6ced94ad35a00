"""Two-pass compaction from process start to committed snapshot, next to DuckDB's plain two passes over the same files.

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
from bench.compaction_topic import Measured
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

    `cpu`, `wall`: the greatest ratio to the peer. `beside`: wall ratio to another set's.
    `whole_only`: another set runs the same code, so a part of the size leaves it out. `gate`: at a part, the gate judges this one, too."""

    log: Log
    tail: Log | None = None
    cpu: float | None = None
    wall: float | None = None
    beside: tuple[str, float] | None = None
    memory_mb: int | None = None
    whole_only: bool = False
    gate: bool = False


@dataclass(slots=True)
class Found:
    """Costs of each run; the gate's of one."""

    ours: list[Cost] = field(default_factory=list)
    theirs: list[Cost] = field(default_factory=list)
    gate: Cost | None = None


def sets(messages: int, keys: int) -> dict[str, Set]:
    unique = Log(messages=messages, partitions=PARTITIONS, keys=None)
    one, ten = (replace(unique, messages=messages // part, first=unique.rows) for part in (100, 10))
    return {
        "log": Set(log=Log(messages=messages, partitions=PARTITIONS, keys=keys), cpu=1.5, wall=1.5, gate=True),
        "one partition": Set(log=Log(messages=messages, partitions=1, keys=keys), beside=("log", 1.5), whole_only=True),
        "unique": Set(log=unique, cpu=1.2, wall=1.2, memory_mb=MEMORY_MB),
        "1 % new": Set(log=unique, tail=one, cpu=0.3, gate=True),
        "10 % new": Set(log=unique, tail=ten, cpu=0.45, whole_only=True),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--keys", type=int)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--only", nargs="+", metavar="SET")
    parser.add_argument("--keep", action="store_true", help="leave the generated files for the next run")
    parser.add_argument("--no-gate", action="store_true", help="leave out what the gate costs, which takes longest")
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
        gate=not given.no_gate,
    )


def measure(chosen: dict[str, Set], repeats: int, *, keep: bool, gate: bool) -> int:
    scratch = find_layout().scratch / "bench-compaction"
    scratch.mkdir(parents=True, exist_ok=True)
    walls, missed = dict[str, float](), 0
    try:
        with measuring(scratch) as make:
            for name, one in chosen.items():
                found = runs(make, one, scratch, repeats, gate=gate and (one.gate or not size.is_part()))
                walls[name] = median(cost.wall for cost in found.ours)
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


def runs(make: Callable[[int], Measured], one: Set, scratch: Path, repeats: int, *, gate: bool) -> Found:
    """Ours and the peers' in turn, each from the same state; what they leave is compared."""
    topic, folders = make(one.log.partitions), [generated(one.log, scratch)]
    topic.append(one.log, folders[0])
    if one.tail is not None:
        topic.compact()
        folders.append(generated(one.tail, scratch))
        topic.append(one.tail, folders[1])
    files = ",".join(f"{folder}/*/*.parquet" for folder in folders)
    found = Found()
    for at in range(repeats):
        cost, made, judged = topic.measured(scratch, gate=gate and at == 0)
        found.ours.append(replace(cost, wall=cost.said["until committed"]))
        found.gate = judged or found.gate
        found.theirs.append(cost_of_module("bench.compaction_peer", files, str(scratch / "peer")))
        assert made == found.theirs[-1].said, (made, found.theirs[-1].said)
    topic.drop()
    return found


def shown(name: str, one: Set, found: Found, walls: dict[str, float]) -> int:
    """Print the figures, and return the number of missed limits."""
    mine, theirs = found.ours, found.theirs
    print(f"{name}: load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; medians of {len(mine)} (each run)")
    for kind, costs in (("ours", mine), ("DuckDB", theirs)):
        if costs:
            memory = median(cost.memory_mb for cost in costs)
            print(f"  {kind:9} CPU {_of(costs, 'cpu')}  wall {_of(costs, 'wall')}  memory {memory:,.0f} MB")
    if found.gate is not None:
        print(f"  gate      CPU {found.gate.cpu:.2f}  wall {found.gate.wall:.2f}  memory {found.gate.memory_mb:,.0f} MB (one run, beside)")
    steps = [cost.said for cost in mine]
    print("  wall of steps: " + ", ".join(f"{step} {median(run[step] for run in steps):.2f}" for step in steps[0]))
    bounds = [(kind, _ratio(kind, mine, theirs), limit) for kind, limit in (("cpu", one.cpu), ("wall", one.wall))]
    if one.beside is not None and one.beside[0] in walls:
        bounds.append((f"wall beside {one.beside[0]!r}", walls[name] / walls[one.beside[0]], one.beside[1]))
    if one.memory_mb is not None:
        bounds.append(("memory, the most in MB,", max(cost.memory_mb for cost in mine), one.memory_mb))
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
