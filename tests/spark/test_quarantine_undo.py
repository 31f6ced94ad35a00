"""Refused rows that went by their age come back, row for row, whoever dies or comes first, and stay until they are released (QUA-1, DEL-7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from tests.effort import hunt, sample
from tests.errors import raises
from tests.holds import held
from tests.spark.kill_points import Run, dies, next_run_finishes, start_dying, two_at_once_publish_once, with_ledger
from tests.spark.quarantines import AS_OF, YES, Refused

from message_lifecycle.app import steps
from message_lifecycle.app.due import due as judge
from message_lifecycle.app.operations.undo import release
from message_lifecycle.ledger import open_ledger
from message_lifecycle.ledger.database import Clock
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.phrases import short
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.stores.iceberg.catalog import UNDO_PROPERTY, Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.layout import QUARANTINE, UNDOES
from message_lifecycle.stores.iceberg.session import spark_session, sql_table
from message_lifecycle.stores.iceberg.table_folder import local_path

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

WEEK = 7 * 86_400 * 1_000_000


class Topic(Refused):
    """Of which two batches have gone; what is killed is the undo of that."""

    def __init__(self, ledger_url: str) -> None:
        super().__init__(ledger_url)
        self.was = self.rows()
        outcome = self.age()
        assert (outcome.name, self.left()) == ("published", ["b95"])
        assert outcome.plan_id is not None
        self.plan_id = outcome.plan_id

    def rows(self) -> list[Any]:
        """As Spark reads them, with every column."""
        session = spark_session("tests")
        engine_of_process().forget(self.name, kind=QUARANTINE)
        return sorted(tuple(row) for row in session.table(sql_table(self.name, kind=QUARANTINE)).collect())

    def age(self) -> Outcome:
        return super().run()

    def undo(self) -> Outcome:
        work = UndoPlan(plan_id=self.plan_id)
        return steps.run(self.s, self.name, as_of=AS_OF, work=work, approver=lambda _plan, _report: YES)

    def start(self, last_step: str) -> Run:
        return start_dying(self.name, AS_OF, last_step, "undo", self.plan_id, ledger_url=self.ledger_url)

    def run(self) -> Outcome:
        return self.undo()

    def is_as_after_one_run(self) -> None:
        assert self.rows() == self.was
        assert self.refs() == {"main"}, "what was staged is gone"
        snapshots = Tables().load(self.name, kind=QUARANTINE).snapshots()
        assert len([s for s in snapshots if s.summary and s.summary[UNDOES] == self.plan_id]) == 1
        (known,) = self.s.ledger.undone(self.name)
        outcome = self.s.ledger.record(known.undone_by).outcome
        assert outcome is not None and (outcome.name, outcome.restored, outcome.removed) == ("published", 4, ())
        assert (outcome.rows_in, outcome.rows_kept) == (2, 6)
        assert self.age().name == "no_op", "the next run leaves alone what came back"
        assert self.rows() == self.was


@pytest.fixture
def topic(embedded: Path, tmp_path: Path) -> Iterator[Topic]:
    with with_ledger(Topic, tmp_path) as made:
        yield made


def names(topic: Topic) -> set[str]:
    state = topic.s.stores.quarantine.quarantine(topic.name) if topic.s.stores.quarantine else None
    return set() if state is None else {file.name for file in state.files}


def test_every_row_comes_back_and_stays_until_it_is_released(topic: Topic) -> None:
    plan = topic.s.ledger.record(topic.plan_id).plan
    log = topic.s.reader.log(topic.name)
    topic.refuse(96)
    came_later = topic.rows()
    outcome = topic.undo()
    assert (outcome.name, outcome.restored, outcome.warnings) == ("published", 4, ())
    assert topic.rows() == sorted([*topic.was, *(row for row in came_later if row[1] == "b96")])
    assert not names(topic) & set(plan.selection.files), "under fresh paths"
    assert topic.s.reader.log(topic.name) == log
    report = topic.s.ledger.record(outcome.plan_id or "").report
    assert report is not None and (report.judgement, report.evaluated_count) == ("needs_approval", report.declared)
    (due,) = judge(topic.s, [topic.name], as_of=AS_OF, work="quarantine")
    assert (due.due, f"`lifecycle undo {short(topic.plan_id)} --release --by NAME --why WHY`" in due.reason) == (False, True)
    (kept,) = topic.age().held
    assert (kept.holder, kept.rows) == ("undone_plan", 4)
    again = topic.undo()
    assert (again.name, again.first_plan_id) == ("no_op", outcome.plan_id)
    release(topic.s, topic.plan_id, by="ada", text="they may go after all")
    assert topic.age().removed == (("quarantine_age", 4),)
    assert topic.left() == ["b95", "b96"]
    other = topic.s.ledger.history(topic.name, operations=("quarantine",))[0][1].plan_id
    assert other not in (None, topic.plan_id)
    topic.plan_id = other or ""
    assert topic.undo().restored == 4, "a later removal of the same rows is taken back by its own id"
    assert topic.left() == ["b1", "b2", "b95", "b96"]


@pytest.mark.parametrize("step", sample(("after_stage", "before_commit", "inside_commit", "after_commit"), "inside_commit"))
def test_a_killed_undo_is_finished_by_the_next(topic: Topic, step: str) -> None:
    dies(topic, step)
    assert topic.left() == (["b1", "b2", "b95"] if step == "after_commit" else ["b95"])
    next_run_finishes(topic)


@hunt
def test_the_age_that_comes_after_a_killed_undo_leaves_alone_what_came_back(topic: Topic) -> None:
    dies(topic, "after_commit")
    assert topic.age().name == "no_op"
    topic.is_as_after_one_run()


@hunt
def test_two_undos_at_once_publish_once(topic: Topic) -> None:
    two_at_once_publish_once(topic)


def test_a_hold_is_no_hindrance_and_what_is_refused_meanwhile_stays(topic: Topic) -> None:
    held(topic.s, topic.name, key=b"k")
    plan_id = steps.plan(topic.s, topic.name, as_of=AS_OF, work=UndoPlan(plan_id=topic.plan_id)).plan.plan_id
    steps.stage(topic.s, plan_id)
    assert steps.gate(topic.s, plan_id).judgement == "needs_approval"
    topic.refuse(3)
    steps.approve(topic.s, plan_id, granted=True, by="ada", text="a slip")
    steps.publish(topic.s, plan_id)
    assert steps.verify(topic.s, plan_id).name == "published"
    assert topic.left() == ["b1", "b2", "b3", "b95"]


@hunt
def test_two_removals_are_taken_back_each_by_its_own_plan(topic: Topic) -> None:
    topic.refuse(3)
    second = topic.age()
    assert (second.removed, topic.left()) == ((("quarantine_age", 2),), ["b95"])
    assert topic.undo().restored == 4
    assert topic.left() == ["b1", "b2", "b95"]
    topic.plan_id = second.plan_id or ""
    assert topic.undo().restored == 2
    assert topic.left() == ["b1", "b2", "b3", "b95"]
    assert topic.age().name == "no_op"


def test_an_undo_that_the_ledger_has_forgotten_brings_nothing_back_twice(topic: Topic, tmp_path: Path) -> None:
    """A ledger restored from before it."""
    backup = (tmp_path / "ledger.db").read_bytes()
    assert topic.undo().restored == 4
    (tmp_path / "restored.db").write_bytes(backup)
    topic.s = replace(topic.s, ledger=open_ledger(f"sqlite:///{tmp_path / 'restored.db'}"))
    with raises("UndoSourceGone", match="has brought back what it removed"):
        topic.undo()
    assert topic.rows() == topic.was
    before = Tables().load(topic.name, kind=QUARANTINE)
    catalog, _, table = sql_table(topic.name, kind=QUARANTINE).replace("`", "").partition(".")
    spark_session("tests").sql(f"CALL {catalog}.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
    assert Tables().load(topic.name, kind=QUARANTINE).metadata.current_snapshot_id != before.metadata.current_snapshot_id
    with raises("UndoSourceGone", match="has brought back what it removed"):
        topic.undo()
    assert topic.rows() == topic.was


def test_its_history_is_kept_as_long_as_the_topics(topic: Topic) -> None:
    """By engines that expire snapshots after a table's own property."""

    def kept() -> tuple[str, str]:
        own, beside = (Tables().load(topic.name, kind=kind).properties for kind in ("", QUARANTINE))
        return own[UNDO_PROPERTY], beside[UNDO_PROPERTY]

    assert kept() == ("604800000", "604800000")
    topic.s.topics.alter(topic.name, {"undo_window": 86_400 * 30})
    assert kept() == ("2592000000", "2592000000")


