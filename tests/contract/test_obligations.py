"""What a topic obliges is the same on every store (OBL-1): kinds, amounts, since when, and who holds it."""

from __future__ import annotations

from typing import Any

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.erasures import ask
from message_lifecycle.app.holds import place_hold
from message_lifecycle.app.rendering import as_json
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.views.status import topic_status
from message_lifecycle.model.hold import HeldRange
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from tests.contract.conftest import MakeWorld, on

SECOND = 1_000_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR
NOW = Instant(100 * DAY)


def topic(world: World, **settings: Value) -> TopicName:
    """Three messages of one key: two days old, one day old, and of now; each in a segment of its own."""
    world.set_now(NOW)
    name = TopicName(stream=f"{world.scratch}.obliged", topic="orders")
    create_topic(world.services, name, settings={"max_removed_fraction": 1.0, **settings})
    for age in (2 * DAY, DAY, 0):
        new = [NewMessage(append_time=Instant(NOW - age), key=b"k", value=b"v")]
        world.writer.append(name, new, policy_of(world.services, name))
        world.writer.seal(name, 0)
    return name


def told(world: World, name: TopicName) -> dict[str, tuple[Any, ...]]:
    found = topic_status(world.services, name)
    by_kind = {one["kind"]: one for one in as_json(found.obligations) if one["kind"] != "quarantine"}
    return {
        kind: (one["state"], one["amount"], one["due_since"], [(held["holder"], held["messages"]) for held in one["held"]])
        for kind, one in by_kind.items()
    }


@pytest.mark.parametrize("store_kind", on("memory", "iceberg"), indirect=True)
def test_what_has_expired_is_late_and_a_hold_makes_it_held(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic(world, message_expiry=3_600)
    world.set_now(Instant(NOW + 30 * HOUR))
    assert told(world, name) == {
        "expiry": ("late", 3, "1970-04-09T01:00:00Z", []),
        "reclaim": ("idle", 0, None, []),
    }
    place_hold(world.services, name, by="ada", why="a trial", offsets=HeldRange(partition=0, first=0, last=0))
    steps.run(world.services, name, as_of=Instant(NOW + 30 * HOUR), approver=lambda _plan, _report: (True, "ada", "meant"))
    assert told(world, name)["expiry"] == ("held", 0, "1970-04-09T01:00:00Z", [("hold", 1)])


@pytest.mark.parametrize("store_kind", on("memory", "iceberg"), indirect=True)
def test_compaction_purge_and_an_erasure_that_nobody_runs_are_late(make_world: MakeWorld) -> None:
    world = make_world({})
    name = topic(world, cleanup_policy="compact")
    world.set_now(Instant(NOW + 2 * DAY))
    # Nobody could compact anything before the ledger knew the topic.
    assert told(world, name) == {
        "compaction": ("late", 3, "1970-04-11T00:00:00Z", []),
        "purge": ("idle", 0, None, []),
        "reclaim": ("idle", 0, None, []),
    }
    steps.run(world.services, name, as_of=Instant(NOW + 2 * DAY), work="compaction")
    ask(world.services, [b"k"], topics=[name], forbid=False, by="ada", why="a letter")
    world.set_now(Instant(NOW + 4 * DAY))
    assert told(world, name) == {
        "compaction": ("late", 0, None, []),
        "purge": ("late", 3, "1970-04-13T00:00:00Z", []),
        "reclaim": ("idle", 0, None, []),
        "erasure": ("late", None, "1970-04-13T00:00:00Z", []),
    }
