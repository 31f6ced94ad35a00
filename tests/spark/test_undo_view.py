"""Taking back what a plan took from a compacted table: what other engines, SQL and lost files make of it (DEL-7)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from pyspark.sql import SparkSession
from tests.contract.test_requests import append, topic_of
from tests.contract.test_undo_view import view
from tests.errors import raises
from tests.logs import SECOND
from tests.undone import approved, published, run, undone

from message_lifecycle.app import steps
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.scenario import World
from message_lifecycle.app.topics import alter_topic
from message_lifecycle.app.wiring import iceberg_world
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import ViewRow
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import PurgeKey, RemoveMessages, UndoPlan
from message_lifecycle.stores.iceberg.branches import undo_ref
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.compaction import removals
from message_lifecycle.stores.iceberg.compaction.view_table import files_by_partition
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.layout import COMPACTED
from message_lifecycle.stores.iceberg.manifests import DELETED, entries
from message_lifecycle.stores.iceberg.puffin import Positions
from message_lifecycle.stores.iceberg.session import sql_table
from message_lifecycle.stores.iceberg.table_folder import local_path

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

GONE = RemoveMessages(positions=((0, 0), (0, 2)))


class Taken:
    """Four keys compacted, two of which a request has taken from the log and from the view."""

    def __init__(self, world: World) -> None:
        self.world, self.name = world, topic_of(world)
        append(world, self.name, 1, b"a", b"b", b"c", b"d")
        assert run(world, self.name, 2, "compaction").name == "published"
        self.rows = view(world, self.name)
        self.plan_id = published(world, self.name, 5, GONE)

    def rewritten(self) -> None:
        """By a compaction of more than the view has."""
        append(self.world, self.name, 6, *(b"n%d" % at for at in range(9)))
        published(self.world, self.name, 7, "compaction")

    def old_rows(self) -> list[ViewRow]:
        return [row for row in view(self.world, self.name) if row.message.offset < 4]

    def undo(self) -> None:
        assert undone(self.world, self.name, 8, self.plan_id).restored == 2

    def judged(self) -> set[str]:
        """The rules that do not hold."""
        s = self.world.services
        self.world.set_now(Instant(8 * SECOND))
        undo_id = steps.plan(s, self.name, as_of=Instant(8 * SECOND), work=UndoPlan(plan_id=self.plan_id)).plan.plan_id
        steps.stage(s, undo_id)
        return {check.id for check in steps.gate(s, undo_id).blocking}


@pytest.fixture
def taken(spark: SparkSession) -> Iterator[Taken]:
    world = iceberg_world({})
    yield Taken(world)
    world.close()


def files(name: TopicName) -> dict[str, bool]:
    """Paths of the view's data files, and whether something in them is marked."""
    table = Tables().load(name, kind=COMPACTED)
    found = files_by_partition(table, table.current_snapshot())
    return {file.path: file.vector is not None for group in found.values() for file in group}


def let_go(name: TopicName) -> set[str]:
    """Every data file that a snapshot of the view has ever dropped."""
    table = Tables().load(name, kind=COMPACTED)
    return {
        file[1]
        for snapshot in table.snapshots()
        for manifest in snapshot.manifests(table.io)
        for status, _, file in entries(table.io, manifest)
        if status == DELETED and file[1].endswith(".parquet")
    }


def test_marks_are_taken_off_a_file_that_stands(taken: Taken) -> None:
    before = files(taken.name)
    assert set(before.values()) == {True}
    taken.undo()
    assert files(taken.name) == dict.fromkeys(before, False), "no copy, and no empty vector"
    assert view(taken.world, taken.name) == taken.rows


def test_of_a_file_that_the_view_let_go_a_copy_comes_back(taken: Taken, spark: SparkSession) -> None:
    taken.rewritten()
    assert let_go(taken.name)
    taken.undo()
    assert taken.old_rows() == taken.rows
    assert not files(taken.name).keys() & let_go(taken.name), "no live path is one that the table ever let go"
    engine_of_process().table(taken.name, kind=COMPACTED).expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
    engine_of_process().forget(taken.name, kind=COMPACTED)
    assert taken.old_rows() == taken.rows, "every live file is there still"
    assert spark.table(sql_table(taken.name, kind=COMPACTED)).count() == 13, "and Spark reads them"


def test_a_file_that_is_lost_is_found_before_anything_is_changed(taken: Taken) -> None:
    taken.rewritten()
    was, marker = view(taken.world, taken.name), taken.world.services.reader.marker(taken.name)
    for path in let_go(taken.name):
        local_path(path).unlink()
    with raises("UndoSourceGone", match="not there any more"):
        run(taken.world, taken.name, 8, UndoPlan(plan_id=taken.plan_id))
    assert (view(taken.world, taken.name), taken.world.services.reader.marker(taken.name)) == (was, marker)


def test_a_damaged_file_is_found_before_anything_is_changed(taken: Taken) -> None:
    taken.rewritten()
    was, marker = view(taken.world, taken.name), taken.world.services.reader.marker(taken.name)
    for path in let_go(taken.name):
        file = local_path(path)
        file.write_bytes(file.read_bytes()[:-20])
    with raises("UndoSourceGone", match="cannot be read"):
        run(taken.world, taken.name, 8, UndoPlan(plan_id=taken.plan_id))
    assert (view(taken.world, taken.name), taken.world.services.reader.marker(taken.name)) == (was, marker)


