"""An erased key that is forbidden does not come in again: not by an append, not by a copy, and nothing of it is kept (every store)."""

from __future__ import annotations

from pathlib import Path

import pytest

from message_lifecycle.app.erasure_secret import forbidden_keys
from message_lifecycle.app.erasures import allow_keys_again, ask
from message_lifecycle.app.parts import with_parts
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import copy_topic, create_topic
from message_lifecycle.ledger import open_ledger, restore_ledger
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.operations.admission import ERASED, Refusal
from tests.contract.conftest import MakeWorld, on
from tests.errors import raises

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
    request = ask(world.services, [KEY], topics=[name], forbid=True, by="ada", why="a letter")
    assert append(world, name, b"a", KEY, None, b"", KEY + b"8") == [(0, 2), ERASED, (0, 3), (0, 4), (0, 5)]
    assert [message.key for message in stored(world, name)] == [KEY, b"b", b"a", None, b"", KEY + b"8"]
    world.services.ledger.allow_keys_again(request.request_id, by="bob", why="a new contract")
    assert append(world, name, KEY) == [(0, 6)]


@EVERY
def test_a_request_forbids_and_allows_all_its_keys(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic(world)
    request = ask(world.services, [KEY, b"b"], topics=[name], forbid=True, by="ada", why="a letter")
    other = ask(world.services, [b"c"], topics=[name], forbid=True, by="ada", why="a letter")
    assert append(world, name, b"a", KEY, b"b", b"c") == [(0, 0), ERASED, ERASED, ERASED]
    allow_keys_again(world.services, request.request_id, by="bob", why="a new contract")
    assert append(world, name, KEY, b"b", b"c") == [(0, 1), (0, 2), ERASED]
    allow_keys_again(world.services, other.request_id, by="bob", why="a new contract")
    assert append(world, name, b"c") == [(0, 3)]


@EVERY
@pytest.mark.parametrize("change", ["forbidden", "allowed again"])
def test_a_ledger_from_before_takes_nothing_in(make_world: MakeWorld, tmp_path: Path, change: str) -> None:
    """An older ledger would take a key that is forbidden since, or drop one that is allowed again."""
    world = make_world({})
    _from_before(world, topic(world), tmp_path, every=False, lifted=change == "allowed again")


@pytest.mark.parametrize("lifted", [False, True])
def test_a_key_that_is_forbidden_in_every_topic_leaves_a_mark_on_each(make_world: MakeWorld, tmp_path: Path, lifted: bool) -> None:
    world = make_world({})
    origin = topic(world)
    replica = topic(world, "copy", role="source", origin=str(origin))
    append(world, origin, b"a")
    before = _from_before(world, replica, tmp_path, every=True, lifted=lifted)
    with raises("LedgerMismatch"):
        copy_topic(before, replica)


def _from_before(world: World, name: TopicName, folder: Path, *, every: bool, lifted: bool) -> Services:
    s, topics = world.services, [] if every else [name]
    request = ask(s, [KEY], topics=topics, forbid=True, by="ada", why="a letter") if lifted else None
    s.ledger.backup(folder / "backup.gz")
    if request is None:
        ask(s, [KEY], topics=topics, forbid=True, by="ada", why="a letter")
    else:
        allow_keys_again(s, request.request_id, by="bob", why="a new contract")
    address = f"sqlite:///{folder}/older.sqlite"
    restore_ledger(address, folder / "backup.gz")
    older = open_ledger(address, clock=s.ledger.now)
    with raises("LedgerMismatch", match="older state"):
        older.check(name, s.topics.describe(name).ledger)
    s.ledger.check(name, s.topics.describe(name).ledger)
    return with_parts(s, ledger=older)


@pytest.mark.parametrize("role", ["source", "mirror"])
def test_a_copy_leaves_a_forbidden_key_out_and_passes_it(make_world: MakeWorld, role: str) -> None:
    world = make_world({})
    origin = topic(world)
    replica = topic(world, f"the {role}", role=role, origin=str(origin))
    append(world, origin, b"a", KEY, b"b")
    ask(world.services, [KEY], topics=[replica], forbid=True, by="ada", why="a letter")
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
