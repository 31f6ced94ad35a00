"""What every store must do with what a person asks to have removed, and with the markers that a removal leaves behind."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import preview, suite_of
from message_lifecycle.app.reading import read_compacted
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage, is_marker
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import GateReport
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.reasons import cleaner_reasons
from message_lifecycle.model.request import PurgeKey, RemoveMessages, RemoveRanges
from message_lifecycle.model.setting_list import Value
from tests.changes import named
from tests.contract.conftest import MakeWorld
from tests.logs import SECOND

HEADERS = {"1s": (("Nats-TTL", b"1s"),)}


def topic_of(world: World, **settings: Value) -> TopicName:
    name = TopicName(stream=f"{world.scratch}.requests" if world.scratch else "requests", topic=f"t{random.getrandbits(64):x}")
    create_topic(world.services, name, partitions=1, settings={"max_removed_fraction": 1.0, **settings})
    return name


def append(world: World, name: TopicName, at_s: int, *keys: bytes | None, ttl: str = "") -> None:
    new = [NewMessage(append_time=Instant(at_s * SECOND), key=key, value=b"v", headers=HEADERS.get(ttl, ())) for key in keys]
    world.writer.append(name, new, policy_of(world.services, name))


def judged(world: World, plan: Plan) -> GateReport:
    s, policy = world.services, policy_of(world.services, plan.topic)
    staged = s.stores.log.stage(plan)
    return s.gate.judge(plan, staged, suite_of(plan, staged, policy), s.stores.log.evidence(plan, staged, policy))


@pytest.mark.parametrize(
    ("taken", "fails"),
    [((0, 2), set()), ((0, 1), {"purged_key"}), ((0, 3), {"purged_keyless"}), ((3,), {"purged_key", "purged_keyless"})],
    ids=["one key", "two keys", "a message without a key", "no key at all"],
)
def test_a_purge_takes_one_key_alone(make_world: MakeWorld, taken: tuple[int, ...], fails: set[str]) -> None:  # PRG-1
    world = make_world({})
    name = topic_of(world)
    append(world, name, 1, b"k", b"z", b"k", None)
    append(world, name, 2, b"k", b"z", b"z", b"z")
    world.set_now(Instant(9 * SECOND))
    request = RemoveMessages(positions=tuple((0, offset) for offset in taken))
    plan = preview(world.services, name, as_of=Instant(9 * SECOND), work=request)
    purge = replace(
        plan,
        changes=named(*(replace(action, reason="purged") for action in plan.log_commit.mark)),
        expected=replace(plan.expected, removed=(("purged", len(taken)),)),
    )
    report = judged(world, purge)
    assert {check.id for check in report.checks if not check.passed} == fails
    assert report.judgement == ("blocked" if fails else "passed")
    assert not any(b"k" in check.found.encode().split() for check in report.checks), "no key in a report"


@pytest.mark.parametrize("compacted", [False, True])
def test_ranges_of_offsets_go_whole_from_the_log_and_from_the_view(make_world: MakeWorld, *, compacted: bool) -> None:
    """As by the offsets one by one: a key whose newest message goes shows no older one (P3)."""
    world = make_world({})
    s, name = world.services, topic_of(world, **({"cleanup_policy": "compact"} if compacted else {}))
    append(world, name, 1, b"a", b"b", b"c")
    append(world, name, 2, b"a", b"f", b"d")
    as_of = Instant(9 * SECOND)
    world.set_now(as_of)
    if compacted:
        assert steps.run(s, name, as_of=as_of, work="compaction", approver=lambda *_: (True, "tester", "as expected")).name == "published"
        append(world, name, 3, b"c", b"e")
    request = RemoveRanges(ranges=((0, 1, 3), (0, 6, 6))) if compacted else RemoveRanges(ranges=((0, 1, 3),))
    outcome = steps.run(s, name, as_of=as_of, work=request, approver=lambda *_: (True, "tester", "as expected"), requested_by="tester")
    assert outcome.name == "published", outcome.detail
    assert [message.offset for message in s.reader.messages(name)] == ([0, 4, 5, 7] if compacted else [0, 4, 5])
    assert dict(outcome.removed) == {"removed": 4 if compacted else 3}
    if compacted:
        assert [message.offset for message in read_compacted(s, name)] == [4, 5, 7]
    again = steps.run(s, name, as_of=Instant(as_of + 1), work=request, approver=lambda *_: (True, "tester", "as expected"))
    assert again.name == "no_op"


def test_a_purge_of_a_key_that_lies_in_many_files_passes(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world, subject_delete_marker_ttl=60)
    for at_s in range(1, 4):
        append(world, name, at_s, b"k", b"z")
    world.set_now(Instant(9 * SECOND))
    outcome = steps.run(world.services, name, as_of=Instant(9 * SECOND), work=PurgeKey(key=b"k"))
    assert (outcome.name, dict(outcome.removed), outcome.markers) == ("published", {"purged": 3}, 1), outcome.detail


def test_only_a_request_has_a_persons_word_as_its_reason(make_world: MakeWorld) -> None:  # CNT-1
    world = make_world({})
    name = topic_of(world)
    append(world, name, 1, b"k", b"z")
    as_of = Instant(9 * SECOND)
    world.set_now(as_of)
    plan = preview(world.services, name, as_of=as_of, work=RemoveMessages(positions=((0, 0),)))
    assert judged(world, plan).judgement == "passed"
    reasons = cleaner_reasons()
    other = replace(plan, operation="message_cleaner", reasons=reasons, expected=replace(plan.expected, removed=(("removed", 1),)))
    assert {check.id for check in judged(world, other).checks if not check.passed} == {"rows_justified"}


def test_an_older_marker_goes_as_judged_when_a_message_cancels_the_new_one(make_world: MakeWorld) -> None:  # MRK-3 to MRK-5
    """The message that came is newer than everything the older marker stood for, so no reader can meet an older value again."""
    world = make_world({})
    s, name = world.services, topic_of(world, allow_msg_ttl=True, subject_delete_marker_ttl=600)
    append(world, name, 1, b"k", ttl="1s")
    world.set_now(Instant(9 * SECOND))
    assert steps.run(s, name, as_of=Instant(9 * SECOND), approver=lambda _plan, _report: (True, "tester", "as expected")).markers == 1
    append(world, name, 10, b"k", ttl="1s")
    as_of = Instant(19 * SECOND)
    world.set_now(as_of)
    plan_id = steps.plan(s, name, as_of=as_of).plan.plan_id
    steps.stage(s, plan_id)
    staged = steps.mark(s, plan_id)
    assert staged.markers is not None
    assert [action.offsets for action in staged.superseded] == ["1"], "the first marker is in the deletion's own list"
    if steps.gate(s, plan_id).judgement == "needs_approval":
        steps.approve(s, plan_id, granted=True, by="tester", text="as expected")
    append(world, name, 19, b"k")
    steps.publish(s, plan_id)
    outcome = steps.verify(s, plan_id)
    assert (outcome.name, outcome.markers, outcome.cancelled_markers) == ("published", 0, 1), outcome.detail
    assert dict(outcome.removed) == {"ttl": 1, "superseded": 1}, "exactly what was judged"
    (left,) = s.reader.messages(name)
    assert (left.offset, left.key, left.append_time, is_marker(left.headers)) == (3, b"k", Instant(19 * SECOND), False)


def test_a_view_loses_nothing_where_the_logs_part_would_be_refused(make_world: MakeWorld) -> None:  # PRG-1, DEL-4
    world = make_world({})
    s, name, as_of = world.services, topic_of(world), Instant(9 * SECOND)
    append(world, name, 1, b"a", b"b", b"c")
    world.set_now(as_of)
    assert steps.run(s, name, as_of=as_of, work="compaction").name == "published"
    plan_id = steps.plan(s, name, as_of=as_of, work=PurgeKey(key=b"a")).plan.plan_id
    steps.stage(s, plan_id)
    steps.gate(s, plan_id)
    world.writer.foreign_delete(name, [(0, 1)])
    with pytest.raises(PlanConflict):
        steps.publish(s, plan_id)
    assert [m.key for m in read_compacted(s, name)] == [b"a", b"b", b"c"]
    assert [m.key for m in s.reader.messages(name)] == [b"a", b"c"]
