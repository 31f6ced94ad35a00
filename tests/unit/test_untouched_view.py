"""A plan that takes nothing from the compacted view relies on it all the same: what it knows of the view is asked again before its commit
(CMP-9, PRG-1)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import Work, preview
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.request import RemoveMessages, UndoPlan
from message_lifecycle.model.setting_list import Value
from tests.compacted import Log, Topic
from tests.logs import AS_OF, SECOND
from tests.verdicts import by, let_pass

EARLY = Instant(80 * SECOND)


def message(key: bytes, *, ttl: bytes | None = None) -> NewMessage:
    headers = () if ttl is None else (("Nats-TTL", ttl),)
    return NewMessage(append_time=EARLY, key=key, value=b"v", headers=headers)


def topic(*messages: NewMessage, **settings: Value) -> Topic:
    made = Topic(memory_world({}), Log(settings={"max_removed_fraction": 1.0, **settings}, batches=(), partitions=1))
    made.append(messages)
    return made


def judged(made: Topic, work: Work = "message_cleaner") -> str:
    """A plan that has passed the gate and takes nothing from the view."""
    s = made.world.services
    made.world.set_now(AS_OF)
    plan = steps.plan(s, made.name, as_of=AS_OF, work=work).plan
    assert (plan.is_empty, plan.view_removal.is_empty) == (False, True)
    steps.stage(s, plan.plan_id)
    if steps.gate(s, plan.plan_id).judgement == "needs_approval":
        steps.approve(s, plan.plan_id, granted=True, by="tester", text="as expected")
    return plan.plan_id


def compact_unknown(made: Topic) -> None:
    """By a run that the ledger does not know of: one that it knew of would have closed the plan."""
    s = made.world.services
    compaction = preview(s, made.name, as_of=AS_OF, work="compaction")
    s.stores.view.publish(let_pass(compaction, s.stores.view.stage(compaction)), by(s.ledger.next_identity(made.name)))


def is_refused(made: Topic, plan_id: str, left: Sequence[int]) -> None:
    with pytest.raises(PlanConflict, match="compacted since it was planned"):
        steps.publish(made.world.services, plan_id)
    assert [m.offset for m in made.world.services.reader.messages(made.name)] == left


def test_where_there_was_no_view_none_may_have_come() -> None:
    """What a view has taken up binds the cleaner, which knew of none."""
    made = topic(message(b"a", ttl=b"1s"), message(b"b"), allow_msg_ttl=True)
    plan_id = judged(made)
    compact_unknown(made)
    is_refused(made, plan_id, [0, 1])


def test_a_cleaner_past_the_lag_needs_the_view_as_it_was() -> None:
    made = topic(message(b"a"), allow_msg_ttl=True, max_compaction_lag=1)
    assert made.run(EARLY).name == "published"
    made.append([message(b"d", ttl=b"1s"), message(b"e")])
    plan_id = judged(made)
    compact_unknown(made)
    is_refused(made, plan_id, [0, 1, 2])


def test_a_cleaner_that_waits_for_compaction_needs_no_view_to_stand_still() -> None:
    """Horizons only rise, and below the one that it knew nothing changes."""
    made = topic(message(b"a", ttl=b"1s"), message(b"b"), allow_msg_ttl=True)
    assert made.run(EARLY).name == "published"
    made.append([message(b"c")])
    plan_id = judged(made)
    compact_unknown(made)
    steps.publish(made.world.services, plan_id)
    assert steps.verify(made.world.services, plan_id).name == "published"
    assert [m.offset for m in made.world.services.reader.messages(made.name)] == [1, 2]


def test_a_request_past_the_horizon_needs_the_view_as_it_was() -> None:
    """A compaction that takes up what goes would show it for ever."""
    made = topic(message(b"a"))
    assert made.run(EARLY).name == "published"
    made.append([message(b"d"), message(b"e")])
    plan_id = judged(made, RemoveMessages(positions=((0, 1),)))
    compact_unknown(made)
    is_refused(made, plan_id, [0, 1, 2])


def test_an_undo_needs_the_view_as_it_was() -> None:
    """A compaction that passes over the place of what comes back would have a view without it."""
    made = topic(message(b"a"))
    assert made.run(EARLY).name == "published"
    made.append([message(b"d"), message(b"e")])
    s = made.world.services
    taken = steps.run(
        s, made.name, as_of=AS_OF, work=RemoveMessages(positions=((0, 1),)), approver=lambda *_: (True, "tester", "as expected")
    )
    plan_id = judged(made, UndoPlan(plan_id=taken.plan_id or ""))
    compact_unknown(made)
    is_refused(made, plan_id, [0, 2])


def test_a_plan_that_has_come_to_its_first_commit_has_changed_the_view_itself() -> None:
    """What it relies on then is the view as it left it."""
    made = topic(message(b"a"), message(b"b"))
    assert made.run(EARLY).name == "published"
    s = made.world.services
    made.world.set_now(AS_OF)
    plan = steps.plan(s, made.name, as_of=AS_OF, work=RemoveMessages(positions=((0, 0),))).plan
    steps.stage(s, plan.plan_id)
    steps.gate(s, plan.plan_id)
    staged = s.ledger.record(plan.plan_id).staged
    assert plan.view_removal.mark and staged is not None
    s.stores.view_removal.publish(let_pass(plan, staged), by(s.ledger.next_identity(made.name)))
    steps.publish(s, plan.plan_id)
    assert steps.verify(s, plan.plan_id).name == "published"
    assert [m.offset for m in s.reader.messages(made.name)] == [1]
