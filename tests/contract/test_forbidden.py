"""An erased key that is forbidden does not come in again: not by an append, not by a copy, and nothing of it is kept (every store)."""

from __future__ import annotations

import pytest

from message_lifecycle.app.erasure_secret import forbidden_keys
from message_lifecycle.app.erasures import ask
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import copy_topic, create_topic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.operations.admission import ERASED, Refusal
from tests.contract.conftest import MakeWorld, on

KEY = b"customer 17"
EVERY = pytest.mark.parametrize("store_kind", on("memory", "json_file", "rotating_file", "redis_streams", "iceberg"), indirect=True)


def topic(world: World, short: str = "orders", **settings: Value) -> TopicName:
    name = TopicName.parse(f"{world.scratch}.forbidden/{short}" if world.scratch else f"forbidden/{short}")
    create_topic(world.services, name, settings=settings)
    return name


def append(world: World, name: TopicName, *keys: bytes | None) -> list[tuple[int, int] | Refusal]:
    new = [NewMessage(append_time=Instant(1), key=key, value=b"of " + (key or b"none")) for key in keys]
    s = world.services
    return list(world.writer.append(name, new, policy_of(s, name), forbidden_keys(s.ledger, s.key_secret, name)))


def stored(world: World, name: TopicName) -> list[Message]:
    return list(world.services.reader.messages(name))


@EVERY
def test_a_forbidden_key_gets_no_offset_and_its_neighbours_do(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic(world)
    assert append(world, name, KEY, b"b") == [(0, 0), (0, 1)]
    request = ask(world.services, KEY, topics=[name], forbid=True, by="ada", why="a letter")
    assert append(world, name, b"a", KEY, None, b"", KEY + b"8") == [(0, 2), ERASED, (0, 3), (0, 4), (0, 5)]
    assert [message.key for message in stored(world, name)] == [KEY, b"b", b"a", None, b"", KEY + b"8"]
    world.services.ledger.allow_again(request.request_id, by="bob", why="a new contract")
    assert append(world, name, KEY) == [(0, 6)]


@pytest.mark.parametrize("role", ["source", "mirror"])
def test_a_copy_leaves_a_forbidden_key_out_and_passes_it(make_world: MakeWorld, role: str) -> None:
    world = make_world({})
    origin = topic(world)
    replica = topic(world, f"the {role}", role=role, origin=str(origin))
    append(world, origin, b"a", KEY, b"b")
    ask(world.services, KEY, topics=[replica], forbid=True, by="ada", why="a letter")
    done = copy_topic(world.services, replica)
    assert (done.messages, done.erased, done.copied) == (2, 1, {0: 2})
    assert [(m.key, m.origin_offset) for m in stored(world, replica)] == [(b"a", 0), (b"b", 2)]
    append(world, origin, KEY)
    done = copy_topic(world.services, replica)
    assert (done.messages, done.erased, done.copied) == (0, 1, {0: 3})
    assert world.services.reader.end_offsets(replica) == {0: 4 if role == "mirror" else 2}
    append(world, origin, b"c")
    assert copy_topic(world.services, replica).messages == 1
    assert [m.key for m in stored(world, replica)] == [b"a", b"b", b"c"]
