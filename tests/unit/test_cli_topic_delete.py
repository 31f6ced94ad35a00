"""`lifecycle topic delete`, `topic list --deleted`, and the undo of a deletion."""

from __future__ import annotations

import pytest

from message_lifecycle.model.names import TopicName
from tests.worlds import Lake, make_lake

WORD = ("--by", "ada", "--why", "not needed")


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


@pytest.fixture
def orders(lake: Lake) -> TopicName:
    topic = lake.topic("shop/orders", max_removed_fraction=1.0)
    lake.append(topic, 30, 25, 3)
    return topic


def test_a_topic_is_deleted_listed_and_brought_back(lake: Lake, orders: TopicName) -> None:
    told = lake.say("topic", "delete", "shop/orders", *WORD)
    assert told.status == 0
    assert "shop/orders: deleted, with 3 messages" in told.out
    assert told.out.count("Undo: lifecycle undo ") == 1
    assert lake.say("topic", "list", "-o", "json").document == []
    unknown = lake.say("topic", "describe", "shop/orders")
    assert (unknown.status, unknown.err.split(":")[0]) == (2, "UnknownTopic")
    (deleted,) = lake.say("topic", "list", "--deleted", "-o", "json").document
    assert (deleted["topic"], deleted["messages"], deleted["tables"]) == ("shop/orders", 3, ["log"])
    assert deleted["undo_until"] > deleted["deleted_at"]
    shown = lake.say("topic", "list", "--deleted").out
    assert "shop/orders" in shown
    assert deleted["plan_id"][:12] in shown
    assert lake.say("topic", "list", "--deleted", "--stream", "other", "-o", "json").document == []
    page = lake.say("explain", deleted["plan_id"], "-o", "json").document
    assert (page["operation"], page["requested_by"]) == ("topic_delete", "ada")
    assert [(action["action"], action["table"], action["rows"]) for action in page["actions"]] == [("delete_table", "log", 3)]
    assert "Deletes the topic" in lake.say("explain", deleted["plan_id"]).out
    again = lake.say("topic", "delete", "shop/orders", *WORD, "-o", "json").document
    assert (again["outcome"], again["first_plan_id"]) == ("no_op", deleted["plan_id"])
    back = lake.say("undo", deleted["plan_id"][:12], *WORD, "-o", "json").document
    assert (back["outcome"], back["restored"], back["messages_kept"]) == ("published", 3, 3)
    assert lake.stored(orders) == [0, 1, 2]
    assert "no deleted topics" in lake.say("topic", "list", "--deleted").out
    assert "Brings back the topic" in lake.say("explain", back["plan_id"]).out


def test_the_deletion_of_an_empty_topic_shows_its_undo_too(lake: Lake) -> None:
    lake.topic("shop/empty")
    assert lake.say("topic", "delete", "shop/empty", *WORD).out.count("Undo: lifecycle undo ") == 1


def test_a_deletion_has_a_name_and_a_reason(lake: Lake, orders: TopicName) -> None:
    assert lake.say("topic", "delete", "shop/orders", "--by", " ", "--why", "why").status == 2
    assert lake.stored(orders) == [0, 1, 2]


def test_a_hold_refuses_and_the_refusal_is_told(lake: Lake, orders: TopicName) -> None:
    assert lake.say("hold", "add", "shop/orders", "--from", "2", "--to", "2", "--by", "ada", "--why", "case 7").status == 0
    refused = lake.say("topic", "delete", "shop/orders", *WORD)
    assert refused.err.startswith("HeldByLegalHold: ")
    assert refused.status != 0
    assert lake.stored(orders) == [0, 1, 2]
    outcomes = [outcome for _, outcome in lake.services.ledger.history(orders)]
    assert [(outcome.operation, outcome.name) for outcome in outcomes] == [("topic_delete", "refused")]


def test_an_approver_who_asked_waits_for_another(lake: Lake) -> None:
    topic = lake.topic("shop/two", max_removed_fraction=1.0, approver_is_not_requester=True)
    lake.append(topic, 30)
    told = lake.say("topic", "delete", "shop/two", *WORD, "-o", "json").document
    assert told["outcome"] == "needs_approval"
    assert lake.say("approve", told["plan_id"], "--by", "bob", "--why", "agreed").status == 0
    assert lake.say("publish", told["plan_id"]).status == 0
    assert lake.say("verify", told["plan_id"]).status == 0
    assert lake.say("topic", "list", "-o", "json").document == []
