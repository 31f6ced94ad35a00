"""Compaction of a log of 20 million messages with its gate, in an object store and on this machine's disk, by turns.

A command of its own runs each compaction with its gate. The tables in the store are behind a REST catalog that gives out keys. Tasks run in the
driver, on two threads, on both sides. The benchmark compares the results. The store is a process of its own on the same cores, so the
output also states the store's CPU time. The store is versitygw if installed (`bench.gateway`), else our own. Run:
`python -m bench object_store [--messages N] [--repeats N]`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from threading import Event
from typing import cast

from tests.lakes import Lake, rest_lake

from bench import gateway, size
from bench.compaction import KEYS, MESSAGES, PARTITIONS, REPEATS, compact, generated, measuring
from bench.compaction_data import Log
from bench.compaction_topic import Topic
from bench.process_tree import Cost, Used, watching
from bench.whole_run import COMMAND, print_costs, ratio, total
from lifecycle_local.cluster import Key
from lifecycle_local.environment import load_environment
from lifecycle_local.java import STORE_JARS, ensure_jars, find_java
from lifecycle_local.layout import Layout, find_layout
from lifecycle_local.s3_server import S3Server, s3_server
from lifecycle_local.spark_settings import Lake as Settings
from lifecycle_local.spark_settings import java_options, record_archive
from message_lifecycle.app.config import LEDGER_URL
from message_lifecycle.stores.iceberg import java

LIMIT = 1.5
"""Of the clock."""
OPTIONS = "spark.driver.extraJavaOptions"


@dataclass(slots=True)
class Side:
    """One of the two lakes, with the ledger of its topics."""

    make: Callable[[int], Topic]
    log: Log
    ledger: str
    costs: list[Cost] = field(default_factory=list)
    made: list[list[int]] = field(default_factory=list)

    def measure(self, scratch: Path) -> None:
        os.environ[LEDGER_URL] = self.ledger
        topic = self.make(self.log.partitions)
        topic.append(self.log, generated(self.log, scratch))
        self.costs.append(total(compact(COMMAND, topic)))
        self.made.append(topic.compacted())
        topic.drop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    given = parser.parse_args()
    load_environment()
    layout = find_layout()
    scratch = layout.scratch / "bench-object-store"
    scratch.mkdir(parents=True, exist_ok=True)
    log = Log(messages=given.messages, partitions=PARTITIONS, keys=given.messages * KEYS // MESSAGES)
    folder = layout.scratch / f"bench-store-{token_hex(4)}"
    folder.mkdir()
    served: list[Used] = []
    try:
        with (
            store(folder) as (there, pid),
            rest_lake(layout, folder, there) as bare,
            started_quickly(bare, layout, folder) as lake,
            side(scratch, log) as disk,
            beside(lake, scratch, log) as remote,
        ):
            for _ in range(given.repeats):
                disk.measure(scratch)
                with lake.entered(), watching(lambda: {"store": [] if pid is None else [pid]}) as used:
                    remote.measure(scratch)
                served.append(used["store"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)
    assert all(made == disk.made[0] for made in (*disk.made, *remote.made)), (disk.made, remote.made)
    return shown(disk, remote, served)


@contextmanager
def store(folder: Path) -> Iterator[tuple[S3Server, int | None]]:
    """And the process that serves it; None: this one."""
    executable = gateway.program()
    if executable is None:
        with s3_server(remembers=False) as ours:
            yield ours, None
    else:
        with gateway.gateway(executable, folder / "objects", Key()) as theirs:
            yield cast(S3Server, theirs), theirs.pid  # it has what the catalog and the settings ask of a store


@contextmanager
def started_quickly(lake: Lake, layout: Layout, folder: Path) -> Iterator[Lake]:
    """Yield the lake with the class archive of a lake in a store, as the embedded cluster's drivers have it.

    The lake on disk has an archive of its own. Every run of this clone shares one recorded archive."""
    runtime = find_java(layout)
    jars, last = ensure_jars(layout, runtime), ensure_jars(layout, runtime, jars=STORE_JARS)
    archive = record_archive(layout, runtime, jars, last, described(lake), os.environ, Event())
    own = folder / "quick"
    own.mkdir()
    quick = lake.configured(own, {OPTIONS: java_options(layout, archive)})
    yield quick
    quick.end()


def described(lake: Lake) -> Settings:
    """As the embedded stack describes one."""
    conf = Path(lake.environment["SPARK_CONF_DIR"]) / "spark-defaults.conf"
    return Settings(java=dict(java._settings_in(conf.read_text(encoding="utf-8"))), python={})


@contextmanager
def side(scratch: Path, log: Log) -> Iterator[Side]:
    with measuring(scratch) as make:
        yield Side(make, log, os.environ[LEDGER_URL])


@contextmanager
def beside(lake: Lake, scratch: Path, log: Log) -> Iterator[Side]:
    """Make the same side in another lake. The lake is this process's own only inside `entered`."""
    with ExitStack() as kept:
        with lake.entered():
            remote = kept.enter_context(side(scratch, log))
        try:
            yield remote
        finally:
            with lake.entered():
                kept.close()


def shown(disk: Side, remote: Side, served: list[Used]) -> int:
    """1 where the bound was missed."""
    print(f"{gateway.name()}; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; medians of {len(disk.costs)} (each run)")
    for name, one in (("disk", disk), ("store", remote)):
        print_costs(name, one.costs)
    print(f"  the store's own CPU: {', '.join(f'{used.cpu:.1f}' for used in served)}")
    cpu, wall = (ratio(what, remote.costs, disk.costs) for what in ("cpu", "wall"))
    print(f"  store beside disk: CPU {cpu:.2f}, wall {wall:.2f} (limit {LIMIT})")
    # Our own store uses the same cores, and one process serves all requests. Its time says nothing about the readers' speed.
    return size.status(kept=gateway.program() is None or wall <= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