@pytest.mark.parametrize("whose", ["topic", "server"])
@pytest.mark.usefixtures("spark")  # the world needs it
def test_a_window_that_was_lengthened_is_the_view_s_too(whose: str) -> None:
    """An erasure of another key leaves what a plan took for as long as its window is open, of every table, whoever has set it."""
    own = {"undo_window": 10} if whose == "topic" else {}
    world, now_s = iceberg_world({} if own else {"undo_window": 10}), int(time.time())
    name = topic_of(world, **own)
    append(world, name, 1, b"a", b"b", b"z")
    published(world, name, 2, "compaction")
    rows = view(world, name)
    if own:
        alter_topic(world.services, name, {"undo_window": 1000})
    else:
        world = replace(world, services=replace(world.services, server={"undo_window": 1000}))
    plan_id = published(world, name, now_s, PurgeKey(key=b"a"))
    world.set_now(Instant((now_s + 100) * SECOND))
    request = ask(world.services, [b"z"], topics=[name], forbid=False, by="ada", why="a letter").request_id
    (found,) = carry_out(world.services, request, approver=approved)
    assert found.error is None, found.why_not_done()
    undone(world, name, now_s + 101, plan_id)
    assert view(world, name) == rows[:2]
    world.close()


@pytest.mark.usefixtures("spark")  # the world needs it
def test_an_outcome_that_came_late_keeps_the_undo_open_through_an_erasure() -> None:
    """A run that died after its commits, and was brought to its end days later."""
    world, late_s = iceberg_world({"undo_window": 100}), int(time.time()) + 1000
    name = topic_of(world)
    append(world, name, 1, b"a", b"b", b"z")
    published(world, name, 2, "compaction")
    rows = view(world, name)
    plan_id = published(world, name, late_s, PurgeKey(key=b"a"))
    world.set_now(Instant((late_s + 50) * SECOND))
    request = ask(world.services, [b"z"], topics=[name], forbid=False, by="ada", why="a letter").request_id
    (found,) = carry_out(world.services, request, approver=approved)
    assert found.error is None, found.why_not_done()
    undone(world, name, late_s + 60, plan_id)
    assert view(world, name) == rows[:2]
    world.close()


def test_after_the_view_s_snapshot_was_expired_nothing_comes_back(taken: Taken, spark: SparkSession) -> None:
    table = engine_of_process().table(taken.name, kind=COMPACTED)
    table.expireSnapshots().expireOlderThan(2**62).retainLast(1).cleanExpiredFiles(False).commit()
    with raises("UndoSourceGone", match="expired"):
        run(taken.world, taken.name, 8, UndoPlan(plan_id=taken.plan_id))


def test_where_an_erasure_has_kept_a_branch_of_the_view_rows_come_from_there(taken: Taken, spark: SparkSession) -> None:
    """What an erasure leaves of the plan's own messages, without what was erased."""
    table = engine_of_process().table(taken.name, kind=COMPACTED)
    table.manageSnapshots().createBranch(undo_ref(taken.plan_id), table.currentSnapshot().parentId()).commit()
    spark.sql(f"DELETE FROM {sql_table(taken.name, branch=undo_ref(taken.plan_id), kind=COMPACTED)} WHERE offset = 2")
    table.refresh()
    table.expireSnapshots().expireOlderThan(2**62).retainLast(1).cleanExpiredFiles(False).commit()
    engine_of_process().forget(taken.name, kind=COMPACTED)
    outcome = undone(taken.world, taken.name, 8, taken.plan_id)
    assert any("1 message of the compacted view cannot come back" in warning for warning in outcome.warnings)
    assert [row.message.offset for row in view(taken.world, taken.name)] == [0, 1, 3]
    assert set(Tables().load(taken.name, kind=COMPACTED).refs()) == {"main"}, "the branch has served"


def test_nothing_is_staged_that_brings_back_more_than_is_named(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    taken.rewritten()
    real = removals._holding
    monkeypatch.setattr(removals, "_holding", lambda *given: ((file, np.arange(total), total) for file, _, total in real(*given)))
    with pytest.raises(PlanConflict, match="4 messages would come back to the view, the plan names 2"):
        taken.judged()
    assert set(Tables().load(taken.name, kind=COMPACTED).refs()) == {"main"}


def test_the_gate_blocks_other_messages_than_those_named(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    taken.rewritten()
    real = removals.write_marks

    def shifted(table: object, place: str, positions: dict[str, Positions]) -> object:
        # Of the copy's four rows those come back that stay marked, and the others not.
        return real(table, place, {path: 3 - gone[::-1] for path, gone in positions.items()})  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(removals, "write_marks", shifted)
    assert {"view_returns_missing", "view_returns_unnamed"} <= taken.judged()


def test_the_gate_blocks_a_copy_that_holds_something_else(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    taken.rewritten()

    def spoilt(_io: object, source: str, target: str) -> int:
        rows = pq.read_table(local_path(source), partitioning=None)
        at = rows.schema.get_field_index("value")
        spoilt = rows.set_column(at, rows.schema.field(at), pc.binary_join_element_wise(rows["value"], b"!", b""))
        path = local_path(target)
        pq.write_table(spoilt, path)
        return path.stat().st_size

    monkeypatch.setattr(removals, "copy_file", spoilt)
    assert taken.judged() == {"view_returns_changed"}
