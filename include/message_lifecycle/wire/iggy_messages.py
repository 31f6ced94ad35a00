"""What Iggy's binary messages say: two commands and two answers. `message_expiry` is in whole seconds, None: never."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Identifier: TypeAlias = int | str
"""A stream by its number or by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """The command that makes a topic in a stream, which is given by its number or its name."""

    stream_id: Identifier
    topic_id: int
    partitions_count: int
    message_expiry: int | None
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateStream:
    """The command that makes a stream."""

    stream_id: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IggyTopic:
    """A topic as the server answers it."""

    id: int
    partitions_count: int
    message_expiry: int | None
    size_bytes: int
    messages_count: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IggyStream:
    """A stream as the server answers it."""

    id: int
    topics_count: int
    size_bytes: int
    messages_count: int
    name: str
