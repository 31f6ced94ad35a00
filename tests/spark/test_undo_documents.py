"""Taking a purge of documents back on tables: what files, other engines, lost files and an erasure make of it (DEL-7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from secrets import token_bytes, token_hex
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.effort import hunt, sample
from tests.errors import raises
from tests.spark.documents import KINDS, LATER, Documents, name_beside, text_at, typed
from tests.spark.key_search import files_with
from tests.spark.lake import Lake, tables

from message_lifecycle.app import steps
from message_lifecycle.model.erasure import KeySecret
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import EraseKey, UndoPlan
from message_lifecycle.stores.iceberg.branches import undo_ref
from message_lifecycle.stores.iceberg.compaction import removals
from message_lifecycle.stores.iceberg.compaction.removals import Holding
from message_lifecycle.stores.iceberg.documents import files_at, stage
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.layout import SNAPSHOTS
from message_lifecycle.stores.iceberg.manifests import DELETED, entries
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.table_folder import local_path

pytestmark = [pytest.mark.spark, pytest.mark.postgres]
ONE = "one"
BESIDE = name_beside(ONE)


class Purged(Documents):
    """Two documents in the same files, of 36 changes each. Of `one` went changes 1 to 7, 8 to 17, and 18 to 29 with the snapshot at 12; of
    the other nothing, until it goes with the file that both began in."""

    def made(self) -> Purged:
        self.shown_before: list[object] = []
        self.ids: list[str] = []
        for first, synced in ((1, 8), (13, 18), (25, 30)):
            self.add(*typed(ONE, first, first + 11), *typed(BESIDE, first, first + 11))
            self.sync(ONE, a=synced)
            self.shown_before.append(self.shown())
            self.ids.append(self.published())
        return self

    def published(self) -> str:
        outcome = self.run()
        assert outcome.name == "published" and outcome.plan_id is not None, outcome.detail
        return outcome.plan_id

    def shown(self) -> object:
        """Every column of every change."""
        return [list(self.s.documents.changes(self.name, document)) for document in (ONE, BESIDE)]

    def work(self, work: Any) -> Outcome:
        return steps.run(self.s, self.name, as_of=LATER, approver=lambda _plan, _report: (True, "tester", "as expected"), work=work)

    def undo(self, plan_id: str) -> Outcome:
        outcome = self.work(UndoPlan(plan_id=plan_id))
        assert outcome.name == "published", outcome.detail
        return outcome

    def judged(self, plan_id: str) -> set[str]:
        """The rules that do not hold."""
        undo_id = steps.plan(self.s, self.name, as_of=LATER, work=UndoPlan(plan_id=plan_id)).plan.plan_id
        steps.stage(self.s, undo_id)
        return {check.id for check in steps.gate(self.s, undo_id).blocking}

    def files(self, kind: str = "") -> dict[str, bool]:
        """Paths of the table's data files, and whether something in them is marked."""
        table = tables().load(self.name, kind=kind)
        return {one.file.path: one.file.vector is not None for one in files_at(table, table.current_snapshot())}

    def let_go(self) -> set[str]:
        """Every data file that a snapshot of either table has ever dropped."""
        return {
            file[1]
            for table in (tables().load(self.name, kind=kind) for kind in KINDS)
            for snapshot in table.snapshots()
            for manifest in snapshot.manifests(table.io)
            for status, _, file in entries(table.io, manifest)
            if status == DELETED and file[1].endswith(".parquet")
        }

    def heads_and_branches(self) -> object:
        return self.heads(), self.branches()


@pytest.fixture
def topic(lake: Lake) -> Purged:
    return Purged(lake.services(), lake.stream).made()


def test_marks_are_taken_off_files_that_stand(topic: Purged) -> None:
    before = topic.files()
    topic.undo(topic.ids[2])
    assert topic.files().keys() == before.keys(), "no copy"
    assert topic.shown() == topic.shown_before[2]


def test_of_files_that_the_table_let_go_copies_come_back(topic: Purged, spark: SparkSession) -> None:
    for document in (ONE, BESIDE):
        topic.sync(document, a=36)
    topic.ids.append(topic.published())
    assert topic.let_go()
    topic.undo(topic.ids[3])
    for at in (2, 1, 0):
        topic.undo(topic.ids[at])
    assert topic.shown() == [typed(ONE, 1, 36), typed(BESIDE, 1, 36)]
    assert topic.snapshots(ONE) == [(seq, epoch, text_at(seq)) for seq, epoch in ((12, 1), (24, 2), (36, 3))]
    live = topic.files().keys() | topic.files(SNAPSHOTS).keys()
    assert not live & topic.let_go(), "no live path is one that a table ever let go"
    for kind in KINDS:
        engine_of_process().table(topic.name, kind=kind).expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
        engine_of_process().forget(topic.name, kind=kind)
    assert topic.shown() == [typed(ONE, 1, 36), typed(BESIDE, 1, 36)], "every live file is there still"


@hunt
def test_what_another_engine_wrote_anew_is_no_hindrance(topic: Purged, spark: SparkSession) -> None:
    for kind in KINDS:
        table = sql_table(topic.name, kind=kind)
        catalog, name = table.split(".", 1)
        options = "map('rewrite-all', 'true', 'delete-file-threshold', '1')"
        spark.sql(f"CALL {catalog}.system.rewrite_data_files(table => '{name}', options => {options})")
        engine_of_process().forget(topic.name, kind=kind)
    topic.undo(topic.ids[2])
    assert topic.shown() == topic.shown_before[2]
    assert [seq for seq, _, _ in topic.snapshots(ONE)] == [12, 24, 36]


