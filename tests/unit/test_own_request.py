"""Nobody approves what they asked for, where the topic says so."""

from __future__ import annotations

import pytest

from message_lifecycle.app import steps
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import RemoveMessages
from tests.errors import raises
from tests.worlds import NOW, Lake, make_lake

REQUEST = RemoveMessages(positions=((0, 0),))


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


def topic_of(lake: Lake, *, apart: bool) -> TopicName:
    """One message: to remove it empties the log, which a person is asked about."""
    name = lake.topic("shop/orders", approver_is_not_requester=apart)
    lake.append(name, 1)
    return name


def test_the_requester_is_asked_for_another_name(lake: Lake) -> None:
    name = topic_of(lake, apart=True)
    told = lake.say("message", "delete", "shop/orders", "0:0", "--by", "Ada", "--text", "please", "-o", "json")
    assert (told.status, told.document["outcome"]) == (5, "needs_approval")
    plan_id = told.document["plan_id"]
    assert lake.services.ledger.record(plan_id).requested_by == "Ada"
    own = lake.say("approve", plan_id, "--by", " ada ", "--text", "fine")
    assert own.status == 3
    assert "somebody else approves it" in own.err
    assert lake.say("approve", plan_id, "--by", "bob", "--text", "fine").status == 0
    assert lake.say("publish", plan_id).status == 0
    assert lake.stored(name) == []


def test_the_requester_may_withdraw(lake: Lake) -> None:
    name = topic_of(lake, apart=True)
    plan_id = lake.say("message", "delete", "shop/orders", "0:0", "--by", "ada", "--text", "please", "-o", "json").document["plan_id"]
    assert lake.say("refuse", plan_id, "--by", "ada", "--text", "a mistake").status == 0
    assert lake.stored(name) == [0]


def test_elsewhere_a_persons_word_is_enough(lake: Lake) -> None:
    name = topic_of(lake, apart=False)
    assert lake.say("message", "delete", "shop/orders", "0:0", "--by", "ada", "--text", "please").status == 0
    assert lake.stored(name) == []


def test_nobody_asked_for_what_a_schedule_does(lake: Lake) -> None:
    name = lake.topic("shop/clicks", message_expiry=60, approver_is_not_requester=True)
    lake.append(name, 1)
    plan_id = steps.plan(lake.services, name, as_of=NOW).plan.plan_id
    steps.stage(lake.services, plan_id)
    assert steps.gate(lake.services, plan_id).judgement == "needs_approval"
    assert steps.approve(lake.services, plan_id, granted=True, by="ada", text="fine").granted


def test_the_verb_itself_refuses(lake: Lake) -> None:
    name = topic_of(lake, apart=True)
    plan_id = steps.plan(lake.services, name, as_of=NOW, work=REQUEST, requested_by="ada").plan.plan_id
    steps.stage(lake.services, plan_id)
    steps.gate(lake.services, plan_id)
    with raises("OwnRequest"):
        steps.approve(lake.services, plan_id, granted=True, by="ADA", text="fine")
    assert lake.services.ledger.record(plan_id).approval is None


def test_who_asks_for_an_undo_is_kept(lake: Lake) -> None:
    name = topic_of(lake, apart=False)
    removed = lake.say("message", "delete", "shop/orders", "0:0", "--by", "ada", "--text", "please", "-o", "json").document
    undone = lake.say("undo", removed["plan_id"], "--by", "eve", "--text", "a mistake", "-o", "json")
    assert (undone.status, lake.stored(name)) == (0, [0]), undone.err
    assert lake.services.ledger.record(undone.document["plan_id"]).requested_by == "eve"
