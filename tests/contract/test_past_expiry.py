"""How many messages are past their expiry and kept by their segments: as the rules say, in every store (EXP-4, EXP-5)."""

from __future__ import annotations

from uuid import uuid4

from hypothesis import given

from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.views.past_expiry import KeptBySegment, kept_by_segments
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, Place
from message_lifecycle.model.names import TopicName
from message_lifecycle.ports import MessageReader
from tests.contract.conftest import MakeWorld
from tests.effort import effort, generated
from tests.logs import AS_OF, EXPIRY_SECONDS, SECOND, Log, logs

EXPIRY = EXPIRY_SECONDS * SECOND
LATE_AFTER = AS_OF + 60 * SECOND
"""`AS_OF` and the built-in `clock_skew`."""


def by_the_rule(messages: list[Message]) -> dict[Place, KeptBySegment]:
    found: dict[Place, KeptBySegment] = {}
    for place in sorted({(message.partition, message.segment) for message in messages}):
        inside = [message.append_time for message in messages if (message.partition, message.segment) == place]
        judged = [time for time in inside if time is None or time <= LATE_AFTER]  # a later time holds nothing (CLK-4)
        known = [time for time in judged if time is not None]
        newest = max(known, default=None) if len(known) == len(judged) else None
        past = sum(time + EXPIRY <= AS_OF for time in known)
        if past and not (newest is not None and newest + EXPIRY <= AS_OF):
            found[place] = KeptBySegment(messages=past, until=None if newest is None else Instant(newest + EXPIRY))
    return found


@generated
def test_what_is_past_its_expiry_in_a_living_segment_is_counted(make_world: MakeWorld, store_kind: str) -> None:
    world = make_world({})

    @given(logs())
    @effort(store_kind, 150, on_tables=8)
    def holds(log: Log) -> None:
        s = world.services
        stream = f"{world.scratch}.past" if world.scratch else "past"
        name = TopicName(stream=stream, topic=f"t{uuid4().hex}")
        create_topic(
            s, name, partitions=log.partitions, settings={"segment_size_bytes": log.segment_bytes, "message_expiry": EXPIRY_SECONDS}
        )
        policy = policy_of(s, name)
        for batch in log.batches:
            world.writer.append(name, batch, policy)
        assert kept_by_segments(s, name, policy, AS_OF) == by_the_rule(stored(s.reader, name))

    holds()


def stored(reader: MessageReader, name: TopicName) -> list[Message]:
    return list(reader.messages(name))
