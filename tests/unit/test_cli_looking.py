"""`lifecycle status`, `explain`, `read` and `ledger list`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from message_lifecycle.app import pages
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.views.state import runs as runs_of
from message_lifecycle.app.views.status import status as status_of
from message_lifecycle.app.views.topics import topic_page
from message_lifecycle.ledger.codec import corrupt_record
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from tests.worlds import HOUR, NOW, SECOND, Lake, make_lake

DAY = 86_400


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


@pytest.fixture
def orders(lake: Lake) -> TopicName:
    topic = lake.topic("shop/orders", message_expiry=DAY)
    lake.append(topic, 30, 25, 3, 2, 1)
    return topic


def state(lake: Lake, topic: str = "shop/orders") -> dict[str, Any]:
    found: dict[str, Any] = lake.say("status", topic, "-o", "json").document[0]
    return found


def test_a_healthy_lake_ends_with_0(lake: Lake, orders: TopicName) -> None:
    lake.say("run", "shop/orders")
    told = lake.say("status")
    assert told.status == 0
    assert "ok" in told.out
    found = state(lake)
    assert (found["ok"], found["due"]["messages"], found["overdue"]["messages"], found["held"]) == (True, 0, 0, [])
    assert (found["last_removal"]["messages"], found["last_run"]["outcome"]) == (2, "published")


def test_an_empty_lake_is_healthy(lake: Lake) -> None:
    assert lake.say("status").status == 0
    assert lake.say("status", "-o", "json").document == []


def test_what_is_due_within_the_bound_is_no_failure_and_is_not_called_overdue(lake: Lake, orders: TopicName) -> None:
    told = lake.say("status")
    assert told.status == 0
    assert "2 messages due, for 6h of 1d (max_overdue)" in told.out
    assert re.search(r"(?<!max_)overdue", told.out) is None, "nothing that is ok is called overdue"
    found = state(lake)
    assert (found["ok"], found["due"]["messages"], found["overdue"]["messages"]) == (True, 2, 0)


@pytest.mark.parametrize(("past_bound_us", "status"), [(0, 0), (1, 1)])
def test_overdue_past_the_bound_fails_when_nothing_named_holds_it(lake: Lake, orders: TopicName, past_bound_us: int, status: int) -> None:
    # The oldest message fell due six hours before the topic was made, at NOW; max_overdue is a day.
    lake.world.set_now(Instant(NOW + 24 * HOUR + past_bound_us))
    told = lake.say("status", "shop/orders", "-o", "json")
    assert told.status == status
    assert told.document[0]["ok"] is (status == 0)
    assert bool(told.document[0]["problems"]) is bool(status)
    assert told.document[0]["due"]["messages"] == 5
    assert told.document[0]["overdue"]["messages"] == (5 if status else 0)
    assert bool(re.search(r"(?<!max_)overdue", lake.say("status").out)) is bool(status)
    assert lake.say("status").status == status
    page = " ".join(pages.topic(base="/b", page=topic_page(lake.services, orders)).split())
    overview = pages.overview(base="/b", status=status_of(lake.services), runs=[])
    for html in (page, overview):
        assert ('badge bad">overdue' in html, "5 overdue" in html) == (bool(status), bool(status))


def test_what_a_hold_keeps_is_due_and_never_called_overdue(lake: Lake, orders: TopicName) -> None:
    lake.say("hold", "add", "shop/orders", "--by", "ada", "--why", "a trial")
    lake.world.set_now(Instant(NOW + 48 * HOUR))
    lake.say("run", "shop/orders")
    found = lake.say("status", "shop/orders", "-o", "json")
    assert (found.status, found.document[0]["overdue"]["messages"], {held["holder"] for held in found.document[0]["held"]}) == (
        0,
        0,
        {"hold"},
    )
    said = [lake.say("status").out, pages.topic(base="/b", page=topic_page(lake.services, orders))]
    said.append(pages.overview(base="/b", status=status_of(lake.services), runs=[]))
    assert not any(re.search(r"(?<!max_)\boverdue", text.split("<h2>Settings")[0].partition("</style>")[2] or text) for text in said[:1])
    assert all("overdue" not in re.sub(r"(?s)<style.*?</style>|<h2>Settings.*", "", text) for text in said[1:])
    assert all('badge wait">on hold' in text for text in said[1:])


@pytest.mark.parametrize("settings", [{"message_expiry": DAY}, {"max_records": 9}, {"cleanup_policy": "compact"}, {}], ids=str)
def test_status_names_a_future_time_and_how_to_remove_it(lake: Lake, settings: dict[str, Value]) -> None:  # CLK-4
    topic = lake.topic("shop/clock", **settings)
    lake.append(topic, 3, -9_000, 2, -9_001, 1)
    (warning,) = (one for one in state(lake, "shop/clock")["warnings"] if "CLK-4" in one)
    assert "2 messages dated in the future (after as_of + clock_skew), the first at 0:1" in warning
    command = warning.partition("Then remove it: lifecycle ")[2].replace("NAME", "ada").replace("WHY", "typo").split()
    assert lake.say(*command).status == 0
    assert lake.stored(topic) == [0, 2, 3, 4]


def test_an_undone_plan_is_undone_in_every_list(lake: Lake, orders: TopicName) -> None:
    plan_id = lake.say("run", "shop/orders", "-o", "json").lines[0]["plan_id"]
    other = lake.topic("shop/other", message_expiry=DAY)
    lake.append(other, 30, 1)
    lake.say("run", "shop/other")
    for topic, last in (("shop/orders", False), ("shop/other", False)):
        assert state(lake, topic)["last_removal"]["undone"] is last
    assert lake.say("undo", plan_id, "--by", "ada", "--why", "a mistake").status == 0
    assert state(lake)["last_removal"] | {"at": 0, "as_of": 0} == {"plan_id": plan_id, "at": 0, "as_of": 0, "messages": 2, "undone": True}
    assert state(lake, "shop/other")["last_removal"]["undone"] is False
    runs = {run["plan_id"]: run["undone"] for run in lake.say("ledger", "list", "-o", "json").document}
    assert runs[plan_id] is True and sum(runs.values()) == 1
    lines = [line for line in lake.say("ledger", "list").out.splitlines() if plan_id[:8] in line]
    assert [("undone" in line, "published" in line) for line in lines] == [(True, False)]
    assert "(undone)" in lake.say("status").out
    html = pages.topic(base="/b", page=topic_page(lake.services, orders))
    assert 'badge wait">undone' in html
    assert 'badge wait">undone' in pages.overview(base="/b", status=status_of(lake.services), runs=runs_of(lake.services))


@pytest.mark.parametrize(("hours", "status"), [(24, 0), (30, 1)])
def test_a_consumer_that_holds_is_named_and_past_the_bound_a_failure(lake: Lake, orders: TopicName, hours: int, status: int) -> None:
    lake.services.ledger.commit(orders, "billing", 0, 0, None)
    lake.world.set_now(Instant(NOW + hours * HOUR))
    assert lake.say("run", "shop/orders", "--why", "test", "--by", "ada").status == 0
    found = lake.say("status", "shop/orders", "-o", "json")
    assert found.status == status
    assert {held["holder"] for held in found.document[0]["held"]} == {"consumer"}
    assert "consumer billing has processed up to offset 0" in lake.say("status").out


def test_a_replica_that_has_not_copied_is_named_by_status_and_explain(lake: Lake) -> None:
    topic = lake.topic("shop/orders", allow_msg_ttl=True, max_removed_fraction=1.0)
    policy = policy_of(lake.services, topic)
    lake.world.writer.append(topic, [NewMessage(append_time=NOW, key=b"k", value=b"v", headers=(("Nats-TTL", b"1s"),))], policy)
    lake.topic("archive/orders", role="source", origin="shop/orders")
    lake.world.set_now(Instant(NOW + 2 * SECOND))
    found = lake.say("status", "shop/orders", "-o", "json").document[0]
    assert [(held["holder"], held["messages"]) for held in found["held"]] == [("replica", 1)]
    told = lake.say("explain", "shop/orders", "0:0", "-o", "json").document
    assert (told["verdict"], told["why"].split(" since ")[0]) == ("held", "it is due")
    assert told["why"].endswith("(replica): replica archive/orders has copied nothing here yet")
    lake.say("topic", "copy", "archive/orders")
    assert lake.say("explain", "shop/orders", "0:0", "-o", "json").document["verdict"] == "due"


def test_a_replica_that_its_origin_does_not_wait_for_is_warned_of(lake: Lake) -> None:
    lake.topic("shop/orders")
    lake.topic("archive/orders", role="source", origin="shop/orders")
    assert lake.say("status", "archive/orders", "-o", "json").document[0]["warnings"] == []
    lake.say("consumer", "remove", "shop/orders", "archive/orders")
    (warning,) = lake.say("status", "archive/orders", "-o", "json").document[0]["warnings"]
    assert "`lifecycle topic copy archive/orders`" in warning
    lake.say("topic", "copy", "archive/orders")
    assert lake.say("status", "archive/orders", "-o", "json").document[0]["warnings"] == []


def test_an_open_question_holds_and_tells_how_to_answer(lake: Lake) -> None:
    topic = lake.topic("shop/audit", message_expiry=DAY, approval_ttl=30 * DAY, max_overdue=20 * DAY)
    lake.append(topic, 40, 35, 30, 25, 1)
    lake.say("run", "shop/audit")
    lake.world.set_now(Instant(NOW + 10 * DAY * SECOND))
    found = lake.say("status", "shop/audit", "-o", "json")
    assert found.status == 0
    plan_id = found.document[0]["waiting"]["plan_id"]
    assert found.document[0]["held"][0]["holder"] == "open_approval"
    assert f"lifecycle approve {plan_id[:12]}" in lake.say("status").out
    lake.world.set_now(Instant(NOW + 30 * DAY * SECOND + 1))
    lapsed = lake.say("status", "shop/audit", "-o", "json")
    assert (lapsed.status, lapsed.document[0]["waiting"]) == (1, None)


def test_a_refusal_holds_for_as_long_as_it_stands(lake: Lake) -> None:
    topic = lake.topic("shop/audit", message_expiry=DAY, max_overdue=17 * 3600)
    lake.append(topic, 40, 35, 30, 26, 1)
    lake.say("run", "shop/audit")
    lake.say("refuse", lake.services.ledger.waiting()[0].plan_id, "--by", "ada", "--why", "wait for the trial")
    assert lake.say("status").status == 0
    assert "ada refused: wait for the trial" in lake.say("status").out
    # Who keeps it is told, and for how long: past the bound a person must look at it again.
    lake.world.set_now(Instant(NOW + 18 * HOUR))
    assert lake.say("status").status == 1
    assert "ada refused: wait for the trial" in lake.say("status").out


def test_a_topic_that_cannot_be_read_hides_no_other(lake: Lake, orders: TopicName) -> None:
    lake.topic("shop/broken")

    class OneBroken:
        def __getattr__(self, name: str) -> object:
            return getattr(lake.services.ledger, name)

        def accepted(self, topic: TopicName) -> object:
            if topic.topic == "broken":
                raise corrupt_record("a record", "it was cut off")
            return lake.services.ledger.accepted(topic)

    broken = replace(lake, world=replace(lake.world, services=replace(lake.services, ledger=OneBroken())))
    told = broken.say("status", "-o", "json")
    assert told.status == 1
    assert [(one["topic"], one["ok"]) for one in told.document] == [("shop/broken", False), ("shop/orders", True)]
    assert told.document[0]["problems"] == ["CorruptRecord: " + str(corrupt_record("a record", "it was cut off"))]
    assert "it was cut off" in broken.say("status").out


def test_status_of_an_unknown_topic_is_an_error(lake: Lake) -> None:
    refused = lake.say("status", "shop/nowhere")
    assert (refused.status, refused.err.split(":")[0]) == (2, "UnknownTopic")


def explained(lake: Lake, position: str, topic: str = "shop/orders") -> dict[str, Any]:
    told: dict[str, Any] = lake.say("explain", topic, position, "-o", "json").document
    return told


def test_explain_a_message_that_is_not_due(lake: Lake, orders: TopicName) -> None:
    told = explained(lake, "0:2")
    assert told["verdict"] == "kept"
    assert told["why"].endswith("expires at 2026-11-22T09:00:00Z. Segments are removed whole")
    assert told["segment"] | {"late_messages": 0} == {
        "base_offset": 2,
        "last_offset": 2,
        "messages": 1,
        "past_expiry": 0,
        "sealed": True,
        "newest_at": "2026-11-21T09:00:00Z",
        "expires_at": "2026-11-22T09:00:00Z",
        "late_messages": 0,
    }
    assert told["bounds"][0]["stops_at"] == 2


def test_explain_a_message_that_is_due_then_gone(lake: Lake, orders: TopicName) -> None:
    assert explained(lake, "0:1")["verdict"] == "due"
    plan_id = lake.say("run", "shop/orders", "-o", "json").lines[0]["plan_id"]
    told = explained(lake, "0:1")
    assert (told["verdict"], told["removed_by"]["plan_id"], told["removed_by"]["reason"]) == ("gone", plan_id, "expiry")
    assert told["removed_by"]["rule"] == "message_expiry = 1d"
    assert told["removed_by"]["approval"] is None
    assert told["removed_by"]["gate_id"] == lake.say("explain", plan_id, "-o", "json").document["gate"]["gate_id"]
    said = lake.say("explain", "shop/orders", "0:1").out
    assert "is gone" in said
    assert plan_id in said


def test_explain_tells_who_approved(lake: Lake) -> None:
    topic = lake.topic("shop/audit", message_expiry=DAY)
    lake.append(topic, 40, 35, 30, 25, 1)
    lake.say("run", "shop/audit", "--why", "old audit", "--by", "ada")
    assert explained(lake, "0:0", "shop/audit")["removed_by"]["approval"]["by"] == "ada"
    assert "ada at 2026-11-21T12:00:00Z: old audit" in lake.say("explain", "shop/audit", "0:0").out


def test_explain_a_message_that_a_consumer_holds(lake: Lake, orders: TopicName) -> None:
    lake.say("consumer", "commit", "shop/orders", "billing", "0:0")
    assert explained(lake, "0:0")["verdict"] == "due"
    told = explained(lake, "0:1")
    assert told["verdict"] == "held"
    assert "consumer billing has processed up to offset 0" in told["why"]


def test_explain_a_message_that_waits_for_a_person(lake: Lake) -> None:
    topic = lake.topic("shop/audit", message_expiry=DAY)
    lake.append(topic, 40, 35, 30, 25, 1)
    lake.say("run", "shop/audit")
    told = explained(lake, "0:0", "shop/audit")
    assert (told["verdict"], "is pending approval" in told["why"]) == ("held", True)


def test_explain_unknown_time_disabled_and_never(capsys: pytest.CaptureFixture[str], lake: Lake) -> None:
    odd = lake.topic("shop/odd", message_expiry=DAY)
    lake.append_at(odd, None)
    assert "of unknown append_time" in explained(lake, "0:0", "shop/odd")["why"]
    never = lake.topic("shop/never")
    lake.append(never, 9999)
    assert explained(lake, "0:0", "shop/never")["why"] == "nothing expires by age, because message_expiry is 0"
    off = make_lake(capsys, enabled=False)
    off.append(off.topic("shop/odd", message_expiry=DAY), 9999)
    assert "[message_cleaner] enabled = false" in explained(off, "0:0", "shop/odd")["why"]


def test_explain_what_was_never_there(lake: Lake, orders: TopicName) -> None:
    assert explained(lake, "0:5")["verdict"] == "not_given"
    lake.world.writer.foreign_delete(orders, [(0, 3)])
    assert explained(lake, "0:3")["verdict"] == "never_there"


def test_explain_says_that_readers_do_not_see_an_expired_message(lake: Lake) -> None:
    topic = lake.topic("shop/mixed", message_expiry=DAY)
    lake.append(topic, 30)
    assert explained(lake, "0:0", "shop/mixed")["message"]["hidden_from_reads"] is True
    assert "read --raw" in lake.say("explain", "shop/mixed", "0:0").out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("shop/orders", "7:0"), "UnknownPartition"),
        (("shop/orders", "0:x"), "InvalidPosition"),
        (("shop/orders", "-1:0"), ""),
        (("shop/nowhere", "0:0"), "UnknownTopic"),
        (("shop/orders",), ""),
        (("..", "0:0"), "InvalidName"),
    ],
)
def test_explain_refuses_what_cannot_be_asked(lake: Lake, orders: TopicName, arguments: tuple[str, ...], error: str) -> None:
    refused = lake.say("explain", *arguments)
    assert refused.status == 2
    assert refused.err.startswith(error)


def offsets(lake: Lake, *arguments: str) -> list[int]:
    return [line["offset"] for line in lake.say("read", "shop/orders", *arguments, "-o", "json").lines]


def test_read_shows_what_a_reader_sees(lake: Lake, orders: TopicName) -> None:
    assert offsets(lake) == [2, 3, 4]
    assert offsets(lake, "--raw") == [0, 1, 2, 3, 4]
    assert offsets(lake, "--at", "2026-11-21T06:00:00Z") == [1, 2, 3, 4]
    assert offsets(lake, "--raw", "--from", "1", "--limit", "2") == [3, 4]
    assert offsets(lake, "--since", "2026-11-21T10:00:00Z") == [3, 4]


@pytest.mark.parametrize("limit", ["0", "-1"])
@pytest.mark.parametrize("kind", [(), ("--raw",), ("--compacted",), ("--since", "0")], ids=str)
def test_a_limit_below_1_is_an_error_of_that_read(lake: Lake, orders: TopicName, limit: str, kind: tuple[str, ...]) -> None:  # RET-5
    refused = lake.say("read", "shop/orders", "--limit", limit, *kind)
    assert (refused.status, refused.out) == (2, "")
    assert refused.err == f"InvalidSetting: a read of topic shop/orders: limit = {limit} is not valid. Allowed: a whole number from 1.\n"


def test_read_as_a_consumer_shows_what_is_kept_for_it(lake: Lake, orders: TopicName) -> None:
    lake.say("consumer", "commit", "shop/orders", "billing", "0:0")
    assert offsets(lake, "--consumer", "Billing") == [1, 2, 3, 4]
    refused = lake.say("read", "shop/orders", "--consumer", "nobody")
    assert (refused.status, refused.err.split(":")[0]) == (2, "UnknownConsumer")


def test_read_one_partition(lake: Lake) -> None:
    topic = lake.topic("shop/orders", partitions=2)
    lake.append(topic, 2, 1)
    lake.append(topic, 1, partition=1)
    lines = lake.say("read", "shop/orders", "--partition", "1", "-o", "json").lines
    assert [(line["partition"], line["offset"]) for line in lines] == [(1, 0)]
    refused = lake.say("read", "shop/orders", "--partition", "2")
    assert (refused.status, refused.err.split(":")[0]) == (2, "UnknownPartition"), "an empty answer would say that it holds nothing"


def test_a_message_cannot_steer_the_terminal(lake: Lake) -> None:
    topic = lake.topic("shop/orders")
    lake.append(topic, 1, value=b"\x1b[2J\x07gone\r\nnext\xff")
    said = lake.say("read", "shop/orders").out
    assert said.splitlines() == ["0:0          2026-11-21T11:00:00Z key \\x1b[2J\\x07gone\\r\\nnext\\xff"]
    assert lake.say("read", "shop/orders", "-o", "json").lines[0]["value"] == {"base64": "G1sySgdnb25lDQpuZXh0/w=="}


def test_read_streams(lake: Lake, orders: TopicName, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read is printed before what comes after it is asked for."""
    asked = []

    class Slow:
        def __getattr__(self, name: str) -> object:
            return getattr(lake.services.reader, name)

        def messages(self, *args: Any, **kwargs: Any) -> Any:
            for message in lake.services.reader.messages(*args, **kwargs):
                asked.append((message.offset, len(lake.capsys.readouterr().out)))
                yield message

    slow = replace(lake, world=replace(lake.world, services=replace(lake.services, reader=Slow())))
    slow.say("read", "shop/orders", "--raw", "-o", "json")
    assert [offset for offset, printed in asked if printed] == [1, 2, 3, 4]


