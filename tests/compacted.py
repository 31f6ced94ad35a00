"""Logs for compaction, and a second form of the rules of compaction, quadratic, message by message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from hypothesis import strategies as st

from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import Scheduled
from message_lifecycle.app.reading import read_compacted
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.sparing import horizons_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage, ViewRow
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.setting_list import Value
from tests.logs import AS_OF, SECOND, SKEW_SECONDS

KEYS = [None, b"", b"a", b"b", b"c"]
VALUES = [None, b"", b"v", b"w"]
TTLS = [None, None, None, b"never", b"1s", b"5s", b"10s", b"10.000001s", b"1h"]
HEADERS: list[tuple[tuple[str, bytes], ...]] = [(), (), (), (("h", b"x"), ("h", b"")), (("Nats-Marker-Reason", b"MaxAge"),)]
# Close to the boundary: with an age or a TTL of 10 s a deadline falls exactly on AS_OF for a time of 90 s.
TIMES = [None, *(Instant(s * SECOND) for s in range(84, 101, 2)), *(Instant(90 * SECOND + d) for d in (-1, 0, 1)), Instant(103 * SECOND)]
TIMES.append(Instant(10**9 * SECOND))  # of a wrong clock: a future time in every run
RUNS = [Instant(AS_OF - 6 * SECOND), AS_OF, Instant(AS_OF + 1), Instant(AS_OF + 2 * SECOND), Instant(AS_OF + 9 * SECOND)]
LAST = Instant(AS_OF + 10 * SECOND)
FIRST = NewMessage(append_time=Instant(80 * SECOND), key=b"first", value=b"v")
"""Begins every log: a topic without any key is not compacted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A topic's settings, and batches with the `as_of` of the run after each (None: no run). Runs never go back in time."""

    settings: Mapping[str, Value]
    batches: tuple[tuple[tuple[NewMessage, ...], Instant | None], ...]
    partitions: int = 2


# Strategies are made once, as in `tests.logs`.
_MESSAGES = st.lists(
    st.builds(
        lambda partition, time, event, key, value, ttl, extra: NewMessage(
            partition=partition,
            append_time=time,
            event_time=event,
            key=key,
            value=value,
            headers=(*extra, *((("Nats-TTL", ttl),) if ttl is not None else ())),
        ),
        st.integers(0, 1),
        st.sampled_from(TIMES),
        st.sampled_from([None, *map(Instant, range(4))]),
        st.sampled_from(KEYS),
        st.sampled_from(VALUES),
        st.sampled_from(TTLS),
        st.sampled_from(HEADERS),
    ),
    min_size=1,
    max_size=9,
)


@st.composite
def logs(
    draw: st.DrawFn, *, by_event_time: bool = False, retentions: Sequence[float] = (0.0,), lags: Sequence[int | None] = (None,)
) -> Log:
    chosen: dict[str, Value] = {
        "allow_msg_ttl": True,
        "max_removed_fraction": 1.0,
        "delete_retention": draw(st.sampled_from(list(retentions))),
        "segment_size_bytes": draw(st.sampled_from([1, 30, 1000])),
        "retain_null_key": draw(st.booleans()),
        "empty_is_value": draw(st.booleans()),
        **({"winner": "event_time"} if by_event_time else {}),
        **draw(
            st.sampled_from([{}, {"message_expiry": 10}, {"max_age_seconds": 10.0}, {"max_age_seconds": 10.0, "ttl_overrides_age": True}])
        ),
    }
    lag = draw(st.sampled_from(list(lags)))
    if lag is not None:
        chosen["max_compaction_lag"] = lag
    count = draw(st.integers(1, 5))
    runs = sorted(draw(st.lists(st.sampled_from(RUNS), min_size=count, max_size=count)))
    batches = [(tuple(draw(_MESSAGES)), run if draw(st.booleans()) else None) for run in runs]
    (first, run), *others = batches
    return Log(settings=chosen, batches=(((FIRST, *first), run), *others))


