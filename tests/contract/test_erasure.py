"""A key is gone from everything that a store keeps of a topic, by a gated plan and a person's word (every store of single messages)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from message_lifecycle.app import receipts, steps
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.holds import place_hold, release_hold
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.views.status import status
from message_lifecycle.model.erasure import Receipt
from message_lifecycle.model.errors import HeldByLegalHold
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import GateReport
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import EraseKey, RemoveMessages
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.topic import Backend, StoreOptions
from tests.contract.conftest import MakeWorld, on
from tests.errors import raises
from tests.holds import WHENS, When, held, run_with_hold

EVERY = pytest.mark.parametrize("store_kind", on("memory", "json_file", "rotating_file", "redis_streams"), indirect=True)
FILES = pytest.mark.parametrize("store_kind", on("json_file", "rotating_file"), indirect=True)
MEMORY = pytest.mark.parametrize("store_kind", on("memory"), indirect=True)
NAME = TopicName(stream="erasure", topic="orders")
AS_OF = Instant(1_700_000_000_000_000)
KEY = b"customer 17 of the north"
ODD = b"\xff\x00\xfe odd \x01"
YES = (True, "ada", "a letter of 3 May")


def make(world: World, **settings: Value) -> World:
    create_topic(world.services, NAME, partitions=2, settings=settings)
    world.set_now(AS_OF)
    return world


def append(world: World, *keys: bytes | None, partition: int = 0, name: TopicName = NAME) -> None:
    new = [NewMessage(append_time=AS_OF, key=key, value=b"v", partition=partition) for key in keys]
    world.writer.append(name, new, policy_of(world.services, name))


def stored(world: World) -> list[Message]:
    return list(world.services.reader.messages(NAME))


def keys(world: World) -> list[bytes | None]:
    return [message.key for message in stored(world)]


def erase(world: World, *keys: bytes, forbid: bool = False) -> str:
    request = ask(world.services, keys or (KEY,), topics=[NAME], forbid=forbid, by="ada", why="a letter of 3 May")
    (found,) = carry_out(world.services, request.request_id, approver=lambda _plan, _report: YES)
    assert found.is_done, found.why_not_done()
    return request.request_id


def outcome_of(world: World, request_id: str) -> tuple[str, tuple[tuple[str, int], ...]]:
    (_, outcome), *_ = world.services.ledger.history(NAME, operations=("erasure",))
    plan = world.services.ledger.record(outcome.plan_id or "").plan
    assert plan.erasure is not None
    assert plan.erasure.request_id == request_id
    return outcome.name, outcome.removed


@EVERY
def test_all_of_the_key_goes_and_nothing_else(make_world: MakeWorld) -> None:
    world = make(make_world({}))
    append(world, b"a", KEY, None, KEY, b"")
    append(world, KEY, KEY + b"8", partition=1)
    before = stored(world)
    request_id = erase(world)
    assert outcome_of(world, request_id) == ("published", (("erased", 3),))
    assert stored(world) == [message for message in before if message.key != KEY]
    assert world.services.reader.end_offsets(NAME) == {0: 5, 1: 2}, "offsets are never given twice"
    assert world.services.ledger.erasure(request_id).state == "erased"
    assert erase(world) != request_id
    append(world, b"later")
    assert [message.offset for message in stored(world)] == [0, 2, 4, 5, 1]


@EVERY
def test_every_key_of_a_request_goes_in_one_plan(make_world: MakeWorld) -> None:
    world, wanted = make(make_world({})), (KEY, ODD, b"", b"nowhere")
    append(world, b"a", KEY, None, ODD, b"", KEY)
    append(world, ODD, KEY + b"8", partition=1)
    before = stored(world)
    request_id = erase(world, *wanted)
    assert outcome_of(world, request_id) == ("published", (("erased", 5),))
    assert stored(world) == [message for message in before if message.key not in wanted]
    s = world.services
    assert s.ledger.erasure(request_id).state == "erased", "found nowhere is a request of which no key was found"
    receipt = Receipt.from_json(s.ledger.receipt(request_id))
    assert set(receipt.digests) == {s.key_secret(False).hash(key).hex() for key in wanted}
    (topic,) = receipt.topics
    assert topic.rows == 5
    append(world, ODD)
    assert receipts.verify(s, request_id) != [], "nothing forbade it"
    assert {key: receipts.verify(s, request_id, key=key) == [] for key in (*wanted, b"a")} == {
        KEY: True,
        ODD: False,
        b"": True,
        b"nowhere": True,
        b"a": False,
    }


@EVERY
def test_a_hold_on_one_key_refuses_the_request_of_all(make_world: MakeWorld) -> None:
    world = make(make_world({}))
    append(world, b"a", KEY, b"b", ODD)
    before, s = stored(world), world.services
    hold = place_hold(s, NAME, by="bert", why="case 7", key=ODD)
    request = ask(s, [KEY, ODD], topics=[NAME], forbid=False, by="ada", why="a letter")
    (found,) = carry_out(s, request.request_id, approver=lambda _plan, _report: YES)
    assert isinstance(found.error, HeldByLegalHold)
    assert stored(world) == before
    release_hold(s, hold.hold_id, by="bert", why="over")
    (found,) = carry_out(s, request.request_id, approver=lambda _plan, _report: YES)
    assert found.is_done, found.why_not_done()
    assert keys(world) == [b"a", b"b"]


@EVERY
def test_what_comes_of_any_key_makes_the_request_plan_again(make_world: MakeWorld) -> None:
    world = make(make_world({}))
    append(world, b"a", KEY)
    request = ask(world.services, [KEY, ODD], topics=[NAME], forbid=False, by="ada", why="a letter")

    def late(_plan: Plan, _report: GateReport) -> tuple[bool, str, str]:
        if len(stored(world)) == 2:
            append(world, ODD)
        return YES

    carry_out(world.services, request.request_id, approver=late)
    assert keys(world) == [b"a"]


@EVERY
def test_a_key_that_is_found_nowhere_has_a_receipt_of_what_was_searched(make_world: MakeWorld) -> None:
    world = make(make_world({}))
    append(world, b"a", b"b")
    request_id = erase(world)
    s = world.services
    assert outcome_of(world, request_id)[0] == "no_op"
    assert s.ledger.erasure(request_id).state == "not_found"
    (topic,) = json.loads(s.ledger.receipt(request_id))["topics"]
    assert (topic["topic"], topic["rows"], topic["found_nowhere"]) == (str(NAME), 0, True)
    log = s.reader.log(NAME)
    (table,) = (table for table in topic["tables"] if table["table"] == "log")
    assert table["table_uuid"] == log.table_uuid
    assert log.snapshot_id in table["snapshots"]
    assert table["files_searched"] >= 1
    assert receipts.verify(s, request_id) == []
    append(world, KEY)
    assert receipts.verify(s, request_id) != [], "nothing forbade it"


@EVERY
def test_an_erasure_that_finds_nothing_more_keeps_the_receipt_of_what_went(make_world: MakeWorld) -> None:
    world = make(make_world({}))
    append(world, b"a", KEY)
    request_id = erase(world)
    kept = world.services.ledger.receipt(request_id)
    (again,) = carry_out(world.services, request_id)
    assert again.is_done, again.why_not_done()
    assert world.services.ledger.receipt(request_id) == kept


@EVERY
def test_what_comes_behind_the_search_is_not_said_to_be_nowhere(make_world: MakeWorld) -> None:
    world = make(make_world({}))
    append(world, b"a")
    s, work = (
        world.services,
        EraseKey(request_id=ask(world.services, [KEY], topics=[NAME], forbid=False, by="ann", why="a letter").request_id),
    )
    plan_id = steps.plan(s, NAME, as_of=s.ledger.now(), work=work).plan.plan_id
    steps.stage(s, plan_id)
    steps.gate(s, plan_id)
    append(world, KEY)
    outcome = steps.verify(s, plan_id)
    assert (outcome.name, "still holds a requested key" in outcome.detail) == ("failed", True)
    with raises("NoReceipt"):
        s.ledger.receipt(work.request_id)


@EVERY
def test_receipt_and_last_removal_have_the_time_of_the_commit(make_world: MakeWorld) -> None:  # DEL-5
    world = make(make_world({}))
    append(world, b"a", KEY)
    s, hour = world.services, 3_600_000_000
    request = ask(s, [KEY], topics=[NAME], forbid=False, by="ada", why="a letter of 3 May")
    plan_id = steps.plan(s, NAME, as_of=AS_OF, work=EraseKey(request_id=request.request_id)).plan.plan_id
    steps.stage(s, plan_id)
    steps.gate(s, plan_id)
    steps.approve(s, plan_id, granted=True, by="ada", text="a letter of 3 May")
    committed, verified = Instant(AS_OF + hour), Instant(AS_OF + 5 * hour)
    world.set_now(committed)
    steps.publish(s, plan_id)
    world.set_now(Instant(AS_OF + 2 * hour))
    steps.publish(s, plan_id)
    world.set_now(verified)
    assert steps.verify(s, plan_id).name == "published"
    (topic,) = Receipt.from_json(s.ledger.receipt(request.request_id)).topics
    assert (topic.hidden_at, topic.rewritten_at, topic.unreachable_at) == (committed, committed, verified)
    (shown,) = status(s, [NAME])
    assert shown.last_removal is not None
    assert (shown.last_removal.plan_id, shown.last_removal.at) == (plan_id, committed)


@EVERY
def test_the_receipt_tells_what_went_and_holds(make_world: MakeWorld) -> None:
    world = make(make_world({}))
    append(world, b"a", KEY)
    request_id = erase(world)
    receipt = json.loads(world.services.ledger.receipt(request_id))
    (topic,) = receipt["topics"]
    assert (topic["topic"], topic["rows"]) == (str(NAME), 1)
    assert KEY.decode() not in json.dumps(receipt)
    assert receipts.verify(world.services, request_id) == []
    append(world, KEY)
    assert receipts.verify(world.services, request_id) != [], "nothing forbade it"


@EVERY
def test_neither_plan_nor_ledger_tells_the_key(make_world: MakeWorld, store_kind: Backend) -> None:
    world = make(make_world({}))
    append(world, b"a", KEY)
    erase(world)
    ledger = world.services.ledger
    told = [ledger.record(summary.plan_id) for summary in ledger.plans(NAME)]
    assert told
    for record in told:
        text = record.plan.to_json() + repr(record)
        assert not any(spelled in text for spelled in spellings(KEY)), store_kind


def spellings(key: bytes) -> list[str]:
    return [key.decode("latin-1"), key.hex(), base64.b64encode(key).decode(), repr(key)]


def folder_of(world: World) -> Path:
    return Path(world.services.topics._logs._root)  # type: ignore[attr-defined]  # where this test looks for bytes


def bytes_under(folder: Path) -> Iterator[tuple[Path, bytes]]:
    yield from ((path, path.read_bytes()) for path in folder.rglob("*") if path.is_file())


@FILES
@pytest.mark.parametrize("key", [KEY, ODD, b'"quoted" \\ \n'])
def test_no_file_tells_the_key_in_any_spelling(make_world: MakeWorld, key: bytes) -> None:
    world = make(make_world({}, StoreOptions(max_bytes=120)))
    append(world, b"a", key, b"b", key)
    append(world, key, partition=1)
    folder = folder_of(world)
    spelled = [key, base64.b64encode(key), json.dumps(key.decode("latin-1"))[1:-1].encode()]
    assert any(one in content for _, content in bytes_under(folder) for one in spelled)
    erase(world, key)
    assert keys(world) == [b"a", b"b"]
    for path, content in bytes_under(folder):
        assert not any(one in content for one in spelled), path
        assert path.suffix != ".new"


@FILES
@pytest.mark.parametrize("in_quarantine", [False, True])
def test_damaged_lines_that_tell_the_key_go_and_others_stay(make_world: MakeWorld, *, in_quarantine: bool) -> None:
    world = make(make_world({}))
    append(world, b"a", KEY, b"b", b"c", b"d")
    assert world.damage is not None
    world.damage(NAME, 2, '{"partition":0,"offset":1,"key":"' + KEY.decode() + '","val')
    world.damage(NAME, 4, "no message either")
    if in_quarantine:
        append(world, b"e")
    folder = folder_of(world)
    assert any(KEY in content for _, content in bytes_under(folder))
    request_id = erase(world)
    assert not any(KEY in content for _, content in bytes_under(folder))
    assert any(b"no message either" in content for _, content in bytes_under(folder))
    assert world.quarantined(NAME) == 1
    assert [key for key in keys(world) if key != b"e"] == [b"a", b"b", b"d"]
    assert receipts.verify(world.services, request_id) == []


@FILES
def test_a_receipt_does_not_hold_where_a_damaged_line_that_came_since_tells_the_key(make_world: MakeWorld) -> None:
    world = make(make_world({}))
    append(world, b"a", KEY, b"b")
    request_id = erase(world)
    assert receipts.verify(world.services, request_id) == []
    assert world.damage is not None
    world.damage(NAME, 2, '{"partition":0,"offset":9,"key":"' + KEY.decode() + '","val')
    assert any("the quarantine" in found for found in receipts.verify(world.services, request_id))


@EVERY
def test_messages_that_come_after_the_plan_stay_but_of_the_key_make_it_plan_again(make_world: MakeWorld) -> None:
    world = make(make_world({}))
    append(world, b"a", KEY)
    request = ask(world.services, [KEY], topics=[NAME], forbid=False, by="ada", why="a letter")

    def late(_plan: Plan, _report: GateReport) -> tuple[bool, str, str]:
        if len(stored(world)) == 2:
            append(world, b"new", KEY)
        return YES

    carry_out(world.services, request.request_id, approver=late)
    assert keys(world) == [b"a", b"new"]


@EVERY
def test_messages_that_come_before_it_is_judged_stay_as_well(make_world: MakeWorld) -> None:  # DEL-4
    world = make(make_world({}))
    append(world, b"a", KEY)
    s, request = world.services, ask(world.services, [KEY], topics=[NAME], forbid=False, by="ada", why="a letter")
    plan_id = steps.plan(s, NAME, as_of=AS_OF, work=EraseKey(request_id=request.request_id)).plan.plan_id
    append(world, b"b")
    steps.stage(s, plan_id)
    append(world, b"c")
    report = steps.gate(s, plan_id)
    assert report.judgement == "needs_approval", report.blocking
    steps.approve(s, plan_id, granted=True, by="ada", text="a letter")
    steps.publish(s, plan_id)
    assert steps.verify(s, plan_id).name == "published"
    assert keys(world) == [b"a", b"b", b"c"]


@EVERY
def test_consumers_do_not_hold_an_erasure(make_world: MakeWorld) -> None:
    world = make(make_world({}))
    append(world, b"a", KEY)
    world.services.ledger.commit(NAME, "slow", 0, 0, AS_OF)
    erase(world)
    assert keys(world) == [b"a"]


@EVERY
def test_what_another_writer_removed_meanwhile_is_planned_again(make_world: MakeWorld) -> None:
    world = make(make_world({}))
    append(world, b"a", KEY, KEY)
    request = ask(world.services, [KEY], topics=[NAME], forbid=False, by="ada", why="a letter")
    s = world.services
    plan_id = steps.plan(s, NAME, as_of=AS_OF, work=EraseKey(request_id=request.request_id)).plan.plan_id
    steps.stage(s, plan_id)
    world.writer.foreign_delete(NAME, [(0, 1)])
    carry_out(s, request.request_id, approver=lambda _plan, _report: YES)
    assert keys(world) == [b"a"]


@MEMORY
def test_no_state_that_can_be_read_back_has_the_key_any_more(make_world: MakeWorld) -> None:
    world = make(make_world({}), cleanup_policy="compact,delete")
    append(world, b"a", KEY, b"b", KEY)
    s = world.services
    steps.run(s, NAME, as_of=AS_OF, work="compaction")
    steps.run(s, NAME, as_of=AS_OF, work=RemoveMessages(positions=((0, 1),)), approver=lambda _plan, _report: YES)
    request_id = erase(world)
    store = s.topics
    tables = store.of(NAME)  # type: ignore[attr-defined]  # every version there is
    assert all(message.key != KEY for commit in tables.log.commits for message in commit.version.messages.values())
    assert all(row.message.key != KEY for commit in tables.view.commits for row in commit.version.rows)
    assert steps.run(s, NAME, as_of=AS_OF, work="compaction").name == "no_op"
    view = s.stores.view.view(NAME)
    assert view is not None
    assert [row.message.key for row in s.stores.view.view_rows(NAME, view)] == [b"a", b"b"]
    assert receipts.verify(s, request_id) == []


@EVERY
@pytest.mark.parametrize("when", WHENS)
def test_a_hold_on_the_key_refuses_the_erasure_whole(make_world: MakeWorld, when: When) -> None:
    world = make(make_world({}))
    append(world, b"a", KEY, b"b")
    before = stored(world)
    request = ask(world.services, [KEY], topics=[NAME], forbid=False, by="ada", why="a letter")
    work = EraseKey(request_id=request.request_id)
    with pytest.raises(HeldByLegalHold, match="case 7"):
        run_with_hold(world.services, NAME, work, as_of=AS_OF, when=when, place=lambda: held(world.services, NAME, key=KEY))
    assert stored(world) == before
    (_, refused), *_ = world.services.ledger.history(NAME, operations=("erasure",))
    assert refused.name == "refused"


@EVERY
def test_a_hold_on_another_key_lets_the_erasure_go_and_keeps_its_own(make_world: MakeWorld) -> None:
    world = make(make_world({}))
    append(world, b"a", KEY, b"b")
    held(world.services, NAME, key=b"a")
    erase(world)
    assert keys(world) == [b"a", b"b"]


@FILES
def test_a_hold_on_another_key_that_a_damaged_line_tells_as_well_refuses_the_erasure(make_world: MakeWorld) -> None:
    """No such line is a message of either; which of them it would have been, nobody knows."""
    world = make(make_world({}))
    append(world, b"a", KEY, b"b")
    assert world.damage is not None
    world.damage(NAME, 2, '{"partition":0,"offset":1,"key":"' + KEY.decode() + '","value":"customer 4 of the south')
    held(world.services, NAME, key=b"customer 5")
    held(world.services, NAME, key=b"customer 4 of the south")
    before = stored(world)
    request = ask(world.services, [KEY], topics=[NAME], forbid=False, by="ada", why="a letter")
    with pytest.raises(HeldByLegalHold, match="1 message"):
        steps.plan(world.services, NAME, as_of=AS_OF, work=EraseKey(request_id=request.request_id))
    assert stored(world) == before


@EVERY
def test_a_hold_that_may_touch_what_history_alone_has_refuses_the_erasure(make_world: MakeWorld) -> None:
    world = make(make_world({}))
    append(world, b"a", KEY, b"b")
    held(world.services, NAME, offsets=(0, 0))
    request = ask(world.services, [KEY], topics=[NAME], forbid=False, by="ada", why="a letter")
    with pytest.raises(HeldByLegalHold):
        steps.plan(world.services, NAME, as_of=AS_OF, work=EraseKey(request_id=request.request_id))
    assert keys(world) == [b"a", KEY, b"b"]
