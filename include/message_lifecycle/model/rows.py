"""Single messages that go, named by their offsets: what planning asks a store, what it is told, and how a plan writes it down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.rules import Limits, Rule

if TYPE_CHECKING:
    from message_lifecycle.model.hold import Spared

AgeReason = Literal["expiry", "ttl", "retention_age"]
LimitReason = Literal["retention_count", "retention_bytes"]
RemovalReason = Literal[
    "erased",
    "removed",
    "purged",
    "expiry",
    "ttl",
    "retention_age",
    "retention_count",
    "retention_bytes",
    "superseded",
    "compacted",
    "undone",
]
"""In the order in which the first that applies counts (CNT-1). `compacted`: the compacted view covers it (CMP-9). `undone`: a marker of a
plan that is taken back (DEL-7)."""
OF_LIMITS: tuple[RemovalReason, ...] = ("retention_age", "retention_count", "retention_bytes")
"""Those of the operation `retention`, and the cleaner's last (RET-5)."""
ViewReason = Literal["removed", "purged", "expiry", "ttl", "retention_age", "superseded", "tombstoned", "null_key"]
"""Why a message is not in the compacted view (CNT-1): an older one of its key, else the first of the others that applies."""
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


def offsets_of(text: str) -> Iterator[int]:
    for run in ranges_of(text):
        yield from run


def _run(start: int, end: int) -> str:
    return str(start) if start == end else f"{start}-{end}"
