"""Damaged views, logs and tables: a named error or a blocked run, and the old view as it was (CMP-4, DEL-2)."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.compacted import Log, Topic
from tests.engines import change_tasks
from tests.errors import raises
from tests.logs import AS_OF, SECOND

from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import suite_of
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.wiring import iceberg_world
from message_lifecycle.model.errors import CompactedTableMissing, Unavailable
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.columns import KEY
from message_lifecycle.stores.iceberg.compaction.view_table import UnreadableDeletes
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.layout import COMPACTED
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.table_folder import local_path

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

LATER = Instant(AS_OF + 10 * SECOND)


def message(key: bytes | None, value: bytes | None, *, time: int = 80) -> NewMessage:
    return NewMessage(append_time=Instant(time * SECOND), key=key, value=value)


@pytest.fixture
def topic(spark: SparkSession) -> Iterator[Topic]:
    """In the view: a, b and one without a key. Past its horizon: a newer a, the deletion of b, c twice, one without a key, one too late."""
    world = iceberg_world({})
    made = Topic(world, Log(settings={"max_removed_fraction": 1.0, "compaction_rewrite_fraction": 1.0}, batches=(), partitions=1))
    made.append([message(b"a", b"0"), message(b"b", b"1"), message(None, b"2")])
    assert made.run(AS_OF).name == "published"
    made.append(
        [
            message(b"a", b"3"),
            message(b"b", None),
            message(b"c", b"5"),
            message(b"c", b"6"),
            message(None, b"7"),
            message(b"z", b"8", time=999),
        ]
    )
    yield made
    world.close()


def in_tasks_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """However little there is to judge. What is given back: a word for each question asked so."""
    asked: list[str] = []

    def run(run: Callable[..., list[Any]], items: Sequence[Any], work: Callable[..., Any]) -> list[Any]:
        asked.append(f"{len(items)} partitions")
        items = [pickle.loads(pickle.dumps(item)) for item in items]
        return [pickle.loads(pickle.dumps(answer)) for answer in run(items, work)]

    change_tasks(monkeypatch, run)
    return asked


def test_partitions_judged_by_tasks_are_judged_as_here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    world = iceberg_world({})
    try:
        topic = Topic(world, Log(settings={"max_removed_fraction": 1.0}, batches=(), partitions=3))
        topic.append([replace(message(b"k%d" % at, b"1"), partition=at % 3) for at in range(20)])
        assert topic.run(AS_OF).name == "published"
        newer = [replace(message(b"k%d" % at, None if at % 2 else b"2"), partition=at % 3) for at in range(12)]
        topic.append([*newer, message(None, b"3")])
        s = world.services
        world.set_now(LATER)
        plan = steps.plan(s, topic.name, as_of=LATER, work="compaction").plan
        staged, policy = steps.stage(s, plan.plan_id), policy_of(s, topic.name)
        here = s.stores.view.evidence(plan, staged, policy)
        asked = in_tasks_of_a_cluster(monkeypatch)
        assert s.stores.view.evidence(plan, staged, policy) == here
        assert asked == [f"{len(plan.view_commit.compact)} partitions"]
        assert len(plan.view_commit.compact) > 1
        Path(local_path(Tables().load(topic.name).inspect.files()["file_path"][0].as_py())).write_bytes(b"PAR1 torn")
        with raises("EvidenceFailed", match="partition"):
            s.stores.view.evidence(plan, staged, policy)
    finally:
        world.close()


LOG_ROW = "SELECT *, CAST(NULL AS timestamp) AS delete_horizon, CAST(NULL AS boolean) AS remembered FROM log WHERE offset = "
DAMAGES = {
    "a second row of a key": (f"SELECT * FROM staged UNION ALL {LOG_ROW} 0", "repeated_keys"),
    "an older row": (f"SELECT * FROM staged WHERE offset != 6 UNION ALL {LOG_ROW} 5", "unwanted"),
    "the value of a deleted key": (f"SELECT * FROM staged UNION ALL {LOG_ROW} 1", "unwanted"),
    "a missing key": ("SELECT * FROM staged WHERE offset != 6", "missing"),
    "a missing message without a key": ("SELECT * FROM staged WHERE offset != 7", "null_keys_missing"),
    "another value": ("SELECT * REPLACE", "changed"),
    "past the horizon": (f"SELECT * FROM staged UNION ALL {LOG_ROW} 8", "beyond"),
    "out of order": ("SELECT * FROM staged", "disordered"),
    "a row twice": ("SELECT * FROM staged UNION ALL SELECT * FROM staged WHERE offset = 6", "disordered"),
    "nothing": ("SELECT * FROM staged WHERE false", "missing"),
}


@pytest.mark.parametrize("there", [False, True])
def test_a_damaged_view_is_seen_and_not_published(topic: Topic, spark: SparkSession, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`there`: in tasks, as on a cluster."""
    if there:
        in_tasks_of_a_cluster(monkeypatch)
    s = topic.world.services
    topic.world.set_now(LATER)
    plan = steps.plan(s, topic.name, as_of=LATER, work="compaction").plan
    staged, policy = steps.stage(s, plan.plan_id), policy_of(s, topic.name)
    before, horizons, branch = topic.view(), dict(topic.horizons), staged.branch or ""
    assert s.gate.judge(plan, staged, suite_of(plan, staged, policy), s.stores.view.evidence(plan, staged, policy)).blocking == ()
    table = sql_table(topic.name, kind=COMPACTED)
    spark.read.table(sql_table(topic.name)).createOrReplaceTempView("log")
    spark.read.option("versionAsOf", str(staged.snapshot_id)).table(table).createOrReplaceTempView("staged")
    for name, (query, wanted) in DAMAGES.items():
        if name == "another value":
            columns = (f"CASE WHEN offset = 6 THEN key ELSE {c} END AS {c}" if c == "value" else c for c in spark.table("staged").columns)
            query = f"SELECT {', '.join(columns)} FROM staged"
        order = "offset DESC" if wanted == "disordered" else "offset"
        rows = spark.createDataFrame(spark.sql(f"SELECT * FROM ({query}) ORDER BY {order}").toArrow()).coalesce(1)
        writer = rows.writeTo(sql_table(topic.name, kind=COMPACTED, branch=branch)).option("use-table-distribution-and-ordering", "false")
        writer.option("check-nullability", "false").overwrite(_all(rows))
        engine_of_process().forget(topic.name, kind=COMPACTED)
        damaged = replace(staged, snapshot_id=int(engine_of_process().table(topic.name, kind=COMPACTED).snapshot(branch).snapshotId()))
        report = s.gate.judge(plan, damaged, suite_of(plan, damaged, policy), s.stores.view.evidence(plan, damaged, policy))
        assert report.judgement == "blocked", name
        assert wanted in {check.id for check in report.blocking}, name
    s.ledger.record_staged(damaged)
    assert steps.gate(s, plan.plan_id).judgement == "blocked"
    assert getattr(steps.publish(s, plan.plan_id), "name", None) == "blocked"
    assert (topic.view(), dict(topic.horizons)) == (before, horizons)


