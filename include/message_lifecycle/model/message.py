"""Messages, questions about single messages, limit markers, and the compacted view."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from message_lifecycle.model.instants import TTL_HEADER, Instant
from message_lifecycle.model.reasons import AgeReason, MarkerReason, RemovalReason, ViewReason
from message_lifecycle.model.rules import Limits, Rule

if TYPE_CHECKING:
    from message_lifecycle.model.hold import Spared

# One message of a log (MSG-1, MSG-2), and the count and digest of archived messages (RET-7).


Header = tuple[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A stored message."""

    partition: int
    offset: int
    append_time: Instant | None
    """None: unknown (CLK-4)."""
    key: bytes | None
    """None: no key. An empty key is a key."""
    value: bytes | None
    segment: int
    headers: tuple[Header, ...] = ()
    event_time: Instant | None = None
    origin_offset: int | None = None
    expires_at: Instant | None = None
    """The lifetime that the publisher stated, even if the topic ignores it (TTL-6)."""
    never: bool = False
    """The publisher stated that the message never expires (TTL-6)."""

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
    """A message to append. The log assigns `offset` and `segment`, unless a copy brings its own."""

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
        """Return the message as the log stores it."""
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
    """Return None for a missing or zero time, which is unknown (CLK-4). A time before 1970 is a time."""
    return append_time or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """The count and the digest of archived messages."""

    rows: int
    digest: str
    """A hash of every field of the messages, in order of (partition, offset)."""


def digest_messages(messages: Iterable[Message]) -> Archived:
    """Count and digest messages, which come in order of (partition, offset)."""
    rows, digest = 0, hashlib.sha256()
    for m in messages:
        rows += 1
        said = (
            m.partition, m.offset, m.append_time, m.event_time, m.key, m.value, m.headers, m.segment, m.origin_offset, m.expires_at, m.never,
        )  # fmt: skip
        digest.update(repr(said).encode())
    return Archived(rows=rows, digest=digest.hexdigest())


# Single messages that leave: the question of planning, the answer of a store, and offsets as a plan writes them.


Place = tuple[int, int]
"""(partition, base offset of a segment)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A rule that removes single messages. If several rules hold, the first in the list is the reason (CNT-1)."""

    name: AgeReason
    rule: Rule
    below: Mapping[int, int] = field(default_factory=dict)
    """For each partition, the lowest offset that a reader still needs. The rule removes messages below it only."""
    segments: frozenset[Place] | None = None
    """The rule judges messages of these segments only. None: all segments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitQuestion:
    """The limits by number and by size. The limits apply to messages that no `Reason` of the question removes or holds (DEL-9)."""

    limits: Limits
    lapsed: Rule | None = None
    """Messages that readers no longer see, although their segment stays. The limits rank these messages after all others."""
    dead: frozenset[Place] = frozenset()
    """Segments that an earlier rule would remove but a hold keeps. Their messages do not count."""
    below: Mapping[int, int] = field(default_factory=dict)
    """See `Reason.below`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowQuestion:
    """The question: which messages do these rules remove at `as_of`, and which messages are beyond the limits?"""

    as_of: Instant
    reasons: tuple[Reason, ...]
    going: frozenset[Place] = frozenset()
    """Segments that leave whole. The answer skips their messages."""
    beyond: LimitQuestion | None = None
    spared: tuple[Spared, ...] = ()
    """Messages that holds and undone plans keep. The answer reports them with the others; only `DueRows.free_since` leaves them out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRows:
    """Messages of one file that are due for one reason."""

    partition: int
    base_offset: int
    file: str
    reason: RemovalReason
    taken: str
    """Offsets of the messages that may leave, as `ranges_text`."""
    rows: int
    first_offset: int
    """The lowest offset, held messages included."""
    last_offset: int
    """The highest offset, held messages included."""
    since: Instant
    """When the first of the messages became due."""
    free_since: Instant | None = None
    """When the first message became due that may leave and that no hold or undone plan keeps. None: the same instant as `since`."""
    held: int = 0
    """Messages at or above the reason's bound."""
    spared: int = 0
    """Messages of `taken` that a legal hold or an undone plan keeps (DEL-8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUsage:
    """The result of the limits."""

    left: int = 0
    """Messages that no rule of age removes."""
    most_records: int = 0
    """The most messages that one group keeps."""
    most_bytes: int = 0
    """The most bytes that one group keeps. 0 if bytes have no limit, or if `min_keep` keeps a single message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAnswer:
    """The answer of a store to a `RowQuestion`."""

    due: tuple[DueRows, ...] = ()
    """In order of (partition, segment, file, reason)."""
    whole: Mapping[str, int] = field(default_factory=dict)
    """Files that lose every message, with their sizes in bytes. Without these files the segment still shows its newest time and last
    offset, or has disappeared (EXP-4)."""
    next_at: Instant | None = None
    """The first instant after `as_of` when a rule removes another message. None: unknown, or never."""
    emptied: int = 0
    """Groups that keep nothing, because their newest message alone exceeds the limit of bytes (RET-3)."""
    oversized: int = 0
    """Groups that keep such a message (RET-3)."""
    unknown_times: int = 0
    """An upper bound of the messages with an unknown time. No rule of age removes them (RET-2)."""
    limited: LimitUsage = field(default_factory=LimitUsage)


