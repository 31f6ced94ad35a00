"""What every store of whole logs must do where another key was erased between a plan and its undo: an erasure ends the plan's commit (DEL-7)."""

from __future__ import annotations

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import alter_topic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import RemoveMessages, UndoPlan
from tests.contract.conftest import TABLES_HUNTED, MakeWorld
from tests.contract.test_requests import append, topic_of
from tests.contract.test_undo_view import compacted, view
from tests.contract.test_undo_view_halfway import half_purged
from tests.errors import raises
from tests.logs import SECOND
from tests.undone import approved, published, run, stored, undone


def erased(world: World, name: TopicName, at_s: int, key: bytes) -> None:
    world.set_now(Instant(at_s * SECOND))
    request = ask(world.services, [key], topics=[name], forbid=False, by="ada", why="a letter").request_id
    (found,) = carry_out(world.services, request, approver=approved)
    assert found.error is None, found.why_not_done()


@pytest.mark.parametrize("compact", [False, True], ids=["log", "log and view"])
def test_what_failed_after_its_commit_comes_back(make_world: MakeWorld, compact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world({})
    name = compacted(world, b"a", b"b", b"z") if compact else topic_of(world)
    if not compact:
        append(world, name, 1, b"a", b"b", b"z")
    log, rows = stored(world, name), view(world, name) if compact else []
    with monkeypatch.context() as patched:
        patched.setattr(steps, "differences", lambda *_: ["something else"])
        failed = run(world, name, 5, RemoveMessages(positions=((0, 0),)))
    assert failed.name == "failed" and failed.plan_id is not None
    erased(world, name, 6, b"z")
    assert stored(world, name) == log[1:2]
    undone(world, name, 7, failed.plan_id)
    assert stored(world, name) == log[:2]
    assert not compact or view(world, name) == rows[:2]


def test_what_failed_before_its_commit_does_not(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic_of(world)
    append(world, name, 1, b"a", b"z")
    world.set_now(Instant(5 * SECOND))
    made = steps.plan(world.services, name, as_of=Instant(5 * SECOND), work=RemoveMessages(positions=((0, 0),))).plan
    steps.close(world.services, made, "failed", "its run ended")
    erased(world, name, 6, b"z")
    with raises("NotPublished"):
        run(world, name, 7, UndoPlan(plan_id=made.plan_id))


@TABLES_HUNTED
def test_what_has_stopped_between_its_commits_comes_back_to_the_view(make_world: MakeWorld) -> None:
    world = make_world({})
    half = half_purged(world)
    alter_topic(world.services, half.name, {"message_expiry": 2000})
    erased(world, half.name, 12, b"b")
    assert view(world, half.name) == []
    undone(world, half.name, 13, half.plan_id)
    assert (stored(world, half.name), view(world, half.name)) == (half.log[:1], half.view[:1])


@TABLES_HUNTED
def test_a_later_compaction_that_failed_after_its_commit_is_still_named(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:  # P3
    world = make_world({})
    name = compacted(world, b"a", b"z")
    newer = NewMessage(append_time=Instant(3 * SECOND), key=b"a", value=None)
    world.writer.append(name, [newer], policy_of(world.services, name))
    first = published(world, name, 5, RemoveMessages(positions=((0, 0),)))
    with monkeypatch.context() as patched:
        patched.setattr(steps, "differences", lambda *_: ["something else"])
        later = run(world, name, 6, "compaction")
    assert later.name == "failed" and later.plan_id is not None
    erased(world, name, 7, b"z")
    with raises("LaterPlan", "UndoSourceGone", match=later.plan_id[:12]):
        run(world, name, 8, UndoPlan(plan_id=first))


@TABLES_HUNTED
def test_a_later_compaction_that_was_never_judged_is_no_hindrance(make_world: MakeWorld) -> None:
    world = make_world({})
    name = compacted(world, b"a", b"z")
    append(world, name, 3, b"a")
    rows = view(world, name)
    plan_id = published(world, name, 5, RemoveMessages(positions=((0, 0),)))
    world.set_now(Instant(6 * SECOND))
    made = steps.plan(world.services, name, as_of=Instant(6 * SECOND), work="compaction").plan
    steps.close(world.services, made, "failed", "its run ended")
    erased(world, name, 7, b"z")
    undone(world, name, 8, plan_id)
    assert view(world, name) == rows[:1]
