"""Two runs that carry out one plan: what the first has committed is not staged or judged again by the second (DEL-4, DEL-5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, PlanRecord, Published
from message_lifecycle.model.setting_list import Value
from tests.contract.conftest import MakeWorld
from tests.contract.test_requests import append, topic_of
from tests.effort import sample
from tests.logs import SECOND
from tests.undone import stored, undone

AT = 200
EXPIRING: dict[str, Value] = {"message_expiry": 100}
MARKING: dict[str, Value] = {"allow_msg_ttl": True, "subject_delete_marker_ttl": 600}


def by_hand(s: Services, record: PlanRecord) -> Outcome:
    """Each verb again, as of a run that died before it could verify."""
    plan_id = record.plan.plan_id
    was = s.ledger.record(plan_id)
    assert (steps.stage(s, plan_id), steps.mark(s, plan_id), steps.gate(s, plan_id)) == (was.staged, was.staged, was.report)
    assert s.ledger.record(plan_id) == was
    return steps.verify(s, plan_id)


def by_another_run(s: Services, record: PlanRecord) -> Outcome:
    """It has read the plan before the first one staged it."""
    return steps.carry_out(s, record)


@pytest.mark.parametrize("again", sample((by_hand, by_another_run), by_another_run))
@pytest.mark.parametrize("appended", [False, True], ids=["nothing came", "an append came"])
@pytest.mark.parametrize("settings", [EXPIRING, MARKING], ids=["segments", "markers"])
def test_a_plan_that_is_published_keeps_what_was_staged_and_judged(
    make_world: MakeWorld, settings: dict[str, Value], appended: bool, again: Callable[[Services, PlanRecord], Outcome]
) -> None:
    world = make_world({})
    s, name = world.services, topic_of(world, **settings)
    record, was = published(world, name, ttl="1s" if settings is MARKING else "", appended=appended)
    plan_id = record.plan.plan_id
    first = s.ledger.record(plan_id)

    outcome = again(s, record)

    assert (outcome.name, outcome.removed_rows) == ("published", 2), outcome.detail
    assert outcome.markers == (2 if settings is MARKING else 0)
    after = s.ledger.record(plan_id)
    assert (after.staged, after.report, after.outcome) == (first.staged, first.report, outcome)
    undone(world, name, AT + 1, plan_id)
    assert [m for m in stored(world, name) if m.key != b"later"] == was


@pytest.mark.parametrize("answered", [True, False], ids=["a person has answered", "a run died before its commit"])
@pytest.mark.parametrize("settings", [EXPIRING, MARKING], ids=["segments", "markers"])
def test_a_stage_that_comes_late_leaves_what_was_judged_where_it_is(
    make_world: MakeWorld, settings: dict[str, Value], answered: bool
) -> None:
    world = make_world({})
    s, name = world.services, topic_of(world, **{**settings, "max_removed_fraction": 0.1 if answered else 1.0})
    record, _ = judged(world, name, ttl="1s" if settings is MARKING else "")
    plan_id = record.plan.plan_id
    was = s.ledger.record(plan_id)
    assert was.staged is not None and was.report is not None
    if answered:
        steps.approve(s, plan_id, granted=True, by="ada", text="as expected")
    else:
        s.ledger.record_publishing(was.staged, was.report)
    assert (steps.stage(s, plan_id), steps.mark(s, plan_id)) == (was.staged, was.staged)
    assert isinstance(steps.publish(s, plan_id), Published)
    outcome = steps.verify(s, plan_id)
    assert (outcome.name, outcome.markers) == ("published", 2 if settings is MARKING else 0), outcome.detail


def published(world: World, name: TopicName, *, ttl: str, appended: bool) -> tuple[PlanRecord, list[object]]:
    """The plan as it was before it was staged, and what the topic held; all is done but to verify."""
    record, was = judged(world, name, ttl=ttl)
    if appended:
        append(world, name, AT, b"later")
    assert isinstance(steps.publish(world.services, record.plan.plan_id), Published)
    return record, was


def judged(world: World, name: TopicName, *, ttl: str) -> tuple[PlanRecord, list[object]]:
    """The plan as it was before it was staged, and what the topic held; it is staged, marked and judged."""
    s = world.services
    append(world, name, 1, b"a", b"b", ttl=ttl)
    world.writer.seal(name, 0)
    append(world, name, AT - 1, b"c")
    was: list[object] = [*stored(world, name)]
    world.set_now(Instant(AT * SECOND))
    record = steps.plan(s, name, as_of=Instant(AT * SECOND))
    for verb in (steps.stage, steps.mark, steps.gate):
        verb(s, record.plan.plan_id)
    return record, was
