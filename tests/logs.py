"""Logs for property tests, and a second form of the rules of expiry, quadratic, message by message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from hypothesis import strategies as st

from message_lifecycle.model.facts import Progress
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage

SECOND = 1_000_000
EXPIRY_SECONDS = 10
AS_OF = Instant(100 * SECOND)
SKEW_SECONDS = 60
# Close to the boundaries on purpose: the deadline falls exactly on AS_OF for a time of 90 s, and a time later than 160 s is a future time.
TIMES = st.one_of(
    st.none(),
    st.integers(80, 100).map(lambda s: Instant(s * SECOND)),
    st.sampled_from([Instant(90 * SECOND - 1), Instant(90 * SECOND), Instant(90 * SECOND + 1), Instant(-5), Instant(0)]),
    st.sampled_from([Instant(160 * SECOND), Instant(160 * SECOND + 1), Instant(10**9 * SECOND)]),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Batches to append in order, partitions to seal after each, and consumers."""

    batches: tuple[tuple[NewMessage, ...], ...]
    seals: tuple[tuple[int, ...], ...]
    consumers: tuple[Progress, ...]
    partitions: int
    segment_bytes: int


# Hypothesis inspects a strategy at its first draw. Strategies made again for each log took longer than the logs, so they are made once.
_PARTITIONS = st.integers(1, 2)
_BATCHES = st.integers(1, 4)
_SEGMENT_BYTES = st.sampled_from([1, 10, 1000])


@cache
def _messages(partitions: int) -> st.SearchStrategy[list[NewMessage]]:
    message = st.builds(
        NewMessage,
        partition=st.integers(0, partitions - 1),
        append_time=TIMES,
        key=st.one_of(st.none(), st.sampled_from([b"", b"a", b"b"])),
        value=st.binary(max_size=6),
    )
    return st.lists(message, min_size=1, max_size=8)


@cache
def _seals(partitions: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, partitions - 1), max_size=2)


@cache
def _consumers(partitions: int) -> st.SearchStrategy[list[Progress]]:
    progress = st.builds(
        Progress,
        consumer=st.sampled_from(["c1", "c2"]),
        partition=st.integers(0, partitions - 1),
        offset=st.integers(0, 12),
        at=st.one_of(st.none(), st.integers(0, 100).map(lambda s: Instant(s * SECOND))),
    )
    return st.lists(progress, max_size=3, unique_by=lambda p: (p.consumer, p.partition))


@st.composite
def logs(draw: st.DrawFn) -> Log:
    partitions = draw(_PARTITIONS)
    batches = tuple(tuple(draw(_messages(partitions))) for _ in range(draw(_BATCHES)))
    seals = tuple(tuple(draw(_seals(partitions))) for _ in batches)
    found = draw(_consumers(partitions))
    return Log(
        batches=batches,
        seals=seals,
        consumers=tuple(found),
        partitions=partitions,
        segment_bytes=draw(_SEGMENT_BYTES),
    )


def expired_by_the_rules(
    messages: Iterable[Message], consumers: Iterable[Progress], *, expiry_us: int, consumer_expiry_us: int, as_of: int
) -> set[tuple[int, int]]:
    """Return the messages that expire by EXP-4 to EXP-6 and CLK-4, computed without the metadata of segments.

    The rules judge a message together with the messages of its own segment and of all earlier segments of its partition. Every live
    consumer must have processed all of them. Every such message must have a known time and be dead, except messages of a future time. A
    message of a future time itself stays."""
    stored, latest_allowed_time = list(messages), as_of + SKEW_SECONDS * SECOND
    by_name: dict[str, list[Progress]] = {}
    for progress in consumers:
        by_name.setdefault(progress.consumer, []).append(progress)
    pinning: list[Mapping[int, int]] = [
        {p.partition: p.offset for p in own}
        for own in by_name.values()
        if any(p.at is None or as_of - p.at <= consumer_expiry_us for p in own)
    ]
    gone = set()
    for message in stored:
        same = [m for m in stored if m.partition == message.partition and m.segment <= message.segment]
        judged = [m for m in same if m.append_time is None or m.append_time <= latest_allowed_time]
        dead = message in judged and all(m.append_time is not None and m.append_time + expiry_us <= as_of for m in judged)
        read = all(m.offset <= progress.get(m.partition, -1) for progress in pinning for m in same)
        if expiry_us and dead and read:
            gone.add((message.partition, message.offset))
    return gone
