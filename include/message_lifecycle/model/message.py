"""Messages, the single ones of them that go, the markers that tell of it, and the compacted view of the newest ones."""

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

# One message of a log (MSG-1, MSG-2); and what is told of many that are kept elsewhere: how many, and a digest of all that they say (RET-7).


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


# Single messages that go, named by their offsets: what planning asks a store, what it is told, and how a plan writes it down.


Place = tuple[int, int]
"""(partition, base offset of a segment)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A rule that takes single messages. Where several hold, the first listed is the reason (CNT-1).

    `below`: per partition, the offset from which on it takes nothing yet, because somebody still needs the messages there.
    `segments`: it judges the messages of these alone (None: all)."""

    name: AgeReason
    rule: Rule
    below: Mapping[int, int] = field(default_factory=dict)
    segments: frozenset[Place] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """The limits by number and by size, for what no `Reason` of the question takes or holds (DEL-9).

    `lapsed`: what no read shows any more, though it stays with its segment: it ranks after all others. `dead`: segments whose messages
    an earlier rule has, and somebody holds: they are not counted. `below`: as of a `Reason`."""

    limits: Limits
    lapsed: Rule | None = None
    dead: frozenset[Place] = frozenset()
    below: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowQuestion:
    """Which messages do these rules take at `as_of`, and which lie beyond the limits? Segments in `going` go as a whole and are not
    looked at. What is `spared` is told like the rest: it is asked for `DueRows.free_since` alone."""

    as_of: Instant
    reasons: tuple[Reason, ...]
    going: frozenset[Place] = frozenset()
    beyond: Beyond | None = None
    spared: tuple[Spared, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRows:
    """Messages of one file for which one reason holds: `taken` may go, `held` of them lie at or above the reason's bound.

    `first_offset` and `last_offset` are of both; `since`: when the first of them became due; `free_since`: the same of those that may go
    and that nobody spares, where that is another (None: it is not)."""

    partition: int
    base_offset: int
    file: str
    reason: RemovalReason
    taken: str
    """Offsets as `ranges_text`."""
    rows: int
    first_offset: int
    last_offset: int
    since: Instant
    free_since: Instant | None = None
    held: int = 0
    spared: int = 0
    """Messages that a legal hold or an undone plan keeps: they were `taken` (DEL-8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the limits met. `left`: messages that no rule of age has; `most_records` and `most_bytes`: the most that one group keeps (bytes:
    0 where they are not limited, and of a single message that `min_keep` keeps)."""

    left: int = 0
    most_records: int = 0
    most_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAnswer:
    """`due`: in order of (partition, segment, file, reason). `whole`: files all of whose messages are taken, with their sizes in
    bytes; without them the segment still shows its newest time and last offset, or is gone (EXP-4).

    `next_at`: the first instant after `as_of` at which one of the rules takes another message (None: none is known). `emptied`: groups
    of which nothing is kept, as the newest message alone passes the limit of bytes; `oversized`: those that keep it nevertheless (RET-3)."""

    due: tuple[DueRows, ...] = ()
    whole: Mapping[str, int] = field(default_factory=dict)
    next_at: Instant | None = None
    emptied: int = 0
    oversized: int = 0
    unknown_times: int = 0
    """Messages that are there and whose time is not known, at the most: no rule of age takes them (RET-2)."""
    limited: Kept = field(default_factory=Kept)


AskRows = Callable[[RowQuestion], RowAnswer]
"""Answers from the very snapshot that the facts describe."""


def ranges_text(offsets: Iterable[int]) -> str:
    """Ascending offsets as `3,7-9`: short where messages go in runs, and readable in a plan."""
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
    """Ascending runs of offsets, none of which meets the next, as `ranges_text`."""
    return ",".join(_run(run.start, run.stop - 1) for run in runs)


def ranges_of(text: str) -> Iterator[range]:
    """The runs of offsets in a `ranges_text`."""
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        yield range(int(first), int(last or first) + 1)


def first_of(text: str) -> int:
    """Return the lowest offset of a `ranges_text` that is not empty, without reading the others."""
    return int(text[: text.find(",")].partition("-")[0] if "," in text else text.partition("-")[0])


def last_of(text: str) -> int:
    """Return the highest offset of a `ranges_text` that is not empty, without reading the others."""
    return int(text[text.rfind(",") + 1 :].rpartition("-")[2])


def is_among(text: str, offset: int) -> bool:
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


def joined_text(texts: Iterable[str]) -> str:
    """Return one `ranges_text` for several. Only texts that overlap are read run by run."""
    ordered = sorted(filter(None, texts), key=first_of)
    if any(last_of(text) >= first_of(following) for text, following in pairwise(ordered)):
        return runs_text(_joined(run for text in ordered for run in ranges_of(text)))
    parts: list[str] = []
    for text in ordered:
        if not parts or last_of(parts[-1]) + 1 < first_of(text):
            parts.append(text)
            continue
        before, _, last_run = parts.pop().rpartition(",")
        first_run, _, after = text.partition(",")
        met = f"{last_run.partition('-')[0]}-{first_run.rpartition('-')[2]}"
        parts.extend(filter(None, (before, f"{met},{after}" if after else met)))
    return ",".join(parts)


def _joined(runs: Iterable[range]) -> Iterator[range]:
    """In order, none meeting the next."""
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
    for run in ranges_of(text):
        yield from run


def _run(start: int, end: int) -> str:
    return str(start) if start == end else f"{start}-{end}"


# Limit markers: what tells a reader that a key's last message went, and why (MRK-1, MRK-3).


REASON_HEADER = "Nats-Marker-Reason"
ROLLUP_HEADER = "Nats-Rollup"
KV_HEADER = "KV-Operation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A marker without its offset, which publishing gives (MRK-4). `replaces`: the offset of the newest message that it stands for;
    markers of one run are in the order of (partition, replaces)."""

    partition: int
    replaces: int
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
    """A marker, or a purge entry of a key-value store, leaves no marker when it goes (MRK-3)."""
    return any(name == REASON_HEADER or (name == KV_HEADER and value == b"PURGE") for name, value in headers)


def go_duration(us: int) -> str:
    """Whole seconds as Go prints them: `1s`, `1m0s`, `1h0m0s`."""
    seconds = us // 1_000_000
    hours, minutes = seconds // 3600, seconds // 60 % 60
    shown = f"{seconds % 60}s"
    if hours or minutes:
        shown = f"{minutes}m{shown}"
    return f"{hours}h{shown}" if hours else shown


def digest(markers: Iterable[Marker]) -> str:
    """Of all of them, in order, without offsets: what the gate judges is what is published (MRK-4)."""
    text = json.dumps([[m.partition, m.key.hex(), m.reason, m.append_time, m.ttl_us] for m in markers])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# The compacted view of a topic: each key's latest message, up to a horizon per partition (CMP-1 to CMP-4).


NOTHING = -1
"""The horizon of a partition of which nothing has been compacted yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRow:
    """A message in the view, as the log has it.

    `delete_horizon`: of a retained tombstone, the instant from which on it may go (CMP-7). `remembered`: not a message any more but
    the memory of one that was dropped, until its `delete_horizon`, so that a late older event brings no key back (CMP-12)."""

    message: Message
    delete_horizon: Instant | None = None
    remembered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """The view at one snapshot, by metadata alone.

    `rows`: messages in it; `hidden_rows`: of its files, superseded and not yet rewritten. `due_at`: when a message in it may go by its
    age at the earliest; it may be earlier than the truth, never later."""

    table_uuid: str
    snapshot_id: int
    horizons: Mapping[int, int]
    """The last offset compacted, per partition; a partition that is not there, or has NOTHING, has none yet."""
    rows: int
    hidden_rows: int
    size_bytes: int
    due_at: Instant | None
    settings_hash: str
    """Of the settings by which its messages were judged and `due_at` was told (`Policy.view_hash`); empty where not all by the same."""

    def horizon(self, partition: int) -> int:
        return self.horizons.get(partition, NOTHING)

    def reach(self, partition: int) -> int | None:
        """The horizon as it is shown; None: none yet."""
        horizon = self.horizon(partition)
        return None if horizon == NOTHING else horizon

    @property
    def has_reached(self) -> bool:
        """Whether any message was compacted yet; of a topic that was empty then none was."""
        return any(horizon > NOTHING for horizon in self.horizons.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlived:
    """What would be seen again if a plan took messages from past the horizon as it stands (CMP-9). Messages without a key hide none.

    Ascending offsets by partition. `of_view`: of messages in the view of whose key a newer one goes. `in_log`: of messages that go from
    past the horizon although an older one of their key stays there."""

    of_view: Mapping[int, Sequence[int]]
    in_log: Mapping[int, Sequence[int]]


NONE_OUTLIVED = Outlived(of_view={}, in_log={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What lies past a partition's horizon, up to the end point of a run (CMP-1). `size_bytes`: of the files that hold it, a share each."""

    partition: int
    after: int
    through: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedView:
    """What a plan has made of the view, on the branch, before anybody sees it.

    rows of the view before + rows of the tail == `rows` + all of `removed` (CNT-1)."""

    view_rows: int
    tail_rows: int
    rows: int
    removed: tuple[tuple[ViewReason, int], ...]
    bytes_read: int
    bytes_written: int
    engine: str
    took_ms: int = 0
    snapshot_id: int | None = None
    """Of the view's table, on the plan's branch."""
