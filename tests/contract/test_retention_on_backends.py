"""What every backend must do with the limits by age, number and bytes, whatever the log looks like (RET-1 to RET-6)."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given

from message_lifecycle.app import steps
from message_lifecycle.app.reading import read
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import alter_topic, create_topic
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, Published
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.topic import Backend, StoreOptions
from message_lifecycle.stores import record_log
from tests.contract.conftest import MakeWorld, on
from tests.effort import effort, generated
from tests.errors import raises
from tests.retained import AS_OF, SECOND, Retained, reasons_by_the_rules, retained_logs

pytestmark = pytest.mark.parametrize("store_kind", on("memory", "json_file", "rotating_file", "redis_streams"), indirect=True)


def topic_of(world: World, *, partitions: int = 1, **own: Value) -> TopicName:
    name = TopicName(stream=f"{world.scratch}.kept" if world.scratch else "kept", topic=f"t{random.getrandbits(64):x}")
    create_topic(world.services, name, partitions=partitions, settings=own)
    return name


def stored(world: World, name: TopicName) -> list[Message]:
    return list(world.services.reader.messages(name))


def offsets(world: World, name: TopicName) -> list[int]:
    return [message.offset for message in stored(world, name)]


def append(world: World, name: TopicName, *seconds: float) -> None:
    messages = [NewMessage(append_time=Instant(round(at * SECOND)), key=b"k", value=b"v") for at in seconds]
    world.writer.append(name, messages, policy_of(world.services, name))


def run(world: World, name: TopicName, as_of: Instant = AS_OF) -> Outcome:
    world.set_now(as_of)
    return steps.run(world.services, name, as_of=as_of, work="retention", approver=lambda _plan, _report: (True, "tester", "as expected"))


def judged(world: World, name: TopicName) -> str:
    """Plan, stage, gate and a person's word: all but publish. Returns the plan's id."""
    world.set_now(AS_OF)
    plan_id = steps.plan(world.services, name, as_of=AS_OF, work="retention").plan.plan_id
    steps.stage(world.services, plan_id)
    if steps.gate(world.services, plan_id).judgement == "needs_approval":
        steps.approve(world.services, plan_id, granted=True, by="tester", text="as expected")
    return plan_id


@generated
def test_what_goes_is_what_the_rules_say_and_counts_add_up(make_world: MakeWorld, store_kind: Backend) -> None:
    @given(retained_logs())
    @effort(store_kind, 25)
    def holds(log: Retained) -> None:
        world = make_world({}, StoreOptions(max_bytes=log.max_bytes))
        name = topic_of(world, partitions=log.partitions, **log.settings)
        for batch in log.batches:
            world.writer.append(name, batch, policy_of(world.services, name))
        before = stored(world, name)
        ends = dict(world.services.reader.end_offsets(name))
        assert len(before) == sum(len(batch) for batch in log.batches)
        wanted = reasons_by_the_rules(before, log.settings)
        shown = list(read(world.services, name, at=AS_OF))
        outcome = run(world, name)
        after = stored(world, name)
        assert shown == after, "a read hides at once what a run removes (RET-5)"
        assert after == [m for m in before if (m.partition, m.offset) not in wanted]  # P5
        assert outcome.name == ("published" if wanted else "no_op"), outcome.detail
        assert dict(outcome.removed) == dict(Counter(wanted.values()))
        assert outcome.rows_in == len(before) == len(after) + outcome.removed_rows  # P9
        assert dict(world.services.reader.end_offsets(name)) == ends  # MSG-4
        again = run(world, name)  # P1
        assert again.name == "no_op", again.detail
        assert stored(world, name) == after
        world.close()

    holds()


def test_a_published_plan_is_found_again_and_repeated_by_nobody(make_world: MakeWorld) -> None:  # DEL-5
    world = make_world({})
    name = topic_of(world, max_records=1)
    append(world, name, 1, 2, 3)
    plan_id = judged(world, name)
    first, again = steps.publish(world.services, plan_id), steps.publish(world.services, plan_id)
    assert isinstance(first, Published)
    assert again == first
    assert offsets(world, name) == [2]
    assert steps.verify(world.services, plan_id).name == "published"


def test_a_plan_that_its_log_has_forgotten_is_not_carried_out_again(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many removals have come since that the log does not tell of it any more, and what it would take now nobody has judged (DEL-5)."""
    monkeypatch.setattr(record_log, "COMMITS_KEPT", 2)
    world = make_world({})
    name = topic_of(world, max_records=3)
    append(world, name, 1, 2, 3, 4)
    plan_id = judged(world, name)
    steps.publish(world.services, plan_id)
    for offset in (2, 3):
        world.writer.foreign_delete(name, [(0, offset)])
    append(world, name, 1, 2)
    with suppress(PlanConflict):
        steps.publish(world.services, plan_id)
    assert offsets(world, name) == [1, 4, 5]


