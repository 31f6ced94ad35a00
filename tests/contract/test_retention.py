"""What every store must do with limits by age, number and size (RET-1 to RET-5): P1, P2, P5, P9, and that a read hides what a run takes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import Scheduled
from message_lifecycle.app.reading import read
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.setting_list import Value
from tests.contract.conftest import MakeWorld
from tests.effort import effort, generated
from tests.logs import AS_OF, SECOND

PARTITIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    settings: Mapping[str, Value]
    batches: tuple[tuple[NewMessage, ...], ...]


# Made once, as those of `tests.logs` are.
_MESSAGE = st.builds(
    NewMessage,
    append_time=st.none() | st.integers(80, 100).map(lambda s: Instant(s * SECOND)) | st.just(Instant(90 * SECOND - 1)),
    key=st.sampled_from([None, b"", b"a", b"b"]),
    value=st.binary(max_size=12),
    partition=st.integers(0, PARTITIONS - 1),
)
_BATCHES = st.lists(st.lists(_MESSAGE, min_size=1, max_size=8).map(tuple), min_size=1, max_size=3)
_SEGMENT_BYTES = st.sampled_from([1, 30, 1000])
_LIMITS: list[tuple[str, st.SearchStrategy[Value]]] = [
    ("max_age_seconds", st.sampled_from([0.0, 10.0])),
    ("max_records", st.integers(1, 8)),
    ("max_total_bytes", st.integers(1, 60)),
    ("min_keep", st.just(1)),
    ("retention_scope", st.sampled_from(["partition", "key"])),
]


@st.composite
def logs(draw: st.DrawFn) -> Log:
    chosen: dict[str, Value] = {"segment_size_bytes": draw(_SEGMENT_BYTES), "max_removed_fraction": 1.0}
    for name, values in _LIMITS:
        if draw(st.booleans()):
            chosen[name] = draw(values)
    return Log(settings=chosen, batches=tuple(draw(_BATCHES)))


def kept_by_the_rules(stored: Iterable[Message], chosen: Mapping[str, Value]) -> list[Message]:
    """RET-1 to RET-4 as they read, one filter after the other, each message looked at for itself."""
    age, records, size = chosen.get("max_age_seconds"), chosen.get("max_records"), chosen.get("max_total_bytes")
    young = [m for m in stored if age is None or m.append_time is None or AS_OF - m.append_time <= float(age) * SECOND]

    def newness(message: Message) -> tuple[object, ...]:
        times = [
            m.append_time for m in young if m.partition == message.partition and m.offset <= message.offset and m.append_time is not None
        ]
        return bool(times), max(times, default=0), message.partition, message.offset

    kept = []
    for message in young:
        scope = chosen.get("retention_scope", "topic")
        if scope == "key" and message.key is None:
            kept.append(message)
            continue
        group = [m for m in young if scope == "topic" or (m.key == message.key if scope == "key" else m.partition == message.partition)]
        newer = [m for m in group if newness(m) >= newness(message)]
        fits = (records is None or len(newer) <= int(records)) and (size is None or sum(m.size_bytes for m in newer) <= int(size))
        if fits or (len(newer) == 1 and chosen.get("min_keep")):
            kept.append(message)
    return kept


def topic_of(world: World, log: Log) -> TopicName:
    name = TopicName(stream=f"{world.scratch}.limits" if world.scratch else "limits", topic=f"t{random.getrandbits(64):x}")
    create_topic(world.services, name, partitions=PARTITIONS, settings=log.settings)
    for batch in log.batches:
        world.writer.append(name, batch, policy_of(world.services, name))
    return name


def run(world: World, name: TopicName, work: Scheduled, as_of: Instant = AS_OF) -> Outcome:
    world.set_now(as_of)
    return steps.run(world.services, name, as_of=as_of, work=work, approver=lambda _plan, _report: (True, "tester", "as expected"))


@generated
def test_what_is_kept_is_what_the_rules_say_and_what_a_read_shows(make_world: MakeWorld, store_kind: str) -> None:
    @given(logs(), st.sampled_from(["retention", "message_cleaner"]))
    @effort(store_kind, 40, on_tables=2)
    def holds(log: Log, work: Scheduled) -> None:
        world = make_world({})
        name = topic_of(world, log)
        before = list(world.services.reader.messages(name))
        kept = kept_by_the_rules(before, log.settings)
        assert list(read(world.services, name, at=AS_OF)) == kept  # RET-5
        outcome = run(world, name, work)
        assert outcome.name == ("no_op" if kept == before else "published"), outcome.detail
        after = list(world.services.reader.messages(name))
        assert after == kept  # P5
        assert len(before) == len(after) + outcome.removed_rows  # P9
        assert list(read(world.services, name, at=AS_OF)) == kept
        assert run(world, name, work).name == "no_op"  # P1
        later = run(world, name, work, Instant(AS_OF + 7 * SECOND))  # P2
        assert later.name in ("published", "no_op")
        assert {(m.partition, m.offset) for m in world.services.reader.messages(name)} <= {(m.partition, m.offset) for m in after}
        world.close()

    holds()
