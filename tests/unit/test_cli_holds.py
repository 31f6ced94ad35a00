"""`lifecycle hold`, and what other commands say of a hold."""

from __future__ import annotations

import io

import pytest

from message_lifecycle.app import steps
from message_lifecycle.model.hold import HeldKey
from message_lifecycle.model.names import TopicName
from tests.worlds import NOW, Lake, make_lake

DAY = 86_400
WORD = ("--by", "ada", "--why", "case 7")


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


@pytest.fixture
def orders(lake: Lake) -> TopicName:
    topic = lake.topic("shop/orders", message_expiry=DAY, max_removed_fraction=1.0)
    lake.append(topic, 30, 25, 3)
    return topic


def test_a_hold_on_a_deleted_topic_is_listed(lake: Lake, orders: TopicName) -> None:
    assert lake.say("topic", "delete", "shop/orders", "--by", "ada", "--why", "not needed").status == 0
    assert lake.say("hold", "add", "shop/orders", *WORD).status == 0
    (view,) = lake.say("hold", "list", "shop/orders", "-o", "json").document
    assert view["holds"] == "topic"
    assert "UnknownTopic" in lake.say("hold", "list", "shop/orderz").err


def test_a_hold_is_placed_listed_and_released(lake: Lake, orders: TopicName) -> None:
    placed = lake.say("hold", "add", "shop/orders", "--from", "0", "--to", "0", *WORD, "-o", "json")
    assert placed.status == 0
    view = placed.document
    assert (view["holds"], view["partition"], view["from"], view["to"], view["placed_by"], view["why"]) == (
        "range",
        0,
        0,
        0,
        "ada",
        "case 7",
    )
    assert view.pop("covers") == 1
    assert lake.say("hold", "list", "shop/orders", "-o", "json").document == [view]
    assert "partition 0 from 0 to 0" in lake.say("hold", "list").out
    assert lake.say("run", "shop/orders").status == 0
    assert lake.stored(orders) == [0, 2]
    assert f"legal hold {view['hold_id'][:12]} by ada: case 7" in lake.say("explain", "shop/orders", "0:0").out
    (status,) = lake.say("status", "shop/orders", "-o", "json").document
    assert [(held["holder"], held["messages"]) for held in status["held"]] == [("hold", 1)]
    assert lake.say("hold", "release", view["hold_id"][:6], "--by", "bob", "--why", "over").status == 0
    assert "no legal holds" in lake.say("hold", "list").out
    assert "bob" in lake.say("hold", "list", "--all").out
    assert lake.say("run", "shop/orders").status == 0
    assert lake.stored(orders) == [2]


@pytest.mark.parametrize("content", [b"", b"\n", b"key\r\n"])
def test_a_line_that_would_hold_nothing_is_refused(lake: Lake, orders: TopicName, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    told = lake.say("hold", "add", "shop/orders", "--key-stdin", *WORD, "-o", "json")
    assert told.status != 0
    assert "UnusableKey" in told.out + told.err
    assert not lake.services.ledger.holds(orders)


def test_the_empty_key_is_held_where_it_is_meant(lake: Lake, orders: TopicName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    assert lake.say("hold", "add", "shop/orders", "--key-stdin", "--empty-key", "--in-advance", *WORD).status == 0
    (hold,) = lake.services.ledger.holds(orders)
    assert isinstance(hold.what, HeldKey)
    assert hold.what.key == b""


def test_a_key_is_read_from_standard_input_and_shown_on_demand_alone(
    lake: Lake, orders: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"key\n")))
    placed = lake.say("hold", "add", "shop/orders", "--key-stdin", *WORD, "-o", "json").document
    assert placed["holds"] == "key" and "key" not in placed
    (shown,) = lake.say("hold", "list", "--keys", "-o", "json").document
    assert shown["key"] == "key"
    assert "0 messages" not in lake.say("run", "shop/orders").out
    assert lake.stored(orders) == [0, 1, 2], "every message of the topic has that key"


def test_a_refused_request_says_who_holds_and_ends_with_3(lake: Lake, orders: TopicName) -> None:
    lake.say("hold", "add", "shop/orders", *WORD)
    told = lake.say("message", "delete", "shop/orders", "0:0", "--by", "eve", "--why", "please")
    assert told.status == 3
    assert "by ada: case 7" in told.err
    assert lake.stored(orders) == [0, 1, 2]
    (last,) = lake.say("ledger", "list", "shop/orders", "-o", "json").document
    assert (last["outcome"], last["operation"]) == ("refused", "message_request")
    assert "HeldByLegalHold" in last["detail"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--partition", "4", "--from", "0"), "no partition 4"),
        (("--from", "9", "--to", "1"), "to is 1"),
        (("--to", "1"), "nothing without --from"),
        (("--partition", "0"), "nothing without --from"),
        (("--key", "a", "--from", "0"), "a key and offsets"),
        (("--key", "a", "--key-stdin"), "exclude each other"),
        (("--key", "!", "--base64"), "not base64"),
    ],
)
def test_what_holds_nothing_is_named(lake: Lake, orders: TopicName, arguments: tuple[str, ...], said: str) -> None:
    told = lake.say("hold", "add", "shop/orders", *arguments, *WORD)
    assert told.status == 2
    assert said in told.err
    assert lake.services.ledger.holds() == []


def test_unknown_topics_holds_and_nobody_are_named(lake: Lake, orders: TopicName) -> None:
    assert "does not exist" in lake.say("hold", "add", "shop/none", *WORD).err
    assert "hold 'abc' is not in the ledger" in lake.say("hold", "release", "abc", *WORD).err
    assert lake.say("hold", "add", "shop/orders", "--by", " ", "--why", "case 7").status == 2


@pytest.mark.parametrize(
    ("what", "covers"),
    [
        ((), 3),
        (("--key", "key"), 3),
        (("--from", "0"), 3),
        (("--from", "1", "--to", "1"), 1),
        (("--from", "1"), 2),
        (("--from", "0", "--to", "9"), 3),
        (("--key", "kye"), 0),
        (("--from", "3"), 0),
        (("--from", "7", "--to", "9"), 0),
    ],
    ids=["topic", "key", "all", "one", "from 1", "beyond the end", "no such key", "to come", "to come, bounded"],
)
def test_a_hold_says_how_many_messages_it_covers(lake: Lake, orders: TopicName, what: tuple[str, ...], covers: int) -> None:
    placed = lake.say("hold", "add", "shop/orders", *what, *WORD, "-o", "json")
    assert (placed.status, placed.document["covers"]) == (0 if covers else 1, covers)
    assert len(lake.services.ledger.holds(orders)) == 1, "it stands in any case"
    assert lake.say("hold", "add", "shop/orders", *what, "--in-advance", *WORD).status == 0


def test_a_hold_on_what_the_view_alone_has_covers_it(lake: Lake) -> None:
    topic = lake.topic("shop/prices", cleanup_policy="compact")
    lake.append(topic, 30, 25)
    assert lake.say("compact", "shop/prices").status == 0
    done = steps.run(lake.services, topic, as_of=NOW, work="purge_compacted", approver=lambda _plan, _report: (True, "ada", "small"))
    assert (done.name, lake.stored(topic)) == ("published", [])
    placed = lake.say("hold", "add", "shop/prices", "--key", "key", *WORD, "-o", "json")
    assert (placed.status, placed.document["covers"]) == (0, 1)
