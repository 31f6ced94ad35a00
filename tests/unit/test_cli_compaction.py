"""`lifecycle compact` and `read --compacted`, and what other commands show of a view."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.changes import UNDER_WAY_US
from message_lifecycle.app.services import policy_of
from message_lifecycle.model.errors import topic_without_keys
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.ports import CommitContext
from message_lifecycle.stores.memory.tables import Table, ViewVersion
from tests.worlds import HOUR, NOW, SECOND, Lake, make_lake

DAY = 86_400
AN_HOUR_AGO = Instant(NOW - HOUR)


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


@pytest.fixture
def orders(lake: Lake) -> TopicName:
    topic = lake.topic("shop.eu/orders", partitions=2)
    write(lake, topic, "a:1", "b:1", "a:2")
    return topic


def write(lake: Lake, topic: TopicName, *pairs: str, at: Instant = AN_HOUR_AGO) -> None:
    for pair in pairs:
        key, _, value = pair.partition(":")
        message = NewMessage(append_time=at, key=key.encode(), value=value.encode(), partition=0)
        lake.world.writer.append(topic, [message], policy_of(lake.services, topic))


def read(lake: Lake, *arguments: str) -> list[str]:
    said = lake.say("read", "shop.eu/orders", *arguments, "-o", "json")
    assert said.status == 0, said.err
    return [f"{line['key']}:{line['value']}" for line in said.lines]


def status(lake: Lake) -> dict[str, Any]:
    found: dict[str, Any] = lake.say("compact", "shop.eu/orders", "--status", "-o", "json").document
    return found


@pytest.mark.parametrize("name", ["shop.eu/orders", "persistent://shop/eu/orders", "persistent://shop/eu/orders-partition-1"])
def test_a_topic_is_compacted_by_either_of_its_names(lake: Lake, orders: TopicName, name: str) -> None:
    done = lake.say("compact", name, "-o", "json")
    assert (done.status, done.document["outcome"], done.document["removed"]) == (0, "published", {"superseded": 1})
    assert (done.document["note"] is not None) is name.endswith("-partition-1")
    assert read(lake, "--compacted") == ["b:1", "a:2"]
    assert read(lake) == ["a:1", "b:1", "a:2"], "the log itself stays as it is"


def test_a_named_partition_is_said_to_mean_the_topic(lake: Lake, orders: TopicName) -> None:
    assert (
        "Compaction covers all partitions of shop.eu/orders, not only partition 1."
        in lake.say("compact", "persistent://shop/eu/orders-partition-1").out
    )


def test_a_partition_that_is_not_there_is_refused(lake: Lake, orders: TopicName) -> None:
    refused = lake.say("compact", "persistent://shop/eu/orders-partition-2")
    assert (refused.status, refused.err.split(":")[0]) == (2, "UnknownPartition")
    assert "Its partitions: 0, 1" in refused.err
    assert status(lake)["status"] == "NOT_RUN"


def test_a_name_of_another_scheme_is_refused(lake: Lake, orders: TopicName) -> None:
    refused = lake.say("compact", "non-persistent://shop/eu/orders")
    assert (refused.status, refused.err.split(":")[0]) == (2, "InvalidTopicUri")
    assert "or persistent://TENANT/NAMESPACE/TOPIC" in refused.err


def test_a_compacted_read_goes_on_in_the_log_behind_the_horizon(lake: Lake, orders: TopicName) -> None:
    lake.say("compact", "shop.eu/orders")
    write(lake, orders, "b:2")
    assert read(lake, "--compacted") == ["b:1", "a:2", "b:2"]
    assert read(lake, "--compacted", "--from", "2") == ["a:2", "b:2"]
    assert read(lake, "--compacted", "--from", "3") == ["b:2"]
    assert read(lake, "--compacted", "--limit", "1") == ["b:2"]
    assert read(lake, "--compacted", "--partition", "1") == []


def test_a_compacted_read_hides_what_is_dead_unless_it_is_raw(lake: Lake, orders: TopicName) -> None:
    lake.say("topic", "alter", "shop.eu/orders", "--set", f"message_expiry={DAY}")
    lake.say("compact", "shop.eu/orders")
    later = f"{NOW + 24 * HOUR}"
    assert read(lake, "--compacted", "--at", later) == []
    assert read(lake, "--compacted", "--raw") == ["b:1", "a:2"]
    assert read(lake, "--compacted", "--since", str(NOW)) == []


def test_a_topic_that_was_never_compacted_is_read_as_its_log(lake: Lake, orders: TopicName) -> None:  # CMP-4
    assert read(lake, "--compacted") == ["a:1", "b:1", "a:2"]
    assert read(lake, "--compacted", "--from", "1", "--limit", "1") == ["a:2"]
    assert lake.say("read", "shop.eu/orders", "--compacted", "--consumer", "billing").status == 2


def test_a_dry_run_shows_the_plan_and_records_nothing(lake: Lake, orders: TopicName) -> None:
    shown = lake.say("compact", "shop.eu/orders", "--dry-run", "-o", "json").document
    assert (shown["operation"], shown["actions"][0]["from"], shown["actions"][0]["to"]) == ("compaction", 0, 2)
    assert "compact" in lake.say("compact", "shop.eu/orders", "--dry-run").out
    assert lake.services.ledger.plans(orders) == []
    assert lake.services.stores.view.view(orders) is None


def test_an_earlier_as_of_takes_up_less(lake: Lake, orders: TopicName) -> None:
    write(lake, orders, "b:9", at=NOW)
    done = lake.say("compact", "shop.eu/orders", "--as-of", str(NOW - SECOND), "-o", "json").document
    assert done["messages_before"] == 3
    assert status(lake)["partitions"][0] == {"partition": 0, "end_offset": 4, "horizon": 2, "lag": 1}


def test_the_status_from_nothing_to_success(lake: Lake, orders: TopicName) -> None:
    first = status(lake)
    assert (first["status"], first["view"], first["removed"]) == ("NOT_RUN", None, None)
    assert first["partitions"] == [
        {"partition": 0, "end_offset": 3, "horizon": None, "lag": 3},
        {"partition": 1, "end_offset": 0, "horizon": None, "lag": 0},
    ]
    lake.say("compact", "shop.eu/orders")
    done = status(lake)
    assert (done["status"], done["removed"], done["rows_in"], done["rows"]) == ("SUCCESS", {"superseded": 1}, 3, 2)
    assert (done["bytes_read"], done["bytes_written"], done["view"]["messages"]) == (6, 4, 2)
    assert [(p["horizon"], p["lag"]) for p in done["partitions"]] == [(2, 0), (None, 0)]
    said = lake.say("compact", "persistent://shop/eu/orders", "--status")
    assert "shop.eu/orders: SUCCESS" in said.out
    assert "1 by superseded" in said.out


def test_rates_are_bytes_by_the_time_of_the_work(lake: Lake, orders: TopicName) -> None:
    class Timed:
        def __init__(self) -> None:
            self._store = lake.services.stores.view

        def __getattr__(self, name: str) -> object:
            return getattr(self._store, name)

        def stage(self, plan: Plan, given: CommitContext) -> Staged:
            staged = self._store.stage(plan, given)
            assert staged.view is not None
            return replace(staged, view=replace(staged.view, took_ms=500))

    timed = _with(lake, stores=replace(lake.services.stores, view=Timed()))
    timed.say("compact", "shop.eu/orders")
    found = status(timed)
    assert (found["duration_seconds"], found["read_bytes_per_second"], found["write_bytes_per_second"]) == (0.5, 12, 8)
    assert "12 bytes per second" in timed.say("compact", "shop.eu/orders", "--status").out


def _with(lake: Lake, **services: object) -> Lake:
    return replace(lake, world=replace(lake.world, services=replace(lake.services, **services)))


class Keyless:
    """Finds no key in anything."""

    def __init__(self, lake: Lake) -> None:
        self._store = lake.services.stores.view

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def stage(self, plan: Plan, _given: CommitContext) -> Staged:
        raise topic_without_keys(str(plan.topic))


def test_a_failure_is_told_by_the_status_and_frees_the_topic(lake: Lake, orders: TopicName) -> None:
    lake.say("topic", "alter", "shop.eu/orders", "--set", "cleanup_policy=compact,delete")
    assert lake.say("status", "shop.eu/orders").status == 0
    refused = _with(lake, stores=replace(lake.services.stores, view=Keyless(lake))).say("compact", "shop.eu/orders")
    assert (refused.status, refused.err.split(":")[0]) == (2, "TopicWithoutKeys")
    found = lake.say("compact", "shop.eu/orders", "--status", "-o", "json")
    assert (found.status, found.document["status"]) == (1, "ERROR")
    assert found.document["message"].startswith("failed: TopicWithoutKeys: ")
    assert lake.services.ledger.open_plan(orders) is None
    told = lake.say("status", "shop.eu/orders", "-o", "json")
    assert told.status == 1
    assert told.document[0]["problems"][0].startswith("The last compaction ended as failed: TopicWithoutKeys")
    lake.world.set_now(Instant(NOW + SECOND))  # a plan is told by its as_of, too, and the first word on it stands
    assert lake.say("compact", "shop.eu/orders").status == 0
    assert lake.say("status", "shop.eu/orders").status == 0
    assert status(lake)["status"] == "SUCCESS"


def test_a_compaction_under_way_is_running_until_nobody_can_be_at_it(lake: Lake, orders: TopicName) -> None:
    made = steps.plan(lake.services, orders, as_of=NOW, run="a run", work="compaction")
    assert (status(lake)["status"], status(lake)["plan_id"]) == ("RUNNING", made.plan.plan_id)
    lake.world.set_now(Instant(NOW + UNDER_WAY_US))
    found = status(lake)
    assert (found["status"], "its run ended" in found["message"]) == ("ERROR", True)


def test_begin_anew_only_where_the_view_is_gone(lake: Lake, orders: TopicName) -> None:
    lake.say("compact", "shop.eu/orders")
    refused = lake.say("compact", "shop.eu/orders", "--anew")
    assert (refused.status, refused.err.split(":")[0]) == (3, "CompactedTableThere")
    assert "orders__compacted" in refused.err
    lake.services.topics.of(orders).view = Table(kind="view", empty=ViewVersion())  # type: ignore[attr-defined]  # the memory store's own
    assert lake.say("compact", "shop.eu/orders").err.split(":")[0] == "CompactedTableMissing"
    assert lake.say("read", "shop.eu/orders", "--compacted").err.split(":")[0] == "CompactedTableMissing"
    assert (status(lake)["status"], "--anew" in status(lake)["message"]) == ("ERROR", True)
    lake.world.set_now(Instant(NOW + SECOND))
    assert lake.say("compact", "shop.eu/orders", "--anew").status == 0
    assert read(lake, "--compacted") == ["b:1", "a:2"]


@pytest.mark.parametrize("arguments", [("--status", "--dry-run"), ("--anew", "--dry-run"), ("--why", "why"), ("--by", "ada")])
def test_what_does_not_go_together_is_refused(lake: Lake, orders: TopicName, arguments: tuple[str, ...]) -> None:
    assert lake.say("compact", "shop.eu/orders", *arguments).status == 2
    assert lake.services.ledger.plans(orders) == []


def test_describe_and_explain_show_how_far_the_view_reaches(lake: Lake, orders: TopicName) -> None:
    before = lake.say("topic", "describe", "shop.eu/orders", "-o", "json").document
    assert (before["compacted"], [p["horizon"] for p in before["partitions"]]) == (None, [None, None])
    assert lake.say("explain", "shop.eu/orders", "0:0", "-o", "json").document["compacted"] is None
    lake.say("compact", "shop.eu/orders")
    write(lake, orders, "a:3")
    after = lake.say("topic", "describe", "shop.eu/orders", "-o", "json").document
    assert (after["compacted"]["messages"], [p["horizon"] for p in after["partitions"]]) == (2, [2, None])
    told = [lake.say("explain", "shop.eu/orders", f"0:{offset}", "-o", "json").document["compacted"] for offset in range(4)]
    assert [(view["in_view"], view["past_horizon"]) for view in told] == [(False, False), (True, False), (True, False), (False, True)]
    assert "Not in the view: a newer message of its key" in lake.say("explain", "shop.eu/orders", "0:0").out


def test_what_compaction_holds_is_named_by_status(lake: Lake) -> None:
    topic = lake.topic("shop.eu/orders", message_expiry=DAY)
    lake.append(topic, 40)
    lake.say("compact", "shop.eu/orders")
    lake.append(topic, 30, 1)
    (found,) = lake.say("status", "-o", "json").document
    assert [(held["holder"], held["messages"]) for held in found["held"]] == [("compaction", 1)]
    assert found["last_removal"] is None, "compaction takes nothing from the log"


def test_a_plan_says_that_it_does_not_know_yet_and_then_what_it_leaves_out(lake: Lake, orders: TopicName) -> None:
    """Unknown is null, never 0 (CNT-1)."""
    shown = lake.say("compact", "shop.eu/orders", "--dry-run", "-o", "json").document
    assert (shown["removes"]["messages"], shown["removes"]["share"], shown["removes"]["of_messages"]) == (None, None, 3)
    assert "counted when staged" in lake.say("compact", "shop.eu/orders", "--dry-run").out
    plan_id = lake.say("compact", "shop.eu/orders", "-o", "json").document["plan_id"]
    page = lake.say("explain", plan_id, "-o", "json").document
    assert (page["removes"]["messages"], page["removes"]["by_reason"]) == (1, {"superseded": 1})
    assert "compacted, left out 1 message" in lake.say("explain", plan_id).out


def test_a_question_about_the_view_is_answered_and_carried_out_by_the_same_command(lake: Lake, orders: TopicName) -> None:
    lake.say("compact", "shop.eu/orders")
    lake.say("topic", "alter", "shop.eu/orders", "--set", f"message_expiry={DAY}")
    lake.world.set_now(Instant(NOW + 24 * HOUR))
    asked = lake.say("compact", "shop.eu/orders")
    (waiting,) = lake.services.ledger.waiting()
    assert asked.status == 5
    assert "lifecycle compact shop.eu/orders" in asked.out
    assert (status(lake)["status"], "is pending approval" in status(lake)["message"]) == ("RUNNING", True)
    assert lake.say("status", "shop.eu/orders", "-o", "json").document[0]["waiting"]["messages"] is None
    approved = lake.say("approve", waiting.plan_id, "--by", "ada", "--why", "old prices")
    assert "Next: lifecycle compact shop.eu/orders" in approved.out
    assert lake.say("compact", "shop.eu/orders", "-o", "json").document["removed"] == {"expiry": 2}
    assert read(lake, "--compacted", "--raw") == []


def test_a_word_given_in_advance_is_recorded(lake: Lake, orders: TopicName) -> None:
    lake.say("compact", "shop.eu/orders")
    lake.say("topic", "alter", "shop.eu/orders", "--set", f"message_expiry={DAY}")
    lake.world.set_now(Instant(NOW + 24 * HOUR))
    done = lake.say("compact", "shop.eu/orders", "--why", "old prices", "--by", "ada", "-o", "json")
    assert (done.status, done.document["outcome"]) == (0, "published")
    assert lake.say("explain", done.document["plan_id"], "-o", "json").document["approval"]["by"] == "ada"