def _all(rows: object):
    from pyspark.sql import functions as F

    return F.lit(True)


def files(topic: Topic, *, kind: str = "", within: str = "data") -> list[Path]:
    return sorted(path for path in (local_path(Tables().load(topic.name, kind=kind).location()) / within).rglob("*") if path.is_file())


def data_files(topic: Topic) -> list[Path]:
    return [path for path in files(topic) if path.suffix == ".parquet"]


def garbled(path: Path) -> None:
    path.write_bytes(b"PAR1" + b"\0" * 60 + b"PAR1")


def test_a_corrupt_file_of_the_log_is_named_and_the_view_stays(topic: Topic) -> None:
    before, horizons = topic.view(), dict(topic.horizons)
    newest = max(data_files(topic), key=lambda path: path.stat().st_mtime_ns)
    good = newest.read_bytes()
    garbled(newest)
    with raises("UnreadableFile", kind=Unavailable, match=newest.name):
        topic.run(LATER)
    with raises("CompactionFailed"):  # no message is later, so planning reads metadata alone
        topic.run(Instant(2000 * SECOND))
    assert (topic.view(), dict(topic.horizons)) == (before, horizons)
    newest.write_bytes(good)
    assert topic.run(LATER).name == "published"


@pytest.mark.parametrize("damage", [garbled, Path.unlink], ids=["corrupt", "removed"])
def test_a_damaged_file_of_the_view_fails_reads_and_runs(topic: Topic, damage: Callable[[Path], None]) -> None:
    state = topic.world.services.stores.view.view(topic.name)
    for path in files(topic, kind=COMPACTED):
        if path.suffix == ".parquet":
            damage(path)
    with pytest.raises(CompactedTableMissing):
        topic.read()
    with raises("CompactionFailed", "CompactedTableMissing"):
        topic.run(LATER)
    assert topic.world.services.stores.view.view(topic.name) == state
    assert [m.offset for m in topic.world.services.reader.messages(topic.name)] == list(range(9))