def test_what_cannot_be_taken_back_is_refused_by_name_and_nothing_changes(topic: Topic) -> None:
    late = open_ledger(topic.ledger_url, clock=_later(WEEK))
    with raises("UndoWindowPassed"):
        steps.run(replace(topic.s, ledger=late), topic.name, as_of=late.now(), work=UndoPlan(plan_id=topic.plan_id))
    empty = topic.age().plan_id or ""
    with raises("NotPublished"):
        steps.run(topic.s, topic.name, as_of=AS_OF, work=UndoPlan(plan_id=empty))
    table = Tables().load(topic.name, kind=QUARANTINE)
    lost = local_path(table.location()) / topic.s.ledger.record(topic.plan_id).plan.selection.files[0]
    lost.rename(lost.with_suffix(f".{token_hex(2)}"))
    with raises("UndoSourceGone", match=lost.name):
        topic.undo()
    assert (topic.left(), topic.refs()) == (["b95"], {"main"})
    Tables().catalog.drop_table((topic.name.namespace, topic.name.table(QUARANTINE)))
    with raises("UndoSourceGone", match="the quarantine that it took rows from is not there any more"):
        topic.undo()


def _later(by_us: int) -> Clock:
    import time

    return lambda: Instant(time.time_ns() // 1000 + by_us + 60_000_000)
