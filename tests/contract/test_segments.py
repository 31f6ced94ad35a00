"""Where a log is cut into segments: by size, by age, and by the span of its times, the same in every store (EXP-3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import alter_topic, copy_topic, create_topic
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.operations import admission
from tests.contract.conftest import TABLES_HUNTED, MakeWorld
from tests.effort import effort, generated

SECOND = 1_000_000
HEADS = st.sampled_from([None, 0, *(seconds * SECOND for seconds in (-20, 1, 10, 11, 12, 21, 30, 60)), 11 * SECOND + 1, 2**62])
"""Times of no order, close to a span of ten seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Batches, and by what they are cut."""

    batches: tuple[tuple[NewMessage, ...], ...]
    size_bytes: int
    expiry: int
    max_seconds: int
    latest_allowed_time: Instant

    @property
    def settings(self) -> dict[str, Value]:
        return {"segment_size_bytes": self.size_bytes, "message_expiry": self.expiry, "segment_max_seconds": self.max_seconds}


# Made once, as those of `tests.logs` are.
_MESSAGES = st.lists(
    st.builds(
        NewMessage,
        partition=st.integers(0, 1),
        append_time=HEADS.map(lambda at: None if at is None else Instant(at)),
        value=st.binary(max_size=4),
    ),
    min_size=1,
    max_size=8,
)


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    return Cut(
        batches=tuple(tuple(draw(_MESSAGES)) for _ in range(draw(st.integers(1, 3)))),
        size_bytes=draw(st.sampled_from([1, 10, 10**9])),
        expiry=draw(st.sampled_from([0, 30])),
        max_seconds=draw(st.sampled_from([0, 1, 10, 2**32 - 1])),
        latest_allowed_time=draw(st.sampled_from([Instant(11 * SECOND), Instant(2**62)])),
    )


def by_the_rule(messages: Sequence[Message], cut: Cut) -> list[int]:
    """EXP-3 in its own words: the segment of each message, out of all messages before it. A future time counts for nothing (CLK-4)."""
    found: list[int] = []
    for at, message in enumerate(messages):
        before = [segment for other, segment in zip(messages, found, strict=False) if other.partition == message.partition]
        inside = [
            one for one, segment in zip(messages[:at], found, strict=True) if one.partition == message.partition and segment == before[-1]
        ]
        time = message.append_time if message.append_time is not None and message.append_time <= cut.latest_allowed_time else None
        times = [one.append_time for one in inside if one.append_time is not None]
        known = [one for one in times if one <= cut.latest_allowed_time]
        full = sum(one.size_bytes for one in inside) + message.size_bytes > cut.size_bytes
        dead = (
            bool(cut.expiry)
            and time is not None
            and bool(known)
            and len(times) == len(inside)
            and all(t + cut.expiry * SECOND <= time for t in known)
        )
        past = bool(cut.max_seconds) and time is not None and bool(known) and time > known[0] + cut.max_seconds * SECOND
        found.append(message.offset if not inside or full or dead or past else before[-1])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic in one world."""

    world: World
    name: TopicName

    def append(self, *messages: NewMessage, latest_allowed_time: Instant | None = None) -> None:
        self.world.writer.append(self.name, messages, policy_of(self.world.services, self.name), latest_allowed_time=latest_allowed_time)

    @property
    def messages(self) -> list[Message]:
        return list(self.world.services.reader.messages(self.name))

    @property
    def segments(self) -> list[int]:
        return [message.segment for message in self.messages]

    @property
    def log(self) -> LogState:
        return self.world.services.reader.log(self.name)


def topic(world: World, **settings: Value) -> Topic:
    stream = f"{world.scratch}.segments" if world.scratch else "segments"
    name = TopicName(stream=stream, topic=f"t{uuid4().hex}")
    create_topic(world.services, name, partitions=2, settings=settings)
    return Topic(world=world, name=name)


def at(*seconds: int | None) -> list[NewMessage]:
    return [NewMessage(append_time=None if second is None else Instant(second * SECOND), key=None, value=b"v") for second in seconds]


@generated
def test_every_store_cuts_by_the_rule(make_world: MakeWorld, store_kind: str) -> None:
    world = make_world({})

    @given(cuts())
    @effort(store_kind, 200, on_tables=12)
    def holds(cut: Cut) -> None:
        made = topic(world, **cut.settings)
        for batch in cut.batches:
            made.append(*batch, latest_allowed_time=cut.latest_allowed_time)
        messages = sorted(made.messages, key=lambda message: (message.partition, message.offset))
        assert [message.segment for message in messages] == by_the_rule(messages, cut)
        # The metadata tells the same segments, and which of them takes more.
        places = sorted({(message.partition, message.segment) for message in messages})
        assert [(segment.partition, segment.base_offset) for segment in made.log.segments] == places
        last = dict(places)
        assert [segment.sealed for segment in made.log.segments] == [last[partition] > base for partition, base in places]

    holds()


def test_a_span_acts_on_what_comes_and_leaves_segments_as_they_are(make_world: MakeWorld) -> None:
    made = topic(make_world({}))
    made.append(*at(1, 100, 50))
    assert made.segments == [0, 0, 0]
    alter_topic(made.world.services, made.name, {"segment_max_seconds": 60})
    made.append(*at(61, 62, 121, 122, None, 123))
    assert made.segments == [0, 0, 0, 0, 4, 4, 4, 4, 8]
    alter_topic(made.world.services, made.name, {"segment_max_seconds": None})
    made.append(*at(10_000))
    assert made.segments[-2:] == [8, 8]


def test_a_server_gives_its_span_to_the_topics_that_are_made_under_it(make_world: MakeWorld) -> None:
    world = make_world({"segment_max_seconds": 10})
    own, asked = topic(world), topic(world, segment_max_seconds=0)
    for made in (own, asked):
        made.append(*at(1, 12, 13))
    assert (own.segments, asked.segments) == ([0, 1, 1], [0, 0, 0])


def test_the_span_of_a_batch_is_doubled_until_it_does_not_open_too_many(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST_OPENED", 3)
    made = topic(make_world({}), segment_max_seconds=10)
    made.append(*at(0, 11, 22))
    made.append(*at(*range(100, 200, 11)))
    # By 10 s the second batch opens ten segments, by 20 five, by 40 three.
    assert made.segments[3:] == [3, 3, 3, 3, 7, 7, 7, 7, 11, 11]
    made.append(*at(300, 311, 322))
    assert made.segments[13:] == [13, 14, 15], "it is for that batch alone"


@TABLES_HUNTED
def test_a_source_cuts_what_it_copies_by_its_own_span_and_says_when_it_was_doubled(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = topic(make_world({}))
    copy = TopicName(stream=origin.name.stream, topic=f"c{uuid4().hex}")
    create_topic(origin.world.services, copy, settings={"origin": origin.name.topic, "role": "source", "segment_max_seconds": 10})
    origin.append(*at(1, 12, 22, 23))
    origin.world.set_now(Instant(1_000 * SECOND))  # the clock by which a copy tells future times
    assert copy_topic(origin.world.services, copy).span_seconds is None
    copied = Topic(world=origin.world, name=copy)
    assert copied.segments == [0, 1, 1, 3]
    assert origin.segments == [0, 0, 0, 0]
    monkeypatch.setattr(admission, "MOST_OPENED", 3)
    origin.append(*at(*range(100, 200, 11)))
    assert copy_topic(origin.world.services, copy).span_seconds == 40
    assert copied.segments[4:] == [4, 4, 4, 4, 8, 8, 8, 8, 12, 12]
