"""Retention on Redis Streams: exact trims, nothing that came later or that nobody planned, and what consumer groups still need."""

from __future__ import annotations

from typing import Any

import pytest

from message_lifecycle.app import steps
from message_lifecycle.app.views.topics import consumers_view
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.outcome import Published
from tests.redis_streams.streams import AS_OF, SECOND, Streams

pytestmark = pytest.mark.redis


def calls(streams: Streams, *commands: str) -> dict[str, int]:
    stats: Any = streams.client.info("commandstats")
    return {command: stats.get(f"cmdstat_{command}", {}).get("calls", 0) for command in commands}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"max_age_seconds": 5.0}, "retention_age"), ({"max_records": 3}, "retention_count"), ({"max_total_bytes": 6}, "retention_bytes")],
)
def test_what_goes_from_the_beginning_is_trimmed_in_one_command(streams: Streams, settings: dict[str, Any], reason: str) -> None:
    topic = streams.topic(**settings)
    topic.append(*(AS_OF - 20 * SECOND for _ in range(300)), *(AS_OF for _ in range(3)))
    before = calls(streams, "xtrim", "xdel")
    outcome = topic.run()
    after = calls(streams, "xtrim", "xdel")
    assert (outcome.name, dict(outcome.removed), topic.offsets()) == ("published", {reason: 300}, [300, 301, 302])
    assert {command: after[command] - before[command] for command in after} == {"xtrim": 1, "xdel": 0}


def test_what_stays_in_the_middle_is_left_by_deleting_beside_it(streams: Streams) -> None:
    """A message of unknown time is never too old (CLK-4)."""
    topic = streams.topic(max_age_seconds=5.0)
    topic.append(1, 2, None, 4, 5, AS_OF)
    before = calls(streams, "xtrim", "xdel")
    assert dict(topic.run().removed) == {"retention_age": 4}
    after = calls(streams, "xtrim", "xdel")
    assert topic.offsets() == [2, 5]
    assert {command: after[command] - before[command] for command in after} == {"xtrim": 1, "xdel": 1}


def test_each_partition_is_cut_for_itself(streams: Streams) -> None:
    topic = streams.topic(partitions=3, max_records=2, retention_scope="partition")
    for partition, count in enumerate((5, 1, 3)):
        topic.append(*range(1, count + 1), partition=partition)
    assert dict(topic.run().removed) == {"retention_count": 4}
    assert [topic.offsets(partition) for partition in range(3)] == [[3, 4], [0], [1, 2]]


def test_keys_are_cut_each_for_itself(streams: Streams) -> None:
    topic = streams.topic(max_records=1, retention_scope="key")
    for key in (b"a", b"b", b"a", b"c", b"b"):
        topic.append(1, key=key)
    assert dict(topic.run().removed) == {"retention_count": 2}
    assert topic.offsets() == [2, 3, 4]


def test_a_message_is_read_as_it_was_written(streams: Streams) -> None:
    topic = streams.topic()
    headers = (("a", b"1"), ("a", b""), ("ü", b"\xff"))
    topic.write(
        [
            NewMessage(append_time=Instant(-5), event_time=Instant(7), key=b"", value=None, headers=headers),
            NewMessage(append_time=None, key=None, value=b""),
        ]
    )
    first, second = topic.services.reader.messages(topic.name)
    assert (first.append_time, first.event_time, first.key, first.value, first.headers) == (-5, 7, b"", None, headers)
    assert (second.append_time, second.event_time, second.key, second.value, second.headers) == (None, None, None, b"", ())


def test_the_log_goes_on_where_it_ended_when_all_is_gone(streams: Streams) -> None:
    topic = streams.topic(max_age_seconds=5.0)
    topic.append(1, 2, 3)
    topic.run()
    assert topic.offsets() == []
    topic.append(AS_OF)
    assert topic.offsets() == [3]


def test_what_is_appended_after_the_plan_stays_whatever_its_time(streams: Streams) -> None:  # DEL-4
    topic = streams.topic(max_age_seconds=5.0)
    topic.append(1, 2, AS_OF)
    plan_id = topic.planned()
    topic.append(1, 2)
    published = steps.publish(topic.services, plan_id)
    assert isinstance(published, Published)
    assert topic.offsets() == [2, 3, 4]


def test_what_is_appended_after_a_plan_by_number_does_not_push_more_out(streams: Streams) -> None:
    """MAXLEN counts from the end: it must be of the moment in which it trims."""
    topic = streams.topic(max_records=2)
    topic.append(1, 2, 3)
    plan_id = topic.planned()
    topic.append(4, 5)
    steps.publish(topic.services, plan_id)
    assert topic.offsets() == [1, 2, 3, 4]


def test_publishing_again_reports_the_first_result(streams: Streams) -> None:  # DEL-5
    topic = streams.topic(max_records=2)
    topic.append(1, 2, 3)
    plan_id = topic.planned()
    first = steps.publish(topic.services, plan_id)
    topic.append(4, 5)
    assert steps.publish(topic.services, plan_id) == first
    assert topic.offsets() == [1, 2, 3, 4]


