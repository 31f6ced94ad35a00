"""A deleted topic goes for good once it cannot come back, and not before, on every store of whole logs (DEL-7, DEL-8)."""

from __future__ import annotations

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.due import due as judge
from message_lifecycle.app.erasures import ask, carry_out, record_request_state
from message_lifecycle.app.holds import place_hold, release_hold
from message_lifecycle.app.operations import registry
from message_lifecycle.app.operations.reclaim import due_by_name
from message_lifecycle.app.operations.registry import preview
from message_lifecycle.app.requests import deleted_topics, reclaim_deleted
from message_lifecycle.app.scenario import World
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.errors import NothingDeleted, OpenPlan, UnknownPlan, UnknownTopic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import ReclaimDeleted, RemoveMessages, UndoPlan
from tests.contract.conftest import MakeWorld
from tests.contract.test_requests import append, topic_of
from tests.contract.test_topic_delete import deleted
from tests.errors import raises
from tests.holds import WHENS, When, held, run_with_hold
from tests.logs import SECOND
from tests.undone import approved, published, run, stored, undone

AT = 105
"""Second at which the window of what `gone` deletes has passed."""


def gone(world: World, *, compacted: bool = False) -> tuple[TopicName, str]:
    """A topic of two messages that was deleted in second 5, with the plan that did it."""
    name = topic_of(world, undo_window=100, cleanup_policy="compact" if compacted else "delete")
    append(world, name, 1, b"a", b"b")
    if compacted:
        assert run(world, name, 2, "compaction").name == "published"
    return name, deleted(world, name, 5)


def reclaim(world: World, plan_id: str, at_s: int = AT) -> Outcome:
    world.set_now(Instant(at_s * SECOND))
    return reclaim_deleted(world.services, plan_id, as_of=Instant(at_s * SECOND), approver=approved)


def named(world: World, name: TopicName) -> list[str]:
    return [topic.plan_id for topic in deleted_topics(world.services) if topic.topic == name]


def test_all_of_it_goes_once_its_window_has_passed(make_world: MakeWorld) -> None:
    world = make_world({})
    s = world.services
    name, plan_id = gone(world, compacted=True)
    with raises("UndoWindowOpen", match="1970-01-01T00:01:45"):
        reclaim(world, plan_id, AT - 1)
    assert named(world, name) == [plan_id]

    outcome = reclaim(world, plan_id)

    assert (outcome.name, outcome.operation, outcome.removed, outcome.detail) == ("published", "reclaim", (), "")
    assert outcome.reclaimed_bytes is not None
    plan = s.ledger.record(outcome.plan_id or "").plan
    assert [action.table for action in plan.dropped_tables] == ["", "compacted"]
    assert outcome.reclaimed_files == sum(len(removal.files) for removal in plan.file_removals)
    assert outcome.reclaimed_bytes == plan.expected.removed_bytes
    assert named(world, name) == []
    with raises("UndoWindowPassed"):
        run(world, name, AT + 1, UndoPlan(plan_id=plan_id))
    with pytest.raises(UnknownTopic):
        s.topics.describe(name)
    again = reclaim(world, plan_id, AT + 2)
    assert (again.name, again.first_plan_id) == ("no_op", outcome.plan_id)


def test_it_always_waits_for_a_persons_word(make_world: MakeWorld) -> None:  # DEL-3
    world = make_world({})
    s = world.services
    name, plan_id = gone(world)
    s.ledger.commit(name, "billing", 0, 0, at=None)
    world.set_now(Instant(AT * SECOND))
    as_of = Instant(AT * SECOND)
    asks = " ".join(preview(s, name, as_of=as_of, work=ReclaimDeleted(plan_id=plan_id)).asks)
    assert plan_id[:12] in asks and "2 messages" in asks and "consumer billing reads it" in asks
    waiting = reclaim_deleted(s, plan_id, as_of=as_of)
    assert (waiting.name, named(world, name)) == ("needs_approval", [plan_id])
    steps.approve(s, waiting.plan_id or "", granted=False, by="anna", text="not yet")
    assert named(world, name) == [plan_id]
    (due,) = judge(s, [name], as_of=as_of, work="reclaim")
    assert (due.due, "a person refused" in due.reason) == (False, True)


@pytest.mark.parametrize("when", WHENS)
def test_a_hold_on_its_name_keeps_it(make_world: MakeWorld, when: When) -> None:  # DEL-8
    world = make_world({})
    s = world.services
    name, plan_id = gone(world)
    world.set_now(Instant(AT * SECOND))
    as_of, work = Instant(AT * SECOND), ReclaimDeleted(plan_id=plan_id)
    outcome = run_with_hold(s, name, work, as_of=as_of, when=when, place=lambda: held(s, name, key=b"a"))
    assert (outcome.name, named(world, name)) == ("no_op", [plan_id]), outcome.detail
    (due,) = judge(s, [name], as_of=as_of, work="reclaim")
    assert (due.due, "case 7" in due.reason) == (False, True)
    (hold,) = s.ledger.holds(name)
    release_hold(s, hold.hold_id, by="ada", why="over")
    assert reclaim(world, plan_id).name == "published"


