"""A message as an entry of a stream, and back (see docs/backends.md for the layout).

An entry's id is its offset and one, then `-0`: ids begin above 0-0, ascend as offsets do, and tell the offset without a look at the
entry. What a message has not got has no field; every other field is there, empty or not, so that null and empty stay two things.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message

APPEND_TIME, EVENT_TIME, KEY, VALUE, SEGMENT, ORIGIN_OFFSET, HEADER = b"t", b"e", b"k", b"v", b"s", b"o", b"h:"
Field = str | bytes | int


def id_of(offset: int) -> str:
    return f"{offset + 1}-0"


def offset_of(entry_id: bytes) -> int:
    """The offset of the entry, or of where it would lie. Raises ValueError."""
    return int(entry_id.partition(b"-")[0]) - 1


def fields_of(message: Message) -> list[Field]:
    """Names and values in turn. Times are microseconds since 1970; headers come last, in their order."""
    found: list[Field] = [SEGMENT, message.segment]
    for name, value in (
        (APPEND_TIME, message.append_time),
        (EVENT_TIME, message.event_time),
        (ORIGIN_OFFSET, message.origin_offset),
        (KEY, message.key),
        (VALUE, message.value),
    ):
        if value is not None:
            found += [name, value]
    for header, content in message.headers:
        found += [HEADER + header.encode(), content]
    return found


def message_of(partition: int, entry: Any) -> Message:
    """Of an entry as XRANGE gives it. Raises ValueError where it is none of ours."""
    entry_id, pairs = entry
    if not entry_id.endswith(b"-0") or len(pairs) % 2:
        raise ValueError(f"entry {entry_id.decode()} that no topic of ours has")
    single: dict[bytes, bytes] = {}
    headers: list[tuple[str, bytes]] = []
    for at in range(0, len(pairs), 2):
        name, value = pairs[at], pairs[at + 1]
        if name.startswith(HEADER):
            headers.append((name[len(HEADER) :].decode(), value))
        else:
            single[name] = value
    if SEGMENT not in single or single.keys() - {SEGMENT, APPEND_TIME, EVENT_TIME, ORIGIN_OFFSET, KEY, VALUE}:
        raise ValueError(f"entry {entry_id.decode()} with fields that no message has")
    times: Sequence[Instant | None] = [Instant(int(single[name])) if name in single else None for name in (APPEND_TIME, EVENT_TIME)]
    return Message(
        partition=partition,
        offset=offset_of(entry_id),
        append_time=times[0],
        key=single.get(KEY),
        value=single.get(VALUE),
        segment=int(single[SEGMENT]),
        headers=tuple(headers),
        event_time=times[1],
        origin_offset=int(single[ORIGIN_OFFSET]) if ORIGIN_OFFSET in single else None,
    )