@pytest.mark.parametrize("entry", ["1-0", "3-0"])
def test_a_removal_by_another_writer_after_the_plan_is_noticed(streams: Streams, entry: str) -> None:
    """Whether it took what was to go or what was to stay: the counts were judged, and they no longer hold."""
    topic = streams.topic(max_records=2)
    topic.append(1, 2, 3)
    plan_id = topic.planned()
    streams.client.xdel(topic.keys.stream(0), entry)
    with pytest.raises(PlanConflict):
        steps.publish(topic.services, plan_id)
    log = topic.services.reader.log(topic.name)
    assert log.snapshot_id is not None
    assert topic.services.reader.removed_by_others(log, log.snapshot_id - 1) == (log.snapshot_id,)
    assert topic.run().name in ("published", "no_op")
    assert len(topic.offsets()) == 2


# Consumer groups: Redis itself trims what they have not read, and what is pending in them.


def test_a_group_keeps_what_it_has_not_been_given(streams: Streams) -> None:
    topic = streams.topic(max_records=1)
    topic.append(*range(1, 11))
    topic.group("billing")
    topic.acknowledge("billing", *topic.deliver("billing", 4))
    outcome = topic.run()
    assert (outcome.name, topic.offsets()) == ("published", list(range(4, 10)))
    (held,) = outcome.held
    assert (held.holder, held.rows) == ("consumer", 5)
    assert "group billing" in held.detail
    assert topic.deliver("billing", 9) == [f"{offset + 1}-0" for offset in range(4, 10)], "nothing is missing for it"


def test_a_group_keeps_what_is_pending_and_all_after_it(streams: Streams) -> None:
    topic = streams.topic(max_records=1)
    topic.append(*range(1, 11))
    topic.group("billing")
    delivered = topic.deliver("billing", 10)
    topic.acknowledge("billing", *delivered[:3], *delivered[5:])
    assert topic.run().name == "published"
    assert topic.offsets() == list(range(3, 10))
    pending: Any = streams.client.xpending_range(topic.keys.stream(0), "billing", "-", "+", 10)
    assert [entry["message_id"] for entry in pending] == [b"4-0", b"5-0"]
    claimed: Any = streams.client.xclaim(topic.keys.stream(0), "billing", "two", 0, ["4-0", "5-0"])
    assert len(claimed) == 2, "what is pending can still be worked on"
    topic.acknowledge("billing", "4-0", "5-0")
    assert topic.run(as_of=Instant(AS_OF + 1)).name == "published"
    assert topic.offsets() == [9]


@pytest.mark.parametrize("deleted", [(0,), (1, 2), (0, 1, 2)])
def test_a_pending_entry_that_is_gone_pins_nothing(streams: Streams, deleted: tuple[int, ...]) -> None:
    topic = streams.topic(max_records=2)
    topic.append(*range(1, 4))
    topic.group("billing")
    delivered = topic.deliver("billing", 3)
    streams.client.xdel(topic.keys.stream(0), *(delivered[at] for at in deleted))
    topic.append(*range(4, 10))
    topic.acknowledge("billing", *topic.deliver("billing", 6))
    left = [at for at in range(3) if at not in deleted]
    assert topic.run().name == ("no_op" if left else "published")
    assert topic.offsets() == ([*left, *range(3, 9)] if left else [7, 8])
    (group,) = consumers_view(topic.services, topic.name)
    assert (group.consumer, group.group, group.pins, group.falls_silent_at) == ("group billing", True, True, None)


def test_the_slowest_group_of_a_partition_counts_and_a_group_that_is_done_holds_nothing(streams: Streams) -> None:
    topic = streams.topic(partitions=2, max_records=1, retention_scope="partition")
    for partition in (0, 1):
        topic.append(*range(1, 6), partition=partition)
        topic.group("fast", partition=partition)
        topic.acknowledge("fast", *topic.deliver("fast", 5, partition=partition), partition=partition)
    topic.group("slow", partition=1)
    topic.run()
    assert (topic.offsets(0), topic.offsets(1)) == ([4], [0, 1, 2, 3, 4])
    streams.client.xgroup_destroy(topic.keys.stream(1), "slow")
    topic.run(as_of=Instant(AS_OF + 1))
    assert (topic.offsets(0), topic.offsets(1)) == ([4], [4])


def test_a_group_that_begins_after_the_plan_is_heeded_by_the_publish(streams: Streams) -> None:
    topic = streams.topic(max_records=1)
    topic.append(1, 2, 3)
    plan_id = topic.planned()
    topic.group("late")
    with pytest.raises(PlanConflict, match="group late"):
        steps.publish(topic.services, plan_id)
    assert topic.offsets() == [0, 1, 2]
    outcome = topic.run()
    assert topic.offsets() == [0, 1, 2]
    assert [entry.detail for entry in outcome.held if "group late" in entry.detail]


def test_a_person_may_remove_what_a_group_has_not_read(streams: Streams) -> None:
    """Requests are bound by no consumer (EXP-6)."""
    from message_lifecycle.model.request import RemoveMessages

    topic = streams.topic()
    topic.append(1, 2, 3)
    topic.group("billing")
    outcome = steps.run(topic.services, topic.name, as_of=AS_OF, work=RemoveMessages(positions=((0, 1),)))
    assert (outcome.name, topic.offsets()) == ("published", [0, 2])
