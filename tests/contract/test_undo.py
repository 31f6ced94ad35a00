"""What every store of whole logs must do to take a plan back (DEL-7): row for row what went, and nothing else."""

from __future__ import annotations

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.holds import place_hold, release_hold
from message_lifecycle.app.reading import read_compacted
from message_lifecycle.app.topics import alter_topic
from message_lifecycle.model.errors import HeldByLegalHold, UnknownPlan
from message_lifecycle.model.hold import HeldRange
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import is_marker
from message_lifecycle.model.outcome import Approval
from message_lifecycle.model.request import RemoveMessages, UndoPlan
from tests.contract.conftest import TABLES_HUNTED, MakeWorld
from tests.contract.test_requests import append, topic_of
from tests.errors import raises
from tests.logs import SECOND
from tests.undone import published, run, sealed_segments, segments, stored, undone


def test_segments_come_back_whole_and_sealed_in_their_old_place(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world, message_expiry=100)
    sealed_segments(world, name, 1, 2, 500)
    was, laid = stored(world, name), segments(world, name)
    plan_id = published(world, name, 200)
    assert [message.offset for message in stored(world, name)] == [6, 7, 8]
    append(world, name, 201, b"later")
    log = world.services.reader.log(name)

    outcome = undone(world, name, 210, plan_id)

    assert (outcome.restored, dict(outcome.removed), outcome.markers) == (6, {}, 0)
    assert stored(world, name)[:-1] == was, "row for row, every column"
    assert stored(world, name)[-1].key == b"later", "what came since stays"
    after = world.services.reader.log(name)
    assert segments(world, name)[:3] == laid
    assert [segment.sealed for segment in after.segments] == [True, True, True, False]
    assert after.end_offsets == log.end_offsets
    assert set(log.segments) <= set(after.segments), "what was there is described as it was"


def test_an_active_segment_that_went_comes_back_closed(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world, message_expiry=100)
    append(world, name, 1, b"a", b"b")
    was = stored(world, name)
    plan_id = published(world, name, 200)
    append(world, name, 201, b"c")
    undone(world, name, 210, plan_id)
    assert stored(world, name)[:2] == was
    first, second = world.services.reader.log(name).segments
    assert (first.sealed, first.last_offset, first.newest_at) == (True, 1, Instant(1 * SECOND))
    assert (second.base_offset, second.sealed) == (2, False)


def test_single_messages_come_back_and_the_markers_go(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world, allow_msg_ttl=True, subject_delete_marker_ttl=600)
    append(world, name, 1, b"a", ttl="1s")
    append(world, name, 1, b"b", b"c")
    append(world, name, 1, b"d", b"e", ttl="1s")
    was = stored(world, name)
    plan_id = published(world, name, 9)
    assert [(m.key, is_marker(m.headers)) for m in stored(world, name)] == [(b"b", False), (b"c", False), (b"a", True), (b"d", True), (b"e", True)]  # fmt: skip
    append(world, name, 10, b"later")

    outcome = undone(world, name, 12, plan_id)

    assert (outcome.restored, dict(outcome.removed)) == (3, {"undone": 3})
    assert [m for m in stored(world, name) if m.key != b"later"] == was
    assert world.services.reader.end_offsets(name) == {0: 9}, "offsets are given once"


def test_an_older_marker_that_was_superseded_comes_back(make_world: MakeWorld) -> None:  # MRK-5
    world = make_world({})
    name = topic_of(world, allow_msg_ttl=True, subject_delete_marker_ttl=600)
    append(world, name, 1, b"k", ttl="1s")
    first = published(world, name, 9)
    append(world, name, 10, b"k", ttl="1s")
    was = stored(world, name)
    second = published(world, name, 19)
    assert [(m.offset, is_marker(m.headers)) for m in stored(world, name)] == [(3, True)]
    undone(world, name, 20, second)
    assert stored(world, name) == was
    undone(world, name, 21, first)
    assert [(m.offset, is_marker(m.headers)) for m in stored(world, name)] == [(0, False), (2, False)]


@TABLES_HUNTED
def test_the_marker_of_a_plan_that_was_taken_back_does_not_come_back_with_another(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world, allow_msg_ttl=True, subject_delete_marker_ttl=600)
    append(world, name, 1, b"k", ttl="1s")
    was = stored(world, name)
    first = published(world, name, 9)
    append(world, name, 10, b"k", ttl="1s")
    second = published(world, name, 19)
    undone(world, name, 20, first)
    undone(world, name, 21, second)
    assert [m for m in stored(world, name) if m.offset != 2] == was
    assert not any(is_marker(m.headers) for m in stored(world, name))


