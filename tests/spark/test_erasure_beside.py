"""An erasure reaches what lies beside a log: its compacted view, its quarantine, files that nothing names; and its receipt tells."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col
from tests.effort import hunt
from tests.errors import raises
from tests.spark.erasures import AS_OF, Topic, grant, topics_of
from tests.spark.key_search import files_with
from tests.spark.lake import SECOND, Lake, tables
from tests.spark.quarantines import refuse as refuse_rows

from message_lifecycle.app import receipts, steps
from message_lifecycle.app.holds import place_hold, release_hold
from message_lifecycle.app.views.status import status
from message_lifecycle.model.erasure import Receipt
from message_lifecycle.model.errors import HeldByLegalHold
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.request import EraseKey, UndoPlan
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.erasure.publish import metadata_name
from message_lifecycle.stores.iceberg.quarantine import IcebergQuarantine, IcebergQuarantineReturns
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.table_folder import local_path

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


@pytest.fixture
def make(lake: Lake, spark: SparkSession) -> Callable[..., Topic]:
    return topics_of(lake, spark)


def test_the_compacted_view_loses_the_key_as_well(make: Callable[..., Topic]) -> None:
    topic = make()
    topic.append((topic.key, b"1"), (b"a", b"2"), (None, b"3"))
    assert topic.compact().name == "published"
    topic.append((b"b", b"4"), (topic.key, b"5"))
    assert topic.compact().name == "published"
    view, log = topic.rows(kind="compacted"), topic.rows()
    state = topic.s.stores.view.view(topic.name)
    outcome = topic.erase()
    assert outcome.name == "published", outcome.detail
    assert [files_with(topic.location(kind), topic.key) for kind in ("", "compacted")] == [[], []]
    assert topic.rows(kind="compacted") == topic.without_key(view)
    assert topic.rows() == topic.without_key(log)
    now = topic.s.stores.view.view(topic.name)
    assert state is not None
    assert now is not None
    assert (now.horizons, now.rows) == (state.horizons, state.rows - 1)
    topic.append((b"b", b"6"))
    assert topic.compact().name == "published"
    assert [bytes(row[5]) for row in topic.rows(kind="compacted") if row[4] == b"b"] == [b"6"]


def test_the_quarantine_loses_the_rows_whose_text_tells_the_key(make: Callable[..., Topic]) -> None:
    topic = make()
    topic.key = token_hex(16).encode()
    word = topic.key.decode()
    topic.append((b"a", b"1"), (topic.key, b"2"))
    raws = [
        ("bad", f'{{"id": "{word}", "t": 1}}'),
        ("bad", '{"id": "other"}'),
        (f"no time: {word}", None),
        (None, f"{word};x;y"),
        (None, None),
    ]
    rows = [("in.csv", at, "10165", reason, raw) for at, (reason, raw) in enumerate(raws)]
    refuse_rows(topic.name, *rows, batch_id=token_hex(16), at=AS_OF)
    assert files_with(topic.location("quarantine"), topic.key)
    request_id = topic.request()
    outcome = topic.erase(request_id)
    assert outcome.name == "published", outcome.detail
    assert "erased 3 refused rows of the key from the quarantine" in outcome.detail
    (receipt,) = Receipt.from_json(topic.s.ledger.receipt(request_id)).topics
    assert {table.table: table.rows for table in receipt.tables} == {"quarantine": 3, "log": 1}
    assert [files_with(topic.location(kind), topic.key) for kind in ("", "quarantine")] == [[], []]
    left = topic.session.sql(f"SELECT position FROM {sql_table(topic.name, kind='quarantine')}").collect()
    assert sorted(row[0] for row in left) == [1, 4]
    assert [row[1] for row in topic.rows()] == [0]


@pytest.mark.parametrize("damage", ["nothing erased", "nothing there"])
def test_the_gate_looks_at_the_staged_quarantine_whatever_came_to_it_since(make: Callable[..., Topic], damage: str) -> None:  # DEL-2
    topic = make()
    topic.key = token_hex(16).encode()
    topic.append((b"a", b"1"), (topic.key, b"2"))
    refuse(topic, f"{topic.key.decode()};x", "other")
    before = tables().load(topic.name, kind="quarantine").metadata.snapshots
    plan_id = steps.plan(topic.s, topic.name, as_of=AS_OF, work=EraseKey(request_id=topic.request())).plan.plan_id
    steps.stage(topic.s, plan_id)
    staged = local_path(topic.location("quarantine")) / metadata_name(plan_id)
    document = json.loads(staged.read_text())
    (erased,) = document["snapshots"]
    document["snapshots"] = [{**erased, "manifest-list": before[-1].manifest_list}] if damage == "nothing erased" else []
    staged.write_text(json.dumps(document))
    refuse(topic, "late")
    report = steps.gate(topic.s, plan_id)
    assert report.judgement == "blocked"
    found = {"nothing erased": {"tables_found", "tables_files_differ"}, "nothing there": {"tables_refs_differ"}}
    assert {check.id for check in report.checks if check.kind == "rule" and not check.passed} == found[damage]


def test_refused_rows_that_came_before_the_gate_stay(make: Callable[..., Topic]) -> None:  # DEL-4
    topic = make()
    topic.key = token_hex(16).encode()
    topic.append((b"a", b"1"), (topic.key, b"2"))
    refuse(topic, f"{topic.key.decode()};x", "other")
    plan_id = steps.plan(topic.s, topic.name, as_of=AS_OF, work=EraseKey(request_id=topic.request())).plan.plan_id
    steps.stage(topic.s, plan_id)
    refuse(topic, "late")
    report = steps.gate(topic.s, plan_id)
    assert report.judgement == "needs_approval", report.blocking
    steps.approve(topic.s, plan_id, granted=True, by="tester", text="as expected")
    steps.publish(topic.s, plan_id)
    assert steps.verify(topic.s, plan_id).name == "published"
    engine_of_process().forget(topic.name, kind="quarantine")
    left = topic.session.sql(f"SELECT raw FROM {sql_table(topic.name, kind='quarantine')}").collect()
    assert sorted(row[0] for row in left) == ["late", "other"]


def refuse(topic: Topic, *raws: str) -> None:
    """One batch of refused rows."""
    rows = [("in.csv", at, "10165", "bad", raw) for at, raw in enumerate(raws)]
    refuse_rows(topic.name, *rows, batch_id=token_hex(16), at=AS_OF)


@pytest.mark.parametrize("name", ["published", "failed"])
def test_refused_rows_come_back_after_an_erasure_without_the_key(
    make: Callable[..., Topic], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:  # DEL-7
    topic = make(quarantine_max_age=10, max_removed_fraction=1.0)
    quarantine, returns = (kind(engine_of_process, tables=tables()) for kind in (IcebergQuarantine, IcebergQuarantineReturns))
    topic.s = replace(topic.s, stores=replace(topic.s.stores, quarantine=quarantine, quarantine_return=returns))
    topic.key = token_hex(16).encode()
    refused = {"old": [topic.key.decode(), "one"], "older": ["two"], "young": ["three"]}
    for at, (batch, raws) in enumerate(refused.items()):
        rows = [("in.csv", line, "10165", None, raw) for line, raw in enumerate(raws)]
        since = Instant(AS_OF - SECOND if batch == "young" else at * SECOND)
        refuse_rows(topic.name, *rows, batch_id=batch, at=since)

    def left() -> list[str]:
        engine_of_process().forget(topic.name, kind="quarantine")
        return sorted(row[0] for row in topic.session.sql(f"SELECT raw FROM {sql_table(topic.name, kind='quarantine')}").collect())

    with monkeypatch.context() as patched:
        if name == "failed":  # after its commit
            patched.setattr(steps, "differences", lambda *_: ["something else"])
        outcome = steps.run(topic.s, topic.name, as_of=AS_OF, work="quarantine", approver=grant)
    plan_id = outcome.plan_id or ""
    assert (outcome.name, left()) == (name, ["three"])
    assert topic.erase().name == "published"
    assert files_with(topic.location("quarantine"), topic.key) == []
    assert steps.run(topic.s, topic.name, as_of=AS_OF, work="quarantine", approver=grant).name == "no_op"
    undone = steps.run(topic.s, topic.name, as_of=AS_OF, work=UndoPlan(plan_id=plan_id), approver=grant)
    assert (undone.name, undone.restored) == ("published", 2), undone.detail
    assert undone.warnings == ("1 row of the plan cannot come back: no file has them",)
    assert left() == ["one", "three", "two"]
    assert set(tables().load(topic.name, kind="quarantine").metadata.refs) == {"main"}
    assert steps.run(topic.s, topic.name, as_of=AS_OF, work="quarantine", approver=grant).name == "no_op"
    topic.key = b"two"
    assert topic.erase().name == "published"
    assert left() == ["one", "three"], "and what has come back is erased like any other row"
    assert steps.run(topic.s, topic.name, as_of=AS_OF, work="quarantine", approver=grant).name == "no_op"


def test_a_hold_on_a_key_that_the_same_refused_row_tells_refuses_the_erasure(make: Callable[..., Topic]) -> None:  # DEL-8
    topic = make()
    topic.key = token_hex(16).encode()
    word = topic.key.decode()
    topic.append((b"a", b"1"), (topic.key, b"2"))
    raws = (f"{word};x;y", "beside;it", f"{word};held;z")
    rows = [("in.csv", at, "10165", "bad", raw) for at, raw in enumerate(raws)]
    refuse_rows(topic.name, *rows, batch_id=token_hex(16), at=AS_OF)
    beside = place_hold(topic.s, topic.name, key=b"beside", by="ada", why="case 6")
    in_the_row = place_hold(topic.s, topic.name, key=b"held", by="ada", why="case 7")
    with pytest.raises(HeldByLegalHold, match="case 7"):
        topic.erase()
    assert files_with(topic.location("quarantine"), topic.key)
    release_hold(topic.s, in_the_row.hold_id, by="ada", why="closed")
    outcome = topic.erase()
    assert outcome.name == "published", outcome.detail
    left = topic.session.sql(f"SELECT raw FROM {sql_table(topic.name, kind='quarantine')}").collect()
    assert [row[0] for row in left] == ["beside;it"]
    release_hold(topic.s, beside.hold_id, by="ada", why="closed")


def test_a_file_that_no_snapshot_names_is_found_too(make: Callable[..., Topic]) -> None:
    topic = make()
    topic.append((topic.key, b"1"), (b"a", b"2"))
    root = local_path(topic.location())
    (committed,) = topic.files()
    left = root / "data" / "left-by-a-writer-that-died.parquet"
    shutil.copy(root / committed, left)
    with raises("UnsupportedErasure", match=left.name):
        topic.erase()
    assert [row[1] for row in topic.rows()] == [0, 1]
    four_days_ago = time.time() - 4 * 86_400
    os.utime(left, (four_days_ago, four_days_ago))
    assert topic.erase().name == "published"
    assert not left.exists()
    assert files_with(topic.location(), topic.key) == []


def test_the_receipt_tells_and_is_checked_again(make: Callable[..., Topic]) -> None:
    topic = make()
    topic.append((topic.key, b"1"), (b"a", b"2"))
    request_id = topic.request()
    outcome = topic.erase(request_id)
    receipt = Receipt.from_json(topic.s.ledger.receipt(request_id))
    (of_topic,) = receipt.topics
    assert (of_topic.plan_id, of_topic.rows) == (outcome.plan_id, 1)
    (table,) = of_topic.tables
    assert any(name.endswith(".parquet") for name in table.gone)
    assert any(name.endswith(".metadata.json") for name in table.gone)
    assert of_topic.hidden_at <= of_topic.unreachable_at
    committed = topic.s.ledger.committed_at(of_topic.plan_id)
    assert committed is not None
    assert of_topic.hidden_at <= committed <= of_topic.unreachable_at
    (shown,) = status(topic.s, [topic.name])
    assert shown.last_removal is not None
    assert shown.last_removal.at == committed
    assert receipts.verify(topic.s, request_id) == []
    # One file back in its place, or the key back in the log, and the receipt does not hold any more.
    back = local_path(topic.location()) / table.gone[0]
    back.parent.mkdir(parents=True, exist_ok=True)
    back.write_bytes(b"")
    assert [wrong.split(": ", 1)[1] for wrong in receipts.verify(topic.s, request_id)] == [f"{table.gone[0]}, which went, is there"]
    back.unlink()
    topic.append((topic.key, b"3"))
    (wrong,) = receipts.verify(topic.s, request_id)
    assert "hold a requested key" in wrong


def test_the_receipt_of_a_key_that_is_nowhere_tells_each_table_that_was_searched(make: Callable[..., Topic]) -> None:
    topic = make(cleanup_policy="compact,delete")
    topic.append((b"a", b"1"), (b"b", b"2"))
    topic.compact()
    request_id = topic.request()
    assert topic.erase(request_id).name == "no_op"
    (of_topic,) = Receipt.from_json(topic.s.ledger.receipt(request_id)).topics
    assert (of_topic.rows, of_topic.found_nowhere) == (0, True)
    searched = {table.table: table for table in of_topic.tables}
    assert {"log", "view"} <= searched.keys()
    log = topic.s.reader.log(topic.name)
    assert searched["log"].table_uuid == log.table_uuid
    assert log.snapshot_id in searched["log"].snapshots
    assert searched["log"].files_searched == len(topic.files())
    assert receipts.verify(topic.s, request_id) == []
    topic.append((topic.key, b"3"))
    assert receipts.verify(topic.s, request_id) != []


def test_the_receipt_of_a_key_that_was_nowhere_does_not_hold_where_a_table_made_since_has_it(make: Callable[..., Topic]) -> None:
    topic = make()
    topic.key = token_hex(16).encode()
    topic.append((b"a", b"1"))
    request_id = topic.request()
    assert topic.erase(request_id).name == "no_op"
    row = ("a.jsonl", 1, "unreadable_line", "torn", f"{topic.key.decode()}, torn")
    refuse_rows(topic.name, row, batch_id=token_hex(16), at=AS_OF)
    (wrong,) = receipts.verify(topic.s, request_id)
    assert "of the quarantine hold a requested key" in wrong


@hunt
def test_a_stream_that_died_before_its_own_log_writes_nothing_again(make: Callable[..., Topic], tmp_path: Path) -> None:
    topic = make()
    topic.append((topic.key, b"1"), (b"a", b"2"))
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    table = sql_table(topic.name)
    topic.session.table(table).withColumn("offset", col("offset") + 2).write.parquet(str(source))

    def stream() -> None:
        read = topic.session.readStream.schema(topic.session.read.parquet(str(source)).schema).parquet(str(source))
        options = {"checkpointLocation": str(checkpoint), "fanout-enabled": "true", "check-nullability": "false"}
        query = read.writeStream.format("iceberg").options(**options).trigger(availableNow=True).toTable(table)
        assert query.awaitTermination(120)
        engine_of_process().forget(topic.name)

    def flink(job: str) -> None:
        options = {"job-id": job, "operator-id": "o", "max-committed-checkpoint-id": "1"}
        frame = topic.session.table(table).limit(0).writeTo(table)
        for key, value in options.items():
            frame = frame.option(f"snapshot-property.flink.{key}", value)
        frame.append()
        engine_of_process().forget(topic.name)

    stream()
    shutil.rmtree(checkpoint / "commits")  # its epoch is in the table, and the query does not know
    flink("one")
    flink("two")
    before = topic.rows()
    assert [row[1] for row in before] == [0, 1, 2, 3]
    outcome = topic.erase()
    assert outcome.name == "published", outcome.detail
    assert files_with(topic.location(), topic.key) == []
    stream()
    assert topic.rows() == topic.without_key(before)
    # What carries the words of the other two reads nothing.
    history = topic.session.sql(f"SELECT snapshot_id, parent_id FROM {table}.snapshots ORDER BY parent_id NULLS FIRST").collect()
    heads = {ref.snapshot_id for ref in tables().load(topic.name).metadata.refs.values()}
    carriers = [row[0] for row in history if row[0] not in heads]
    assert len(carriers) == 2
    assert [topic.session.sql(f"SELECT * FROM {table} VERSION AS OF {at}").count() for at in carriers] == [0, 0]
    topic.append((b"b", b"3"))
    assert len(topic.rows()) == 3
