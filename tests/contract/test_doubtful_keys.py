"""A key with U+FFFD in it may be from before keys were kept as bytes, and stand for several: who would take messages of it is asked (MSG-1)."""

from __future__ import annotations

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import STANDS_FOR_SEVERAL, NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import PurgeKey
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