@TABLES_HUNTED
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first first", "second first"])
def test_two_plans_on_the_same_files_come_back_one_by_one(make_world: MakeWorld, order: tuple[int, int]) -> None:
    world = make_world({})
    name = topic_of(world)
    append(world, name, 1, *(b"k%d" % at for at in range(8)))
    was = stored(world, name)
    taken = ((1, 3), (2, 5, 6))
    plans = [published(world, name, 5 + at, RemoveMessages(positions=tuple((0, o) for o in offsets))) for at, offsets in enumerate(taken)]
    undone(world, name, 20, plans[order[0]])
    assert stored(world, name) == [m for m in was if m.offset not in taken[order[1]]]
    undone(world, name, 21, plans[order[1]])
    assert stored(world, name) == was


@TABLES_HUNTED
def test_a_segment_that_went_after_some_of_it_had_gone_comes_back_as_it_went(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world, message_expiry=100)
    sealed_segments(world, name, 1, 500)
    was = stored(world, name)
    request = published(world, name, 5, RemoveMessages(positions=((0, 1),)))
    cleaned = published(world, name, 200)
    undone(world, name, 210, cleaned)
    assert [m.offset for m in stored(world, name)] == [0, 2, 3, 4, 5], "what a person took before stays away"
    undone(world, name, 211, request)
    assert stored(world, name) == was


@TABLES_HUNTED
def test_what_a_person_took_comes_back_when_its_segment_has_gone_since(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world, message_expiry=100)
    sealed_segments(world, name, 1, 500)
    was = stored(world, name)
    request = published(world, name, 5, RemoveMessages(positions=((0, 1),)))
    cleaned = published(world, name, 200)
    undone(world, name, 210, request)
    assert [m.offset for m in stored(world, name)] == [1, 3, 4, 5]
    undone(world, name, 211, cleaned)
    assert stored(world, name) == was


def test_what_went_beyond_a_limit_comes_back(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world, max_records=4)
    sealed_segments(world, name, 1, 2, 3)
    was = stored(world, name)
    plan_id = published(world, name, 10, "retention")
    assert [message.offset for message in stored(world, name)] == [5, 6, 7, 8]
    undone(world, name, 11, plan_id)
    assert stored(world, name) == was


@TABLES_HUNTED
def test_undoing_twice_is_a_no_op_that_names_the_first(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world)
    append(world, name, 1, b"a", b"b", b"c")
    plan_id = published(world, name, 5, RemoveMessages(positions=((0, 1),)))
    first = undone(world, name, 6, plan_id)
    was = world.services.reader.marker(name)
    again = run(world, name, 7, UndoPlan(plan_id=plan_id))
    assert (again.name, again.first_plan_id, again.restored) == ("no_op", first.plan_id, 0)
    assert world.services.reader.marker(name) == was, "nothing was written"


def test_an_undo_waits_for_a_persons_word(make_world: MakeWorld) -> None:  # DEL-3
    world = make_world({})
    s, name = world.services, topic_of(world)
    append(world, name, 1, b"a", b"b", b"c")
    plan_id = published(world, name, 5, RemoveMessages(positions=((0, 1),)))
    waiting = steps.run(s, name, as_of=Instant(5 * SECOND), work=UndoPlan(plan_id=plan_id))
    assert waiting.name == "needs_approval"
    assert [m.offset for m in stored(world, name)] == [0, 2]
    assert waiting.plan_id is not None
    steps.approve(s, waiting.plan_id, granted=True, by="anna", text="a slip")
    steps.publish(s, waiting.plan_id)
    assert steps.verify(s, waiting.plan_id).name == "published"
    record = s.ledger.record(waiting.plan_id)
    assert record.report is not None
    assert record.approval == Approval(
        plan_id=waiting.plan_id, granted=True, by="anna", at=Instant(5 * SECOND), text="a slip", gate_id=record.report.gate_id
    )


@TABLES_HUNTED
def test_the_window_is_of_the_topic_and_by_the_ledgers_clock(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world, undo_window=100)
    append(world, name, 1, b"a", b"b", b"c")
    plan_id = published(world, name, 5, RemoveMessages(positions=((0, 1),)))
    with raises("UndoWindowPassed", match="1970-01-01T00:01:45"):
        run(world, name, 105, UndoPlan(plan_id=plan_id))
    assert undone(world, name, 104, plan_id).restored == 1


def test_what_cannot_be_taken_back_is_refused_with_the_reason(make_world: MakeWorld) -> None:
    world = make_world({})
    s, name = world.services, topic_of(world)
    append(world, name, 1, b"a", b"b", b"c")
    with pytest.raises(UnknownPlan):
        run(world, name, 2, UndoPlan(plan_id="f" * 32))
    open_id = steps.plan(s, name, as_of=Instant(2 * SECOND), work=RemoveMessages(positions=((0, 0),))).plan.plan_id
    with raises("NotPublished", match="open"):
        run(world, name, 2, UndoPlan(plan_id=open_id))
    plan_id = published(world, name, 5, RemoveMessages(positions=((0, 1),)))
    undo_id = undone(world, name, 6, plan_id).plan_id
    with raises("NotUndoable", match="it is an undo itself"):
        run(world, name, 7, UndoPlan(plan_id=undo_id or ""))
    compaction = published(world, name, 8, "compaction")
    with raises("NotUndoable", match="which still has what the view leaves out"):
        run(world, name, 9, UndoPlan(plan_id=compaction))


