"""Logs under limits by age, number and bytes for property tests, and a second form of RET-1 to RET-4, quadratic, message by message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from hypothesis import strategies as st

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.setting_list import Value

SECOND = 1_000_000
AS_OF = Instant(100 * SECOND)
TIMES = st.none() | st.integers(88, 101).map(lambda s: Instant(s * SECOND)) | st.sampled_from([Instant(95 * SECOND - 1), Instant(-7)])
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "max_age_seconds": st.sampled_from([0.0, 5.0, 10.0]),
        "max_records": st.integers(1, 8),
        "max_total_bytes": st.integers(1, 60),
        "min_keep": st.sampled_from([0, 1]),
        "retention_scope": st.sampled_from(["topic", "partition", "key"]),
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """Batches to append in order, the limits, and options of the store."""

    batches: tuple[tuple[NewMessage, ...], ...]
    settings: Mapping[str, Value]
    partitions: int
    max_bytes: int


# Strategies are made once, as in `tests.logs`.
@cache
def _batches(partitions: int) -> st.SearchStrategy[list[list[NewMessage]]]:
    message = st.builds(
        NewMessage,
        append_time=TIMES,
        key=st.sampled_from([None, b"", b"a", b"\xff\x00"]),
        value=st.none() | st.binary(max_size=20),
        headers=st.sampled_from([(), (("h", b"x"),)]),
        partition=st.integers(0, partitions - 1),
    )
    return st.lists(st.lists(message, max_size=6), max_size=4)


@st.composite
def retained_logs(draw: st.DrawFn) -> Retained:
    partitions = draw(st.integers(1, 2))
    return Retained(
        batches=tuple(map(tuple, draw(_batches(partitions)))),
        settings=draw(LIMITS),
        partitions=partitions,
        max_bytes=draw(st.sampled_from([1, 150, 400, 100_000])),
    )


def reasons_by_the_rules(messages: Sequence[Message], settings: Mapping[str, Value]) -> dict[tuple[int, int], str]:
    """Return the reason why each message is removed at AS_OF (RET-1 to RET-4). `messages`: in order of (partition, offset)."""
    age, records, size = (settings.get(name) for name in ("max_age_seconds", "max_records", "max_total_bytes"))
    found: dict[tuple[int, int], str] = {}
    left = []
    for message in messages:
        if age is not None and message.append_time is not None and AS_OF - message.append_time > float(age) * SECOND:
            found[message.partition, message.offset] = "retention_age"
        else:
            left.append(message)

    def newness(message: Message) -> tuple[object, ...]:
        before = [m.append_time for m in left if m.partition == message.partition and m.offset <= message.offset]
        times = [time for time in before if time is not None]
        return bool(times), max(times, default=0), message.partition, message.offset

    def together(one: Message, other: Message) -> bool:
        match settings.get("retention_scope", "topic"):
            case "key":
                return one.key is not None and one.key == other.key
            case "partition":
                return one.partition == other.partition
            case _:
                return True

    for message in left:
        from_it_on = [m for m in left if together(message, m) and newness(m) >= newness(message)]
        if settings.get("min_keep") and len(from_it_on) == 1:
            continue
        if records is not None and len(from_it_on) > int(records):
            found[message.partition, message.offset] = "retention_count"
        elif size is not None and from_it_on and sum(m.size_bytes for m in from_it_on) > int(size):
            found[message.partition, message.offset] = "retention_bytes"
    return found
