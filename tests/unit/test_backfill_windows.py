"""A backfill by wider windows: each is judged at its end, as the last of the intervals in it would be (P6), and what may differ does so as told.

The narrow runs take a day in eight parts, one by one; the wide one takes the day at once. What came after lies in the log already, as in
every backfill.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.app import steps
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.sparing import horizons_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.windows import backfill_window
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import REASON_HEADER, Message, NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from tests.effort import effort
from tests.worlds import HOUR, NOW

ORDERS = TopicName.parse("shop/orders")
DAY = 24
BEGIN = Instant(NOW - 48 * HOUR)
END = Instant(BEGIN + DAY * HOUR)
PARTS = [Instant(BEGIN + hour * HOUR) for hour in range(3, DAY + 1, 3)]
Given = tuple[int, str, str | None]
"""Hours after the day began, key, TTL."""
WITH_MARKERS = {"allow_msg_ttl": True, "subject_delete_marker_ttl": 30 * 86_400}


def made(given: Sequence[Given], **settings: Value) -> World:
    world = memory_world({"max_removed_fraction": 1.0})
    world.set_now(NOW)
    create_topic(world.services, ORDERS, partitions=1, settings=settings)
    policy = policy_of(world.services, ORDERS)
    for hours, key, ttl in sorted(given, key=lambda one: one[0]):
        headers = () if ttl is None else (("Nats-TTL", ttl.encode()),)
        message = NewMessage(append_time=Instant(BEGIN + hours * HOUR), key=key.encode(), value=b"v", headers=headers)
        world.writer.append(ORDERS, [message], policy)
        world.writer.seal(ORDERS, 0)
    return world


def backfilled(given: Sequence[Given], ends: Sequence[Instant], **settings: Value) -> World:
    world = made(given, **settings)
    for end in ends:
        outcome = steps.run(world.services, ORDERS, as_of=end, approver=lambda *_: (True, "ada", "a backfill"))
        assert outcome.name in ("published", "no_op")
    return world


def is_marker(message: Message) -> bool:
    return any(name == REASON_HEADER for name, _ in message.headers)


def kept(world: World) -> list[Message]:
    return [message for message in world.services.reader.messages(ORDERS) if not is_marker(message)]


def markers(world: World) -> list[Message]:
    return [message for message in world.services.reader.messages(ORDERS) if is_marker(message)]


def ends_at(world: World) -> int:
    return world.services.reader.log(ORDERS).end_offsets[0]


logs = st.lists(
    st.tuples(st.integers(-24, 40), st.sampled_from("abc"), st.sampled_from([None, "1h", "5h", "30h", "never"])), min_size=1, max_size=12
)


@effort("memory", 10)
@given(logs)
def test_ttl_keeps_the_same_and_gives_the_same_offsets(given: list[Given]) -> None:
    """TTL-5, MRK-3: a key is emptied once, whether its messages go together or one by one."""
    narrow, wide = (backfilled(given, ends, **WITH_MARKERS) for ends in (PARTS, [END]))
    assert kept(wide) == kept(narrow)
    assert ends_at(wide) == ends_at(narrow)
    assert [(marker.key, marker.headers) for marker in sorted(markers(wide), key=lambda one: one.key or b"")] == [
        (marker.key, marker.headers) for marker in sorted(markers(narrow), key=lambda one: one.key or b"")
    ]


@effort("memory", 10)
@given(logs)
def test_a_window_is_to_the_last_letter_what_its_last_interval_alone_would_be(given: list[Given]) -> None:
    """Marker times, ends and results, all of it; for nothing but the end of a window is ever asked."""
    alone, wide = (backfilled(given, ends, **WITH_MARKERS) for ends in (PARTS[-1:], [END]))
    assert list(wide.services.reader.messages(ORDERS)) == list(alone.services.reader.messages(ORDERS))
    newest = max(int(message.append_time or 0) for message in made(given, **WITH_MARKERS).services.reader.messages(ORDERS))
    assert {marker.append_time for marker in markers(wide)} <= {max(END, newest)}, "MRK-1"


@effort("memory", 10)
@given(logs, st.sampled_from([3_600, 5 * 3_600, 86_400]))
def test_whole_segments_and_ages_keep_the_same_where_no_markers_are_made(given: list[Given], seconds: int) -> None:
    for settings in ({"message_expiry": seconds}, {"max_age_seconds": float(seconds)}):
        narrow, wide = (backfilled(given, ends, **settings) for ends in (PARTS, [END]))
        assert kept(wide) == kept(narrow)
        assert ends_at(wide) == ends_at(narrow)


def test_the_end_point_of_a_compaction_is_that_of_the_last_interval() -> None:
    """CMP-1."""
    given: list[Given] = [(1, "a", None), (2, "b", None), (20, "a", None), (30, "b", None)]
    horizons = []
    for ends in (PARTS, [END]):
        world = made(given, cleanup_policy="compact,delete")
        for end in ends:
            steps.run(world.services, ORDERS, as_of=end, work="compaction", approver=lambda *_: (True, "ada", "a backfill"))
        horizons.append(horizons_of(world.services, ORDERS))
    assert horizons == [{0: 2}, {0: 2}], "the message of hour 30 waits"


def test_a_marker_has_the_time_of_the_window_that_emptied_its_key() -> None:
    """A difference: in parts the key is seen to be empty at the end of the first one, by the day at the day's end."""
    given: list[Given] = [(1, "a", "1h")]
    ((by_part,), (by_day,)) = (markers(backfilled(given, ends, **WITH_MARKERS)) for ends in (PARTS, [END]))
    assert (by_part.append_time, by_day.append_time) == (PARTS[0], END)


def test_a_marker_that_would_have_died_within_the_window_still_stands_at_its_end() -> None:
    """A difference: its own TTL begins with its time."""
    settings: dict[str, Value] = {"allow_msg_ttl": True, "subject_delete_marker_ttl": 3_600}
    by_part, by_day = (backfilled([(1, "a", "1h")], ends, **settings) for ends in (PARTS, [END]))
    assert (len(markers(by_part)), len(markers(by_day))) == (0, 1)
    assert ends_at(by_part) == ends_at(by_day)


@pytest.mark.parametrize(
    ("interval", "window"),
    [(600, 86_400), (60, 86_400), (3_600, 86_400), (86_400, 86_400), (7, 86_401), (50_000, 100_000), (86_401, 86_401), (604_800, 604_800)],
)
def test_a_wider_window_is_about_a_day_of_whole_intervals(interval: int, window: int) -> None:
    assert backfill_window(timedelta(seconds=interval)) == timedelta(seconds=window)
