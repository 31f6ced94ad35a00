"""Topics whose names are from before names had today's rules (NAME-1): each is one of its own in every store."""

from __future__ import annotations

import pytest

from message_lifecycle.app.known import all_topics, meant_topic
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import alter_topic, create_topic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import resolve
from message_lifecycle.model.topic import BACKENDS
from tests.contract.conftest import MakeWorld, on
from tests.errors import raises

NOW = Instant(100_000_000)
OF_ONE_NAME = ("\u00e9t\u00e9", "e\u0301te\u0301")
SPELLED = ("\u00e9te\u0301",)
REFUSED_TODAY = ("-x", "\u200dx", "\u200d")


def older(world: World, topic: str) -> TopicName:
    s, name = world.services, TopicName(stream=f"{world.scratch}.named" if world.scratch else "named", topic=topic)
    made = s.topics.create(name, partitions=1, settings={}, ledger=s.ledger.next_identity(name))
    s.ledger.set_accepted(name, resolve(topic=made.settings, server=s.server).values)
    value = NewMessage(append_time=NOW, key=b"k", value=topic.encode())
    world.writer.append(name, [value], policy_of(s, name))
    return name


def read(s: Services, name: TopicName) -> list[bytes | None]:
    return [message.value for message in s.reader.messages(name)]


@pytest.mark.parametrize("store_kind", on(*BACKENDS), indirect=True)
def test_a_topic_from_before_is_read_and_altered_by_exactly_its_name(make_world: MakeWorld) -> None:
    world = make_world({})
    world.set_now(NOW)
    s = world.services
    names = [older(world, topic) for topic in (*OF_ONE_NAME, *REFUSED_TODAY)]
    for days, name in enumerate(names, 1):
        assert meant_topic(s, name) == name
        alter_topic(s, name, {"max_age_seconds": float(days)})
    for days, name in enumerate(names, 1):
        assert dict(s.topics.describe(name).settings) == {"max_age_seconds": float(days)}
        assert read(s, name) == [name.topic.encode()]
    assert [name for name in all_topics(s) if name.stream == names[0].stream] == sorted(names)


@pytest.mark.parametrize("store_kind", on(*BACKENDS), indirect=True)
def test_two_that_are_one_name_in_nfc_are_both_named_and_never_merged(make_world: MakeWorld) -> None:
    world = make_world({})
    world.set_now(NOW)
    s = world.services
    names = [older(world, topic) for topic in OF_ONE_NAME]
    (third,) = (TopicName(stream=names[0].stream, topic=topic) for topic in SPELLED)
    with raises("AmbiguousName") as refused:
        meant_topic(s, third)
    for name in names:
        escaped = "".join(char if char.isascii() else f"\\u{ord(char):04x}" for char in str(name))
        assert f"$'{escaped}'" in str(refused.value)
    with raises("TopicExists"):
        create_topic(s, third, settings={})
    assert [read(s, name) for name in names] == [[topic.encode()] for topic in OF_ONE_NAME]
