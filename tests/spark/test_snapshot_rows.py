"""Snapshots as relations of SQL: what is alive in them, by whatever way the files are read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.lake import Lake, Rows, tables

from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg import relations
from message_lifecycle.stores.iceberg.columns import KEY
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.relations import Names, literal, scratch_database
from message_lifecycle.stores.iceberg.snapshot_rows import SnapshotRows, snapshot_rows
from message_lifecycle.stores.iceberg.table_folder import local_path
from message_lifecycle.stores.iceberg.tasks import HERE

pytestmark = pytest.mark.spark


@pytest.fixture
def name(lake: Lake) -> TopicName:
    """Three segments, of which 1 and 4 of the first partition have been removed by another writer."""
    name = lake.topic(partitions=2)
    lake.append(name, Rows(base=0, times=(1, 2, 3)), Rows(base=3, times=(4, None)), Rows(base=0, times=(5, 6), partition=1))
    lake.delete(name, "partition = 0 AND offset IN (1, 4)")
    return name


def snapshot_id(name: TopicName, *, back: int = 0) -> int:
    snapshots = tables().load(name).metadata.snapshots
    return sorted(snapshots, key=lambda snapshot: snapshot.sequence_number or 0)[-1 - back].snapshot_id


def rows_of(rows: SnapshotRows, relation: str) -> list[tuple[int, int, bytes]]:
    found = rows.ask(f'SELECT partition, "offset", key FROM {relation} ORDER BY ALL').to_pylist()
    return [(row["partition"], row["offset"], row["key"]) for row in found]


@pytest.mark.parametrize("local", [True, False], ids=["DuckDB's own way to files", "the table's I/O"])
def test_what_a_vector_marks_is_not_there(name: TopicName, monkeypatch: pytest.MonkeyPatch, local: bool) -> None:
    if not local:
        monkeypatch.setattr(relations, "is_local", lambda _: False)
    with snapshot_rows(tables().load(name), "p") as rows:
        rows.relate("now", snapshot_id(name))
        rows.relate("before", snapshot_id(name, back=1), lambda file: file.partition == 0)
        assert rows_of(rows, "now") == [(0, 0, b"k0"), (0, 2, b"k2"), (0, 3, b"k3"), (1, 0, b"k0"), (1, 1, b"k1")]
        assert [offset for _, offset, _ in rows_of(rows, "before")] == [0, 1, 2, 3, 4]
        places = rows.ask("SELECT DISTINCT segment, rows, path FROM before JOIN before_files USING (file) ORDER BY segment").to_pylist()
    assert [(place["segment"], place["rows"]) for place in places] == [(0, 3), (3, 2)]
    assert all("/partition=0/" in place["path"] for place in places)


def test_no_files_are_no_rows(name: TopicName) -> None:
    with snapshot_rows(tables().load(name), "p") as rows:
        rows.relate("nothing", snapshot_id(name), lambda _: False)
        assert rows_of(rows, "nothing") == []


def test_files_differ_by_name_and_by_vector(name: TopicName) -> None:
    with snapshot_rows(tables().load(name), "p") as rows:
        now, before = snapshot_id(name), snapshot_id(name, back=1)
        rows.relate("was", before, rows.differing(before, now))
        assert [offset for _, offset, _ in rows_of(rows, "was")] == [0, 1, 2, 3, 4]
        rows.relate("same", now, rows.differing(now, now))
        assert rows_of(rows, "same") == []


def test_a_snapshot_that_is_gone_is_told(name: TopicName) -> None:
    with snapshot_rows(tables().load(name), "p") as rows, pytest.raises(PlanConflict, match="its snapshot 1 is gone"):
        rows.relate("now", 1)


def test_deletes_of_another_kind_are_refused(lake: Lake, name: TopicName) -> None:
    """Passed over, they would make a message live that is not."""
    table, session = engine_of_process().table(name), lake.session
    jvm, gateway = engine_of_process().jvm, session.sparkContext._gateway
    path: Path = local_path(str(table.location())) / "data" / "equality-deletes.parquet"
    key = pa.field("key", pa.binary(), metadata={"PARQUET:field_id": str(KEY)})
    pq.write_table(pa.table({"key": [b"k0"]}, schema=pa.schema([key])), path)
    ids = gateway.new_array(jvm.int, 1)
    ids[0] = KEY
    file = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(table.spec()).ofEqualityDeletes(ids).withFormat("parquet")
    file = file.withPath(f"{table.location()}/data/{path.name}").withFileSizeInBytes(path.stat().st_size).withRecordCount(1)
    table.newRowDelta().addDeletes(file.withPartitionPath("partition=0/segment=0").build()).commit()
    with snapshot_rows(tables().load(name), "p") as rows, pytest.raises(PlanConflict, match="another kind than deletion vectors"):
        rows.relate("now", snapshot_id(name))


def test_a_name_is_no_pattern(tmp_path: Path) -> None:
    """DuckDB's own way would take `[1]*` for one."""
    folder = tmp_path / "lake [1]*"
    folder.mkdir()
    pq.write_table(pa.table({"offset": [7]}), folder / "a.parquet")
    with scratch_database(memory="100MB") as connection:
        names = Names(connection)
        name = names.of(str(folder / "a.parquet"), HERE)
        assert name.startswith("lake")
        assert connection.execute(f"SELECT * FROM read_parquet({literal(name)})").fetchall() == [(7,)]
        assert names.of(str(tmp_path / "a.parquet"), HERE) == str(tmp_path / "a.parquet")
