"""A key inside the values and headers of other messages is found in every store, and named by place; nothing of it changes (DEL-7)."""

from __future__ import annotations

import base64
import json
from secrets import token_hex

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.erasures import ask, carry_out
from message_lifecycle.app.in_values import find_in_values
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.in_values import TopicValues
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import RemoveMessages
from message_lifecycle.model.setting_list import Value
from tests.archives import Archived
from tests.contract.conftest import MakeWorld, at_both, on
from tests.contract.test_erasure import AS_OF, KEY, YES

EVERY = pytest.mark.parametrize("store_kind", on("memory", "iceberg", "json_file", "rotating_file", "redis_streams"), indirect=True)
TABLES = pytest.mark.parametrize("store_kind", on("memory", "iceberg"), indirect=True)


def make(world: World, **settings: Value) -> tuple[World, TopicName]:
    """A topic of a name of its own: on tables it stays."""
    name = TopicName(stream="erasure", topic=f"values.{token_hex(4)}")
    create_topic(world.services, name, partitions=2, settings=settings)
    world.set_now(AS_OF)
    return world, name


def erase(world: World, name: TopicName) -> None:
    request = ask(world.services, [KEY], topics=[name], forbid=False, by="ada", why="a letter of 3 May")
    (found,) = carry_out(world.services, request.request_id, approver=lambda _plan, _report: YES)
    assert found.is_done, found.why_not_done()


def put(
    world: World,
    name: TopicName,
    *values: bytes | None,
    key: bytes | None = b"k",
    partition: int = 0,
    headers: tuple[tuple[str, bytes], ...] = (),
) -> None:
    new = [NewMessage(append_time=AS_OF, key=key, value=value, headers=headers, partition=partition) for value in values]
    world.writer.append(name, new, policy_of(world.services, name))


def searched(world: World, name: TopicName, *keys: bytes) -> TopicValues:
    (found,) = find_in_values(world.services, keys or (KEY,), [name]).topics
    assert found.error == ""
    return found


def places(found: TopicValues) -> list[tuple[str, int | None, str, int, int]]:
    return [(place.table, place.partition, place.offsets, place.rows, place.live) for place in found.places]


@EVERY
def test_every_form_of_the_key_is_found_in_values_and_headers(make_world: MakeWorld) -> None:
    world, name = make(make_world({}))
    text = json.dumps({"to": KEY.decode() + ' "x"'}).encode()
    put(world, name, b"none", b"of " + KEY + b"!", None, KEY.hex().encode(), base64.b64encode(KEY), text, b"customer 1")
    put(world, name, b"own " + KEY, key=KEY)
    put(world, name, b"v", key=None, partition=1, headers=(("h", b"x"), ("h", b"by " + KEY)))
    put(world, name, b"v", key=KEY + b"8", partition=1)
    before = list(world.services.reader.messages(name))
    assert places(searched(world, name)) == [("log", 0, "1,3-5", 4, 4), ("log", 1, "0", 1, 1)]
    assert list(world.services.reader.messages(name)) == before
    erase(world, name)
    assert places(searched(world, name)) == [("log", 0, "1,3-5", 4, 4), ("log", 1, "0", 1, 1)], "an erasure is of a key, not of values"
    assert places(searched(world, name, b"found nowhere")) == []


@EVERY
def test_several_keys_are_searched_together_and_a_message_of_one_is_not_named_for_another(make_world: MakeWorld) -> None:
    world, name = make(make_world({}))
    put(world, name, b"none", b"of " + KEY, b"of the other", b"17 and the other", b"170")
    put(world, name, b"of the other", key=KEY)
    assert places(searched(world, name, KEY, b"the other", b"17")) == [("log", 0, "1-3", 3, 3)]


@EVERY
def test_a_short_key_is_found_as_a_word_alone(make_world: MakeWorld) -> None:
    world, name = make(make_world({}))
    put(world, name, b"order 17, paid", b"order 170", b'{"id":17}', b"a17")
    assert places(searched(world, name, b"17")) == [("log", 0, "0,2", 2, 2)]


@TABLES
def test_rows_that_only_history_has_are_counted_apart(make_world: MakeWorld) -> None:
    world, name = make(make_world({}))
    put(world, name, b"of " + KEY, b"of " + KEY)
    removed = RemoveMessages(positions=((0, 1),))
    outcome = steps.run(world.services, name, as_of=AS_OF, work=removed, approver=lambda _plan, _report: YES, requested_by="ada")
    assert outcome.name == "published", outcome.detail
    assert places(searched(world, name)) == [("log", 0, "0-1", 2, 1)]


@TABLES
def test_the_compacted_view_is_searched(make_world: MakeWorld) -> None:
    world, name = make(make_world({}), cleanup_policy="compact")
    put(world, name, b"of " + KEY, b"newer of " + KEY)
    put(world, name, b"x", key=b"other")
    outcome = steps.run(world.services, name, as_of=AS_OF, work="compaction", approver=lambda _plan, _report: YES)
    assert outcome.name == "published", outcome.detail
    assert places(searched(world, name)) == [("log", 0, "0-1", 2, 2), ("view", 0, "1", 1, 1)]


@at_both("memory", "json_file", "redis_streams")
def test_archives_are_searched(make_world: MakeWorld, archive: Archived) -> None:
    world, name = make(make_world({}), max_records=1, on_remove="archive", archive_to=archive.to)
    put(world, name, b"a", b"of " + KEY, b"of " + KEY)
    steps.run(world.services, name, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    found = searched(world, name)
    log, archived = places(found)
    assert (log[0], log[4], archived) == ("log", 1, ("archive", 0, "1", 1, 0)), "memory keeps what can be undone"
    assert found.places[1].file.endswith(".parquet")
