"""The facts for a plan: a topic's log by its segments, and the readers that still need its messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from message_lifecycle.model.hold import Spared
from message_lifecycle.model.instants import Instant, deadline, is_dead
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value

# A segment is a run of a partition's log that expires as a whole. Segments are cut here, by `ActiveSegment` (EXP-3, EXP-4).


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment as metadata describe it.

    Attributes:
        newest_at: The newest time ever written to the segment, at or before the run's `as_of` + skew. Removals do not change it (EXP-4).
            None if any message has an unknown time: unknown keeps data (CLK-4).
        size_bytes: The size that the store knows from metadata: message bytes in memory, file bytes on tables.
        late_rows: The number of messages later than the run's `as_of` + skew.
        first_late: The offset of the first such message.
        never: Some message may state that it never expires.
        own_ttl: Some message may carry a TTL of its own.
    """

    partition: int
    base_offset: int
    last_offset: int
    newest_at: Instant | None
    oldest_at: Instant | None
    rows: int
    size_bytes: int
    sealed: bool
    files: tuple[str, ...]
    late_rows: int = 0
    first_late: int | None = None
    never: bool = False
    own_ttl: bool = False

    @property
    def is_in_future(self) -> bool:
        """True if every time of the segment is later than the run's `as_of` + skew. The age is unknown until one of these times has passed."""
        return self.newest_at is None and self.late_rows > 0

    def expires_at(self, expiry_us: int) -> Instant | None:
        """Return when the whole segment is dead. None while its newest time is unknown."""
        return None if self.newest_at is None else deadline(self.newest_at, expiry_us)

    def is_expired(self, expiry_us: int, as_of: Instant) -> bool:
        """Return True if the newest time is known and its deadline has passed (EXP-4). The caller judges the seal."""
        due_at = self.expires_at(expiry_us)
        return due_at is not None and is_dead(due_at, as_of)


@dataclass(slots=True, kw_only=True)
class ActiveSegment:
    """The segment of a partition that still accepts messages (EXP-3).

    Only this class cuts a log. Stores feed it message by message, or a block at a time (stores/iceberg).
    """

    base_offset: int
    size_bytes: int = 0
    rows: int = 0
    newest_at: Instant | None = None
    """The newest known time among its messages, without future times."""
    any_unknown: bool = False
    first_at: Instant | None = None
    """The first known time among its messages in the order of the log, without future times."""

    def add_message(
        self,
        *,
        offset: int,
        size: int,
        append_time: Instant | None,
        limit_bytes: int,
        expiry_us: int,
        max_us: int = 0,
        latest_allowed_time: Instant | None = None,
    ) -> int:
        """Add one message.

        Args:
            offset: The offset of the message, at which a new segment would start.
            size: The bytes of the message.
            append_time: The time of the message. None if the time is unknown.
            limit_bytes: The size that a segment may reach.
            expiry_us: The message expiry. 0 if messages never expire.
            max_us: The time that a segment may span. 0 if times end no segment.
            latest_allowed_time: The writer's clock with the skew. A later time is a future time: a segment neither ends nor stays open because of
                it (CLK-4). None if the writer has no clock.

        Returns:
            The base offset of the segment that the message joined.
        """
        judged = None if append_time is None or (latest_allowed_time is not None and append_time > latest_allowed_time) else append_time
        if self.rows and (
            self.size_bytes + size > limit_bytes or self.all_expired_for(judged, expiry_us) or self.is_past_span(judged, max_us)
        ):
            self.restart(offset)
        self.count_messages(size=size, rows=1, newest_at=judged, any_unknown=append_time is None, first_at=judged)
        return self.base_offset

    def count_messages(self, *, size: int, rows: int, newest_at: Instant | None, any_unknown: bool, first_at: Instant | None) -> None:
        """Count messages that belong to this segment. `newest_at` and `first_at` leave out future times."""
        self.rows += rows
        self.size_bytes += size
        self.any_unknown = self.any_unknown or any_unknown
        if self.first_at is None:
            self.first_at = first_at
        if newest_at is not None and (self.newest_at is None or newest_at > self.newest_at):
            self.newest_at = newest_at

    def restart(self, base_offset: int) -> None:
        """Seal the current segment. The next message starts a new segment at `base_offset`."""
        self.base_offset, self.size_bytes, self.rows, self.newest_at, self.any_unknown = base_offset, 0, 0, None, False
        self.first_at = None

    def all_expired_for(self, joins_at: Instant | None, expiry_us: int) -> bool:
        if joins_at is None or expiry_us == 0 or self.any_unknown or self.newest_at is None:
            return False
        return is_dead(deadline(self.newest_at, expiry_us), joins_at)

    def is_past_span(self, joins_at: Instant | None, max_us: int) -> bool:
        """Return True if a message of that time is later than the first known time by more than the allowed span of a segment."""
        return max_us > 0 and joins_at is not None and self.first_at is not None and joins_at - self.first_at > max_us


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """A topic's log at one snapshot, from metadata alone. Segments are in order of (partition, base_offset)."""

    topic: TopicName
    table_uuid: str
    snapshot_id: int | None
    end_offsets: Mapping[int, int]
    segments: tuple[Segment, ...]
    purged_through: Mapping[int, int] = field(default_factory=dict)
    """By partition, the last offset that was purged because the compacted view covers it (CMP-6, CMP-9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWitness:
    """Our newest commit on one table of a topic, by one witness (MSG-4).

    Attributes:
        kind: Empty for the log, else `compacted`.
        offsets: End offsets of the log, or horizons of the view, by partition.
        state: The whole state in the commit's summary, for a repair.
        in_history: Main's history still has the commit. Another engine's expiry removes it.
        witnessed: The table's own witness names this commit.
    """

    table_uuid: str
    kind: str
    snapshot_id: int
    sequence_number: int
    offsets: Mapping[int, int]
    state: Mapping[str, str] = field(default_factory=dict)
    in_history: bool = True
    witnessed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTable:
    """A table that holds a topic's log or its compacted view, by its own witnesses.

    Attributes:
        head_id: The newest snapshot of main.
        witness: Our newest commit. None for a view without any record of a compaction.
    """

    table: str
    table_uuid: str
    head_id: int | None
    witness: LogWitness | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFound:
    """The remaining state of a topic's log or compacted view, and the state after a repair (MSG-4).

    Attributes:
        problem: Why writes and deletions stop, in words. Empty if they do not stop.
        rolled_back: Another engine rolled the table back, and a person must accept that.
        head_id: The newest snapshot of main.
        witnesses: By witness, the offsets that it knows by partition. None if the witness is missing.
        offsets: End offsets, or horizons, after the repair.
        read: After a rollback, the last offset by partition that a consumer can have read and that still exists.
        gone: Known snapshots that the rollback removed from main.
    """

    table_uuid: str
    table: str
    kind: str
    problem: str
    rolled_back: bool
    head_id: int | None
    witnesses: Mapping[str, Mapping[int, int] | None]
    offsets: Mapping[int, int]
    state: Mapping[str, str]
    read: Mapping[int, int] = field(default_factory=dict)
    gone: tuple[int, ...] = ()


ReaderKind = Literal["consumer", "replica", "compaction"]
"""The kinds of readers that need messages.

