"""What a plan is made from: the state of one topic, and who still needs its messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.segment import Segment
from message_lifecycle.model.settings import Value
from message_lifecycle.model.spared import Spared


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """A topic's log at one snapshot, by metadata alone. Segments in order of (partition, base_offset)."""

    topic: TopicName
    table_uuid: str
    snapshot_id: int | None
    end_offsets: Mapping[int, int]
    segments: tuple[Segment, ...]
    purged_through: Mapping[int, int] = field(default_factory=dict)
    """The last offset by partition that was purged because the compacted view covers it (CMP-6, CMP-9)."""


ReaderKind = Literal["consumer", "replica", "compaction"]
"""Who needs messages. A replica (a source or mirror of the topic, TTL-6) and compaction (CMP-9) bind TTL too: what dies before they
have seen it would be missing there, or live on there."""
READERS: frozenset[str] = frozenset(get_args(ReaderKind))


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyState:
    """How far a source or mirror has copied its origin, by the replica's own table (TTL-6)."""

    offsets: Mapping[int, int]
    """The origin's last offset by partition that is copied or has been passed; a partition that is not there has nothing yet."""
    origin_uuid: str | None
    """Of the origin's table that was copied; None: nothing is copied yet, or it was before this was kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lift:
    """What a reader has not processed may go nevertheless, up to and including offset `through`; `reason`: why, in words (CMP-9)."""

    through: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A reader's last processed offset in one partition; `at` None: time not known, so it never falls silent (EXP-6)."""

    consumer: str
    partition: int
    offset: int
    at: Instant | None
    kind: ReaderKind = "consumer"
    lift: Lift | None = None

    def silent_at(self, consumer_expiry_us: int) -> Instant | None:
        """The first instant at which this consumer no longer pins."""
        return None if self.at is None else Instant(self.at + consumer_expiry_us + 1)

    def pins_at(self, as_of: Instant, consumer_expiry_us: int) -> bool:
        silent_at = self.silent_at(consumer_expiry_us)
        return silent_at is None or as_of < silent_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that planning may look at, gathered once; planning reads nothing else."""

    log: LogState
    consumers: tuple[Progress, ...] = ()
    accepted: Mapping[str, Value | None] | None = None
    """The settings under which this topic's removals were last accepted (at first: those it was created with); None: unknown."""
    spared: tuple[Spared, ...] = ()
    """What stays whatever the rules say (DEL-7, DEL-8)."""
    heeded: tuple[str, ...] = ()
    """Ids of the legal holds that stand, sorted."""
