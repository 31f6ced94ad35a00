"""What is kept elsewhere of messages that go: how many, and a digest of all that they say (RET-7)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from message_lifecycle.model.message import Message


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