def test_ledger_list_tells_past_runs_newest_first(lake: Lake, orders: TopicName) -> None:
    lake.say("run", "shop/orders", "--as-of", "2026-11-21T06:30:00Z")
    lake.say("run", "shop/orders")
    runs = lake.say("ledger", "list", "-o", "json").document
    assert [(run["as_of"], run["removed_messages"]) for run in runs] == [("2026-11-21T12:00:00Z", 1), ("2026-11-21T06:30:00Z", 1)]
    assert len(lake.say("ledger", "list", "shop/orders", "--limit", "1", "-o", "json").document) == 1
    assert lake.say("ledger", "list", "shop/other", "-o", "json").document == []
    line = next(line for line in lake.say("ledger", "list").out.splitlines() if runs[0]["plan_id"][:8] in line)
    assert line.split()[1:5] == ["shop/orders", "message_cleaner", "published", "1"]
    assert lake.say("ledger", "show", runs[0]["plan_id"], "-o", "json").document["outcome"]["outcome"] == "published"


def test_a_table_of_another_ledger_refuses_deletions_until_it_is_accepted(lake: Lake, orders: TopicName) -> None:
    other = make_lake(lake.capsys)
    moved = replace(lake, world=replace(lake.world, services=replace(lake.services, ledger=other.services.ledger)))
    refused = moved.say("run", "shop/orders", "-o", "json")
    assert (refused.status, refused.lines[0]["error"]) == (3, "LedgerMismatch")
    assert "lifecycle ledger accept" in refused.lines[0]["message"]
    assert lake.stored(orders) == [0, 1, 2, 3, 4]
    assert moved.say("ledger", "accept", "shop/orders").status == 0
    assert moved.say("run", "shop/orders", "--why", "moved here", "--by", "ada").status == 0
    assert lake.stored(orders) == [2, 3, 4]
