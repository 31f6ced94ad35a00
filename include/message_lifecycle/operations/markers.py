"""Which keys get a marker when messages go (MRK-1 to MRK-5)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.marker import REASONS, Marker, causes_none
from message_lifecycle.model.message import Message
from message_lifecycle.model.rows import RemovalReason


def markers(
    gone: Iterable[tuple[Message, RemovalReason]],
    live_keys: Container[bytes],
    *,
    as_of: Instant,
    marker_ttl_us: int,
    newest: Mapping[int, Instant],
) -> tuple[Marker, ...]:
    """One per key that is left without a live message. `live_keys`: of what stays, markers apart. `newest`: per partition, the newest
    known append_time of its log."""
    last: dict[bytes, tuple[Message, RemovalReason]] = {}
    for message, reason in gone:
        if message.key is None or message.key in live_keys or reason not in REASONS:
            continue
        known = last.get(message.key)
        if known is None or (message.partition, message.offset) > (known[0].partition, known[0].offset):
            last[message.key] = message, reason
    return tuple(
        Marker(
            partition=message.partition,
            replaces=message.offset,
            key=message.key,
            reason=REASONS[reason],
            append_time=max(as_of, newest.get(message.partition, as_of)),
            ttl_us=marker_ttl_us,
        )
        for message, reason in sorted(last.values(), key=lambda entry: (entry[0].partition, entry[0].offset))
        if message.key is not None and not causes_none(message.headers)
    )
