"""What a request to erase a key comes to: granted, refused, waited for, and looked at again where a copy was done before its origin."""

from __future__ import annotations

import pytest

from message_lifecycle.app import receipts, steps
from message_lifecycle.app.erasures import ask, carry_out, settle_latest
from message_lifecycle.app.operations import erasure as operation
from message_lifecycle.app.topics import copy_topic, create_topic
from message_lifecycle.model.errors import TopicBusy, storage_refused
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import GateReport
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import EraseKey, RemoveMessages
from tests.contract.conftest import MakeWorld
from tests.contract.test_erasure import AS_OF, EVERY, KEY, MEMORY, NAME, YES, append, keys, make


@EVERY
def test_a_person_is_asked_and_may_refuse(make_world: MakeWorld) -> None:
    world = make(make_world({}))
    append(world, b"a", KEY)
    request = ask(world.services, [KEY], topics=[NAME], forbid=True, by="ada", why="a letter")
    (found,) = carry_out(world.services, request.request_id)
    assert found.outcome is not None
    assert found.outcome.name == "needs_approval"
    assert keys(world) == [b"a", KEY]
    assert world.services.ledger.erasure(request.request_id).state == "requested"
    asked: list[tuple[Plan, GateReport]] = []
    carry_out(world.services, request.request_id, approver=lambda plan, report: asked.append((plan, report)) or (False, "bob", "not now"))
    assert keys(world) == [b"a", KEY]
    refused = world.services.ledger.erasure(request.request_id)
    assert (refused.state, refused.forbids(NAME)) == ("refused", False)


@EVERY
@pytest.mark.parametrize("run", [None, "erasure/r"])
def test_an_erasure_that_finds_nothing_leaves_the_open_question_alone(make_world: MakeWorld, run: str | None) -> None:  # DEL-3
    world = make(make_world({}))
    append(world, b"a", b"b")
    s = world.services
    asked = steps.run(s, NAME, as_of=AS_OF, run="request/r", work=RemoveMessages(positions=((0, 0), (0, 1))), requested_by="bob")
    assert asked.name == "needs_approval"
    request = ask(s, [KEY], topics=[NAME], forbid=False, by="ada", why="a letter")
    outcome = steps.run(s, NAME, as_of=AS_OF, run=run, work=EraseKey(request_id=request.request_id))
    assert (outcome.name, outcome.plan_id == asked.plan_id) == ("no_op", False), outcome.detail
    again = steps.run(s, NAME, as_of=AS_OF, run=run, work=EraseKey(request_id=request.request_id))
    assert again.plan_id == outcome.plan_id, "the same plan is not recorded twice"
    record = s.ledger.record(outcome.plan_id or "")
    assert (record.requested_by, record.report is not None) == ("ada", True)
    assert [entry.plan_id for entry in s.ledger.run_entries("erasure/r")] == ([] if run is None else [outcome.plan_id])
    settle_latest(s, request)
    assert receipts.verify(s, request.request_id) == []
    open_plan = s.ledger.open_plan(NAME)
    assert open_plan is not None and open_plan.plan.plan_id == asked.plan_id
    steps.approve(s, asked.plan_id or "", granted=True, by="eve", text="seen")
    steps.publish(s, asked.plan_id or "")
    assert steps.verify(s, asked.plan_id or "").name == "published"
    assert keys(world) == []


@MEMORY
def test_an_erasure_that_finds_the_key_ends_the_open_question_and_says_so(make_world: MakeWorld) -> None:  # DEL-1
    world = make(make_world({}))
    append(world, b"a", KEY)
    s = world.services
    asked = steps.run(s, NAME, as_of=AS_OF, work=RemoveMessages(positions=((0, 0), (0, 1))), requested_by="bob")
    request = ask(s, [KEY], topics=[NAME], forbid=False, by="ada", why="a letter")
    outcome = steps.run(s, NAME, as_of=AS_OF, work=EraseKey(request_id=request.request_id))
    ended = s.ledger.record(asked.plan_id or "").outcome
    assert ended is not None
    assert (outcome.name, ended.name, ended.detail) == ("needs_approval", "lapsed", f"plan {outcome.plan_id} took its place")


