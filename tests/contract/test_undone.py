"""What came back with an undo is left alone by the rules until a person lets it go (DEL-7, P1)."""

from __future__ import annotations

from message_lifecycle.app.due import due
from message_lifecycle.app.operations.undo import release
from message_lifecycle.app.views.explanation import explain_message
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.phrases import short
from message_lifecycle.model.request import RemoveMessages
from tests.contract.conftest import MakeWorld
from tests.contract.test_requests import append, topic_of
from tests.logs import SECOND
from tests.undone import published, run, sealed_segments, stored, undone


def test_what_came_back_is_remembered_until_it_is_released(make_world: MakeWorld) -> None:
    world = make_world({})
    s, name = world.services, topic_of(world)
    append(world, name, 1, b"a", b"b", b"c", b"d")
    plan_id = published(world, name, 5, RemoveMessages(positions=((0, 0), (0, 1), (0, 3))))
    undo_id = undone(world, name, 6, plan_id).plan_id
    (known,) = s.ledger.undone(name)
    assert (known.plan_id, known.undone_by, known.ranges, known.released_at) == (plan_id, undo_id, ((0, 0, 1), (0, 3, 3)), None)
    released = release(s, plan_id, by="anna", text="they may go")
    assert (released.released_by, released.text, released.released_at) == ("anna", "they may go", Instant(6 * SECOND))
    assert release(s, plan_id, by="bert", text="again") == released, "the first release stands"


def test_the_next_run_leaves_alone_what_came_back_until_it_is_released(make_world: MakeWorld) -> None:  # P1, DEL-7
    world = make_world({})
    s, name = world.services, topic_of(world, message_expiry=100)
    sealed_segments(world, name, 1, 2, 500)
    was = stored(world, name)
    plan_id = published(world, name, 200)
    undone(world, name, 200, plan_id)

    again = run(world, name, 200)

    assert (again.name, dict(again.removed)) == ("no_op", {})
    assert {(entry.holder, entry.rows) for entry in again.held} == {("undone_plan", 6)}
    assert all(short(plan_id) in entry.detail for entry in again.held)
    assert stored(world, name) == was
    assert not due(s, [name], as_of=Instant(200 * SECOND))[0].due
    release(s, plan_id, by="anna", text="they may go")
    assert due(s, [name], as_of=Instant(200 * SECOND))[0].due, "a release makes the topic due"
    assert dict(run(world, name, 201).removed) == {"expiry": 6}


def test_of_single_messages_only_those_that_came_back_are_left_alone(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world, allow_msg_ttl=True)
    append(world, name, 1, b"a", b"b", ttl="1s")
    append(world, name, 1, b"c")
    plan_id = published(world, name, 5)
    undone(world, name, 6, plan_id)
    append(world, name, 7, b"d", b"e", ttl="1s")
    outcome = run(world, name, 20)
    assert (outcome.name, dict(outcome.removed)) == ("published", {"ttl": 2})
    assert [m.offset for m in stored(world, name)] == [0, 1, 2]
    assert {(entry.holder, entry.reason, entry.rows) for entry in outcome.held} == {("undone_plan", "ttl", 2)}


def test_runs_of_a_segment_that_came_back_with_one_plan_are_held_as_one(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world, allow_msg_ttl=True)
    for ttl in ("1s", None, "1s", None, "1s"):
        append(world, name, 1, b"a", ttl=ttl)
    plan_id = published(world, name, 5)
    undone(world, name, 6, plan_id)
    (entry,) = run(world, name, 20).held
    assert (entry.holder, entry.rows, entry.first_base, entry.last_offset) == ("undone_plan", 3, 0, 4)


def test_a_persons_request_takes_what_came_back(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world)
    append(world, name, 1, b"a", b"b", b"c")
    plan_id = published(world, name, 5, RemoveMessages(positions=((0, 1),)))
    undone(world, name, 6, plan_id)
    again = published(world, name, 7, RemoveMessages(positions=((0, 1),)))
    assert [m.offset for m in stored(world, name)] == [0, 2]
    undone(world, name, 8, again)
    assert [m.offset for m in stored(world, name)] == [0, 1, 2]


def test_explain_tells_that_a_message_came_back(make_world: MakeWorld) -> None:
    world = make_world({})
    s, name = world.services, topic_of(world, message_expiry=100)
    sealed_segments(world, name, 1, 500)
    plan_id = published(world, name, 200)
    undo_id = undone(world, name, 210, plan_id).plan_id
    told = explain_message(s, name, 0, 1, as_of=Instant(210 * SECOND))
    assert told.verdict == "held"
    assert told.why.count(f". Plan {undo_id[:12]} undid plan {plan_id[:12]} at ") == 1
    assert told.came_back is not None
    assert (told.came_back.plan_id, told.came_back.undone_by, told.came_back.released_at) == (plan_id, undo_id, None)
    assert explain_message(s, name, 0, 4, as_of=Instant(210 * SECOND)).came_back is None
