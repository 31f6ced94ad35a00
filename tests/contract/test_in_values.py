"""A key inside the values and headers of other messages is found in every store, and named by place; nothing of it changes (DEL-7)."""

from __future__ import annotations

import base64
import json

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.in_values import find_in_values
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.model.in_values import TopicValues
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.request import RemoveMessages
from tests.archives import Archived
from tests.contract.conftest import MakeWorld, at_both, on
from tests.contract.test_erasure import AS_OF, KEY, NAME, YES, append, erase, make, stored

EVERY = pytest.mark.parametrize("store_kind", on("memory", "iceberg", "json_file", "rotating_file", "redis_streams"), indirect=True)
TABLES = pytest.mark.parametrize("store_kind", on("memory", "iceberg"), indirect=True)


def put(
    world: World, *values: bytes | None, key: bytes | None = b"k", partition: int = 0, headers: tuple[tuple[str, bytes], ...] = ()
) -> None:
    new = [NewMessage(append_time=AS_OF, key=key, value=value, headers=headers, partition=partition) for value in values]
    world.writer.append(NAME, new, policy_of(world.services, NAME))


def searched(world: World, key: bytes = KEY) -> TopicValues:
    (found,) = find_in_values(world.services, key, [NAME]).topics
    assert found.error == ""
    return found


def places(found: TopicValues) -> list[tuple[str, int | None, str, int, int]]:
    return [(place.table, place.partition, place.offsets, place.rows, place.live) for place in found.places]


@EVERY
def test_every_form_of_the_key_is_found_in_values_and_headers(make_world: MakeWorld) -> None:
    world = make(make_world({}))
    text = json.dumps({"to": KEY.decode() + ' "x"'}).encode()
    put(world, b"none", b"of " + KEY + b"!", None, KEY.hex().encode(), base64.b64encode(KEY), text, b"customer 1")
    put(world, b"own " + KEY, key=KEY)
    put(world, b"v", key=None, partition=1, headers=(("h", b"x"), ("h", b"by " + KEY)))
    put(world, b"v", key=KEY + b"8", partition=1)
    before = stored(world)
    assert places(searched(world)) == [("log", 0, "1,3-5", 4, 4), ("log", 1, "0", 1, 1)]
    assert stored(world) == before
    erase(world)
    assert places(searched(world)) == [("log", 0, "1,3-5", 4, 4), ("log", 1, "0", 1, 1)], "an erasure is of a key, not of values"
    assert places(searched(world, b"found nowhere")) == []


@EVERY
def test_a_short_key_is_found_as_a_word_alone(make_world: MakeWorld) -> None:
    world = make(make_world({}))
    put(world, b"order 17, paid", b"order 170", b'{"id":17}', b"a17")
    assert places(searched(world, b"17")) == [("log", 0, "0,2", 2, 2)]


@TABLES
def test_rows_that_only_history_has_are_counted_apart(make_world: MakeWorld) -> None:
    world = make(make_world({}))
    put(world, b"of " + KEY, b"of " + KEY)
    removed = RemoveMessages(positions=((0, 1),))
    outcome = steps.run(world.services, NAME, as_of=AS_OF, work=removed, approver=lambda _plan, _report: YES, requested_by="ada")
    assert outcome.name == "published", outcome.detail
    assert places(searched(world)) == [("log", 0, "0-1", 2, 1)]


@TABLES
def test_the_compacted_view_is_searched(make_world: MakeWorld) -> None:
    world = make(make_world({}), cleanup_policy="compact")
    put(world, b"of " + KEY, b"newer of " + KEY)
    append(world, b"other")
    outcome = steps.run(world.services, NAME, as_of=AS_OF, work="compaction", approver=lambda _plan, _report: YES)
    assert outcome.name == "published", outcome.detail
    assert places(searched(world)) == [("log", 0, "0-1", 2, 2), ("view", 0, "1", 1, 1)]


@at_both("memory", "json_file", "redis_streams")
def test_archives_are_searched(make_world: MakeWorld, archive: Archived) -> None:
    world = make(make_world({}), max_records=1, on_remove="archive", archive_to=archive.to)
    put(world, b"a", b"of " + KEY, b"of " + KEY)
    steps.run(world.services, NAME, as_of=AS_OF, work="retention", approver=lambda _plan, _report: YES)
    found = searched(world)
    assert places(found) == [("log", 0, "2", 1, 1), ("archive", 0, "1", 1, 0)]
    assert found.places[1].file.endswith(".parquet")