def test_what_is_appended_after_the_plan_survives_whatever_its_time(make_world: MakeWorld) -> None:  # DEL-4
    world = make_world({})
    name = topic_of(world, max_age_seconds=5.0)
    append(world, name, 1, 2, 99)
    plan_id = judged(world, name)
    append(world, name, 1)
    steps.publish(world.services, plan_id)
    assert offsets(world, name) == [2, 3]
    assert steps.verify(world.services, plan_id).name == "published"


@pytest.mark.parametrize("limit", [{"max_records": 2}, {"max_total_bytes": 4}])
def test_what_newer_messages_push_out_before_verify_is_the_next_runs(make_world: MakeWorld, limit: dict[str, Value]) -> None:  # DEL-6
    world = make_world({})
    name = topic_of(world, **limit)
    append(world, name, 1, 2, 3)
    plan_id = judged(world, name)
    append(world, name, 4)
    steps.publish(world.services, plan_id)
    append(world, name, 5)
    assert steps.verify(world.services, plan_id).name == "published"
    assert offsets(world, name) == [1, 2, 3, 4]
    assert dict(run(world, name, Instant(AS_OF + 1)).removed) in ({"retention_count": 2}, {"retention_bytes": 2})
    assert offsets(world, name) == [3, 4]


def test_a_plan_that_another_removal_has_overtaken_is_refused(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world, max_records=1)
    append(world, name, 1, 2, 3)
    plan_id = judged(world, name)
    world.writer.foreign_delete(name, [(0, 0)])
    with pytest.raises(PlanConflict):
        steps.publish(world.services, plan_id)
    assert offsets(world, name) == [1, 2]
    assert run(world, name).name == "published"
    assert offsets(world, name) == [2]


def test_a_plan_is_refused_where_what_it_keeps_has_gone_meanwhile(make_world: MakeWorld) -> None:  # DEL-2: another state of the log
    world = make_world({})
    name = topic_of(world, max_records=1)
    append(world, name, 1, 2, 3)
    plan_id = judged(world, name)
    world.writer.foreign_delete(name, [(0, 2)])
    with pytest.raises(PlanConflict):
        steps.publish(world.services, plan_id)
    assert offsets(world, name) == [0, 1]
    assert run(world, name).name == "published"
    assert offsets(world, name) == [1]


def test_a_setting_changed_meanwhile_refuses_the_plan(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world, max_records=1)
    append(world, name, 1, 2, 3)
    plan_id = judged(world, name)
    alter_topic(world.services, name, {"max_records": 3})
    with pytest.raises(PlanConflict):
        steps.publish(world.services, plan_id)
    assert offsets(world, name) == [0, 1, 2]


def test_a_consumer_holds_what_it_has_not_read(make_world: MakeWorld) -> None:  # EXP-6
    world = make_world({})
    name = topic_of(world, max_records=1)
    append(world, name, 1, 2, 3, 4)
    world.services.ledger.commit(name, "c1", 0, 1, AS_OF, end_offset=4)
    outcome = run(world, name)
    assert offsets(world, name) == [2, 3]
    assert [(held.holder, held.rows) for held in outcome.held] == [("consumer", 1)]


def test_what_the_backend_cannot_hold_is_refused_before_anything_is_there(make_world: MakeWorld, store_kind: Backend) -> None:  # RET-6
    world = make_world({})
    if store_kind == "memory":
        assert topic_of(world, message_expiry=5) in world.services.topics.list()
        return
    with raises("UnsupportedLimit") as refused:
        topic_of(world, message_expiry=5)
    assert f"the backend {store_kind} does not support message_expiry = 5 (RET-6)" in str(refused.value)
    assert list(world.services.topics.list()) == []
