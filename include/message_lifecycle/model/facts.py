"""What a plan is made from: a topic's log by its segments, who still needs its messages, and what legal holds keep."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from message_lifecycle.model.errors import invalid_hold
from message_lifecycle.model.instants import INT64_MAX, Instant, deadline, is_dead
from message_lifecycle.model.message import ranges_of, runs_text
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value

# What stays whatever the rules say: legal holds (DEL-8), and the offsets that planning leaves alone for them and for undone plans (DEL-7).


_INT32_MAX = 2**31 - 1
SparedBy = Literal["hold", "undone_plan"]


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
            raise invalid_hold("partition", self.partition, f"0 to {_INT32_MAX}")
        if not 0 <= self.first <= INT64_MAX:
            raise invalid_hold("from", self.first, "an offset, 0 to 2^63 - 1")
        if self.last is not None and not self.first <= self.last <= INT64_MAX:
            raise invalid_hold("to", self.last, f"an offset from {self.first} (`from`) to 2^63 - 1, or none for all that come")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Spared:
    """Offsets `first` to `last` of a partition, both included; `last` None: no end. `name`: of the hold or the plan; `detail`: who holds
    it and why, for reports."""

    partition: int
    first: int
    last: int | None
    holder: SparedBy
    name: str
    detail: str

    @property
    def end(self) -> int:
        return INT64_MAX if self.last is None else self.last


class SparedOffsets:
    """What of a log is spared, for questions about many offsets."""

    def __init__(self, given: Iterable[Spared]) -> None:
        of: dict[int, list[Spared]] = {}
        for spared in given:
            of.setdefault(spared.partition, []).append(spared)
        # First and last offsets of runs that do not meet, ascending, and who spares each: where several do, whose run began first.
        self._runs = {partition: _apart(entries) for partition, entries in of.items()}

    def __bool__(self) -> bool:
        return bool(self._runs)

    def touching(self, partition: int, first: int, last: int) -> Spared | None:
        """Who spares any of these offsets, both ends included; None: nobody."""
        runs = self._runs.get(partition)
        if runs is None:
            return None
        at = bisect_left(runs.lasts, first)
        return runs.spared[at] if at < len(runs.lasts) and runs.firsts[at] <= last else None

    def split(self, partition: int, text: str) -> tuple[str, list[tuple[Spared, str]]]:
        """Of offsets as `ranges_text`: those that nobody spares, and the others by who does, both as `ranges_text`."""
        runs = self._runs.get(partition)
        if runs is None:
            return text, []
        free: list[range] = []
        kept: dict[Spared, list[range]] = {}
        for run in ranges_of(text):
            start, at = run.start, bisect_left(runs.lasts, run.start)
            while at < len(runs.lasts) and runs.firsts[at] < run.stop:
                first, after = max(start, runs.firsts[at]), min(run.stop, runs.lasts[at] + 1)
                if start < first:
                    free.append(range(start, first))
                kept.setdefault(runs.spared[at], []).append(range(first, after))
                start, at = after, at + 1
            if start < run.stop:
                free.append(range(start, run.stop))
        return runs_text(free), [(spared, runs_text(of)) for spared, of in kept.items()]


class _Runs(NamedTuple):
    firsts: list[int]
    lasts: list[int]
    spared: list[Spared]


def _apart(entries: Iterable[Spared]) -> _Runs:
    found = _Runs([], [], [])
    after = 0
    for entry in sorted(entries, key=lambda spared: (spared.first, spared.end)):
        first = max(entry.first, after)
        if first <= entry.end:
            found.firsts.append(first)
            found.lasts.append(entry.end)
            found.spared.append(entry)
            after = entry.end + 1
    return found


def spared_text(given: Iterable[Spared], ends: Mapping[int, int]) -> tuple[tuple[int, str], ...]:
    """By partition, the spared offsets of a log with these ends as `ranges_text`: how a plan writes them down."""
    everything = ((partition, runs_text([range(end)])) for partition, end in sorted(ends.items()) if end)
    offsets = SparedOffsets(given)
    found = ((partition, _joined(text for _, text in offsets.split(partition, all_)[1])) for partition, all_ in everything)
    return tuple((partition, text) for partition, text in found if text)


def _joined(texts: Iterable[str]) -> str:
    """Neighbours become one run: who spares them is no matter here."""
    joined: list[range] = []
    for run in sorted((run for text in texts for run in ranges_of(text)), key=lambda run: run.start):
        if joined and joined[-1].stop == run.start:
            joined[-1] = range(joined[-1].start, run.stop)
        else:
            joined.append(run)
    return runs_text(joined)


# A segment is a run of a partition's log that expires as a whole; where one ends is decided here (EXP-3, EXP-4).


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What metadata tells of one segment.

    `newest_at` is None where any message has no known time: unknown keeps data (CLK-4).
    `late_rows` counts messages later than the run's `as_of` + skew; `newest_at` is then the newest time at or before that which was
    ever written to it: removals do not change it (EXP-4).
    `size_bytes` is what the store knows by metadata: message bytes in memory, file bytes on tables.
    `never` and `own_ttl`: some message may say that no age takes it, or carry a TTL of its own.
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
    never: bool = False
    own_ttl: bool = False

    def expires_at(self, expiry_us: int) -> Instant | None:
        """When the whole segment is dead; None while its newest time is unknown."""
        return None if self.newest_at is None else deadline(self.newest_at, expiry_us)

    def is_expired(self, expiry_us: int, as_of: Instant) -> bool:
        """EXP-4: the newest time is known and its deadline has come (the seal is judged by the caller)."""
        due_at = self.expires_at(expiry_us)
        return due_at is not None and is_dead(due_at, as_of)


@dataclass(slots=True, kw_only=True)
class ActiveSegment:
    """The segment of a partition that still takes messages; `joins` decides and moves on (EXP-3).

    The one place where a log is cut: stores feed it message by message, or a block at a time (stores/iceberg).
    """

    base_offset: int
    size_bytes: int = 0
    rows: int = 0
    newest_at: Instant | None = None
    any_unknown: bool = False

    def take(self, *, offset: int, size: int, append_time: Instant | None, limit_bytes: int, expiry_us: int) -> int:
        """Add one message; returns the base offset of the segment that it joined."""
        if self.rows and (self.size_bytes + size > limit_bytes or self.all_expired_for(append_time, expiry_us)):
            self.restart(offset)
        self.join(size=size, rows=1, newest_at=append_time, any_unknown=append_time is None)
        return self.base_offset

    def join(self, *, size: int, rows: int, newest_at: Instant | None, any_unknown: bool) -> None:
        """Count messages in that have been judged to belong here."""
        self.rows += rows
        self.size_bytes += size
        self.any_unknown = self.any_unknown or any_unknown
        if newest_at is not None and (self.newest_at is None or newest_at > self.newest_at):
            self.newest_at = newest_at

    def restart(self, base_offset: int) -> None:
        """Seal what is there; the next message starts a new segment at `base_offset`."""
        self.base_offset, self.size_bytes, self.rows, self.newest_at, self.any_unknown = base_offset, 0, 0, None, False

    def all_expired_for(self, joins_at: Instant | None, expiry_us: int) -> bool:
        if joins_at is None or expiry_us == 0 or self.any_unknown or self.newest_at is None:
            return False
        return is_dead(deadline(self.newest_at, expiry_us), joins_at)


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