AskRows = Callable[[RowQuestion], RowAnswer]
"""Answers a question from the snapshot that the facts describe."""


def ranges_text(offsets: Iterable[int]) -> str:
    """Return ascending offsets as `3,7-9`: short if messages leave in runs, and readable in a plan."""
    parts: list[str] = []
    start = end = -2
    for offset in offsets:
        if offset == end + 1:
            end = offset
            continue
        if end >= 0:
            parts.append(_run(start, end))
        start = end = offset
    if end >= 0:
        parts.append(_run(start, end))
    return ",".join(parts)


def runs_text(runs: Iterable[range]) -> str:
    """Return ascending runs of offsets as `ranges_text`. No run touches the next."""
    return ",".join(_run(run.start, run.stop - 1) for run in runs)


def parse_ranges_text(text: str) -> Iterator[range]:
    """Return the runs of offsets in a `ranges_text`."""
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        yield range(int(first), int(last or first) + 1)


def lowest_offset(text: str) -> int:
    """Return the lowest offset of a `ranges_text` that is not empty, without reading the others."""
    return int(text[: text.find(",")].partition("-")[0] if "," in text else text.partition("-")[0])


def highest_offset(text: str) -> int:
    """Return the highest offset of a `ranges_text` that is not empty, without reading the others."""
    return int(text[text.rfind(",") + 1 :].rpartition("-")[2])


def is_offset_in_ranges(text: str, offset: int) -> bool:
    """Return whether a `ranges_text` names the offset. A binary search reads a few runs of a million."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high) // 2
        start, end = max(text.rfind(",", low, middle) + 1, low), text.find(",", middle, high)
        end = high if end < 0 else end
        first, _, last = text[start:end].partition("-")
        if offset < int(first):
            high = start - 1
        elif offset > int(last or first):
            low = end + 1
        else:
            return True
    return False


def join_ranges_texts(texts: Iterable[str]) -> str:
    """Return one `ranges_text` for several. Only texts that overlap are read run by run."""
    ordered = sorted(filter(None, texts), key=lowest_offset)
    if any(highest_offset(text) >= lowest_offset(following) for text, following in pairwise(ordered)):
        return runs_text(merge_touching(run for text in ordered for run in parse_ranges_text(text)))
    parts: list[str] = []
    for text in ordered:
        if not parts or highest_offset(parts[-1]) + 1 < lowest_offset(text):
            parts.append(text)
            continue
        before, _, last_run = parts.pop().rpartition(",")
        first_run, _, after = text.partition(",")
        met = f"{last_run.partition('-')[0]}-{first_run.rpartition('-')[2]}"
        parts.extend(filter(None, (before, f"{met},{after}" if after else met)))
    return ",".join(parts)


def merge_touching(runs: Iterable[range]) -> Iterator[range]:
    """Yield the runs in order, merged where they touch or overlap."""
    first = last = None
    for run in sorted(runs, key=lambda run: run.start):
        if last is not None and run.start <= last:
            last = max(last, run.stop)
            continue
        if first is not None and last is not None:
            yield range(first, last)
        first, last = run.start, run.stop
    if first is not None and last is not None:
        yield range(first, last)


def offsets_of(text: str) -> Iterator[int]:
    for run in parse_ranges_text(text):
        yield from run


def _run(start: int, end: int) -> str:
    return str(start) if start == end else f"{start}-{end}"


# Limit markers: messages that report that a key's last message left the log, and why (MRK-1, MRK-3).


REASON_HEADER = "Nats-Marker-Reason"
ROLLUP_HEADER = "Nats-Rollup"
KV_HEADER = "KV-Operation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A marker without its offset, which publishing assigns (MRK-4). Markers of one run are in order of (partition, replaces)."""

    partition: int
    replaces: int
    """The offset of the newest message that the marker replaces."""
    key: bytes
    reason: MarkerReason
    append_time: Instant
    ttl_us: int

    @property
    def headers(self) -> tuple[Header, ...]:
        return (
            (REASON_HEADER, self.reason.encode()),
            (TTL_HEADER, go_duration(self.ttl_us).encode()),
            (ROLLUP_HEADER, b"sub"),
        )

    def message(self) -> NewMessage:
        return NewMessage(append_time=self.append_time, key=self.key, value=b"", partition=self.partition, headers=self.headers)


