"""Admission of messages: forbidden keys, allowed lifetimes, offsets and segments, and the new messages of an origin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from message_lifecycle.model.erasure import KeyMatch
from message_lifecycle.model.errors import another_origin, invalid_append, origin_behind
from message_lifecycle.model.facts import ActiveSegment, CopyState, LogState
from message_lifecycle.model.instants import (
    INT64_MAX,
    INVALID_TTL,
    MICROS_PER_SECOND,
    TTL_DISABLED,
    Instant,
    InvalidTtl,
    OwnTtl,
    expires_at,
    format_duration,
    parse_ttl,
    seconds,
    ttl_header,
)
from message_lifecycle.model.message import NewMessage, known_time
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import U32_MAX, Policy

# The lifetime that a message states (TTL-2 to TTL-6).


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """As `Message.expires_at` and `Message.never`."""

    expires_at: Instant | None = None
    never: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A message that is not appended: the server's code, and why."""

    code: int
    reason: str


def lifetime(message: NewMessage, policy: Policy) -> Lifetime | Refusal:
    """Return the lifetime of a published message, or its refusal. A copy from an origin is never refused (TTL-4)."""
    value = ttl_header(message.headers)
    copied = message.origin_offset is not None
    if value is None:
        return Lifetime()
    try:
        own = parse_ttl(value, reject_zero=policy.reject_zero_ttl)
    except InvalidTtl:
        if not copied:
            return Refusal(code=INVALID_TTL, reason=f"the TTL {value[:40]!r} is not valid")
        own = OwnTtl()
    if not (policy.allow_msg_ttl or copied):
        return Refusal(code=TTL_DISABLED, reason="the topic does not allow per-message TTL")
    return Lifetime(expires_at=expires_at(known_time(message.append_time), own), never=own.never)


ERASED = Refusal(code=410, reason="erased")
"""The key was erased and may not come in again. Such a message gets no offset and is not quarantined either."""


def admission(message: NewMessage, policy: Policy, forbidden: KeyMatch | None) -> Lifetime | Refusal:
    """Return the lifetime of a message, or its refusal. A copy from an origin is refused for its key only (TTL-4).

    Args:
        message: The message to admit.
        policy: The topic's policy.
        forbidden: None: no key is forbidden.
    """
    if forbidden is not None and forbidden(message.key):
        return ERASED
    return lifetime(message, policy)


# The offset and the segment of an appended message (MSG-4, EXP-3).
#
# For logs that take single messages. The ingest of a table numbers whole batches by the same rule.


def admit(
    message: NewMessage, *, end_offset: int, active: ActiveSegment, policy: Policy, latest_allowed_time: Instant | None
) -> tuple[int, int]:
    """Offset and segment of the next message of a partition; `active` moves on. Raises InvalidAppend.

    An offset may leave a gap but not go back. A segment that the message names is taken as it is, not cut by size or expiry.
    `latest_allowed_time` is the writer's clock with the skew: a later time ends no segment (CLK-4). None if the writer has no clock.
    """
    partition = message.partition
    offset = end_offset if message.offset is None else message.offset
    if offset < end_offset:
        raise invalid_append(f"offset {offset} of partition {partition} is not free: the next one to be given is {end_offset}")
    if offset >= INT64_MAX:
        raise invalid_append(f"partition {partition} has no offsets left")
    named = message.segment is not None
    if message.segment is not None and message.segment != active.base_offset:
        if not active.base_offset < message.segment <= offset:
            raise invalid_append(
                f"segment {message.segment} of partition {partition} cannot take offset {offset}: "
                f"the active segment starts at {active.base_offset}"
            )
        active.restart(message.segment)
    elif not named and not active.rows:
        active.base_offset = offset
    segment = active.add_message(
        offset=offset,
        size=message.size_bytes,
        append_time=known_time(message.append_time),
        limit_bytes=INT64_MAX if named else policy.segment_size_bytes,
        expiry_us=0 if named else policy.message_expiry_us,
        max_us=0 if named else policy.segment_max_us,
        latest_allowed_time=latest_allowed_time,
    )
    return offset, segment


MOST_OPENED = 10_000
"""The most segments that one batch may open before the span of its segments doubles. In a table each segment is a file."""


def double_spans(max_us: int) -> Iterator[int]:
    """Yield spans of a segment for one batch, in microseconds: the setting, then twice as long and so on, up to the longest setting.

    The first span with at most MOST_OPENED segments counts (EXP-3). 0: times end no segment.
    """
    longest = seconds(U32_MAX)
    while 0 < max_us < longest:
        yield max_us
        max_us *= 2
    yield min(max_us, longest)


def policies_by_span(policy: Policy) -> Iterator[Policy]:
    """Yield the policy with each of its `double_spans`."""
    for max_us in double_spans(policy.segment_max_us):
        yield policy if max_us == policy.segment_max_us else policy.with_narrower({"segment_max_seconds": max_us // MICROS_PER_SECOND})


def opens_too_many(places: Iterable[tuple[int, int]]) -> bool:
    """Return True if the messages at these (offset, segment) open too many segments. A segment has its first message's offset."""
    return sum(offset == segment for offset, segment in places) > MOST_OPENED


def span_doubled(seconds: int) -> str:
    """Return the warning about a batch that would have opened too many segments (EXP-3)."""
    return (
        f"segments span up to {format_duration(seconds)} here: by the topic's segment_max_seconds this batch alone would have opened "
        f"more than {MOST_OPENED:,}"
    )


# The messages of an origin that are new to a source or mirror (MSG-5, TTL-6).


def new_in_origin(replica: TopicName, origin: LogState, copied: CopyState) -> dict[int, int]:
    """Return the last offset to copy of each partition with new messages, by metadata alone.

    Offsets of different logs cannot be compared: a log that was recreated under the same name and grew past the copied offsets would be
    copied with a hole. `origin` may be older than the copy if a rival copy has copied more. Raises AnotherOrigin.
    """
    if copied.origin_uuid not in (None, origin.table_uuid):
        raise another_origin(str(replica), str(origin.topic), str(copied.origin_uuid), origin.table_uuid)
    return {partition: end - 1 for partition, end in origin.end_offsets.items() if end - 1 > copied.offsets.get(partition, -1)}


def check_origin(replica: TopicName, newest: LogState, copied: CopyState) -> None:
    """Require that the origin is the copied log and ends past all copied messages. Raises AnotherOrigin, OriginBehind."""
    new_in_origin(replica, newest, copied)
    for partition, last in copied.offsets.items():
        if last >= (end := newest.end_offsets.get(partition, 0)):
            raise origin_behind(str(replica), str(newest.topic), partition, last, end)