def test_metadata_that_are_gone_fail_reads_and_runs(topic: Topic) -> None:
    for path in files(topic, kind=COMPACTED, within="metadata"):
        if path.name.endswith(".metadata.json"):
            kept = path.with_suffix(".kept")
            path.rename(kept)
    tables = topic.world.services.reader._tables
    tables._documents.clear()  # a process that has read them goes on with what it knows: they never change
    tables.pointers._tables.clear()
    try:
        with pytest.raises(CompactedTableMissing):
            topic.read()
        with pytest.raises(CompactedTableMissing):
            topic.run(LATER)
    finally:
        location = local_path(Tables().load(topic.name).location()).parent
        for kept in location.glob("*/metadata/*.kept"):
            kept.rename(kept.with_suffix(".json"))
    assert topic.run(LATER).name == "published"


@pytest.mark.parametrize("foreign", [False, True], ids=["dropped", "another table in its place"])
def test_a_view_that_was_dropped_by_hand_is_not_made_anew(topic: Topic, spark: SparkSession, foreign: bool) -> None:
    table = sql_table(topic.name, kind=COMPACTED)
    spark.sql(f"DROP TABLE {table} PURGE")
    if foreign:
        spark.sql(f"CREATE TABLE {table} (id int) USING iceberg")
    with pytest.raises(CompactedTableMissing):
        topic.read()
    with pytest.raises(CompactedTableMissing):
        topic.run(LATER)


def test_a_first_view_that_a_catalog_of_before_has_lost_is_made_anew(spark: SparkSession) -> None:
    world = iceberg_world({})
    topic = Topic(world, Log(settings={"max_removed_fraction": 1.0}, batches=(), partitions=1))
    topic.append([message(b"a", b"0"), message(b"a", b"1")])
    s = world.services
    world.set_now(AS_OF)
    plan = steps.plan(s, topic.name, as_of=AS_OF, work="compaction").plan
    steps.stage(s, plan.plan_id)
    if steps.gate(s, plan.plan_id).judgement == "needs_approval":
        steps.approve(s, plan.plan_id, granted=True, by="tester", text="as expected")
    spark.sql(f"DROP TABLE {sql_table(topic.name, kind=COMPACTED)}")
    with raises("PlanConflict", match="is not in the catalog any more"):
        steps.publish(s, plan.plan_id)
    assert topic.run(AS_OF).name == "published"
    assert [row.message.offset for row in topic.view()] == [1]
    world.close()


def test_equality_deletes_in_the_log_are_refused_by_name(topic: Topic, spark: SparkSession) -> None:
    table, jvm, gateway = engine_of_process().table(topic.name), spark._jvm, spark.sparkContext._gateway
    before, horizons = topic.view(), dict(topic.horizons)
    path = local_path(str(table.location())) / "data" / "equality-deletes.parquet"
    key = pa.field("key", pa.binary(), metadata={"PARQUET:field_id": str(KEY)})
    pq.write_table(pa.table({"key": [b"c"]}, schema=pa.schema([key])), path)
    assert gateway is not None
    ids = gateway.new_array(jvm.int, 1)
    ids[0] = KEY
    file = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(table.spec()).ofEqualityDeletes(ids).withFormat("parquet")
    file = file.withPath(f"{table.location()}/data/{path.name}").withFileSizeInBytes(path.stat().st_size).withRecordCount(1)
    table.newRowDelta().addDeletes(file.withPartitionPath("partition=0/segment=0").build()).commit()
    engine_of_process().forget(topic.name)
    with pytest.raises(UnreadableDeletes):
        topic.run(LATER)
    assert (topic.view(), dict(topic.horizons)) == (before, horizons)


@pytest.mark.parametrize("settings", [{}, {"winner": "event_time", "delete_retention": 4.0}], ids=["by offset", "by event time"])
def test_a_topic_without_keys_is_refused(spark: SparkSession, settings: Mapping[str, Value]) -> None:
    world = iceberg_world({})
    topic = Topic(world, Log(settings=settings, batches=(), partitions=1))
    topic.append([message(None, b"1"), message(None, b"2")])
    with raises("TopicWithoutKeys"):
        topic.run(AS_OF)
    assert topic.horizons == {}
    topic.append([message(b"a", b"3")])
    assert topic.run(AS_OF).name == "published"
    world.close()
