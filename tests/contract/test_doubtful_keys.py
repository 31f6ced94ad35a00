"""A key with U+FFFD in it may be from before keys were kept as bytes, and stand for several: who would take messages of it is asked (MSG-1)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from message_lifecycle.app import doubtful_keys, steps
from message_lifecycle.app.doubtful_keys import read_keys
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.views.status import status
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import STANDS_FOR_SEVERAL, DoubtfulKeys, NewMessage, RowAnswer
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import PurgeKey, RemoveMessages, Request, UndoPlan
from tests.contract.conftest import MakeWorld, on

SECOND = 1_000_000
NOW = Instant(100 * SECOND)
MERGED = "caf\ufffd".encode()
STORED = ("memory", "json_file", "rotating_file", "redis_streams", "iceberg")
STORES = pytest.mark.parametrize("store_kind", on("memory", "iceberg"), indirect=True)


def topic(make_world: MakeWorld, *keys: bytes) -> tuple[World, TopicName]:
    world = make_world({})
    world.set_now(NOW)
    name = TopicName(stream=f"{world.scratch}.doubtful", topic="orders")
    create_topic(world.services, name, settings={"max_removed_fraction": 1.0})
    write(world, name, *keys)
    return world, name


def write(world: World, name: TopicName, *keys: bytes) -> None:
    new = [NewMessage(append_time=Instant(SECOND), key=key, value=b"v") for key in keys]
    world.writer.append(name, new, policy_of(world.services, name))


def compacted(world: World, name: TopicName) -> str:
    return steps.run(world.services, name, as_of=NOW, work="compaction").name


@STORES
@pytest.mark.parametrize(
    ("keys", "ended"),
    [
        pytest.param((MERGED, b"a", b"a"), "published", id="once"),
        pytest.param((MERGED, MERGED), "needs_approval", id="twice"),
        pytest.param((b"caf\xe9", b"caf\xe9"), "published", id="bytes"),
        pytest.param((b"\xff" + MERGED, b"\xff" + MERGED), "published", id="no text"),
    ],
)
def test_compaction_asks_before_one_gives_way_to_a_newer_one(make_world: MakeWorld, keys: tuple[bytes, ...], ended: str) -> None:
    world, name = topic(make_world, *keys)
    assert compacted(world, name) == ended


@STORES
def test_what_is_in_the_view_is_asked_about_when_a_newer_one_comes_and_not_after_the_answer(make_world: MakeWorld) -> None:
    world, name = topic(make_world, MERGED, b"a")
    assert compacted(world, name) == "published"
    write(world, name, MERGED)
    assert compacted(world, name) == "needs_approval"
    record = world.services.ledger.open_plan(name)
    assert record is not None
    assert record.report is not None
    assert [check.id for check in record.report.checks if not check.passed] == ["doubtful"]
    steps.approve(world.services, record.plan.plan_id, granted=True, by="ada", text="it is one key")
    steps.publish(world.services, record.plan.plan_id)
    assert steps.verify(world.services, record.plan.plan_id).name == "published"
    write(world, name, b"a")
    assert compacted(world, name) == "published"


@STORES
@pytest.mark.parametrize(("key", "ended"), [(MERGED, "needs_approval"), (b"caf\xe9", "published")], ids=["doubtful", "bytes"])
def test_a_purge_by_such_a_key_asks(make_world: MakeWorld, key: bytes, ended: str) -> None:
    world, name = topic(make_world, key, b"a", b"b", b"c")
    outcome = steps.run(world.services, name, as_of=NOW, work=PurgeKey(key=key))
    assert outcome.name == ended


@pytest.mark.parametrize("store_kind", on(*STORED), indirect=True)
@pytest.mark.parametrize(("key", "asks"), [(MERGED, True), (b"caf\xe9", False)], ids=["doubtful", "bytes"])
def test_an_erasure_of_such_a_key_asks_in_these_words_and_never_in_the_key_s(make_world: MakeWorld, key: bytes, asks: bool) -> None:
    world, name = topic(make_world, key, b"a")
    s = world.services
    request = ask(s, key, topics=[name], forbid=False, by="ada", why="a letter")
    carry_out(s, request.request_id)
    record = s.ledger.open_plan(name)
    assert record is not None
    assert record.report is not None
    assert (STANDS_FOR_SEVERAL in record.plan.asks) is asks
    (check,) = (check for check in record.report.checks if not check.passed)
    assert (STANDS_FOR_SEVERAL in check.found) is asks
    told = f"{record}{s.ledger.erasure(request.request_id)}"
    assert not any(spelled in told for spelled in (repr(key), key.decode(errors="replace"), key.hex()))
    carry_out(s, request.request_id, approver=lambda *_: (True, "ada", "all of them"))
    assert [message.key for message in s.reader.messages(name)] == [b"a"]
    assert s.ledger.erasure(request.request_id).state == "erased"


def test_of_a_key_that_is_nowhere_nothing_is_asked(make_world: MakeWorld) -> None:
    world, name = topic(make_world, b"a")
    request = ask(world.services, MERGED, topics=[name], forbid=False, by="ada", why="a letter")
    (found,) = carry_out(world.services, request.request_id)
    assert found.outcome is not None
    assert found.outcome.name == "no_op"


# What `status` says of it: what runs have found that read keys.


def told(world: World, name: TopicName) -> tuple[bool | None, str | None]:
    (entry,) = status(world.services, [name])
    return entry["doubtful_keys"]["any"], entry["doubtful_keys"]["message"]


def look(world: World, name: TopicName) -> tuple[bool | None, str | None]:
    read_keys(world.services, [name])
    return told(world, name)


def spans_read(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Mapping[int, range]]:
    """Of which offsets keys are read from now on."""
    reader, seen = world.services.reader, list[Mapping[int, range]]()
    requested = reader.requested

    def seeing(log: LogState, request: Request | DoubtfulKeys, *, as_of: Instant) -> RowAnswer:
        seen.extend([request.spans] if isinstance(request, DoubtfulKeys) else [])
        return requested(log, request, as_of=as_of)

    monkeypatch.setattr(reader, "requested", seeing)
    return seen


EVERY = pytest.mark.parametrize("store_kind", on(*STORED), indirect=True)


@EVERY
def test_unknown_until_a_run_has_read_the_keys_and_then_what_it_found(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world, name = topic(make_world, b"a", b"caf\xe9", b"\xff" + MERGED, b"")
    assert told(world, name) == (None, None)
    seen = spans_read(world, monkeypatch)
    assert look(world, name) == (False, None)
    write(world, name, b"b", MERGED, b"c")
    assert told(world, name) == (False, None), "as of that look"
    assert look(world, name) == (True, "0:5")
    write(world, name, MERGED)
    assert look(world, name) == (True, "0:5")
    assert seen == [{0: range(4)}, {0: range(4, 7)}], "what is new alone, and nothing once it is known"


@EVERY
def test_the_one_that_was_found_goes_and_another_is_looked_for(make_world: MakeWorld) -> None:
    world, name = topic(make_world, MERGED, b"a", MERGED)
    assert look(world, name) == (True, "0:2")
    s = world.services
    request = ask(s, MERGED, topics=[name], forbid=False, by="ada", why="a letter")
    carry_out(s, request.request_id, approver=lambda *_: (True, "ada", "all of them"))
    assert look(world, name) == (False, None)


@STORES
def test_one_of_several_goes(make_world: MakeWorld) -> None:
    world, name = topic(make_world, MERGED, b"a", MERGED)
    assert look(world, name) == (True, "0:2")
    world.writer.foreign_delete(name, [(0, 2)])
    assert look(world, name) == (True, "0:0")
    world.writer.foreign_delete(name, [(0, 0)])
    assert look(world, name) == (False, None)


@STORES
def test_what_the_view_alone_holds_counts(make_world: MakeWorld) -> None:
    world, name = topic(make_world, b"a", MERGED)
    assert compacted(world, name) == "published"
    world.writer.foreign_delete(name, [(0, 1)])
    assert look(world, name) == (True, "0:1")
    write(world, name, b"b")
    assert look(world, name) == (True, "0:1"), "it is still there"


@STORES
def test_what_an_undo_brings_back_is_read(make_world: MakeWorld) -> None:
    world, name = topic(make_world, MERGED, b"a", b"b", b"c")
    s = world.services
    gone = steps.run(s, name, as_of=NOW, work=RemoveMessages(positions=((0, 0),)))
    assert gone.name == "published"
    assert look(world, name) == (False, None)
    world.set_now(Instant(NOW + SECOND))
    back = steps.run(s, name, as_of=NOW, work=UndoPlan(plan_id=gone.plan_id or ""), approver=lambda *_: (True, "ada", "it was wrong"))
    assert back.name == "published"
    assert look(world, name) == (True, "0:0")


@EVERY
def test_a_large_log_is_read_by_several_looks(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubtful_keys, "_MOST_BYTES", 1)
    world, name = topic(make_world, b"a", b"b")
    world.writer.seal(name, 0)
    write(world, name, b"c", b"d")
    world.writer.seal(name, 0)
    seen = spans_read(world, monkeypatch)
    assert look(world, name) == (None, None)
    (entry,) = status(world.services, [name])
    assert "no scheduled run has read all of its keys yet" in entry["doubtful_keys"]["told"]
    assert look(world, name) == (False, None)
    assert seen == [{0: range(2)}, {0: range(2, 4)}]


@EVERY
def test_a_topic_that_is_made_anew_is_unknown(make_world: MakeWorld) -> None:
    world, name = topic(make_world, b"a")
    assert look(world, name) == (False, None)
    world.services.ledger.start_anew(name)
    assert told(world, name) == (None, None)