def test_a_new_topic_of_the_name_is_left_as_it_is(make_world: MakeWorld) -> None:
    world = make_world({})
    s = world.services
    name, first = gone(world)
    create_topic(s, name, partitions=1, settings={"undo_window": 200, "max_removed_fraction": 1.0})
    append(world, name, 6, b"new")
    was, accepted = stored(world, name), s.ledger.accepted(name)
    assert accepted is not None
    world.set_now(Instant(AT * SECOND))
    as_of = Instant(AT * SECOND)
    assert registry.work_on(s, name, "reclaim", as_of=as_of) == ReclaimDeleted(plan_id=first)
    (due,) = judge(s, [name], as_of=as_of, work="reclaim")
    assert (due.due, first in due.reason) == (True, True)
    assert reclaim(world, first).name == "published"
    assert (stored(world, name), named(world, name), s.ledger.accepted(name)) == (was, [], accepted)
    assert registry.work_on(s, name, "reclaim", as_of=as_of) == "reclaim"
    nothing = run(world, name, AT, "reclaim")
    assert (nothing.name, nothing.first_plan_id) == ("no_op", None), "what was done at this as_of is about another topic"
    published(world, name, AT + 1, RemoveMessages(positions=((0, 0),)))


def test_a_question_about_the_new_topic_comes_first(make_world: MakeWorld) -> None:  # DEL-1
    world = make_world({})
    s = world.services
    name, first = gone(world)
    create_topic(s, name, partitions=1, settings={"max_removed_fraction": 0.1, "max_records": 1})
    append(world, name, 6, b"x", b"y")
    world.set_now(Instant(AT * SECOND))
    assert steps.run(s, name, as_of=Instant(AT * SECOND)).name == "needs_approval"
    with pytest.raises(OpenPlan):
        reclaim(world, first)
    (due,) = judge(s, [name], as_of=Instant(AT * SECOND), work="reclaim")
    assert (due.due, "is pending approval" in due.reason) == (False, True)


def test_a_question_about_the_deleted_one_is_not_the_new_ones(make_world: MakeWorld) -> None:  # DEL-1
    world = make_world({})
    s = world.services
    name, first = gone(world)
    create_topic(s, name, partitions=1, settings={})
    world.set_now(Instant(AT * SECOND))
    waiting = reclaim_deleted(s, first, as_of=Instant(AT * SECOND))
    assert waiting.name == "needs_approval"
    with pytest.raises(OpenPlan, match=waiting.plan_id[:12]):
        steps.run(s, name, as_of=Instant(AT * SECOND), work="reclaim")
    assert named(world, name) == [first]


def test_what_is_due_is_what_cannot_come_back(make_world: MakeWorld) -> None:
    world = make_world({})
    s = world.services
    name, plan_id = gone(world)
    assert name not in due_by_name(s)
    world.set_now(Instant(AT * SECOND))
    assert due_by_name(s)[name] == ReclaimDeleted(plan_id=plan_id)
    (due,) = judge(s, [name], as_of=Instant(AT * SECOND), work="reclaim")
    assert due.due, due.reason


def test_plans_that_deleted_nothing_are_named(make_world: MakeWorld) -> None:
    world = make_world({})
    name, plan_id = gone(world)
    back = undone(world, name, 6, plan_id)
    with pytest.raises(NothingDeleted, match="has come back"):
        reclaim(world, plan_id)
    with pytest.raises(NothingDeleted, match="operation undo"):
        reclaim(world, back.plan_id or "")
    with pytest.raises(UnknownPlan):
        reclaim(world, "no such id")
    assert [m.key for m in stored(world, name)] == [b"a", b"b"]


def test_an_erasure_that_waited_for_it_is_done(make_world: MakeWorld) -> None:
    world = make_world({})
    s = world.services
    _, plan_id = gone(world)
    request = ask(s, [b"secret-key"], topics=[], forbid=False, by="ada", why="asked for")
    settled = record_request_state(s, request, [])
    assert f"reclaim run --deleted {plan_id[:12]}" in settled.detail
    reclaim(world, plan_id)
    assert plan_id[:12] not in record_request_state(s, request, []).detail


def test_an_erasure_that_named_it_is_done_once_it_is_gone(make_world: MakeWorld) -> None:
    world = make_world({})
    s = world.services
    name = topic_of(world, undo_window=100)
    request = ask(s, [b"secret-key"], topics=[name], forbid=False, by="ada", why="asked for")
    plan_id = deleted(world, name, 5)
    carry_out(s, request.request_id, approver=approved)
    waits = s.ledger.erasure(request.request_id)
    assert (waits.state, plan_id[:12] in waits.detail) == ("requested", True)
    reclaim(world, plan_id)
    carry_out(s, request.request_id, approver=approved)
    assert s.ledger.erasure(request.request_id).state == "erased"


def test_a_deleted_topic_can_be_held(make_world: MakeWorld) -> None:
    world = make_world({})
    s = world.services
    name, plan_id = gone(world)
    hold = place_hold(s, name, by="ada", why="case 9")
    assert reclaim(world, plan_id).name == "no_op"
    with pytest.raises(UnknownTopic):
        place_hold(s, TopicName(stream=name.stream, topic="never"), by="ada", why="case 9")
    release_hold(s, hold.hold_id, by="ada", why="over")
    assert reclaim(world, plan_id).name == "published"