def is_marker(headers: Iterable[Header]) -> bool:
    return any(name == REASON_HEADER for name, _ in headers)


def causes_none(headers: Iterable[Header]) -> bool:
    """Return True for a marker or a purge entry of a key-value store. Neither leaves a marker behind (MRK-3)."""
    return any(name == REASON_HEADER or (name == KV_HEADER and value == b"PURGE") for name, value in headers)


def go_duration(us: int) -> str:
    """Return whole seconds as Go prints them: `1s`, `1m0s`, `1h0m0s`."""
    seconds = us // 1_000_000
    hours, minutes = seconds // 3600, seconds // 60 % 60
    shown = f"{seconds % 60}s"
    if hours or minutes:
        shown = f"{minutes}m{shown}"
    return f"{hours}h{shown}" if hours else shown


def digest(markers: Iterable[Marker]) -> str:
    """Hash the markers in order, without offsets, so that publishing can require the markers that the gate judged (MRK-4)."""
    text = json.dumps([[m.partition, m.key.hex(), m.reason, m.append_time, m.ttl_us] for m in markers])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# The compacted view of a topic: each key's latest message, up to a horizon per partition (CMP-1 to CMP-4).


NOTHING = -1
"""The horizon of a partition before its first compaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRow:
    """A message in the view, with the content that the log has."""

    message: Message
    delete_horizon: Instant | None = None
    """When a retained tombstone may leave (CMP-7)."""
    remembered: bool = False
    """The row is the memory of a dropped message and no reader sees it. The row stays until `delete_horizon`, so that a late older event
    cannot bring the key back (CMP-12).
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """The view at one snapshot, as its metadata describe it."""

    table_uuid: str
    snapshot_id: int
    horizons: Mapping[int, int]
    """The last compacted offset of each partition. A missing partition, or NOTHING: nothing of the partition was compacted yet."""
    rows: int
    """Messages in the view."""
    hidden_rows: int
    """Superseded rows that its files still hold."""
    size_bytes: int
    due_at: Instant | None
    """The earliest time when a message of the view may leave by its age. Never later than the real time."""
    settings_hash: str
    """The hash of the settings (`Policy.view_hash`) that judged the messages and `due_at`. Empty if the settings differed."""

    def horizon(self, partition: int) -> int:
        return self.horizons.get(partition, NOTHING)

    def reach(self, partition: int) -> int | None:
        """Return the horizon for people. None: nothing was compacted yet."""
        horizon = self.horizon(partition)
        return None if horizon == NOTHING else horizon

    @property
    def has_reached(self) -> bool:
        """True if a compaction has read a message. A compaction of an empty topic has read none."""
        return any(horizon > NOTHING for horizon in self.horizons.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderRows:
    """Messages that readers would see again if a plan removed newer messages from past the horizon (CMP-9).

    Ascending offsets by partition. A message without a key hides no other message.
    """

    of_view: Mapping[int, Sequence[int]]
    """Messages of the view whose key loses a newer message."""
    in_log: Mapping[int, Sequence[int]]
    """Messages past the horizon that the plan removes although an older message of their key stays there."""


NONE_OUTLIVED = OlderRows(of_view={}, in_log={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The messages past a partition's horizon, up to the end point of a run (CMP-1)."""

    partition: int
    after: int
    through: int
    rows: int
    size_bytes: int
    """The messages' share of the bytes of their files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedView:
    """The view that a plan has staged on its branch, where no reader sees it.

    `view_rows` + `tail_rows` == `rows` + the sum of `removed` (CNT-1).
    """

    view_rows: int
    tail_rows: int
    rows: int
    removed: tuple[tuple[ViewReason, int], ...]
    bytes_read: int
    bytes_written: int
    engine: str
    took_ms: int = 0
    snapshot_id: int | None = None
    """The snapshot of the view's table on the plan's branch."""
