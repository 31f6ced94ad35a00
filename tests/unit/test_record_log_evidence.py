"""The evidence of record logs is a second implementation: it must find what the reference store finds, in right and in wrong plans."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.app.operations.registry import Work, preview
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import PurgeKey, RemoveMessages
from message_lifecycle.stores.memory.evidence import evidence_of as by_reference
from message_lifecycle.stores.memory.tables import Version, file_of
from message_lifecycle.stores.record_log.evidence import columns_of, evidence_of
from message_lifecycle.stores.record_log.store import merged, removal_of, version_of
from tests.changes import named
from tests.retained import AS_OF, Retained, retained_logs

FRAMES = ("rows", "purged", "left", "limits", "figures", "difference", "order", "sample", "markers", "unmarked", "marked")
REASONS = ("retention_age", "retention_count", "retention_bytes", "removed", "purged", "ttl")
NAME = TopicName(stream="kept", topic="t")


def one(message: Message, reason: str) -> RemoveRows:
    return RemoveRows(
        partition=message.partition,
        base_offset=message.segment,
        file=file_of((message.partition, message.segment)),
        offsets=str(message.offset),
        rows=1,
        reason=reason,  # type: ignore[arg-type]  # a wrong plan may give any
    )


def without(version: Version, plan: Plan) -> Version:
    gone = {(partition, offset) for partition, run in plan.log_commit.removed_runs() for offset in run}
    return replace(version, messages={place: message for place, message in version.messages.items() if place not in gone})


@given(retained_logs(), st.data())
def test_it_finds_what_the_reference_finds(log: Retained, data: st.DataObject) -> None:
    world = memory_world({})
    s = world.services
    world.set_now(AS_OF)
    create_topic(s, NAME, partitions=log.partitions, settings=log.settings)
    for batch in log.batches:
        world.writer.append(NAME, batch, policy_of(s, NAME))
    messages, ends = list(s.reader.messages(NAME)), dict(s.reader.end_offsets(NAME))
    works: list[Work] = ["retention", PurgeKey(key=b"a"), PurgeKey(key=b"")]
    if messages:
        works.append(RemoveMessages(positions=tuple((m.partition, m.offset) for m in messages[::2])))
    work = data.draw(st.sampled_from(works), label="work")
    plan = preview(s, NAME, as_of=AS_OF, work=work)
    planned = {(partition, offset) for partition, run in plan.log_commit.removed_runs() for offset in run}
    # A wrong plan: it leaves some of its messages, takes others, or gives another reason.
    rows = [row for row in plan.log_commit.mark if data.draw(st.booleans(), label="leave it as planned") or data.draw(st.booleans())]
    others = [message for message in messages if (message.partition, message.offset) not in planned]
    if others:
        wrong = data.draw(st.lists(st.sampled_from(others), max_size=2, unique_by=lambda m: (m.partition, m.offset)), label="wrong")
        rows += [one(message, data.draw(st.sampled_from(REASONS))) for message in wrong]
    plan = replace(plan, changes=named(*rows))
    policy, staged = policy_of(s, NAME), Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)
    before = version_of(messages, ends, {})
    wanted = by_reference(before, without(before, plan), plan, policy, staged, [], {})
    found = evidence_of(columns_of(messages, ends), removal_of(plan, sum(row.rows for row in rows)), plan, policy)
    assert {name: found[name] for name in FRAMES} == {name: wanted[name] for name in FRAMES}
    world.close()


def test_a_removal_that_takes_more_than_the_plan_names_is_seen() -> None:
    """The frames follow what the commit will take, not what the plan says."""
    world = memory_world({})
    s = world.services
    create_topic(s, NAME, partitions=1, settings={"max_records": 2})
    world.writer.append(NAME, [NewMessage(append_time=AS_OF, key=b"k", value=b"v") for _ in range(5)], policy_of(s, NAME))
    world.set_now(AS_OF)
    plan, messages = preview(s, NAME, as_of=AS_OF, work="retention"), list(s.reader.messages(NAME))
    removal = replace(removal_of(plan, 3), offsets={0: merged([range(5)])})
    found = evidence_of(columns_of(messages, {0: 5}), removal, plan, policy_of(s, NAME))
    rows, limits = found["rows"], found["limits"]
    assert rows == [{"partition": 0, "segment": 0, "rows": 5, "unnamed": 2, "unjustified": 0, "active": False}]
    assert limits == [{"most_records": 0, "most_bytes": 0, "within": 0, "beyond": 3}]
    world.close()


def test_messages_behind_the_planned_end_are_left_out() -> None:
    world = memory_world({})
    s = world.services
    create_topic(s, NAME, partitions=1, settings={})
    world.writer.append(NAME, [NewMessage(append_time=AS_OF, key=None, value=b"v")] * 3, policy_of(s, NAME))
    assert columns_of(s.reader.messages(NAME), {0: 2})["offset"].to_pylist() == [0, 1]
    assert columns_of([], {}).num_rows == 0
    world.close()