@hunt
def test_spark_reads_what_came_back(topic: Purged, spark: SparkSession) -> None:
    topic.undo(topic.ids[2])
    rows = spark.sql(f"SELECT server_seq, payload FROM {sql_table(topic.name)} WHERE document = '{ONE}' ORDER BY server_seq").collect()
    assert [(row.server_seq, bytes(row.payload)) for row in rows] == [(one.server_seq, one.payload) for one in typed(ONE, 18, 36)]


def shifted(holding: Sequence[Holding]) -> list[Holding]:
    """As many rows, others than named: change 7 for change 12."""
    return [(file, mine - 1 if mine[0] % 12 else mine, total) for file, mine, total in holding]


def test_other_rows_than_named_are_not_published(topic: Purged, monkeypatch: pytest.MonkeyPatch) -> None:
    topic.undo(topic.ids[2])
    real = stage._holding
    before = topic.heads()
    with monkeypatch.context() as patched:
        patched.setattr(stage, "_holding", lambda *arguments: shifted(real(*arguments)))
        assert {"changes_back", "changes_missing", "changes_unnamed"} <= topic.judged(topic.ids[1])
    assert topic.heads() == before


def test_more_rows_than_named_are_not_staged(topic: Purged, monkeypatch: pytest.MonkeyPatch) -> None:
    real, before = stage._holding, topic.heads_and_branches()

    def all_of(*arguments: Any) -> Sequence[Holding]:
        return [(file, np.arange(total), total) for file, _, total in real(*arguments)]

    monkeypatch.setattr(stage, "_holding", all_of)
    plan_id = steps.plan(topic.s, topic.name, as_of=LATER, work=UndoPlan(plan_id=topic.ids[2])).plan.plan_id
    with pytest.raises(PlanConflict, match="would come back"):
        steps.stage(topic.s, plan_id)
    assert topic.heads_and_branches() == before


def test_a_copy_that_holds_something_else_is_not_published(topic: Purged, monkeypatch: pytest.MonkeyPatch) -> None:
    for document in (ONE, BESIDE):
        topic.sync(document, a=36)
    topic.ids.append(topic.published())
    before = topic.heads()

    def spoilt(_io: object, source: str, target: str) -> int:
        rows, path = pq.read_table(local_path(source), partitioning=None), local_path(target)
        column = "client" if "client" in rows.column_names else "digest"
        at = rows.schema.get_field_index(column)
        pq.write_table(rows.set_column(at, rows.schema.field(at), pa.array(["?"] * len(rows), rows.schema.field(at).type)), path)
        return path.stat().st_size

    monkeypatch.setattr(removals, "copy_file", spoilt)
    assert topic.judged(topic.ids[3]) == {"changes_changed", "snapshots_changed"}
    assert topic.heads() == before


@pytest.mark.parametrize("kind", sample(KINDS, KINDS[0]), ids=["changes", "snapshots"])
def test_a_lost_file_is_named_and_nothing_is_changed(topic: Purged, kind: str) -> None:
    topic.sync(ONE, a=36)
    topic.sync(BESIDE, a=36)
    topic.add(*typed(ONE, 37, 48), *typed(BESIDE, 37, 48))
    topic.ids.append(topic.published())
    table, before = tables().load(topic.name, kind=kind), topic.heads_and_branches()
    for path in topic.let_go():
        if path.startswith(f"{table.location()}/") and local_path(path).exists():
            local_path(path).unlink()
    with raises("UndoSourceGone"):
        topic.work(UndoPlan(plan_id=topic.ids[3]))
    assert topic.heads_and_branches() == before


def test_an_expired_snapshot_is_named(topic: Purged, spark: SparkSession) -> None:
    engine_of_process().table(topic.name).expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
    engine_of_process().forget(topic.name)
    with raises("UndoSourceGone", match="has been expired"):
        topic.work(UndoPlan(plan_id=topic.ids[2]))


def test_after_an_erasure_the_others_come_back_and_the_erased_is_in_no_byte(lake: Lake) -> None:
    gone, secret = name_beside(ONE), KeySecret(token_bytes(32))
    topic = Purged(replace(lake.services(), key_secret=lambda _: secret), lake.stream)
    topic.add(*typed(gone, 1, 12))
    topic.sync(gone, a=8)
    topic.made()
    request_id = token_hex(8)
    topic.s.ledger.add_erasure(
        request_id, secret.digests([gone.encode()]), topics=[topic.name], forbid=False, requested_by="tester", why="test"
    )
    assert topic.work(EraseKey(request_id=request_id)).name == "published"
    assert {undo_ref(plan_id) for plan_id in topic.ids} | {"main"} == topic.branches()
    for plan_id in reversed(topic.ids):
        plan = topic.s.ledger.record(plan_id).plan
        both = topic.s.stores.snapshots.has_begun(plan), topic.s.stores.changes.has_begun(plan)
        assert both == (True, True), "that of one that failed would come back"
        topic.undo(plan_id)
    assert topic.shown() == [typed(ONE, 1, 36), typed(BESIDE, 1, 36)]
    assert topic.branches() == {"main"}, "what the erasure had left for the undos has gone with them"
    for kind in KINDS:
        assert files_with(tables().load(topic.name, kind=kind).location(), gone.encode()) == []
    assert topic.stored(gone) == []
