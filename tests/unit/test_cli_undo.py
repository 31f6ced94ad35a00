"""`lifecycle undo`, and what other commands say of what came back."""

from __future__ import annotations

import pytest

from message_lifecycle.model.instants import Instant, format_to_second
from message_lifecycle.model.names import TopicName
from tests.worlds import NOW, SECOND, Lake, make_lake

DAY = 86_400
WORD = ("--by", "ada", "--why", "a slip")


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


@pytest.fixture
def orders(lake: Lake) -> TopicName:
    topic = lake.topic("shop/orders", message_expiry=DAY, max_removed_fraction=1.0)
    lake.append(topic, 30, 25, 3)
    return topic


def cleaned(lake: Lake) -> str:
    """The plan that took two messages."""
    told = lake.say("run", "shop/orders", "-o", "json")
    assert told.status == 0, told.err
    return str(told.document["plan_id"])


def test_what_went_comes_back_by_the_beginning_of_the_plans_id(lake: Lake, orders: TopicName) -> None:
    plan_id = cleaned(lake)
    assert lake.stored(orders) == [2]
    told = lake.say("undo", plan_id[:10], *WORD)
    assert told.status == 0, told.err
    assert "brought back 2 messages" in told.out
    assert lake.stored(orders) == [0, 1, 2]
    assert lake.say("status", "shop/orders", "-o", "json").document[0]["last_removal"]["plan_id"] == plan_id, "an undo removes nothing"
    again = lake.say("undo", plan_id, *WORD, "-o", "json")
    assert (again.status, again.document["outcome"], again.document["restored"]) == (0, "no_op", 0)
    shown = lake.say("explain", again.document["first_plan_id"], "-o", "json").document
    assert (shown["takes_back"], shown["restores"], shown["approval"]["by"]) == (plan_id, 2, "ada")
    page = lake.say("explain", again.document["first_plan_id"])
    assert (page.status, "bring back" in page.out, f"plan {plan_id[:12]} brings back 2 messages" in " ".join(page.out.split())) == (
        0,
        True,
        True,
    )
    assert [(action["action"], action["messages"]) for action in shown["actions"]] == [("restore_rows", 1), ("restore_rows", 1)]


def test_a_published_plan_shows_until_when_it_can_be_undone(lake: Lake, orders: TopicName) -> None:
    lake.say("topic", "alter", "shop/orders", "--set", "undo_window=2d")
    plan_id = cleaned(lake)
    until = f"Undo until {format_to_second(Instant(NOW + 2 * DAY * SECOND))}: lifecycle undo {plan_id[:12]} --by NAME --why WHY"
    assert [lake.say(*command, plan_id).out.splitlines()[-1] for command in (("explain",), ("ledger", "show"))] == [until, until]
    lake.say("topic", "alter", "shop/orders", "--set", "undo_window=3d")
    longer = f"Undo until {format_to_second(Instant(NOW + 3 * DAY * SECOND))}:"
    assert longer in lake.say("explain", plan_id).out, "the window that counts is the topic's window of now"
    lake.say("undo", plan_id, *WORD)
    assert "Undo until" not in lake.say("explain", plan_id).out


def test_an_open_plan_has_nothing_to_undo_and_a_refusal_stops_it(lake: Lake, orders: TopicName) -> None:
    """A person who has approved the wrong plan, and has not published it, stops it."""
    assert lake.say("topic", "alter", "shop/orders", "--set", "max_removed_fraction=0.1").status == 0
    asked = lake.say("run", "shop/orders", "-o", "json")
    plan_id = asked.document["plan_id"]
    assert (asked.status, lake.say("approve", plan_id, *WORD).status) == (5, 0)
    undo = lake.say("undo", plan_id, *WORD)
    assert (undo.status, f"`lifecycle refuse {plan_id[:12]} --by NAME --why WHY`" in undo.err) == (3, True), undo.err
    refused = lake.say("refuse", plan_id, "--by", "bert", "--why", "the wrong one")
    assert (refused.status, "Nothing was removed" in refused.out) == (0, True), refused.err
    assert (
        lake.say("ledger", "list", "shop/orders", "-o", "json").document[0]["detail"]
        == "bert refused after ada had approved: the wrong one"
    )
    assert lake.stored(orders) == [0, 1, 2]
    lake.world.set_now(Instant(NOW + SECOND))
    again = lake.say("run", "shop/orders", "-o", "json")
    assert (again.status, again.document["outcome"], lake.stored(orders)) == (5, "needs_approval", [0, 1, 2]), "a run by hand asks again"