@EVERY
def test_a_key_that_is_nowhere_ends_as_not_found(make_world: MakeWorld) -> None:  # DEL-7
    world = make(make_world({}))
    append(world, b"a")
    s = world.services
    request = ask(s, [KEY], topics=[NAME], forbid=True, by="ada", why="a letter")
    (found,) = carry_out(s, request.request_id)
    assert found.is_done
    asked = s.ledger.erasure(request.request_id)
    assert (asked.state, asked.forbids(NAME)) == ("not_found", True)
    append(world, KEY)
    carry_out(s, request.request_id, approver=lambda *_: YES)
    assert s.ledger.erasure(request.request_id).state == "erased", "carried out again, it finds what came since"
    carry_out(s, request.request_id)
    assert s.ledger.erasure(request.request_id).state == "erased", "what went before is not forgotten"


@MEMORY
def test_a_request_of_which_something_went_is_not_refused_later(make_world: MakeWorld) -> None:
    """Where its first topic was erased, a later run finds nothing there; what somebody refuses then is the rest alone."""
    world = make(make_world({}))
    s, other = world.services, TopicName(stream="erasure", topic="returns")
    create_topic(s, other, settings={})
    append(world, KEY, b"a")
    append(world, KEY, name=other)
    request = ask(s, [KEY], topics=[NAME, other], forbid=True, by="ada", why="a letter")
    carry_out(s, request.request_id, approver=lambda plan, _report: YES if plan.topic == NAME else None)
    found = carry_out(s, request.request_id, approver=lambda *_: (False, "bob", "not now"))
    assert {one.topic: one.outcome and one.outcome.name for one in found} == {NAME: "no_op", other: "refused"}
    asked = s.ledger.erasure(request.request_id)
    assert (asked.state, asked.forbids(NAME)) == ("requested", True)


@MEMORY
def test_a_run_that_died_before_anybody_was_asked_keeps_nobody_from_refusing(make_world: MakeWorld) -> None:
    world = make(make_world({}))
    append(world, KEY)
    request = ask(world.services, [KEY], topics=[NAME], forbid=True, by="ada", why="a letter")
    died = steps.plan(world.services, NAME, as_of=AS_OF, work=EraseKey(request_id=request.request_id)).plan
    steps.close(world.services, died, "failed", "its run ended")
    world.set_now(Instant(AS_OF + 1))
    carry_out(world.services, request.request_id, approver=lambda *_: (False, "bob", "not now"))
    assert world.services.ledger.erasure(request.request_id).state == "refused"


@MEMORY
def test_an_erasure_waits_for_somebody_else_than_who_asked(make_world: MakeWorld) -> None:
    """The ledger's request says who asked, whoever plans it: a DAG's task knows the request alone."""
    world = make(make_world({}), approver_is_not_requester=True)
    append(world, b"a", KEY)
    request = ask(world.services, [KEY], topics=[NAME], forbid=False, by="Ada", why="a letter of 3 May")
    (waits,) = carry_out(world.services, request.request_id, approver=lambda _plan, _report: YES)
    assert waits.outcome is not None
    assert (waits.outcome.name, keys(world)) == ("needs_approval", [b"a", KEY]), waits.why_not_done()
    (done,) = carry_out(world.services, request.request_id, approver=lambda _plan, _report: (True, "bob", "seen"))
    assert done.is_done, done.why_not_done()
    assert keys(world) == [b"a"]


