"""A key erased from a topic's tables is in no byte of them, and everything else is as it was (DEL-7, CMP-8)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.spark.erasures import AS_OF, Topic, grant, topics_of
from tests.spark.key_search import files_with, tables_with
from tests.spark.lake import Lake, tables

from message_lifecycle.app import steps
from message_lifecycle.ledger import Ledger
from message_lifecycle.model.request import EraseKey, UndoPlan
from message_lifecycle.stores.iceberg.branches import undo_ref
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.table_folder import local_path

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


@pytest.fixture
def make(lake: Lake, spark: SparkSession) -> Callable[..., Topic]:
    return topics_of(lake, spark)


def test_a_key_is_gone_from_every_ref_and_every_byte(make: Callable[..., Topic]) -> None:
    topic = make(partitions=2)
    key = topic.key
    topic.append((key, b"1"), (b"a", b"2"), (b"b", None), (None, b"3"))
    topic.append((b"a", b"4"), (b"c", b""))
    topic.append((b"", b"5"), (key, b"6"), partition=1)
    topic.sql("ALTER TABLE {t} CREATE TAG before_marks")
    # Marked by another writer: a row of the key, and one beside it.
    topic.writer.foreign_delete(topic.name, [(0, 0), (0, 1)])
    topic.sql("ALTER TABLE {t} CREATE BRANCH side")
    topic.append((key, b"7"), (key, None))
    # A plan that took a whole file with the key and one row of a file without it: its undo is open.
    plan_id = topic.remove((0, 6), (0, 7), (0, 4)).plan_id
    assert plan_id is not None
    topic.append((b"z", b"8"))
    before = {ref: topic.rows(ref) for ref in ("main", "before_marks", "side")}
    was = topic.files()
    with_key = {name for name in files_with(topic.location(), key) if name.endswith(".parquet")}
    assert len(with_key) == 3
    taken = [row for row in topic.rows("before_marks") if row[:2] == (0, 4)]

    outcome = topic.erase()

    assert outcome.name == "published", outcome.detail
    assert outcome.removed == (("erased", 1),), "what was marked, or went by the plan, readers of main did not see"
    assert files_with(topic.location(), key) == []
    after = {ref: topic.rows(ref) for ref in before}
    assert after == {ref: topic.without_key(rows) for ref, rows in before.items()}
    assert [m.offset for m in topic.s.reader.messages(topic.name, partition=0)] == [row[1] for row in after["main"] if row[0] == 0]
    now = topic.files()
    assert {name: now[name] for name in was if name not in with_key} == {n: at for n, at in was.items() if n not in with_key}
    assert not with_key & now.keys()
    # What the plan took can be given back from its branch, but for the key.
    undo = topic.rows(undo_ref(plan_id))
    assert [row for row in undo if row[:2] == (0, 4)] == taken
    assert undo == topic.without_key(undo)
    table = tables().load(topic.name)
    refs = table.metadata.refs
    assert set(refs) == {"main", "before_marks", "side", undo_ref(plan_id)}
    assert {snapshot.snapshot_id for snapshot in table.metadata.snapshots} == {ref.snapshot_id for ref in refs.values()}
    _ledger_is_silent(topic)


def _ledger_is_silent(topic: Topic) -> None:
    ledger = topic.s.ledger
    assert isinstance(ledger, Ledger)
    with ledger._database.reading() as connection:
        assert tables_with(connection, topic.key) == []


def test_the_table_goes_on_as_ever(make: Callable[..., Topic]) -> None:
    topic = make()
    topic.append((topic.key, b"1"), (b"a", b"2"), (b"b", b"3"))
    topic.writer.foreign_delete(topic.name, [(0, 1)])
    ends = topic.s.reader.log(topic.name).end_offsets
    assert topic.erase().name == "published"
    log = topic.s.reader.log(topic.name)
    assert log.end_offsets == ends, "MSG-4: no offset is given twice"
    assert topic.append((b"d", b"4")) == [(0, 3)]
    topic.sql("DELETE FROM {t} WHERE `offset` = 2")
    assert [row[1] for row in topic.rows()] == [3]
    assert topic.remove((0, 3)).name == "published"
    assert topic.rows() == []
    topic.append((b"e", b"5"))
    row_ids = [row[0] for row in topic.session.sql(f"SELECT _row_id FROM {sql_table(topic.name)}").collect()]
    assert len(set(row_ids)) == len(row_ids) == 1
    topic.sql(f"CALL lake.system.expire_snapshots(table => '{sql_table(topic.name).removeprefix('`lake`.')}', retain_last => 1)")
    assert [row[1] for row in topic.rows()] == [4]


def test_an_undo_after_the_erasure_brings_back_all_but_the_key(make: Callable[..., Topic]) -> None:
    topic = make()
    topic.append((topic.key, b"1"), (b"a", b"2"), (b"b", b"3"))
    topic.append((topic.key, b"4"), (b"c", b"5"))
    before = topic.rows()
    plan_id = topic.remove((0, 0), (0, 1), (0, 3), (0, 4)).plan_id
    assert plan_id is not None
    topic.append((b"d", b"6"))
    later = topic.rows()[-1]
    assert topic.erase().name == "published"
    undo = steps.run(topic.s, topic.name, as_of=AS_OF, approver=grant, work=UndoPlan(plan_id=plan_id))
    assert undo.name == "published", undo.detail
    assert undo.restored == 2
    assert topic.rows() == [*topic.without_key(before), later]
    assert files_with(topic.location(), topic.key) == []
    assert topic.erase().name == "no_op"


def test_a_second_erasure_and_one_of_nothing(make: Callable[..., Topic]) -> None:
    topic = make()
    topic.append((topic.key, b"1"), (b"a", b"2"))
    request_id = topic.request()
    first = topic.erase(request_id)
    assert first.name == "published"
    snapshots = [snapshot.snapshot_id for snapshot in tables().load(topic.name).metadata.snapshots]
    again = topic.erase(request_id)
    assert again.name == "no_op"
    assert [snapshot.snapshot_id for snapshot in tables().load(topic.name).metadata.snapshots] == snapshots
    assert topic.s.ledger.record(first.plan_id or "").outcome == first, "its commit may go with history: the ledger knows"
    topic.append((topic.key, b"3"))
    assert topic.erase(request_id).name == "published"
    assert files_with(topic.location(), topic.key) == []


def test_a_person_is_asked_and_may_refuse(make: Callable[..., Topic]) -> None:
    topic = make()
    topic.append((topic.key, b"1"), (b"a", b"2"))
    before, location = topic.rows(), tables().load(topic.name).metadata_location
    asked: list[Any] = []

    def refuse(plan: Any, report: Any) -> tuple[bool, str, str]:
        asked.append((plan.asks, report.judgement))
        return False, "tester", "not now"

    assert topic.erase(approver=refuse).name == "refused"
    assert "Time travel" in asked[0][0][0]
    assert asked[0][1] == "needs_approval"
    assert topic.rows() == before
    assert tables().load(topic.name).metadata_location == location, "byte for byte as it was (DEL-3)"
    assert not [name for name in topic.files() if "erased-" in name], "nothing staged is left"


def keep_the_key(old: Path, written: Path) -> None:
    shutil.copy(old, written)


def lose_a_row(_old: Path, written: Path) -> None:
    pq.write_table(pq.read_table(written).slice(1), written)


def change_a_value(_old: Path, written: Path) -> None:
    rows = pq.read_table(written)
    values = pa.array([b"other", *rows["value"].to_pylist()[1:]], rows.schema.field("value").type)
    pq.write_table(rows.set_column(rows.column_names.index("value"), rows.schema.field("value"), values), written)


@pytest.mark.parametrize(
    ("damage", "checks"),
    [
        (keep_the_key, {"rewritten_rows", "rewritten_left", "rewritten_changed", "tables_found"}),
        (lose_a_row, {"rewritten_rows", "rewritten_unnamed", "rewritten_changed"}),
        (change_a_value, {"rewritten_changed"}),
    ],
)
def test_the_gate_sees_what_staging_did_wrong(make: Callable[..., Topic], damage: Callable[[Path, Path], None], checks: set[str]) -> None:
    topic = make()
    topic.append((topic.key, b"1"), (b"a", b"2"), (b"b", b"3"))
    before, (old,) = topic.rows(), topic.files()
    record = steps.plan(topic.s, topic.name, as_of=AS_OF, work=EraseKey(request_id=topic.request()))
    steps.stage(topic.s, record.plan.plan_id)
    root = local_path(topic.location())
    (written,) = topic.files().keys() - {old}
    damage(root / old, root / written)
    report = steps.gate(topic.s, record.plan.plan_id)
    assert report.judgement == "blocked"
    assert {check.id for check in report.checks if check.kind == "rule" and not check.passed} == checks
    assert topic.rows() == before
    assert topic.files().keys() == {old}, "its stage is dropped"


def test_an_append_with_the_key_is_planned_for_again(make: Callable[..., Topic]) -> None:
    topic = make()
    topic.append((topic.key, b"1"), (b"a", b"2"))
    came = iter([True])

    def approve_late(*_: object) -> tuple[bool, str, str]:
        if next(came, False):
            topic.append((topic.key, b"late"), (b"b", b"3"))
        return grant()

    assert topic.erase(approver=approve_late).name == "published"
    assert files_with(topic.location(), topic.key) == []
    assert [row[1] for row in topic.rows()] == [1, 3]


def test_an_append_without_the_key_passes(make: Callable[..., Topic]) -> None:
    topic = make()
    topic.append((topic.key, b"1"), (b"a", b"2"))
    asked = []

    def approve_late(*_: object) -> tuple[bool, str, str]:
        asked.append(topic.append((b"b", b"3")))
        return grant()

    assert topic.erase(approver=approve_late).name == "published"
    assert len(asked) == 1
    assert [row[1] for row in topic.rows()] == [1, 2]
    assert files_with(topic.location(), topic.key) == []


@pytest.mark.parametrize("late", ["before it is staged", "before the gate"])
def test_an_append_before_the_gate_passes_as_well(make: Callable[..., Topic], late: str) -> None:  # DEL-4
    topic = make()
    topic.append((topic.key, b"1"), (b"a", b"2"))
    plan_id = steps.plan(topic.s, topic.name, as_of=AS_OF, work=EraseKey(request_id=topic.request())).plan.plan_id
    if late == "before it is staged":
        topic.append((b"b", b"3"), (b"c", b"4"))
    steps.stage(topic.s, plan_id)
    if late == "before the gate":
        topic.append((b"b", b"3"), (b"c", b"4"))
    report = steps.gate(topic.s, plan_id)
    assert report.judgement == "needs_approval", report.blocking
    steps.approve(topic.s, plan_id, granted=True, by="tester", text="as expected")
    steps.publish(topic.s, plan_id)
    assert steps.verify(topic.s, plan_id).name == "published"
    assert [row[1] for row in topic.rows()] == [1, 2, 3]
    assert files_with(topic.location(), topic.key) == []