def test_a_refusal_stops_an_open_plan_that_asks_nobody(lake: Lake, orders: TopicName) -> None:
    plan_id = lake.say("plan", "shop/orders", "-o", "json").document["plan_id"]
    undo = lake.say("undo", plan_id, *WORD)
    assert (undo.status, f"Stop it: `lifecycle refuse {plan_id[:12]} --by NAME --why WHY`" in undo.err) == (3, True), undo.err
    refused = lake.say("refuse", plan_id, "--by", "bert", "--why", "not today")
    assert (refused.status, "Nothing was removed" in refused.out) == (0, True), refused.err
    listed = lake.say("ledger", "list", "shop/orders", "-o", "json").document[0]
    assert (listed["outcome"], listed["detail"]) == ("refused", "bert refused: not today")
    late = lake.say("refuse", plan_id, "--by", "bert", "--why", "not today")
    assert (late.status, "NotReady" in late.err, lake.stored(orders)) == (3, True, [0, 1, 2])


def test_a_refusal_after_the_commit_names_the_undo(lake: Lake, orders: TopicName) -> None:
    assert lake.say("topic", "alter", "shop/orders", "--set", "max_removed_fraction=0.1").status == 0
    plan_id = lake.say("run", "shop/orders", "-o", "json").document["plan_id"]
    lake.say("approve", plan_id, *WORD)
    assert lake.say("publish", plan_id).status == 0
    late = lake.say("refuse", plan_id, "--by", "bert", "--why", "the wrong one")
    assert (late.status, "AlreadyAnswered" in late.err, f"`lifecycle undo {plan_id[:12]} --by NAME --why WHY`" in late.err) == (
        3,
        True,
        True,
    )
    assert lake.stored(orders) == [2]


def test_what_came_back_is_kept_until_it_is_released(lake: Lake, orders: TopicName) -> None:
    plan_id = cleaned(lake)
    assert lake.say("undo", plan_id, "--release", *WORD).status == 2, "it was not undone"
    lake.say("undo", plan_id, *WORD)
    run = lake.say("run", "shop/orders", "-o", "json").document
    assert (run["outcome"], {entry["holder"] for entry in run["held"]}) == ("no_op", {"undone_plan"})
    released = lake.say("undo", plan_id, "--release", *WORD, "-o", "json").document
    assert (released["released_by"], released["text"]) == ("ada", "a slip")
    assert released["messages_in"] == [{"partition": 0, "from": 0, "to": 1}]
    assert lake.say("run", "shop/orders", "-o", "json").document["removed_messages"] == 2


def test_what_cannot_be_undone_says_why(lake: Lake, orders: TopicName) -> None:
    assert lake.say("undo", "feed", *WORD).status == 2
    plan_id = cleaned(lake)
    assert lake.say("undo", plan_id, "--by", " ", "--why", "a slip").status == 2
    undo_id = lake.say("undo", plan_id, *WORD, "-o", "json").document["plan_id"]
    refused = lake.say("undo", undo_id, *WORD)
    assert (refused.status, "it is an undo itself" in refused.err) == (3, True)
    assert lake.stored(orders) == [0, 1, 2]


def test_where_the_setting_says_so_another_person_approves(lake: Lake, orders: TopicName) -> None:
    plan_id = cleaned(lake)
    assert lake.say("topic", "alter", "shop/orders", "--set", "approver_is_not_requester=true").status == 0
    waiting = lake.say("undo", plan_id, *WORD, "-o", "json")
    assert (waiting.status, waiting.document["outcome"]) == (5, "needs_approval")
    undo_id = waiting.document["plan_id"]
    assert lake.say("approve", undo_id, *WORD).status == 3, "whoever asked does not approve"
    assert lake.say("approve", undo_id, "--by", "bert", "--why", "yes").status == 0
    again = lake.say("undo", plan_id, *WORD, "-o", "json").document
    assert (again["outcome"], again["plan_id"], again["restored"]) == ("published", undo_id, 2)
    assert lake.stored(orders) == [0, 1, 2]