A replica (a source or mirror of the topic, TTL-6) and compaction (CMP-9) bind TTL too. A message that dies before they have read it would
be missing in the replica, or live on in the view.
"""
READERS: frozenset[str] = frozenset(get_args(ReaderKind))


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyState:
    """How far a source or mirror has copied its origin, by the replica's own table (TTL-6)."""

    offsets: Mapping[int, int]
    """The origin's last offset by partition that was copied or passed over. A missing partition has nothing yet."""
    origin_uuid: str | None
    """The uuid of the copied table. None: nothing is copied yet, or the copy is older than this record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinOverride:
    """Permission to remove messages that a reader has not processed, up to and including offset `through` (CMP-9).

    Attributes:
        reason: Why, in words.
    """

    through: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A reader's last processed offset in one partition.

    Attributes:
        at: None: unknown time, so the reader never falls silent (EXP-6).
    """

    consumer: str
    partition: int
    offset: int
    at: Instant | None
    kind: ReaderKind = "consumer"
    lift: PinOverride | None = None

    def silent_at(self, consumer_expiry_us: int) -> Instant | None:
        """Return the first instant at which this consumer no longer pins messages."""
        return None if self.at is None else Instant(self.at + consumer_expiry_us + 1)

    def pins_at(self, as_of: Instant, consumer_expiry_us: int) -> bool:
        silent_at = self.silent_at(consumer_expiry_us)
        return silent_at is None or as_of < silent_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The complete input of planning, gathered once."""

    log: LogState
    consumers: tuple[Progress, ...] = ()
    accepted: Mapping[str, Value | None] | None = None
    """The settings of the topic's last accepted removals. At first, the settings of its creation. None: unknown."""
    spared: tuple[Spared, ...] = ()
    """Offsets that stay whatever the rules say (DEL-7, DEL-8)."""
    heeded: tuple[str, ...] = ()
    """Ids of the active legal holds, sorted."""
