"""Which topics compaction and the purge of compacted messages have work on, without starting anything (CMP-5, CMP-9, CMP-10)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.due import Due, due
from message_lifecycle.app.due import due as due_for_cleaner
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.memory.tables import Table, ViewVersion
from tests.worlds import HOUR, NOW, Lake, make_lake

DAY = 86_400


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str]) -> Lake:
    return make_lake(capsys)


def judged(lake: Lake, name: TopicName, *, as_of: Instant = NOW, named: bool = False, run: str | None = None) -> Due:
    (answer,) = due(lake.services, [name], as_of=as_of, named=named, run=run, work="compaction")
    return answer


def purge(lake: Lake, name: TopicName) -> Due:
    (answer,) = due(lake.services, [name], as_of=NOW, work="purge_compacted")
    return answer


def compact(lake: Lake, name: TopicName, as_of: Instant = NOW) -> None:
    assert steps.run(lake.services, name, as_of=as_of, work="compaction").name == "published"


def test_a_topic_that_does_not_ask_is_compacted_where_it_is_named(lake: Lake) -> None:
    name = lake.topic("shop/orders")
    lake.append(name, 3, 2)
    assert judged(lake, name).reason == "cleanup_policy is delete: compacted by hand alone"
    assert judged(lake, name, named=True).due


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_topic_that_asks_is_due_until_it_is_compacted(lake: Lake, policy: str) -> None:
    name = lake.topic("shop/orders", cleanup_policy=policy)
    assert not judged(lake, name).due, "there is nothing in it"
    lake.append(name, 3, 2)
    assert judged(lake, name).due
    compact(lake, name)
    assert judged(lake, name).reason == "nothing is new, and nothing in the view is due"
    lake.append(name, 1)
    assert judged(lake, name).due


def test_what_is_new_to_the_log_and_later_than_as_of_is_not_due(lake: Lake) -> None:
    name = lake.topic("shop/orders", cleanup_policy="compact,delete")
    lake.append(name, 3)
    compact(lake, name)
    lake.append(name, 1)
    assert not judged(lake, name, as_of=Instant(NOW - 2 * HOUR)).due
    assert judged(lake, name, as_of=Instant(NOW - HOUR)).due


@pytest.mark.parametrize(("threshold", "due"), [(0, True), (15, True), (16, False), (17, False)])
def test_the_threshold_is_to_be_exceeded(lake: Lake, threshold: int, due: bool) -> None:
    name = lake.topic("shop/orders", cleanup_policy="compact,delete", compaction_threshold_bytes=threshold)
    lake.append(name, 2, 1)  # key and value, eight bytes each
    assert judged(lake, name).due is due
    assert judged(lake, name, named=True).due, "a person who names it has no threshold"


def test_a_message_of_the_view_that_dies_makes_the_topic_due(lake: Lake) -> None:
    name = lake.topic("shop/orders", cleanup_policy="compact,delete", message_expiry=DAY, compaction_threshold_bytes=10**9)
    lake.append(name, 2)
    compact(lake, name)
    assert not judged(lake, name).due
    later = Instant(NOW + 22 * HOUR)
    lake.world.set_now(later)
    assert not judged(lake, name, as_of=Instant(later - 1)).due
    found = judged(lake, name, as_of=later)
    assert found.due
    assert "due since 2026-11-22T10:00:00Z" in found.reason


class Untouched:
    """A log that may only be asked for what its newest commit says."""

    def __init__(self, lake: Lake) -> None:
        self._reader = lake.services.reader

    def end_offsets(self, name: TopicName) -> object:
        return self._reader.end_offsets(name)


def test_where_nothing_is_new_no_log_is_read(lake: Lake) -> None:
    name = lake.topic("shop/orders", cleanup_policy="compact,delete")
    lake.append(name, 3, 2)
    compact(lake, name)
    services = replace(lake.services, reader=Untouched(lake))
    (answer,) = due(services, [name], as_of=NOW, work="compaction")
    assert (answer.due, answer.error) == (False, None)


def test_a_view_that_is_lost_is_no_good_news(lake: Lake) -> None:
    name = lake.topic("shop/orders", cleanup_policy="compact,delete")
    lake.append(name, 3)
    compact(lake, name)
    lake.services.topics.of(name).view = Table(kind="view", empty=ViewVersion())  # type: ignore[attr-defined]  # the memory store's own
    answer = judged(lake, name)
    assert not answer.due
    assert type(answer.error).__name__ == "CompactedTableMissing"


def test_a_compaction_under_way_is_another_runs(lake: Lake) -> None:
    name = lake.topic("shop/orders", cleanup_policy="compact,delete")
    lake.append(name, 3)
    steps.plan(lake.services, name, as_of=NOW, run="first", work="compaction")
    assert judged(lake, name, run="first").due
    assert "another run works on it" in judged(lake, name, run="second").reason


def test_a_refusal_of_the_cleaners_plan_outlives_a_compaction(lake: Lake) -> None:
    """What another operation came to meanwhile is no answer to the question that was refused."""
    name = lake.topic("shop/orders", message_expiry=DAY, cleanup_policy="compact,delete")
    lake.append(name, 40, 35, 30, 1)
    waiting = steps.run(lake.services, name, as_of=NOW)
    assert waiting.name == "needs_approval"
    assert waiting.plan_id is not None
    steps.approve(lake.services, waiting.plan_id, granted=False, by="ada", text="not yet")
    lake.append(name, 0.5)
    compact(lake, name)
    (answer,) = due_for_cleaner(lake.services, [name], as_of=NOW)
    assert answer.reason.startswith("a person refused")


def test_a_purge_is_due_once_the_view_covers_a_sealed_segment(lake: Lake) -> None:
    name = lake.topic("shop/orders", cleanup_policy="compact", max_removed_fraction=1.0)
    lake.append(name, 3, 2)
    assert purge(lake, name).reason == "nothing was compacted yet"
    compact(lake, name)
    assert purge(lake, name).due
    steps.run(lake.services, name, as_of=NOW, work="purge_compacted", approver=lambda _plan, _report: (True, "ada", "a test"))
    assert lake.stored(name) == []
    assert not purge(lake, name).due


def test_a_purge_waits_for_consumers_and_says_for_whom(lake: Lake) -> None:
    name = lake.topic("shop/orders", cleanup_policy="compact")
    lake.append(name, 3, 2)
    compact(lake, name)
    lake.services.ledger.register_replica(name, TopicName.parse("shop/copy"), 1)
    found = purge(lake, name)
    assert not found.due
    assert "shop/copy" in found.reason


def test_nothing_is_purged_where_the_cleaner_is_turned_off(capsys: pytest.CaptureFixture[str]) -> None:
    lake = make_lake(capsys, enabled=False)
    name = lake.topic("shop/orders", cleanup_policy="compact")
    lake.append(name, 3, 2)
    compact(lake, name)
    assert purge(lake, name).reason == "nothing is removed while [message_cleaner] enabled = false"


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_no_other_policy_purges(lake: Lake, policy: str) -> None:
    name = lake.topic("shop/orders", cleanup_policy=policy)
    lake.append(name, 3, 2)
    compact(lake, name)
    assert purge(lake, name).reason == f"cleanup_policy is {policy}: the log keeps what the view covers"
