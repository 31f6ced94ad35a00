"""How far behind compaction is before the cleaner no longer waits for it (CMP-9)."""

from __future__ import annotations

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.due import due
from message_lifecycle.app.operations.registry import preview
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.model.errors import InvalidSetting, PlanConflict
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.message import NewMessage, ViewState
from message_lifecycle.model.outcome import Check, GateReport
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import BY_NAME
from message_lifecycle.model.topic import altered_settings, new_topic_settings
from message_lifecycle.operations.expiry import CompactionLag
from message_lifecycle.operations.verdict import Verdict, decide
from tests.compacted import Log, Topic
from tests.logs import SECOND
from tests.verdicts import by

LAG_US = 10 * SECOND


def lag(oldest: dict[int, int], as_of: int) -> CompactionLag:
    view = ViewState(table_uuid="u", snapshot_id=1, horizons={0: 4}, rows=1, hidden_rows=0, size_bytes=1, due_at=None, settings_hash="h")
    return CompactionLag(view=view, oldest={p: Instant(time) for p, time in oldest.items()}, limit_us=LAG_US, as_of=Instant(as_of))


@pytest.mark.parametrize(("late", "exceeded"), [(-1, {}), (0, {}), (1, {0: LAG_US + 1})])
def test_the_age_must_be_greater_than_the_limit(late: int, exceeded: dict[int, int]) -> None:
    assert lag({0: 5 * SECOND}, 5 * SECOND + LAG_US + late).exceeded == exceeded


def test_each_partition_is_by_itself_and_no_time_is_not_old() -> None:
    assert lag({0: 5 * SECOND, 2: 99 * SECOND}, 100 * SECOND).exceeded == {0: 95 * SECOND}
    assert lag({}, INT64_MAX).exceeded == {}


@pytest.mark.parametrize("value", [0, -1, 1.5, True, 2**32])
def test_the_limit_is_a_whole_number_of_seconds_above_0(value: object) -> None:  # NUM-1
    with pytest.raises(InvalidSetting, match="from 1 to 4294967295"):
        new_topic_settings({"max_compaction_lag": value}, where="topic x")


def test_what_is_remembered_by_event_time_must_be_compacted() -> None:  # CMP-12
    by_event_time = {"winner": "event_time", "delete_retention": 5}
    with pytest.raises(InvalidSetting, match="max_compaction_lag"):
        new_topic_settings({**by_event_time, "max_compaction_lag": 5}, where="topic x")
    with pytest.raises(InvalidSetting, match="max_compaction_lag"):
        altered_settings(new_topic_settings({"max_compaction_lag": 5}, where="topic x"), by_event_time, where="topic x")
    with pytest.raises(InvalidSetting, match="SNP-10"):
        new_topic_settings({"fold": "last_write", "max_compaction_lag": 5}, where="topic x")


def test_a_shorter_limit_takes_more() -> None:  # DEL-3
    tightness = BY_NAME["max_compaction_lag"].tightness
    assert tightness is not None
    assert tightness(None) < tightness(100) < tightness(10)


def message(time: int | None, key: bytes, *headers: tuple[str, bytes]) -> NewMessage:
    return NewMessage(append_time=None if time is None else Instant(time * SECOND), key=key, value=b"v", headers=headers)


@pytest.fixture
def topic() -> Topic:
    """Compacted up to offset 0 at 80 s; past that one message without a time and two of 81 s, one of them dead from 82 s on."""
    settings = {"allow_msg_ttl": True, "max_removed_fraction": 1.0, "max_compaction_lag": 10}
    made = Topic(memory_world({}), Log(settings=settings, batches=(), partitions=1))
    made.append([message(70, b"a")])
    assert made.run(Instant(80 * SECOND)).name == "published"
    made.append([message(None, b"u"), message(81, b"a", ("Nats-TTL", b"1s")), message(81, b"b")])
    return made


