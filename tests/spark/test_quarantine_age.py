"""Refused rows go from the quarantine table at their age, whole files by one fenced commit, whoever dies or comes first (QUA-1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.effort import hunt, sample
from tests.errors import raises
from tests.holds import When, held, run_with_hold
from tests.spark.kill_points import Run, dies, next_run_finishes, published, start_dying, two_at_once_publish_once, with_ledger
from tests.spark.quarantines import AS_OF, Refused

from message_lifecycle.app import steps, tasks
from message_lifecycle.app.due import due as judge
from message_lifecycle.app.holds import place_hold, release_hold
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.hold import HeldRange
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.layout import PLAN_ID, QUARANTINE
from message_lifecycle.stores.iceberg.session import spark_session, sql_table

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


class Topic(Refused):
    """As the kill points have it."""

    def start(self, last_step: str) -> Run:
        return start_dying(self.name, AS_OF, last_step, "quarantine", ledger_url=self.ledger_url)

    def is_as_after_one_run(self) -> None:
        assert self.left() == ["b95"]
        assert self.refs() == {"main"}
        ((plan_id, removed),) = published(self.s, self.name)
        assert removed == (("quarantine_age", 4),)
        summaries = [snapshot.summary for snapshot in Tables().load(self.name, kind=QUARANTINE).snapshots()]
        assert [summary[PLAN_ID] for summary in summaries if summary is not None and summary[PLAN_ID]] == [plan_id]


@pytest.fixture
def topic(embedded: Path, tmp_path: Path) -> Iterator[Topic]:
    with with_ledger(Topic, tmp_path) as made:
        yield made


def test_old_batches_go_young_ones_stay_and_the_log_is_as_it_was(topic: Topic) -> None:
    log = topic.s.reader.log(topic.name)
    (due,) = judge(topic.s, [topic.name], as_of=AS_OF, work="quarantine")
    assert (due.due, due.reason) == (True, "4 quarantine rows in 2 files have reached their age")
    assert topic.run().name == "published"
    topic.is_as_after_one_run()
    assert topic.s.reader.log(topic.name) == log
    (_, outcome), *_ = topic.s.ledger.history(topic.name)
    assert (outcome.operation, outcome.removed, outcome.rows_in, outcome.rows_kept) == ("quarantine", (("quarantine_age", 4),), 6, 2)
    report = topic.s.ledger.record(outcome.plan_id or "").report
    assert report is not None
    assert (report.judgement, report.evaluated_count) == ("passed", report.declared)
    (due,) = judge(topic.s, [topic.name], as_of=AS_OF, work="quarantine")
    assert (due.due, due.reason) == (False, "no quarantine row has reached its age; the next rows go at 1970-01-01T00:01:45Z")
    assert topic.run().name == "no_op"


@pytest.mark.parametrize("step", sample(("after_stage", "before_commit", "inside_commit", "after_commit"), "inside_commit"))
def test_a_killed_run_is_finished_by_the_next(topic: Topic, step: str) -> None:
    dies(topic, step)
    assert topic.left() == (["b95"] if step == "after_commit" else ["b1", "b2", "b95"])
    next_run_finishes(topic)


@hunt
def test_two_runs_of_one_interval_at_once_publish_once(topic: Topic) -> None:
    two_at_once_publish_once(topic)


def test_what_is_refused_meanwhile_stays_and_another_removal_is_planned_again(topic: Topic) -> None:
    plan_id = steps.plan(topic.s, topic.name, as_of=AS_OF, work="quarantine").plan.plan_id
    steps.stage(topic.s, plan_id)
    assert steps.gate(topic.s, plan_id).judgement == "passed"
    topic.refuse(3)
    steps.publish(topic.s, plan_id)
    assert steps.verify(topic.s, plan_id).name == "published"
    assert topic.left() == ["b3", "b95"], "it came after the plan"
    plan_id = steps.plan(topic.s, topic.name, as_of=AS_OF, work="quarantine").plan.plan_id
    steps.stage(topic.s, plan_id)
    steps.gate(topic.s, plan_id)
    spark_session("tests").sql(f"DELETE FROM {sql_table(topic.name, kind=QUARANTINE)} WHERE batch = 'b95'")
    assert topic.run().name == "published"
    assert topic.left() == []


def test_a_topic_without_refused_rows_has_nothing_to_do(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    other = TopicName(stream=topic.name.stream, topic="other")
    create_topic(topic.s, other, partitions=1, settings={})
    assert steps.run(topic.s, other, as_of=AS_OF, work="quarantine").name == "no_op"
    monkeypatch.setattr(tasks, "lake", lambda: topic.s)
    named = [str(topic.name), str(other)]
    assert tasks.due(run="quarantine/r", as_of="1970-01-01T00:01:40Z", topics=named, work="quarantine") == [str(topic.name)]
    with raises("NoQuarantine"):
        steps.run(replace(topic.s, stores=replace(topic.s.stores, quarantine=None)), other, as_of=AS_OF, work="quarantine")


@pytest.mark.parametrize("what", [{}, {"key": b"anything"}, {"offsets": HeldRange(partition=0, first=7)}])
def test_a_hold_on_any_part_of_the_topic_keeps_its_quarantine(topic: Topic, what: dict[str, Any]) -> None:
    plan_id = steps.plan(topic.s, topic.name, as_of=AS_OF, work="quarantine").plan.plan_id
    steps.stage(topic.s, plan_id)
    steps.gate(topic.s, plan_id)
    hold = place_hold(topic.s, topic.name, by="ada", why="a lawsuit", **what)
    with pytest.raises(PlanConflict, match="placed after it was planned"):
        steps.publish(topic.s, plan_id)
    assert topic.run().name == "no_op"
    (due,) = judge(topic.s, [topic.name], as_of=AS_OF, work="quarantine")
    assert (due.due, hold.hold_id in due.reason) == (False, True)
    assert topic.left() == ["b1", "b2", "b95"]
    release_hold(topic.s, hold.hold_id, by="ada", why="it is over")
    assert topic.run().name == "published"
    assert topic.left() == ["b95"]


@pytest.mark.parametrize("when", ["before", "planned"])
def test_a_hold_placed_before_the_gate_keeps_the_quarantine(topic: Topic, when: When) -> None:
    outcome = run_with_hold(topic.s, topic.name, "quarantine", as_of=AS_OF, when=when, place=lambda: held(topic.s, topic.name, key=b"k"))
    assert (outcome.name, topic.left()) == ("no_op", ["b1", "b2", "b95"]), outcome.detail
