"""Nobody approves what they asked for, where the topic says so."""

from __future__ import annotations

import pytest

from message_lifecycle.app import steps
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import RemoveMessages
from tests.errors import raises
from tests.worlds import NOW, Lake, make_lake

REQUEST = RemoveMessages(positions=((0, 0),))


SAME = {
    "case": "ADA",
    "spaces": "  a da ",
    "zero-width space": "a\u200bda",
    "zero-width joiner": "ad\u200da",
    "soft hyphen": "ad\u00ada",
    "variation selector": "ada\ufe0f",
    "tag": "ada\U000e0061",
    "Hangul filler": "a\u3164da",
    "half-width filler": "a\uffa0da",
    "full width": "\uff21\uff24\uff21",
    "mathematical": "\U0001d41a\U0001d41d\U0001d41a",
    "Cyrillic": "\u0430\u0501\u0430",
}


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
    told = lake.say("message", "delete", "shop/orders", "0:0", "--by", "Ada", "--why", "please", "-o", "json")
    assert (told.status, told.document["outcome"]) == (5, "needs_approval")
    plan_id = told.document["plan_id"]
    assert lake.services.ledger.record(plan_id).requested_by == "Ada"
    own = lake.say("approve", plan_id, "--by", " ada ", "--why", "fine")
    assert own.status == 3
    assert "Another person must approve it" in own.err
    assert lake.say("approve", plan_id, "--by", "bob", "--why", "fine").status == 0
    assert lake.say("publish", plan_id).status == 0
    assert lake.stored(name) == []


@pytest.mark.parametrize("name", SAME.values(), ids=SAME)
def test_no_other_spelling_of_the_requester_approves(lake: Lake, name: str) -> None:
    topic_of(lake, apart=True)
    plan_id = lake.say("message", "delete", "shop/orders", "0:0", "--by", "ada", "--why", "please", "-o", "json").document["plan_id"]
    with raises("OwnRequest"):
        steps.approve(lake.services, plan_id, granted=True, by=name, text="fine")
    assert lake.services.ledger.record(plan_id).approval is None


@pytest.mark.parametrize(
    "request_",
    [("message", "delete", "shop/orders", "0:0"), ("key", "purge", "shop/orders", "key", "--before", "1")],
    ids=["delete", "purge"],
)
@pytest.mark.parametrize("by", [" Ada", "ada\u200b"])
def test_a_request_below_every_limit_waits_for_a_second_person(lake: Lake, request_: tuple[str, ...], by: str) -> None:
    name = lake.topic("shop/orders", approver_is_not_requester=True, max_removed_fraction=1.0)
    lake.append(name, *range(9, 0, -1))
    told = lake.say(*request_, "--by", by, "--why", "please", "-o", "json")
    assert (told.status, told.document["outcome"]) == (5, "needs_approval"), told.err
    assert "another person must approve it" in told.out
    assert len(lake.stored(name)) == 9
    plan_id = told.document["plan_id"]
    assert lake.say("publish", plan_id).status == 5
    assert lake.say("approve", plan_id, "--by", "bob", "--why", "fine").status == 0
    assert lake.say("publish", plan_id).status == 0
    assert len(lake.stored(name)) < 9


def test_an_undo_is_asked_of_a_second_person(lake: Lake) -> None:
    name = topic_of(lake, apart=True)
    lake.say("message", "delete", "shop/orders", "0:0", "--by", "ada", "--why", "please")
    plan_id = lake.services.ledger.open_plan(name).plan.plan_id  # type: ignore[union-attr]
    lake.say("approve", plan_id, "--by", "bob", "--why", "fine")
    lake.say("publish", plan_id)
    undone = lake.say("undo", plan_id, "--by", "bob", "--why", "a mistake", "-o", "json")
    assert (undone.status, lake.stored(name)) == (5, [])
    assert lake.say("approve", undone.document["plan_id"], "--by", "Bob", "--why", "fine").status == 3


def test_the_requester_may_withdraw(lake: Lake) -> None:
    name = topic_of(lake, apart=True)
    plan_id = lake.say("message", "delete", "shop/orders", "0:0", "--by", "ada", "--why", "please", "-o", "json").document["plan_id"]
    assert lake.say("refuse", plan_id, "--by", "ada", "--why", "a mistake").status == 0
    assert lake.stored(name) == [0]


def test_elsewhere_a_persons_word_is_enough(lake: Lake) -> None:
    name = topic_of(lake, apart=False)
    assert lake.say("message", "delete", "shop/orders", "0:0", "--by", "ada", "--why", "please").status == 0
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
    removed = lake.say("message", "delete", "shop/orders", "0:0", "--by", "ada", "--why", "please", "-o", "json").document
    undone = lake.say("undo", removed["plan_id"], "--by", "eve", "--why", "a mistake", "-o", "json")
    assert (undone.status, lake.stored(name)) == (0, [0]), undone.err
    assert lake.services.ledger.record(undone.document["plan_id"]).requested_by == "eve"