def test_a_copy_that_was_erased_before_its_origin_is_looked_at_again(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a person answers for each topic, the copy's answer may come first."""
    world = make_world({})
    world.set_now(AS_OF)
    s, stream = world.services, f"{world.scratch}.erasure" if world.scratch else "erasure"
    origin, mirror = TopicName(stream=stream, topic="orders"), TopicName(stream=stream, topic="mirror")
    create_topic(s, origin, partitions=2, settings={})
    create_topic(s, mirror, settings={"role": "mirror", "origin": str(origin)})
    append(world, KEY, b"a", name=origin)
    request = ask(s, [KEY], topics=[origin, mirror], forbid=False, by="ada", why="a letter")

    def erased(name: TopicName) -> str:
        outcome = steps.run(s, name, as_of=AS_OF, approver=lambda *_: YES, work=EraseKey(request_id=request.request_id))
        assert outcome.name in ("published", "no_op"), outcome.detail
        world.set_now(Instant(s.ledger.now() + 1))
        return settle_latest(s, request).state

    assert erased(mirror) == "requested"
    copy_topic(s, mirror)
    assert KEY in [message.key for message in s.reader.messages(mirror)]
    assert erased(origin) == "requested"
    assert f"{mirror}: a requested key came again from its origin" in s.ledger.erasure(request.request_id).detail
    monkeypatch.setattr(operation, "_WAIT_SECONDS", 0.0)
    with s.ledger.lock(mirror, wait_seconds=0, purpose="copy"), pytest.raises(TopicBusy):
        settle_latest(s, request)
    assert erased(mirror) == "erased"
    assert KEY not in [message.key for message in s.reader.messages(mirror)]


@MEMORY
def test_a_copy_under_way_is_waited_for_where_nothing_is_found(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have read its origin before that was erased, and would store the key behind the search."""
    monkeypatch.setattr(operation, "_WAIT_SECONDS", 0.0)
    world = make(make_world({}))
    s, mirror = world.services, TopicName(stream="erasure", topic="mirror")
    create_topic(s, mirror, settings={"role": "mirror", "origin": str(NAME)})
    copy_topic(s, mirror)
    append(world, KEY)
    request_id = ask(s, [KEY], topics=[NAME, mirror], forbid=False, by="ada", why="a letter").request_id
    with s.ledger.lock(mirror, wait_seconds=0, purpose="copy"):
        of_origin, of_mirror = carry_out(s, request_id, approver=lambda *_: YES)
    assert (of_origin.is_done, type(of_mirror.error)) == (True, TopicBusy)
    assert s.ledger.erasure(request_id).state == "requested"
    carry_out(s, request_id, approver=lambda *_: YES)
    assert s.ledger.erasure(request_id).state == "erased"


@MEMORY
def test_what_lies_beneath_the_tables_keeps_a_request_open(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make(make_world({}))
    s, kept = world.services, ["the bucket keeps 3 earlier versions"]
    append(world, b"a", KEY)
    monkeypatch.setattr(s.stores.rewrite, "describe_old_copies", lambda *_: kept)
    request = ask(s, [KEY], topics=[NAME], forbid=True, by="ada", why="a letter")
    (found,) = carry_out(s, request.request_id, approver=lambda *_: YES)
    assert found.is_done and keys(world) == [b"a"]
    asked = s.ledger.erasure(request.request_id)
    assert asked.state == "requested"
    assert asked.detail == f"{NAME}: {kept[0]}. Then run `lifecycle erase run {request.request_id[:12]} --by NAME --why WHY`"
    assert receipts.verify(s, request.request_id) == [f"{NAME}: {kept[0]}"]
    kept.clear()
    carry_out(s, request.request_id)
    assert s.ledger.erasure(request.request_id).state == "erased"


@MEMORY
def test_what_lies_beneath_and_cannot_be_told_keeps_it_open_too(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make(make_world({}))
    s = world.services

    def refused(*_: object) -> None:
        raise storage_refused("s3://lake", "not now")

    monkeypatch.setattr(s.stores.rewrite, "describe_old_copies", refused)
    request = ask(s, [KEY], topics=[NAME], forbid=True, by="ada", why="a letter")
    carry_out(s, request.request_id)
    asked = s.ledger.erasure(request.request_id)
    assert asked.state == "requested" and asked.detail.startswith(f"{NAME}: StorageRefused: ")


@MEMORY
@pytest.mark.parametrize("forbid", [True, False])
def test_files_that_came_later_count_unless_the_key_could_not_come_with_them(
    make_world: MakeWorld, forbid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look again moves the time no further, where the key was forbidden meanwhile."""
    world = make(make_world({}))
    s, asked = world.services, list[Instant]()
    append(world, KEY, b"a")
    monkeypatch.setattr(s.stores.rewrite, "describe_old_copies", lambda _, until: asked.append(until) or ["kept"])
    request = ask(s, [KEY], topics=[NAME], forbid=forbid, by="ada", why="a letter")
    for later in range(3):
        world.set_now(Instant(AS_OF + later))
        carry_out(s, request.request_id, approver=lambda *_: YES)
    assert [at - AS_OF for at in asked] == ([0, 0, 0] if forbid else [0, 1, 2])
