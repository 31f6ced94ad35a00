"""One message of a log (MSG-1, MSG-2); and what is told of many that are kept elsewhere: how many, and a digest of all that they say (RET-7)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from message_lifecycle.model.instants import Instant

Header = tuple[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A stored message. `append_time` None is unknown (CLK-4); key None is "no key", an empty key is a key.

    `expires_at` and `never`: its own lifetime as its publisher stated it, whether the topic heeds it or not (TTL-6)."""

    partition: int
    offset: int
    append_time: Instant | None
    key: bytes | None
    value: bytes | None
    segment: int
    headers: tuple[Header, ...] = ()
    event_time: Instant | None = None
    origin_offset: int | None = None
    expires_at: Instant | None = None
    never: bool = False

    @property
    def size_bytes(self) -> int:
        return size_bytes(self.key, self.value, self.headers)


def size_bytes(key: bytes | None, value: bytes | None, headers: tuple[Header, ...]) -> int:
    """Bytes of key + value + header names + header values (MSG-2)."""
    content = len(key or b"") + len(value or b"")
    # Most messages have no headers, and reads under limits ask for the size of each.
    return content + sum(len(name.encode()) + len(header) for name, header in headers) if headers else content


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message to append. `offset` and `segment` are given by the log unless a copy brings its own."""

    append_time: Instant | None
    key: bytes | None
    value: bytes | None
    partition: int = 0
    headers: tuple[Header, ...] = ()
    event_time: Instant | None = None
    offset: int | None = None
    segment: int | None = None
    origin_offset: int | None = None

    @property
    def size_bytes(self) -> int:
        return size_bytes(self.key, self.value, self.headers)

    def stored(self, *, offset: int, segment: int, expires_at: Instant | None = None, never: bool = False) -> Message:
        """The message as the log keeps it, at the place and with the lifetime that it was given."""
        return Message(
            partition=self.partition,
            offset=offset,
            append_time=known_time(self.append_time),
            key=self.key,
            value=self.value,
            segment=segment,
            headers=self.headers,
            event_time=self.event_time,
            origin_offset=self.origin_offset,
            expires_at=expires_at,
            never=never,
        )


def known_time(append_time: Instant | None) -> Instant | None:
    """A missing or zero time is unknown and stored as null (CLK-4); a time before 1970 is a time."""
    return append_time or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """`digest`: over the messages in order of (partition, offset), with every field."""

    rows: int
    digest: str


def archived(messages: Iterable[Message]) -> Archived:
    """Of messages in order of (partition, offset)."""
    rows, digest = 0, hashlib.sha256()
    for m in messages:
        rows += 1
        said = (
            m.partition, m.offset, m.append_time, m.event_time, m.key, m.value, m.headers, m.segment, m.origin_offset, m.expires_at, m.never,
        )  # fmt: skip
        digest.update(repr(said).encode())
    return Archived(rows=rows, digest=digest.hexdigest())
