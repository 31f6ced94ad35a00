"""`lifecycle topic truncate` and `lifecycle message delete-null-keys`."""

from __future__ import annotations

import pytest

from message_lifecycle.app.services import policy_of
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from tests.worlds import NOW, Lake, make_lake

WORD = ("--by", "ada", "--why", "please")


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


def filled(lake: Lake, name: str, *, partitions: int = 1) -> TopicName:
    topic = lake.topic(name, partitions=partitions, max_removed_fraction=1.0)
    new = [
        NewMessage(append_time=Instant(NOW), key=key, value=b"v", partition=partition)
        for partition in range(partitions)
        for key in (b"a", None, b"b", None)
    ]
    lake.world.writer.append(topic, new, policy_of(lake.services, topic))
    return topic


def test_a_topic_is_truncated(lake: Lake) -> None:
    topic = filled(lake, "shop/orders")
    told = lake.say("topic", "truncate", "shop/orders", "--before", "2", *WORD, "-o", "json")
    assert (told.status, told.document["removed"]) == (0, {"removed": 2})
    assert lake.stored(topic) == [2, 3]
    assert lake.services.ledger.record(told.document["plan_id"]).requested_by == "ada"
    assert "partition 0 has no message below offset 2" in lake.say("topic", "truncate", "shop/orders", "--before", "2", *WORD).out


def test_messages_without_a_key_go(lake: Lake) -> None:
    topic = filled(lake, "shop/orders")
    told = lake.say("message", "delete-null-keys", "shop/orders", "--from", "0", "--to", "2", *WORD, "-o", "json")
    assert (told.status, told.document["removed"]) == (0, {"removed": 1})
    assert lake.stored(topic) == [0, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topic", "truncate", "shop/orders", "--before", "1"), "has 2 partitions"),
        (("topic", "truncate", "shop/orders", "--before", "0", "--partition", "0"), "1 to 2^63 - 1"),
        (("topic", "truncate", "shop/orders", "--before", "6", "--partition", "1"), "has no offset 5 yet"),
        (("topic", "truncate", "shop/orders", "--before", "1", "--partition", "9"), "no partition 9"),
        (("topic", "truncate", "shop/none", "--before", "1"), "does not exist"),
        (("message", "delete-null-keys", "shop/orders", "--from", "0", "--to", "1"), "has 2 partitions"),
        (("message", "delete-null-keys", "shop/orders", "--from", "2", "--to", "1", "--partition", "0"), "found: partition 0, from 2 to 1"),
    ],
)
def test_what_cannot_be_is_named(lake: Lake, arguments: tuple[str, ...], said: str) -> None:
    topic = filled(lake, "shop/orders", partitions=2)
    told = lake.say(*arguments, *WORD)
    assert (told.status, said in told.err) == (2, True), told.err
    assert len(lake.stored(topic)) == 8
