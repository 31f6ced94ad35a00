"""What a NATS server leaves of a whole publish sequence is what the rules leave of it: messages and markers (TTL-5, MRK-1, MRK-3, MRK-5)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from message_lifecycle.app.services import policy_of
from message_lifecycle.app.steps import run
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.model.instants import MICROS_PER_SECOND, TTL_HEADER, Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from tests.nats.sequences import MARKER_TTL_SECONDS, NANOS, SEQUENCES, SHORT_TTLS, Outcome, PublishSequence, server_outcomes
from tests.nats.server import NatsServer, Publish

pytestmark = pytest.mark.nats

START = Instant(1_714_564_800_000_000)
MARKER = (("Nats-Marker-Reason", b"MaxAge"), ("Nats-TTL", f"{MARKER_TTL_SECONDS}s".encode()), ("Nats-Rollup", b"sub"))


def dies_after(sequence: PublishSequence, message: Publish) -> int | None:
    """Seconds; None: not while anybody waits."""
    ttl = dict(message.headers).get(TTL_HEADER)
    if ttl == b"never":
        return None
    limits = [seconds for seconds in (SHORT_TTLS.get(ttl or b""), sequence.max_age_seconds) if seconds is not None]
    return min(limits, default=None)


def rules_outcome(sequence: PublishSequence) -> Outcome:
    """The rules in the fewest words, second by second."""
    left = dict(enumerate(sequence.messages, start=1))
    markers = []
    for second in sorted({after for message in sequence.messages if (after := dies_after(sequence, message)) is not None}):
        gone = {seq: message for seq, message in left.items() if dies_after(sequence, message) == second}
        left = {seq: message for seq, message in left.items() if seq not in gone}
        newest = {message.subject: message for message in gone.values()}
        for subject, message in newest.items():
            emptied = all(other.subject != subject for other in left.values())
            if sequence.markers and emptied and dict(message.headers).get("KV-Operation") != b"PURGE":
                markers.append((subject, MARKER))
    return Outcome(remaining=tuple(left), markers=tuple(sorted(markers)))


def our_outcome(sequence: PublishSequence) -> Outcome:
    """What the cleaner leaves and makes in the memory store, run a moment after every second, as far behind each deadline as the server is."""
    set_up: dict[str, Value] = {"allow_msg_ttl": True}
    if sequence.markers:
        set_up["subject_delete_marker_ttl"] = MARKER_TTL_SECONDS
    if sequence.max_age_seconds is not None:
        set_up["max_age_seconds"] = sequence.max_age_seconds
    world = memory_world({})
    topic = TopicName(stream="nats", topic="sequence")
    create_topic(world.services, topic, partitions=1, settings=set_up)
    messages = [
        NewMessage(append_time=START, key=message.subject.encode(), value=message.payload, headers=message.headers)
        for message in sequence.messages
    ]
    given = world.writer.append(topic, messages, policy_of(world.services, topic))
    assert given == [(0, offset) for offset in range(len(messages))]
    markers: dict[int, tuple[str, tuple[tuple[str, bytes], ...]]] = {}
    for second in (1, 2):
        as_of = Instant(START + second * MICROS_PER_SECOND + 1)
        world.set_now(as_of)
        run(world.services, topic, as_of=as_of, approver=lambda _plan, _report: (True, "tester", "as expected"))
        stored = list(world.services.reader.messages(topic))
        markers |= {marker.offset: ((marker.key or b"").decode(), marker.headers) for marker in stored if marker.offset >= len(messages)}
    left = tuple(message.offset + 1 for message in stored if message.offset < len(messages))
    world.close()
    return Outcome(remaining=left, markers=tuple(sorted(markers.values(), key=lambda marker: marker[0])))


@settings(
    deadline=None,
    max_examples=3,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(sequences=st.lists(SEQUENCES, min_size=40, max_size=40))
def test_the_server_leaves_what_the_rules_leave(server: NatsServer, sequences: list[PublishSequence]) -> None:
    outcomes = list(zip(sequences, server_outcomes(server, sequences), strict=True))
    by_the_rules = [(sequence, found, expected) for sequence, found in outcomes if found != (expected := rules_outcome(sequence))]
    assert by_the_rules == []
    by_us = [(sequence, found, ours) for sequence, found in outcomes if found != (ours := our_outcome(sequence))]
    assert by_us == []


def test_the_lifetime_of_a_marker_is_written_as_a_go_duration(server: NatsServer) -> None:
    written = {1: b"1s", 59: b"59s", 60: b"1m0s", 61: b"1m1s", 3600: b"1h0m0s", 3661: b"1h1m1s", 86400: b"24h0m0s"}
    streams = {
        seconds: server.create_stream(allow_msg_ttl=True, subject_delete_marker_ttl=seconds * NANOS, max_age=NANOS, storage="memory")
        for seconds in written
    }
    watches = {seconds: server.watch(stream) for seconds, stream in streams.items()}
    for stream in streams.values():
        server.publish(stream, [Publish(subject="a")])
    for seconds, watch in watches.items():
        message, marker = watch.first(2)
        assert (message.headers, marker.subject, marker.payload) == ((), "a", b"")
        assert marker.headers == (MARKER[0], ("Nats-TTL", written[seconds]), MARKER[2])


def test_the_server_lifts_a_lifetime_to_that_of_the_markers_and_rewrites_its_header(server: NatsServer) -> None:
    # We do neither: a marker ends the older one of its key, so nothing need live as long as it (MRK-5).
    stream = server.create_stream(allow_msg_ttl=True, subject_delete_marker_ttl=60 * NANOS)
    server.publish(stream, [Publish(subject="a", headers=((TTL_HEADER, ttl),)) for ttl in (b"1", b"59s", b"60s", b"2m", b"never")])
    assert [dict(message.headers)[TTL_HEADER] for message in server.messages(stream)] == [b"60", b"60", b"60s", b"2m", b"never"]
