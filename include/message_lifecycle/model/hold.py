"""A legal hold: what may not go while it stands, who placed it, and why (DEL-8)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from message_lifecycle.model.errors import InvalidHold
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.names import TopicName

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTopic:
    """Everything of the topic, now and to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldKey:
    """All messages of a key; of a topic of documents, the document of that name.

    `key` None: the hold was released, and of the key its digest is left alone, for the key itself may be erased later."""

    key: bytes | None
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRange:
    """Messages of a partition from offset `first` to `last`, both included; `last` None: and all that come."""

    partition: int
    first: int
    last: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.partition <= _INT32_MAX:
            raise InvalidHold("partition", self.partition, f"0 to {_INT32_MAX}")
        if not 0 <= self.first <= INT64_MAX:
            raise InvalidHold("from", self.first, "an offset, 0 to 2^63 - 1")
        if self.last is not None and not self.first <= self.last <= INT64_MAX:
            raise InvalidHold("to", self.last, f"an offset from {self.first} (`from`) to 2^63 - 1, or none for all that come")


What = HeldTopic | HeldKey | HeldRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """`released_at` None: it stands."""

    hold_id: str
    topic: TopicName
    what: What
    placed_by: str
    why: str
    placed_at: Instant
    released_at: Instant | None = None
    released_by: str | None = None
    released_why: str | None = None

    @property
    def stands(self) -> bool:
        return self.released_at is None

    @property
    def told(self) -> str:
        """Which hold, whose and why, for reports: never the key."""
        return f"legal hold {self.hold_id} by {self.placed_by}: {self.why}"


def held_key(hold_id: str, key: bytes) -> HeldKey:
    """The digest is the hold's own, so that the same key under two holds cannot be told from their digests."""
    return HeldKey(key=key, digest=hashlib.sha256(hold_id.encode() + b"\0" + key).hexdigest())
