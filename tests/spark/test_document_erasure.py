"""A document erased from its topic's tables is in no byte of them, and every other is as it was, marks and all (DEL-7)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from secrets import token_bytes, token_hex
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from tests.effort import hunt, sample
from tests.spark.documents import AS_OF, KINDS, LATER, Documents, name_beside, splice, text_at, typed
from tests.spark.key_search import files_with
from tests.spark.lake import Lake, tables

from message_lifecycle.app import receipts, steps
from message_lifecycle.app.erasures import carry_out
from message_lifecycle.app.witness import inspect_topic
from message_lifecycle.model.erasure import KeySecret
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import EraseKey
from message_lifecycle.stores.iceberg.branches import undo_ref
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.puffin import puffin_file
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.table_folder import local_path

pytestmark = [pytest.mark.spark, pytest.mark.postgres]
NAMES = [name_beside("d1"), "über-\u05e9\u05b8\u05dc\u05d5\u05dd-" + token_hex(16)]
Row = tuple[Any, ...]


class Topic(Documents):
    """With a document `gone` among others that lie in its files, of which changes were purged."""

    gone: str
    session: SparkSession

    @classmethod
    def made(cls, lake: Lake, spark: SparkSession, gone: str) -> Topic:
        secret = KeySecret(token_bytes(32))
        topic = cls(replace(lake.services(), key_secret=lambda _: secret), lake.stream)
        topic.gone, topic.session = gone, spark
        topic.add(*(change for name in topic.names() for change in typed(name, 1, 12)))
        for name in topic.names():
            topic.sync(name, a=8)
        assert topic.run().name == "published"
        return topic

    def names(self) -> list[str]:
        """With others in the files of the first of `NAMES`, and in most."""
        return [self.gone, *(f"d{number}" for number in range(60))]

    def request(self) -> str:
        request_id = token_hex(8)
        digests = self.s.key_secret(True).digests([self.gone.encode()])
        self.s.ledger.add_erasure(request_id, digests, topics=[self.name], forbid=False, requested_by="tester", why="test")
        return request_id

    def erase(self, request_id: str | None = None) -> Outcome:
        work = EraseKey(request_id=request_id or self.request())
        return steps.run(self.s, self.name, as_of=LATER, approver=lambda _plan, _report: (True, "tester", "as expected"), work=work)

    def location(self, kind: str) -> str:
        return tables().load(self.name, kind=kind).location()

    def sql(self, kind: str, statement: str) -> None:
        self.session.sql(statement.format(t=sql_table(self.name, kind=kind)))

    def rows(self, kind: str, ref: str) -> list[Row]:
        """As Spark reads them."""
        engine_of_process().forget(self.name, kind=kind)
        place = sql_table(self.name, kind=kind)
        self.session.sql(f"REFRESH TABLE {place}")
        return sorted(map(tuple, self.session.sql(f"SELECT * FROM {place} VERSION AS OF '{ref}'").collect()), key=lambda row: row[:3])

    def without(self, rows: Iterable[Row]) -> list[Row]:
        return [row for row in rows if row[0] != self.gone]


@pytest.mark.parametrize("gone", sample(NAMES, NAMES[0]), ids=["hex", "marks"])
def test_a_document_is_gone_from_every_ref_and_every_byte(lake: Lake, spark: SparkSession, gone: str) -> None:
    topic = Topic.made(lake, spark, gone)
    for kind in KINDS:
        topic.sql(kind, "ALTER TABLE {t} CREATE TAG before")
    topic.add(*(change for name in topic.names() for change in typed(name, 13, 24)))
    for name in topic.names():
        topic.sync(name, a=20)
    assert topic.run(LATER).name == "published", "a second purge, on files that had marks before"
    for kind in KINDS:
        topic.sql(kind, "ALTER TABLE {t} CREATE BRANCH side")
    topic.add(*typed(gone, 25, 25), *typed("d1", 25, 25))
    refs = [(kind, ref) for kind in KINDS for ref in ("main", "side", "before")]
    before = {at: topic.rows(*at) for at in refs}
    assert all(any(row[0] == gone for row in before[at]) for at in refs)
    assert all(files_with(topic.location(kind), gone.encode()) for kind in KINDS)
    undoable = {kind: {undo_ref(plan_id) for plan_id in topic.plans(kind)} for kind in KINDS}
    request_id = topic.request()

    outcome = topic.erase(request_id)

    assert outcome.name == "published", outcome.detail
    assert outcome.removed == (("erased", 6),)
    assert {at: topic.rows(*at) for at in refs} == {at: topic.without(rows) for at, rows in before.items()}
    for kind in KINDS:
        assert files_with(topic.location(kind), gone.encode()) == []
        metadata = tables().load(topic.name, kind=kind).metadata
        assert set(metadata.refs) == {"main", "side", "before"} | undoable[kind]
        assert {snapshot.snapshot_id for snapshot in metadata.snapshots} == {ref.snapshot_id for ref in metadata.refs.values()}
    assert (topic.stored("d1"), topic.epoch("d1")) == ([20, 21, 22, 23, 24, 25], 2)
    assert receipts.verify(topic.s, request_id) == []


def test_the_tables_go_on_as_ever(lake: Lake, spark: SparkSession) -> None:
    topic = Topic.made(lake, spark, NAMES[0])
    assert topic.erase().name == "published"
    topic.add(*typed("d1", 13, 30), *typed("new", 1, 2))
    topic.sync("d1", a=25)
    outcome = topic.run(LATER)
    assert (outcome.name, outcome.removed) == ("published", (("purged_synced", 17),))
    assert (topic.stored("d1"), topic.epoch("d1"), topic.snapshots("d1")[-1]) == (list(range(25, 31)), 2, (30, 2, text_at(30)))
    assert topic.stored("new") == [1, 2]
    assert topic.erase().name == "no_op"


@hunt
def test_a_plan_that_is_staged_gives_way_with_all_that_it_wrote(lake: Lake, spark: SparkSession) -> None:
    """Its branch names what it made, and tells which document cannot be folded."""
    topic = Topic.made(lake, spark, NAMES[1])
    wrong = replace(typed(topic.gone, 13, 13)[0], payload=splice(99, 0, "x"))
    topic.add(wrong, *typed(topic.gone, 14, 24), *typed("d1", 13, 24))
    plan, staged = topic.staged(LATER)
    assert [document for document, _ in (staged.documents.blocked if staged.documents else ())] == [topic.gone]
    assert topic.erase().name == "published"
    for kind in KINDS:
        assert files_with(topic.location(kind), topic.gone.encode()) == []
    record = topic.s.ledger.record(plan.plan_id)
    assert (record.outcome.name if record.outcome else None, topic.gone in repr(record)) == ("superseded", False)
    assert topic.run(LATER).name == "published"
    assert topic.snapshots("d1")[-1] == (24, 1, text_at(24))


@hunt
def test_bounds_of_a_file_that_went_before_tell_nothing_either(lake: Lake, spark: SparkSession) -> None:
    """A manifest may have them of files that nobody can search any more."""
    topic = Topic.made(lake, spark, NAMES[0])
    # Behind all other names: else it may lie within the bounds of another file, and Spark would not drop its own one whole.
    topic.gone = f"z{token_hex(32)}"
    topic.add(*typed(topic.gone, 1, 2))
    topic.sql("", f"DELETE FROM {{t}} WHERE document = '{topic.gone}'")
    place = sql_table(topic.name).removeprefix("`lake`.")
    topic.sql("", f"CALL lake.system.expire_snapshots(table => '{place}', older_than => TIMESTAMP '2100-01-01', retain_last => 1)")
    told = files_with(topic.location(""), topic.gone.encode())
    assert told
    assert not any(name.endswith(".parquet") for name in told)
    assert topic.erase().name == "published"
    assert files_with(topic.location(""), topic.gone.encode()) == []


def test_the_gate_sees_a_mark_on_another_row(lake: Lake, spark: SparkSession) -> None:
    """Rows of documents are named by where they lie, and those behind the erased ones move up."""
    topic = Topic.made(lake, spark, NAMES[0])
    before = {kind: topic.rows(kind, "main") for kind in KINDS}
    plan_id = steps.plan(topic.s, topic.name, as_of=AS_OF, work=EraseKey(request_id=topic.request())).plan.plan_id
    steps.stage(topic.s, plan_id)
    told = json.loads(local_path(f"{topic.location('')}/metadata/erasure-{plan_id}.staged.json").read_text())
    (file,) = (file for file in told["files"] if file["vectors"])
    (vector,) = file["vectors"]
    marked = np.arange(vector["rows"], dtype=np.int64) + 1
    content, _ = puffin_file([(file["path"], marked)])
    local_path(vector["puffin"]).write_bytes(content)
    report = steps.gate(topic.s, plan_id)
    assert report.judgement == "blocked"
    assert "tables_marks_differ" in {check.id for check in report.blocking}
    assert {kind: topic.rows(kind, "main") for kind in KINDS} == before


def test_an_erasure_is_not_done_while_the_snapshots_are_away(lake: Lake, spark: SparkSession) -> None:  # DEL-7
    topic = Topic.made(lake, spark, NAMES[0])
    request_id = topic.request()
    away = f"`{topic.name.namespace}`.`{topic.name.table()}_away`"
    topic.sql("snapshots", "ALTER TABLE {t} RENAME TO " + away)
    carry_out(topic.s, request_id, approver=lambda *_: (True, "tester", "as expected"))
    request = topic.s.ledger.erasure(request_id)
    assert request.state == "requested"
    assert "snapshots table" in request.detail
    (missing,) = inspect_topic(topic.s, topic.name).missing
    assert missing.kind == "snapshots"
    spark.sql(f"ALTER TABLE `lake`.{away} RENAME TO {sql_table(topic.name, kind='snapshots').removeprefix('`lake`.')}")
    engine_of_process().forget(topic.name, kind="snapshots")
    assert inspect_topic(topic.s, topic.name).missing == ()
    carry_out(topic.s, request_id, approver=lambda *_: (True, "tester", "as expected"))
    assert topic.s.ledger.erasure(request_id).state == "erased"