class Topic:
    """One topic in a world, and every message that was ever appended to the topic."""

    def __init__(self, world: World, log: Log) -> None:
        self.world, self.settings = world, log.settings
        stream = f"{world.scratch}.compacted" if world.scratch else "compacted"
        self.name = TopicName(stream=stream, topic=f"t{token_hex(8)}")
        self.ever: dict[tuple[int, int], Message] = {}
        create_topic(world.services, self.name, partitions=log.partitions, settings=log.settings)

    def append(self, messages: Iterable[NewMessage]) -> None:
        self.world.writer.append(self.name, list(messages), policy_of(self.world.services, self.name))
        self.ever |= {(m.partition, m.offset): m for m in self.world.services.reader.messages(self.name)}

    def run(self, as_of: Instant, work: Scheduled = "compaction") -> Outcome:
        self.world.set_now(as_of)
        return steps.run(
            self.world.services, self.name, as_of=as_of, approver=lambda _plan, _report: (True, "tester", "as expected"), work=work
        )

    @property
    def horizons(self) -> Mapping[int, int]:
        return horizons_of(self.world.services, self.name)

    def view(self) -> list[ViewRow]:
        """Memories, too; empty where there is no view."""
        state = self.world.services.stores.view.view(self.name)
        return [] if state is None else list(self.world.services.stores.view.view_rows(self.name, state))

    def read(self, *, start: int = 0, at: Instant | None = None) -> list[Message]:
        return list(read_compacted(self.world.services, self.name, start=start, at=at))

    @property
    def taken(self) -> list[Message]:
        """Return the messages at or below the horizons, also messages that the log no longer has."""
        return [m for place, m in sorted(self.ever.items()) if m.offset <= self.horizons.get(place[0], -1)]

    @property
    def past(self) -> list[Message]:
        return [m for place, m in sorted(self.ever.items()) if m.offset > self.horizons.get(place[0], -1)]


def is_dead(m: Message, settings: Mapping[str, Any], as_of: int) -> bool:
    """By expiry, TTL or age (CLK-2, TTL-5)."""
    kept = m.never or (settings.get("ttl_overrides_age", False) and m.expires_at is not None)
    expiry, max_age = settings.get("message_expiry", 0) * SECOND, settings.get("max_age_seconds")
    by_ttl = m.expires_at is not None and m.expires_at < 2**63 - 1 and m.expires_at <= as_of
    if m.append_time is None or kept:
        return by_ttl
    expired = bool(expiry) and m.append_time + expiry <= as_of
    return by_ttl or expired or (max_age is not None and as_of - m.append_time > max_age * SECOND)


def deletes(m: Message, settings: Mapping[str, Any]) -> bool:
    """CMP-2."""
    marker = any(name == "Nats-Marker-Reason" for name, _ in m.headers)
    return m.key is not None and (m.value is None or (not settings["empty_is_value"] and (m.value == b"" or marker)))


def older_by_offset(one: Message, other: Message) -> bool:
    return one.offset < other.offset


def older_by_event_time(one: Message, other: Message) -> bool:
    """A message without an event time is the earliest (CMP-12)."""
    first, second = ((m.event_time is not None, m.event_time or 0, m.offset) for m in (one, other))
    return first < second


def of_one_key(one: Message, other: Message) -> bool:
    return one.key is not None and (one.partition, one.key) == (other.partition, other.key)


def end_by_the_rules(messages: Sequence[Message], as_of: int) -> int:
    """Return the last offset of a partition that a run compacts (CMP-1, CLK-4).

    The run takes the longest start of the log without a message later than `as_of`. A message with a future time does not count as late if
    a message at or before `as_of` follows it."""

    def counts(start: Sequence[Message]) -> bool:
        late = [(at, m.append_time) for at, m in enumerate(start) if m.append_time is not None and m.append_time > as_of]
        return all(
            time > as_of + SKEW_SECONDS * SECOND and any(m.append_time is not None and m.append_time <= as_of for m in start[at:])
            for at, time in late
        )

    starts = (messages[:length] for length in range(len(messages), 0, -1))
    return next((start[-1].offset for start in starts if counts(start)), -1)


def latest_by_the_rules(taken: Sequence[Message], older: Callable[[Message, Message], bool] = older_by_offset) -> list[Message]:
    """Return each key's latest message, and every message without a key."""
    return [m for m in taken if not any(of_one_key(m, other) and older(m, other) for other in taken)]


def view_by_the_rules(taken: Sequence[Message], settings: Mapping[str, Any], as_of: int) -> list[Message]:
    """Return the rows of a view that keeps no deletions (CMP-1 to CMP-3, CMP-8)."""
    return [
        m
        for m in latest_by_the_rules(taken)
        if not is_dead(m, settings, as_of) and not deletes(m, settings) and (m.key is not None or settings["retain_null_key"])
    ]


def alive_by_the_rules(shown: Sequence[Message], settings: Mapping[str, Any], at: int) -> list[Message]:
    """Return the messages that a logical read shows: no dead ones, and none older than a dead one of the same key (CMP-8)."""
    dead = [m for m in shown if is_dead(m, settings, at)]
    return [m for m in shown if m not in dead and not any(of_one_key(m, other) and m.offset < other.offset for other in dead)]