@TABLES_HUNTED
def test_a_compaction_that_passed_over_the_place_is_named(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world)
    append(world, name, 1, b"a", b"b", b"c")
    plan_id = published(world, name, 5, RemoveMessages(positions=((0, 1),)))
    later = published(world, name, 6, "compaction")
    with raises("LaterPlan", match=later[:12]):
        run(world, name, 7, UndoPlan(plan_id=plan_id))


def test_what_went_beyond_a_limit_before_the_first_compaction_is_not_in_the_view(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world, max_records=1)
    append(world, name, 1, b"a", b"b")
    plan_id = published(world, name, 5, "retention")
    later = published(world, name, 6, "compaction")
    with raises("LaterPlan", match=later[:12]):
        run(world, name, 7, UndoPlan(plan_id=plan_id))


@TABLES_HUNTED
@pytest.mark.parametrize("relaxed", [False, True], ids=["as it was", "relaxed"])
def test_what_an_age_took_stays_away_where_the_view_was_built_by_that_age_and_it_holds_no_more(
    make_world: MakeWorld, relaxed: bool
) -> None:
    world = make_world({})
    s, name = world.services, topic_of(world, max_age_seconds=50.0)
    append(world, name, 1, b"a")
    append(world, name, 90, b"b")
    plan_id = published(world, name, 100)
    later = published(world, name, 101, "compaction")
    if relaxed:
        alter_topic(s, name, {"max_age_seconds": None})
        with raises("LaterPlan", match=later[:12]):
            run(world, name, 102, UndoPlan(plan_id=plan_id))
    else:
        assert undone(world, name, 102, plan_id).restored == 1
        assert [m.key for m in read_compacted(s, name)] == [b"b"]


def test_what_was_purged_because_the_view_has_it_comes_back(make_world: MakeWorld) -> None:  # CMP-9
    world = make_world({})
    s, name = world.services, topic_of(world, cleanup_policy="compact")
    sealed_segments(world, name, 1, 2)
    append(world, name, 3, b"a")
    was = stored(world, name)
    assert run(world, name, 5, "compaction").name == "published"
    seen = [(m.offset, m.key) for m in read_compacted(s, name)]
    plan_id = published(world, name, 6, "purge_compacted")
    assert [message.offset for message in stored(world, name)] == [6]
    undone(world, name, 7, plan_id)
    assert stored(world, name) == was
    assert [(m.offset, m.key) for m in read_compacted(s, name)] == seen
    again = run(world, name, 8, "purge_compacted")
    assert (again.name, stored(world, name)) == ("no_op", was)


@TABLES_HUNTED
def test_a_legal_hold_on_a_marker_refuses_the_undo_that_would_take_it(make_world: MakeWorld) -> None:  # DEL-8
    world = make_world({})
    s, name = world.services, topic_of(world, allow_msg_ttl=True, subject_delete_marker_ttl=600)
    append(world, name, 1, b"a", ttl="1s")
    append(world, name, 1, b"b")
    plan_id = published(world, name, 9)
    held = place_hold(s, name, by="ada", why="case 7", offsets=HeldRange(partition=0, first=2, last=2))
    with pytest.raises(HeldByLegalHold, match="case 7"):
        run(world, name, 10, UndoPlan(plan_id=plan_id))
    assert [m.offset for m in stored(world, name)] == [1, 2]
    release_hold(s, held.hold_id, by="ada", why="closed")
    assert undone(world, name, 11, plan_id).restored == 1


@TABLES_HUNTED
def test_a_legal_hold_on_other_messages_is_no_hindrance(make_world: MakeWorld) -> None:  # DEL-8
    world = make_world({})
    s, name = world.services, topic_of(world)
    append(world, name, 1, b"a", b"b")
    place_hold(s, name, by="ada", why="case 7", offsets=HeldRange(partition=0, first=1, last=1))
    plan_id = published(world, name, 5, RemoveMessages(positions=((0, 0),)))
    assert undone(world, name, 6, plan_id).restored == 1


def test_a_message_that_came_between_stage_and_publish_stays(make_world: MakeWorld) -> None:  # DEL-4
    world = make_world({})
    s, name = world.services, topic_of(world, message_expiry=100)
    sealed_segments(world, name, 1, 500)
    was = stored(world, name)
    plan_id = published(world, name, 200)
    undo_id = steps.plan(s, name, as_of=Instant(200 * SECOND), work=UndoPlan(plan_id=plan_id)).plan.plan_id
    steps.stage(s, undo_id)
    append(world, name, 201, b"between")
    steps.gate(s, undo_id)
    steps.approve(s, undo_id, granted=True, by="tester", text="as expected")
    append(world, name, 202, b"later")
    steps.publish(s, undo_id)
    assert steps.verify(s, undo_id).name == "published"
    assert stored(world, name)[:-2] == was
    assert [m.key for m in stored(world, name)[-2:]] == [b"between", b"later"]