def test_a_topic_is_due_again_once_the_lag_is_too_long(topic: Topic) -> None:
    s, begins = topic.world.services, Instant(91 * SECOND + 1)
    waiting = topic.run(Instant(90 * SECOND), "message_cleaner")
    assert (waiting.name, [entry.holder for entry in waiting.held]) == ("no_op", ["compaction"])
    assert preview(s, topic.name, as_of=Instant(90 * SECOND)).next_due_at == begins
    topic.world.set_now(begins)
    assert [answer.due for answer in due(s, [topic.name], as_of=Instant(begins - 1))] == [False]
    assert [answer.due for answer in due(s, [topic.name], as_of=begins)] == [True]
    assert dict(topic.run(begins, "message_cleaner").removed) == {"ttl": 1}
    assert [m.offset for m in topic.read()] == [1, 3]


def test_unknown_times_are_not_old(topic: Topic) -> None:
    topic.run(Instant(91 * SECOND + 1), "message_cleaner")
    s = topic.world.services
    view = s.stores.view.view(topic.name)
    assert view is not None
    assert s.stores.view.oldest_past(s.reader.log(topic.name), view) == {0: 81 * SECOND}
    topic.world.writer.foreign_delete(topic.name, [(0, 3)])
    assert s.stores.view.oldest_past(s.reader.log(topic.name), view) == {}
    topic.world.set_now(Instant(10**9 * SECOND))
    plan = preview(s, topic.name, as_of=Instant(10**9 * SECOND))
    assert [bound.offset for bound in plan.bounds if bound.name == "compaction"] == [1]


def compacted_beside(topic: Topic, as_of: Instant) -> None:
    """By a run that the ledger does not know of."""
    s = topic.world.services
    plan = preview(s, topic.name, as_of=as_of, work="compaction")
    staged = s.stores.view.stage(plan)
    check = Check(id="any", says="", kind="rule", evaluated=True, passed=True, found="")
    report = GateReport(plan_id=plan.plan_id, staged_snapshot_id=staged.snapshot_id, declared=1, checks=(check,))
    verdict = decide(plan, staged, report, None, asked_at=as_of, now=as_of, approval_ttl_us=1)
    assert isinstance(verdict, Verdict)
    s.stores.view.publish(verdict, by(s.ledger.next_identity(topic.name)))


def judged(topic: Topic, as_of: Instant) -> Plan:
    """A plan of the cleaner, up to its publish."""
    s = topic.world.services
    topic.world.set_now(as_of)
    plan = steps.plan(s, topic.name, as_of=as_of).plan
    steps.stage(s, plan.plan_id)
    assert steps.gate(s, plan.plan_id).judgement == "passed"
    return plan


def test_a_cleaner_that_relies_on_a_view_is_refused_where_another_has_come(topic: Topic) -> None:  # CMP-9
    """Also where nothing of the view goes with it: it holds only for the view that it was planned with."""
    topic.world.writer.foreign_delete(topic.name, [(0, 2)])
    topic.append([message(81, b"c", ("Nats-TTL", b"1s"))])
    s, as_of = topic.world.services, Instant(91 * SECOND + 1)
    plan = judged(topic, as_of)
    assert plan.past_horizon and not plan.view_removal.mark
    compacted_beside(topic, as_of)
    with pytest.raises(PlanConflict, match="compacted since it was planned"):
        steps.publish(s, plan.plan_id)
    assert [m.offset for m in s.reader.messages(topic.name)] == [0, 1, 3, 4]


def test_a_cleaner_that_was_planned_before_the_first_compaction_is_refused_after_it() -> None:  # CMP-9
    made = Topic(memory_world({}), Log(settings={"max_age_seconds": 10.0, "max_removed_fraction": 1.0}, batches=(), partitions=1))
    made.append([message(70, b"a"), message(80, b"a")])
    as_of = Instant(85 * SECOND)
    plan = judged(made, as_of)
    compacted_beside(made, as_of)
    with pytest.raises(PlanConflict, match="compacted since it was planned"):
        steps.publish(made.world.services, plan.plan_id)
    assert [m.offset for m in made.world.services.reader.messages(made.name)] == [0, 1]
