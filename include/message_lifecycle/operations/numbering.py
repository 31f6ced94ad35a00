"""Where a message that is appended directly goes: its offset and its segment (MSG-4, EXP-3).

For logs that take single messages; a table's ingest numbers whole batches by the same rule.
"""

from __future__ import annotations

from message_lifecycle.model.errors import invalid_append
from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.instants import INT64_MAX
from message_lifecycle.model.message import NewMessage, known_time
from message_lifecycle.model.settings import Policy


def admit(message: NewMessage, *, end_offset: int, active: ActiveSegment, policy: Policy) -> tuple[int, int]:
    """Offset and segment of the next message of a partition; `active` moves on. Raises InvalidAppend.

    An offset may leave a gap but not go back; a segment that the message names is taken as it is, not cut by size or expiry.
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
    segment = active.take(
        offset=offset,
        size=message.size_bytes,
        append_time=known_time(message.append_time),
        limit_bytes=INT64_MAX if named else policy.segment_size_bytes,
        expiry_us=0 if named else policy.message_expiry_us,
    )
    return offset, segment
