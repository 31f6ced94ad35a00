"""Whole publish sequences with lifetimes of a second or two, and what a real server leaves of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from message_lifecycle.model.instants import TTL_HEADER
from tests.nats.server import NatsServer, Publish, Watch

MARKER_REASON = "Nats-Marker-Reason"
NANOS = 10**9
# The server lifts a message's TTL to that of the markers; at a second, the least there is, it has nothing to lift.
MARKER_TTL_SECONDS = 1
_FINISH_SECONDS = 30.0
_POLL_SECONDS = 0.25
_QUIET_SECONDS = 1.5
"""Longer than a marker lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishSequence:
    """Messages published at once to a stream of these settings. Message n (from 0) gets the sequence number n + 1."""

    messages: tuple[Publish, ...]
    markers: bool = False
    max_age_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`remaining`: sequence numbers of the published messages that are left. `markers`: (subject, headers), by subject and then in order."""

    remaining: tuple[int, ...]
    markers: tuple[tuple[str, tuple[tuple[str, bytes], ...]], ...]


SHORT_TTLS = {b"1": 1, b"1000ms": 1, b"2s": 2}
"""Those that a test waits for, in seconds."""
_TTLS = st.sampled_from([None, None, None, b"1", *SHORT_TTLS, b"3600", b"1m", b"never"])
_OPERATIONS = st.sampled_from([None, None, None, None, b"DEL", b"PURGE"])


def _message(subject: str, ttl: bytes | None, operation: bytes | None) -> Publish:
    headers = [("KV-Operation", operation), (TTL_HEADER, ttl)]
    return Publish(subject=subject, headers=tuple((name, value) for name, value in headers if value is not None))


_MESSAGES = st.builds(_message, st.sampled_from("abcd"), _TTLS, _OPERATIONS)
SEQUENCES = st.builds(
    PublishSequence,
    messages=st.lists(_MESSAGES, min_size=1, max_size=8).map(tuple),
    markers=st.sampled_from([True, True, False]),
    max_age_seconds=st.sampled_from([None, None, 2]),
)


def server_outcome(server: NatsServer, sequence: PublishSequence) -> Outcome:
    """See server_outcomes."""
    return server_outcomes(server, [sequence])[0]


def server_outcomes(server: NatsServer, sequences: Sequence[PublishSequence]) -> list[Outcome]:
    """What the server leaves of each when all has died that will within seconds. All wait together, so that many cost what one costs."""
    streams = [_published(server, sequence) for sequence in sequences]
    _wait_until_still(server, [(stream, sequence) for (stream, _), sequence in zip(streams, sequences, strict=True)])
    outcomes = []
    for (stream, watch), sequence in zip(streams, sequences, strict=True):
        remaining = tuple(message.seq for message in server.messages(stream) if message.seq <= len(sequence.messages))
        markers = [(message.subject, message.headers) for message in watch.seen() if message.seq > len(sequence.messages)]
        outcomes.append(Outcome(remaining=remaining, markers=tuple(sorted(markers, key=lambda marker: marker[0]))))
        watch.close()
        server.delete_stream(stream)
    return outcomes


def _published(server: NatsServer, sequence: PublishSequence) -> tuple[str, Watch]:
    config: dict[str, object] = {"allow_msg_ttl": True, "storage": "memory"}
    if sequence.markers:
        config["subject_delete_marker_ttl"] = MARKER_TTL_SECONDS * NANOS
    if sequence.max_age_seconds is not None:
        config["max_age"] = sequence.max_age_seconds * NANOS
    stream = server.create_stream(**config)
    answers = server.publish(stream, sequence.messages)
    if [answer.seq for answer in answers] != list(range(1, len(sequence.messages) + 1)):
        raise RuntimeError(f"not all of {sequence} was stored: {answers}")
    return stream, server.watch(stream)


def _wait_until_still(server: NatsServer, waiting: Sequence[tuple[str, PublishSequence]]) -> None:
    """Until all that is short-lived is gone, and then nothing has changed for a while."""
    end = time.monotonic() + _FINISH_SECONDS
    before, since = None, time.monotonic()
    while (now := time.monotonic()) < end:
        found = [tuple(message.seq for message in server.messages(stream)) for stream, _ in waiting]
        doomed = [seq for held, (_, sequence) in zip(found, waiting, strict=True) for seq in held if _is_short_lived(sequence, seq)]
        if found != before or doomed:
            before, since = found, now
        elif now - since > _QUIET_SECONDS:
            return
        time.sleep(_POLL_SECONDS)
    raise RuntimeError(f"the server is not done after {_FINISH_SECONDS} s: {before}")


def _is_short_lived(sequence: PublishSequence, seq: int) -> bool:
    if seq > len(sequence.messages):
        return True  # a marker
    ttl = dict(sequence.messages[seq - 1].headers).get(TTL_HEADER)
    return ttl in SHORT_TTLS or (sequence.max_age_seconds is not None and ttl != b"never")
