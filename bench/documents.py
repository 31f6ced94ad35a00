"""Folding documents: one document with 100,000 changes, and 100,000 documents with twenty changes each.

The first figure compares a task's whole work on one document (reading, order, fold, the written snapshot) with the bare loop over its fold,
in one process. The changes are a real editing history, repeated from its beginning when it ends. The second figure compares whole processes
(`bench.whole_run`), from plan to verify, with a plain Spark application that does the same fold over the same table by `applyInPandas`, and
stores no result. The gate folds every document again. Figures are medians. Run: `python -m bench documents [--documents N] [--repeats N]`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import create_engine, insert
from tests.spark.lake import Lake, tables

from bench import size
from bench.compaction import own_ledger
from bench.process_tree import Cost, cost_of_module, cpu_of_tree
from bench.whole_run import COMMAND, WAYS, Steps, by_command, by_dag_run, print_ways, ratio, total
from lifecycle_local.demo_data import editing_trace
from lifecycle_local.environment import load_environment
from lifecycle_local.layout import find_layout
from message_lifecycle.app.config import LEDGER_URL
from message_lifecycle.app.services import Services
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import lake as wired
from message_lifecycle.folds import fold_of
from message_lifecycle.ledger.database import key_of
from message_lifecycle.ledger.tables import synced_seqs
from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.model.document import Change
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.iceberg.columns import BUCKET
from message_lifecycle.stores.iceberg.data_files import data_file
from message_lifecycle.stores.iceberg.documents import DocumentFile, FoldBucket, FoldJob, FoldSettings
from message_lifecycle.stores.iceberg.documents.fold import fold_bucket
from message_lifecycle.stores.iceberg.documents.store import write_changes
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO
from message_lifecycle.stores.iceberg.layout import SNAPSHOTS
from message_lifecycle.stores.iceberg.session import spark_session, sql_table
from message_lifecycle.stores.iceberg.shapes import CHANGES_SHAPE, bucket_of
from message_lifecycle.stores.iceberg.shares import MEBIBYTE, Resources
from message_lifecycle.stores.iceberg.table_folder import local_path
from message_lifecycle.stores.iceberg.tasks import InputFile, NewFile

CHANGES_OF_ONE, DOCUMENTS, CHANGES_EACH = size.of(100_000), size.of(100_000), 20
LOOP_LIMIT, GROUPS_LIMIT = 0.5, 3.0
REPEATS = size.repeats(3)
AS_OF = Instant(1_700_000_000_000_000)
SETTINGS: dict[str, Value] = {
    "fold": "json_merge_patch",
    "snapshot_interval": 10,
    "snapshot_threshold": 5,
    "snapshot_with_purging_changes": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    wall: float
    cpu: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    given = parser.parse_args()
    load_environment()
    return one_document(given.repeats) + many_documents(given.documents, given.repeats)


def timed(deed: Callable[[], object]) -> Took:
    wall, cpu = time.perf_counter(), cpu_of_tree()
    deed()
    return Took(wall=time.perf_counter() - wall, cpu=cpu_of_tree() - cpu)


def shown(what: str, took: list[Took], changes: int) -> Took:
    """Printed; the medians."""
    middle = Took(wall=median(one.wall for one in took), cpu=median(one.cpu for one in took))
    each = ", ".join(f"{one.wall:.2f}" for one in took)
    print(f"  {what:14} wall {middle.wall:.2f} s ({each})  CPU {middle.cpu:.2f} s  {changes / middle.wall:,.0f} changes/s")
    sys.stdout.flush()
    return middle


def one_document(repeats: int) -> int:
    print(f"one document of {CHANGES_OF_ONE:,} changes: load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    changes, fold = edits(CHANGES_OF_ONE), fold_of("text_splice", yjs_roots={})
    payloads = [change.payload for change in changes]
    ended = list[bytes]()

    def loop() -> None:
        folding = fold.start(None)
        for payload in payloads:
            folding.apply(payload)
        ended.append(folding.stored())

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/changes.parquet"
        write_changes(LakeFileIO(), path, changes)
        source = DocumentFile(
            file=InputFile(path=path), bucket=0, rows=len(changes), first_document=None, last_document=None, last_seq=None
        )
        action = SnapshotDocument(document="one", seq=len(changes), after=0, snapshot=len(changes), epoch=0)
        bucket = FoldBucket(bucket=0, documents=(action,), changes=(source,), snapshots=())
        made = list[int]()

        def task() -> None:
            job = FoldJob(
                run=token_hex(4), folder=FoldSettings(fold="text_splice"), changes_folder=folder, snapshots_folder=folder, buckets=(bucket,)
            )
            found = fold_bucket(job, bucket, Resources(memory_bytes=512 * MEBIBYTE, spill_folder=folder))
            assert (found.made, found.blocked) == (1, ())
            made.append(found.state_bytes)

        bare, ours = [], []
        for _ in range(repeats):
            bare.append(timed(loop))
            ours.append(timed(task))
    assert made == [len(state) for state in ended]
    ratio = shown("bare loop", bare, len(changes)).wall / shown("task", ours, len(changes)).wall
    print(f"  speed beside the bare loop {ratio:.2f} (limit {LOOP_LIMIT})")
    return size.status(kept=ratio >= LOOP_LIMIT)


def edits(count: int) -> list[Change]:
    """Return a real history, repeated: between two rounds a change deletes all of the text."""
    trace = editing_trace(document="one", client="editor")
    cleared = json.dumps([[0, len(trace.text), ""]]).encode()
    once = [*(change.payload for change in trace.changes), cleared]
    return [
        Change(document="one", server_seq=seq, client="editor", at=Instant(seq), payload=once[(seq - 1) % len(once)])
        for seq in range(1, count + 1)
    ]


def many_documents(documents: int, repeats: int) -> int:
    print(f"{documents:,} documents of {CHANGES_EACH} changes: load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    ours: dict[str, list[Steps]] = {way: [] for way in WAYS}
    theirs, sizes = list[Cost](), list[tuple[int, int, int]]()
    with own_ledger(find_layout().scratch):
        s, session = wired(), spark_session("bench")
        session.sparkContext.setLogLevel("ERROR")
        lake = Lake(session, stream=f"bench-{token_hex(4)}")
        try:
            for number in range(repeats):
                for way, steps in ours.items():
                    name = made(s, TopicName(stream=lake.stream, topic=f"documents-{number}-{way.replace(' ', '-').lower()}"), documents)
                    before = stored_bytes(name)
                    if way == COMMAND:
                        theirs.append(cost_of_module("bench.documents_peer", sql_table(name)))
                        steps.append(by_command("run", str(name), "--as-of", format_instant(AS_OF)))
                        sizes.append((before, live_bytes(name), stored_bytes(name)))
                    else:
                        steps.append(by_dag_run("snapshot_with_purge", name, AS_OF))
                    found = [session.sql(f"SELECT count(*) FROM {sql_table(name, kind=kind)}").collect()[0][0] for kind in ("", SNAPSHOTS)]
                    assert found == [documents, documents], found  # each document has its last change, and a snapshot
        finally:
            lake.drop()
    print_ways(ours, theirs, "applyInPandas")
    before, live, after = sizes[-1]
    print(
        f"  storage: {before / 1e6:.1f} MB of changes before; {live / 1e6:.1f} MB live after, {after / 1e6:.1f} MB with what reclaim may take"
    )
    quicker = 1 / ratio("wall", [total(steps) for steps in ours[COMMAND]], theirs)
    print(f"  changes a second beside applyInPandas {quicker:.2f} (limit {GROUPS_LIMIT})")
    return size.status(kept=quicker >= GROUPS_LIMIT)


def made(s: Services, name: TopicName, documents: int) -> TopicName:
    """Make a topic of documents. A client of each document has its last change, so a run purges all other changes."""
    create_topic(s, name, partitions=1, settings=SETTINGS)
    fill(name, documents)
    rows = [
        {"topic": key_of(name), "document": document, "client": "a", "server_seq": CHANGES_EACH, "at": AS_OF}
        for document in names(documents)
    ]
    with create_engine(os.environ[LEDGER_URL]).begin() as connection:
        connection.execute(insert(synced_seqs), rows)
    return name


def names(documents: int) -> list[str]:
    return [f"document-{number:07}" for number in range(documents)]


def fill(name: TopicName, documents: int) -> None:
    """One file for each bucket, in one commit."""
    table, update = engine_of_process().table(name), None
    buckets: dict[int, list[str]] = {}
    for document in names(documents):
        buckets.setdefault(bucket_of(document), []).append(document)
    update = table.newAppend()
    chance = np.random.default_rng(1)
    schema = CHANGES_SHAPE.schema.as_arrow()
    for bucket, mine in buckets.items():
        path = Path(local_path(f"{table.location()}/data/{BUCKET}={bucket}")) / f"{token_hex(8)}.parquet"
        path.parent.mkdir(parents=True)
        rows = len(mine) * CHANGES_EACH
        columns = [
            pa.array(np.repeat(mine, CHANGES_EACH)).cast(schema.field("document").type),
            pa.array(np.tile(np.arange(1, CHANGES_EACH + 1), len(mine))),
            pa.array(np.full(rows, 1), pa.int64()).cast(schema.field("at").type),
            pa.array(["a"] * rows, schema.field("client").type),
            pa.array(payloads(len(mine), chance), schema.field("payload").type),
        ]
        pq.write_table(pa.Table.from_arrays(columns, schema=schema), path, compression="zstd")
        new = NewFile(path=str(path), rows=rows, bytes=path.stat().st_size)
        update.appendFile(data_file(engine_of_process(), table, f"{BUCKET}={bucket}", new))
    update.commit()


def payloads(documents: int, chance: np.random.Generator) -> list[bytes]:
    """Return the payloads of all changes, document by document. Every payload has random text, which compression cannot shrink."""
    said = chance.bytes(8 * documents * CHANGES_EACH).hex()
    texts = (said[at : at + 16] for at in range(0, len(said), 16))
    numbers = (seq for _ in range(documents) for seq in range(1, CHANGES_EACH + 1))
    return [b'{"field%d": %d, "text": "%b"}' % (seq % 7, seq, text.encode()) for seq, text in zip(numbers, texts, strict=True)]


def stored_bytes(name: TopicName) -> int:
    """Return the size of the data files of both tables, also of files that no snapshot needs."""
    folders = [
        local_path(tables().load(name, kind=kind).location())
        for kind in ("", SNAPSHOTS)
        if tables().pointers.one((name.namespace, name.table(kind)))
    ]
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("data/**/*") if path.is_file())


def live_bytes(name: TopicName) -> int:
    """Return the size of the files that the newest snapshots name. The files contain marked rows until a plan rewrites them."""
    found = 0
    for kind in ("", SNAPSHOTS):
        snapshot = tables().load(name, kind=kind).current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        found += int(snapshot.summary.additional_properties.get("total-files-size", "0"))
    return found


if __name__ == "__main__":
    sys.exit(main())
