"""Planning a reclaim over 1,000 snapshots of 100 files each, where only the newest is needed; and the memory for a million files.

The peer is Iceberg's own procedures for the same work on an equal table: `expire_snapshots`, then `remove_orphan_files`. The files are
empty. Run: `python -m bench reclaim [--snapshots N]`.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from pyspark.sql import SparkSession
from tests.spark.lake import LEDGER, Lake

from bench import size
from lifecycle_local.environment import load_environment
from message_lifecycle.app.operations.registry import preview
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg import layout
from message_lifecycle.stores.iceberg.catalog import Tables, ledger_text
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.history import NamedFile, inventory
from message_lifecycle.stores.iceberg.layout import CATALOG, LogSummary
from message_lifecycle.stores.iceberg.session import spark_session, sql_table
from message_lifecycle.stores.iceberg.table_files import ListedFile
from message_lifecycle.stores.iceberg.table_folder import local_path

FILES = 100
MOST = 0.5
"""Of the peer's wall seconds."""
MILLION, AT_ONCE = size.of(1_000_000), size.of(100_000)
MOST_MB = 800
# Compiled by the Janino that Spark ships: each snapshot takes the files of the one before it out.
_COMMITS = """
org.apache.iceberg.Table t = (org.apache.iceberg.Table) table;
org.apache.iceberg.PartitionSpec spec = t.spec();
java.util.ArrayList before = new java.util.ArrayList();
for (int s = 0; s < snapshots; s++) {
  org.apache.iceberg.OverwriteFiles op = t.newOverwrite();
  for (int i = 0; i < before.size(); i++) { op.deleteFile((org.apache.iceberg.DataFile) before.get(i)); }
  before.clear();
  for (int i = 0; i < files; i++) {
    org.apache.iceberg.PartitionData data = new org.apache.iceberg.PartitionData(spec.partitionType());
    data.set(0, Integer.valueOf(0));
    data.set(1, Long.valueOf(0L));
    org.apache.iceberg.DataFile f = org.apache.iceberg.DataFiles.builder(spec)
      .withPath(t.location() + "/data/partition=0/segment=0/" + s + "-" + i + ".parquet")
      .withFormat("parquet").withFileSizeInBytes(1L).withRecordCount(1L).withPartition(data).build();
    op.addFile(f);
    before.add(f);
  }
  java.util.Map map = (java.util.Map) properties;
  for (java.util.Iterator it = map.entrySet().iterator(); it.hasNext();) {
    java.util.Map.Entry e = (java.util.Map.Entry) it.next();
    op.set((String) e.getKey(), (String) e.getValue());
  }
  op.commit();
}
return null;
"""


def main() -> int:
    """Print wall seconds and the ratio, and the peak of memory; exit status 1 when one is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--snapshots", type=int, default=size.of(1_000))
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.memory:
        return memory()
    load_environment()
    session = spark_session("bench")
    lake = Lake(session, stream=f"bench-reclaim-{token_hex(3)}")
    try:
        mine, theirs = (_with_past(lake, session, given.snapshots) for _ in range(2))
        ours, count = _plan(lake, mine)
        peer = _procedures(lake, theirs)
    finally:
        lake.drop()
    done = subprocess.run([sys.executable, "-m", "bench.reclaim", "--memory"], capture_output=True, text=True, check=True)
    megabytes = float(done.stdout.split()[-1])
    ratio = ours / peer
    print(f"plan over {given.snapshots:,} snapshots of {FILES} files ({count:,} files go)  {ours:7.2f} s")
    print(f"expire_snapshots + remove_orphan_files                       {peer:7.2f} s")
    print(f"ratio {ratio:.2f} (limit {MOST})")
    print(f"lists of {MILLION:,} files each, named and there: peak {megabytes:.0f} MB (limit {MOST_MB})")
    return size.status(kept=ratio <= MOST and megabytes <= MOST_MB)


def _with_past(lake: Lake, session: SparkSession, snapshots: int) -> TopicName:
    name = lake.topic(undo_window=1)
    jvm: Any = engine_of_process().jvm
    gateway: Any = session.sparkContext._gateway
    run = jvm.org.codehaus.janino.ScriptEvaluator()
    object_class = jvm.Class.forName("java.lang.Object")
    names, types = ["table", "snapshots", "files", "properties"], [object_class, jvm.Integer.TYPE, jvm.Integer.TYPE, object_class]
    run.setParameters(_array(gateway, jvm.String, names), _array(gateway, jvm.Class, types))
    run.setReturnType(object_class)
    run.cook(_COMMITS)
    properties = jvm.java.util.HashMap()
    for key, value in {**LogSummary(end_offsets={0: 1}).to_properties(), layout.LEDGER: ledger_text(LEDGER)}.items():
        properties.put(key, value)
    run.evaluate(_array(gateway, jvm.Object, [engine_of_process().table(name), snapshots, FILES, properties]))
    folder = local_path(str(Tables().document(name).content["location"])) / "data/partition=0/segment=0"
    folder.mkdir(parents=True, exist_ok=True)
    for snapshot in range(snapshots):
        for file in range(FILES):
            Path(folder, f"{snapshot}-{file}.parquet").touch()
    engine_of_process().forget(name)
    return name


def _array(gateway: Any, of: Any, values: list[Any]) -> Any:
    array = gateway.new_array(of, len(values))
    for position, value in enumerate(values):
        array[position] = value
    return array


def _plan(lake: Lake, name: TopicName) -> tuple[float, int]:
    s = replace(lake.services(), server={"reclaim_max_files": 10_000_000})
    s.ledger.accept(name, LEDGER)
    as_of = Instant(time.time_ns() // 1_000 + 30_000_000)
    started = time.perf_counter()
    plan = preview(s, name, as_of=as_of, work="reclaim")
    return time.perf_counter() - started, sum(len(removal.files) for removal in plan.file_removals)


def _procedures(lake: Lake, name: TopicName) -> float:
    table = sql_table(name)
    started = time.perf_counter()
    lake.session.sql(
        f"CALL {CATALOG}.system.expire_snapshots(table => '{table}', older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    ).collect()
    lake.session.sql(f"CALL {CATALOG}.system.remove_orphan_files(table => '{table}')").collect()
    return time.perf_counter() - started


def memory() -> int:
    """A process that does nothing else."""

    def name(number: int) -> str:
        return f"data/partition={number % 16}/segment={number // 100 * 100}/00000-{number}-4c1a2f6e-87d1-4b0b-9a53-0f4b6d1e7a90-0-00001.parquet"

    def named() -> Iterator[NamedFile]:
        for number in range(MILLION):
            yield NamedFile(name(number), "data", number % 10 == 0)

    with inventory() as found:
        found.add_named(named())
        found.add_listed(ListedFile(name(number), 1, 1) for number in range(MILLION))
        assert len(found.going(AT_ONCE)) == AT_ONCE
        assert found.orphans(before_ms=2, limit=10) == []
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return 0


if __name__ == "__main__":
    sys.exit(main())
