"""Compaction end to end on tables: Spark tasks, one commit, read back by PyIceberg and by Spark (CMP-4, CMP-5)."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.compaction import Row, compacted, counted, messages
from tests.errors import raises
from tests.spark.compaction import KIND, compact_topic, create_view, job_of
from tests.spark.lake import Lake

from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.rules import PeriodPassed
from message_lifecycle.operations.compaction import CompactionRules
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.compaction import kernel
from message_lifecycle.stores.iceberg.compaction.view_table import UnreadableDeletes
from message_lifecycle.stores.iceberg.data_files import commit
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.table_folder import local_path
from message_lifecycle.stores.iceberg.tasks import InputFile

PARTITIONS = 3
RULES = CompactionRules(as_of=Instant(20), ages=(("ttl", PeriodPassed("expires_at", 0)),), tombstones_until=Instant(50))


def topic(lake: Lake) -> TopicName:
    name = lake.topic(partitions=PARTITIONS)
    create_view(name)
    return name


def append(lake: Lake, name: TopicName, rows: list[Row]) -> None:
    schema = SCHEMA.as_arrow()
    times = ("append_time", "event_time", "expires_at")
    plain = pa.schema([pa.field(f.name, pa.int64() if f.name in times else f.type) for f in schema])
    frame = lake.session.createDataFrame(pa.Table.from_pylist(rows, schema=plain).cast(schema, safe=False))
    frame.coalesce(1).sortWithinPartitions("partition", "segment", "offset").writeTo(sql_table(name)).append()
    engine_of_process().forget(name)


def generated(chance: random.Random, first: int) -> list[Row]:
    """Times are such as Spark can take in from Python."""
    rows = []
    for partition in range(PARTITIONS):
        for row in messages(chance, 40, first=first):
            times = {name: row[name] if row[name] is None or abs(row[name]) < 1 << 40 else None for name in ("append_time", "expires_at")}
            rows.append({**row, **times, "partition": partition})
    return rows


def view_of(name: TopicName) -> list[Row]:
    """By PyIceberg, which reads a list that is null as one that is empty."""
    found = Tables().load(name, kind=KIND).scan().to_arrow()
    for at, field in enumerate(found.schema):
        if pa.types.is_timestamp(field.type):
            found = found.set_column(at, field.name, found[field.name].cast(pa.int64()))
    return sorted(found.to_pylist(), key=lambda row: (row["partition"], row["offset"]))


def of(rows: list[Row], partition: int) -> list[Row]:
    return [row for row in rows if row["partition"] == partition]


@pytest.mark.parametrize("rewrite", [False, True])
def test_tables_hold_what_plain_python_finds(lake: Lake, rewrite: bool) -> None:
    chance, name = random.Random(7), topic(lake)
    after: dict[int, int] = {}
    expected: list[Row] = []
    for step in range(3):
        rules = replace(RULES, as_of=Instant(10 + 25 * step))
        rows = [{**row, "headers": row["headers"] or []} for row in generated(chance, first=step * 2_000)]
        append(lake, name, rows)
        lake.delete(name, f"offset % 7 = 3 AND offset >= {step * 2_000}")
        left = [row for row in rows if row["offset"] % 7 != 3]
        through = {partition: max(row["offset"] for row in of(rows, partition)) for partition in range(PARTITIONS)}
        results = compact_topic(name, job_of(name, rules, after=after, through=through, rewrite=rewrite))
        after, before, expected = through, expected, []
        for result in results:
            kept, removed = compacted(of(before, result.partition), of(left, result.partition), rules)
            expected += kept
            assert result.removed == counted(removed)
        assert view_of(name) == expected
        found = lake.session.sql(f"SELECT count(*), sum(offset), count(delete_horizon) FROM {sql_table(name, kind=KIND)}").collect()[0]
        horizons = sum(row["delete_horizon"] is not None for row in expected)
        assert tuple(found) == (len(expected), sum(row["offset"] for row in expected), horizons)
    vectors = lake.session.sql(f"SELECT count(*) FROM {sql_table(name, kind=KIND, metadata='delete_files')}").collect()[0][0]
    assert bool(vectors) is not rewrite


def test_bounds_and_sort_order_stand_in_the_metadata(lake: Lake) -> None:
    chance, name = random.Random(1), topic(lake)
    rows = generated(chance, first=0)
    append(lake, name, rows)
    compact_topic(name, job_of(name, RULES, after={}, through={0: 10_000}))
    shown = view_of(name)
    task = next(iter(Tables().load(name, kind=KIND).scan().plan_files()))
    assert task.file.sort_order_id == 1
    assert task.file.record_count == len(shown)
    low = {field: int.from_bytes(bound, "little", signed=True) for field, bound in task.file.lower_bounds.items() if field in (2, 16)}
    assert low == {2: shown[0]["offset"], 16: 50}


def test_a_branch_leaves_main_as_it_is(lake: Lake) -> None:
    chance, name = random.Random(2), topic(lake)
    append(lake, name, generated(chance, first=0))
    table = engine_of_process().table(name, kind=KIND)
    table.manageSnapshots().createBranch("staged").commit()
    results = kernel.run(engine_of_process(), job_of(name, RULES, after={}, through={0: 10_000, 1: 10_000}))
    commit(engine_of_process(), table, results, branch="staged", properties={"lifecycle.plan-id": "p"})
    assert view_of(name) == []
    assert table.snapshot("staged").summary()["lifecycle.plan-id"] == "p"
    assert table.snapshot("staged").summary()["added-records"] == str(sum(result.rows_out for result in results))


def test_a_view_that_changed_meanwhile_is_not_overwritten(lake: Lake) -> None:
    chance, name = random.Random(3), topic(lake)
    append(lake, name, generated(chance, first=0))
    compact_topic(name, job_of(name, RULES, after={}, through={0: 10_000}))
    again = kernel.run(engine_of_process(), job_of(name, RULES, after={0: 10_000}, through={0: 20_000}, rewrite=True))
    compact_topic(name, job_of(name, RULES, after={0: 10_000}, through={0: 20_000}, rewrite=True))
    before = view_of(name)
    with pytest.raises(PlanConflict, match="not in the table any more"):
        commit(engine_of_process(), engine_of_process().table(name, kind=KIND), again, branch="main", properties={})
    assert view_of(name) == before


def test_equality_deletes_are_refused(lake: Lake) -> None:
    chance, name = random.Random(4), topic(lake)
    append(lake, name, generated(chance, first=0))
    table, jvm = engine_of_process().table(name), engine_of_process().jvm
    ids = lake.session.sparkContext._gateway.new_array(jvm.int, 1)
    ids[0] = 5
    file = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(table.spec()).ofEqualityDeletes(ids).withFormat("parquet")
    file = file.withPath(f"{table.location()}/data/none.parquet").withFileSizeInBytes(1).withRecordCount(1)
    table.newRowDelta().addDeletes(file.withPartitionPath("partition=0/segment=0").build()).commit()
    with pytest.raises(UnreadableDeletes, match="equality deletes"):
        job_of(name, RULES, after={}, through={0: 10_000})


def test_a_task_that_fails_leaves_no_file(lake: Lake) -> None:
    chance, name = random.Random(5), topic(lake)
    append(lake, name, generated(chance, first=0))
    job = job_of(name, RULES, after={}, through={0: 10_000, 1: 10_000})
    broken = replace(job.partitions[1], tail=(InputFile(path="/no/such.parquet"),))
    with raises("CompactionFailed", match="partition 1 failed"):
        kernel.run(engine_of_process(), replace(job, partitions=(job.partitions[0], broken)))
    assert list(local_path(job.data_folder).rglob("*.parquet")) == []
