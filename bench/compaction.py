"""Two-pass compaction from plan to verify, by the command and by a DAG run, next to DuckDB's plain two passes over the same files.

Each way is whole processes (`bench.whole_run`), and each run has a topic of its own.

The peer runs in a process of its own, on two threads. DuckDB finds the latest offset of each key, and then copies those rows in order to
bare Parquet files, without a commit. A figure is a ratio of medians of the same run. CPU time is the time of whole process trees, JVM and
workers included. Run: `python -m bench compaction [--messages N] [--only SET ...]`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from secrets import token_hex

from bench import size
from bench.compaction_data import Log
from bench.compaction_topic import AS_OF, Topic
from bench.process_tree import Cost, cost_of_module
from bench.whole_run import COMMAND, DAG_RUN, WAYS, Steps, by_command, by_dag_run, print_ways, ratio, total
from lifecycle_local.environment import MASTER, load_environment
from lifecycle_local.layout import find_layout
from message_lifecycle.app.config import LEDGER_URL
from message_lifecycle.app.wiring import lake as wired
from message_lifecycle.ledger import migrate_ledger
from message_lifecycle.model.instants import format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.session import spark_session
from message_lifecycle.stores.iceberg.view_file import drop_stream

FURTHER = 10
"""At a part of the size, starting processes takes longer than ten times as many messages."""
MESSAGES, KEYS, PARTITIONS = size.of(20_000_000, further=FURTHER), size.of(1_000_000, further=FURTHER), 4
REPEATS = size.repeats(3)
MEMORY_MB = 2_048
ONE_CORE = "command, one core"


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    """A log, the tail that is new at a second compaction (None: compacted for the first time), and the limits.

    `cpu`, `wall`: the greatest ratio of the command to the peer. `cores`: how many times as fast two cores are as one, at least.
    `whole_only`: another set runs the same code, so a part of the size leaves it out."""

    log: Log
    tail: Log | None = None
    cpu: float | None = None
    wall: float | None = None
    cores: float | None = None
    memory_mb: int | None = None
    whole_only: bool = False


@dataclass(slots=True)
class Found:
    """Costs of each run: ours by the name of the way, and the peer's."""

    ours: dict[str, list[Steps]] = field(default_factory=dict)
    theirs: list[Cost] = field(default_factory=list)


def sets(messages: int, keys: int) -> dict[str, Set]:
    unique = Log(messages=messages, partitions=PARTITIONS, keys=None)
    one, ten = (replace(unique, messages=messages // part, first=unique.rows) for part in (100, 10))
    return {
        "log": Set(log=Log(messages=messages, partitions=PARTITIONS, keys=keys), cpu=2.0, wall=3.0),
        "one partition": Set(log=Log(messages=messages, partitions=1, keys=None), cores=1.6, whole_only=True),
        "unique": Set(log=unique, cpu=2.0, wall=3.0, memory_mb=MEMORY_MB),
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
    missed = 0
    try:
        with measuring(scratch) as make:
            for name, one in chosen.items():
                found = runs(make, one, scratch, repeats, (COMMAND, ONE_CORE) if one.cores else WAYS)
                missed += shown(name, one, found)
    finally:
        if not keep:
            shutil.rmtree(scratch, ignore_errors=True)
    return size.status(kept=not missed)


@contextmanager
def measuring(scratch: Path) -> Iterator[Callable[[int], Topic]]:
    """Yield a function that makes a topic with so many partitions. The topics and their ledger end with the block."""
    with own_ledger(scratch):
        session = spark_session("bench")
        session.sparkContext.setLogLevel("ERROR")
        # Found now: at the block's end the environment may be that of another lake.
        services, stream, catalog, numbers = wired(), f"bench-{token_hex(4)}", Tables().catalog, count()

        def make(partitions: int) -> Topic:
            return Topic.make(session, services, TopicName.parse(f"{stream}/{next(numbers)}"), partitions)

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


def runs(make: Callable[[int], Topic], one: Set, scratch: Path, repeats: int, chosen: Collection[str] = WAYS) -> Found:
    """Measure ours and the peer's in turn, and compare their results. `chosen`: the ways to measure."""
    logs = [one.log] if one.tail is None else [one.log, one.tail]
    folders = [generated(log, scratch) for log in logs]
    files = ",".join(f"{folder}/*/*.parquet" for folder in folders)
    found = Found(ours={way: [] for way in chosen})
    for _ in range(repeats):
        found.theirs.append(cost_of_module("bench.compaction_peer", files, str(scratch / "peer")))
        for way in chosen:
            topic = make(one.log.partitions)
            topic.append(logs[0], folders[0])
            if one.tail is not None:
                topic.compact()
                topic.append(one.tail, folders[1])
            found.ours[way].append(compact(way, topic))
            made = topic.compacted()
            assert made == found.theirs[-1].said, (made, found.theirs[-1].said)
            topic.drop()
    return found


def compact(way: str, topic: Topic) -> Steps:
    if way == DAG_RUN:
        return by_dag_run("compaction", topic.name, AS_OF)
    with one_core() if way == ONE_CORE else nullcontext():
        return by_command("compact", str(topic.name), "--as-of", format_instant(AS_OF))


@contextmanager
def one_core() -> Iterator[None]:
    """Let Spark's settings name a master with one core. Java and Python's own threads may use the others."""
    before = os.environ["SPARK_CONF_DIR"]
    settings = (Path(before) / "spark-defaults.conf").read_text(encoding="utf-8")
    assert settings.count(MASTER) == 1, settings
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "spark-defaults.conf").write_text(settings.replace(MASTER, "local[1]"), encoding="utf-8")
        os.environ["SPARK_CONF_DIR"] = folder
        try:
            yield
        finally:
            os.environ["SPARK_CONF_DIR"] = before


def shown(name: str, one: Set, found: Found) -> int:
    """Print the figures, and return the number of missed limits."""
    whole = {way: [total(steps) for steps in runs] for way, runs in found.ours.items()}
    print(f"{name}: load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; medians of {len(found.theirs)} (each run)")
    cpu = print_ways(found.ours, found.theirs, "DuckDB")
    bounds = [("cpu", cpu, one.cpu), ("wall", ratio("wall", whole[COMMAND], found.theirs), one.wall)]
    if one.cores is not None:  # as a ratio with a greatest value, like the others
        bounds.append(("wall, two cores / one core", ratio("wall", whole[COMMAND], whole[ONE_CORE]), 1 / one.cores))
    if one.memory_mb is not None:
        bounds.append(("memory, the most in MB,", max(cost.memory_mb for costs in whole.values() for cost in costs), one.memory_mb))
    for what, figure, limit in bounds:
        print(f"  {what} {figure:,.2f}" + (f" (limit {limit:,.4g})" if limit else ""))
    sys.stdout.flush()
    return sum(limit is not None and figure > limit for _, figure, limit in bounds)


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
