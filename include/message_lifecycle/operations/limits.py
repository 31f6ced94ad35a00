"""Which messages the limits by number and by size keep, and what a logical read shows once these and the rules of age are applied."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from operator import itemgetter
from typing import Literal, NamedTuple, TypeVar

from message_lifecycle.model.facts import Progress
from message_lifecycle.model.instants import INT64_MIN, Instant
from message_lifecycle.model.message import Message, RowAnswer, ranges_of
from message_lifecycle.model.reasons import LimitReason
from message_lifecycle.model.rules import Limits, Scope, holds, predicate
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import expiry

# Which messages the limits by number and by size keep (RET-1 to RET-5): one rule for the read filter, the plan, the gate and every store.
#
# Each group of the scope is walked from its newest message back: the newest `max_records`, of these the newest that together fit
# `max_total_bytes`, an exact fit included, up to the first that does not fit. What is kept of a group is thus the newest part of each of its
# partitions, and a partition's cut is one offset. Time decides between partitions alone: rows are ranked by the running maximum of
# `append_time` within their partition, then partition, then offset (RET-4).
#
# Age comes first: who asks leaves out what a rule of age takes, also what it takes but somebody holds (DEL-9). Messages that no read shows
# any more but that stay with their segment have lapsed: they rank after all others, so that they push out none that is shown.
#
# Rows come one by one (`cuts`, `first_kept`), or many at once from metadata (`Walk`), looked at singly only where a cut falls.


class Row(NamedTuple):
    """`append_time` in microseconds, None: unknown. `size_bytes` as MSG-2 counts. `lapsed`: see the module."""

    partition: int
    offset: int
    append_time: int | None
    size_bytes: int
    key: bytes | None = None
    lapsed: bool = False


Group = int | bytes | None
"""A partition, a key, or the whole topic."""
Rank = tuple[bool, int, int, int]
"""Not lapsed, running maximum of the times, partition, offset (RET-4)."""
Of = TypeVar("Of")
Lane = tuple[Group, int, bool]
"""Rows of one group, one partition, lapsed or not: their order is that of their offsets."""


class Cut(NamedTuple):
    """What goes of one lane: offsets below `counted_from` by `max_records`, the others below `kept_from` by `max_total_bytes`."""

    kept_from: int
    counted_from: int

    def reason(self, offset: int) -> LimitReason | None:
        """Why the message at this offset goes; None: it is kept."""
        if offset >= self.kept_from:
            return None
        return "retention_count" if offset < self.counted_from else "retention_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """`of`: lanes of which something goes; all else is kept. `emptied`: groups of which nothing is kept, as the newest message alone
    passes the limit of bytes; `oversized`: those of which `min_keep` keeps it nevertheless (RET-3)."""

    scope: Scope
    of: Mapping[Lane, Cut] = field(default_factory=dict)
    emptied: int = 0
    oversized: int = 0

    def reason(self, row: Row) -> LimitReason | None:
        """Why the row goes; None: it is kept."""
        if self.scope == "key" and row.key is None:
            return None
        cut = self.of.get((group_of(row, self.scope), row.partition, row.lapsed))
        return None if cut is None else cut.reason(row.offset)


def group_of(row: Row, scope: Scope) -> Group:
    """Within what a row is counted (RET-4)."""
    return None if scope == "topic" else row.partition if scope == "partition" else row.key


def first_kept(sizes: Sequence[int], limits: Limits) -> tuple[int, int]:
    """For the sizes of one group in ascending rank: (index of the first that is kept, index of the first within `max_records`).

    What lies below the second goes by number, what lies between the two by size. Costs a look at each size within `max_records`."""
    rows = len(sizes)
    counted = 0 if limits.max_records is None else max(0, rows - limits.max_records)
    kept = counted
    if limits.max_total_bytes is not None:
        kept = rows
        for total in accumulate(islice(reversed(sizes), rows - counted)):
            if total > limits.max_total_bytes:
                break
            kept -= 1
    if limits.min_keep and kept == rows > 0:
        kept = rows - 1
    return kept, counted


def cuts(rows: Iterable[Row], limits: Limits) -> Cuts:
    """The cuts through these rows: all that no rule of age takes, in order of (partition, offset)."""
    groups: dict[Group, list[tuple[Rank, Row]]] = {}
    for row, rank in ranked((row, row) for row in rows):
        if limits.scope != "key" or row.key is not None:
            groups.setdefault(group_of(row, limits.scope), []).append((rank, row))
    of: dict[Lane, Cut] = {}
    emptied = oversized = 0
    for group, members in groups.items():
        members.sort(key=lambda member: member[0])
        ordered = [row for _, row in members]
        kept, counted = first_kept([row.size_bytes for row in ordered], limits)
        if limits.max_total_bytes is not None and ordered[-1].size_bytes > limits.max_total_bytes:
            emptied, oversized = emptied + (not limits.min_keep), oversized + limits.min_keep
        for at, row in enumerate(ordered[:kept]):
            # In a lane offsets rise with the rank: the last one that goes decides.
            lane = group, row.partition, row.lapsed
            earlier = of.get(lane)
            beyond = row.offset + 1 if at < counted else 0 if earlier is None else earlier.counted_from
            of[lane] = Cut(row.offset + 1, beyond)
    return Cuts(scope=limits.scope, of=of, emptied=emptied, oversized=oversized)


def ranked(rows: Iterable[tuple[Row, Of]]) -> Iterator[tuple[Of, Rank]]:
    """What belongs to each row, with its rank; the greatest is the newest. Rows in order of (partition, offset); an unknown time adds
    nothing to the running maximum."""
    newest: dict[tuple[int, bool], int] = {}
    for row, of_row in rows:
        place = row.partition, row.lapsed
        time = newest.get(place, INT64_MIN) if row.append_time is None else max(row.append_time, newest.get(place, INT64_MIN))
        newest[place] = time
        yield of_row, (not row.lapsed, time, row.partition, row.offset)


@dataclass(slots=True, kw_only=True)
class Walk:
    """One group walked back in blocks, newest first: each of neighbouring rows, of which number and size are known.

    `rows` and `size_bytes` are of what is kept so far, `counted` of what `max_records` admits; `closed`: no more fits the bytes;
    `newest_passes`: the group's newest message alone passes the limit of bytes."""

    limits: Limits
    rows: int = 0
    size_bytes: int = 0
    counted: int = 0
    closed: bool = False
    newest_passes: bool = False

    @property
    def full(self) -> bool:
        """Every older row goes by number, whatever its size."""
        return self.limits.max_records is not None and self.counted >= self.limits.max_records

    @property
    def needs_sizes(self) -> bool:
        """Whether the size of the next block decides anything."""
        return self.limits.max_total_bytes is not None and not self.closed and not self.full

    def take(self, rows: int, size_bytes: int | None) -> Literal["kept"] | LimitReason | None:
        """What becomes of the block as a whole; None: a cut falls in it, and it goes to `split`. `size_bytes` None: not known, which
        is enough where `needs_sizes` says so."""
        if self.full:
            return "retention_count"
        if self.limits.max_records is not None and self.counted + rows > self.limits.max_records:
            return None
        if self.closed:
            self.counted += rows
            return "retention_bytes"
        if self.limits.max_total_bytes is not None:
            if size_bytes is None or self.size_bytes + size_bytes > self.limits.max_total_bytes:
                return None
            self.size_bytes += size_bytes
        self.rows += rows
        self.counted += rows
        return "kept"

    def split(self, sizes: Sequence[int]) -> tuple[int, int]:
        """As `first_kept`, for the sizes of one block in ascending rank, after all that was taken before."""
        limits = self.limits
        left = Limits(
            max_records=None if limits.max_records is None else limits.max_records - self.counted,
            # Nothing fits any more, not even what has no size.
            max_total_bytes=None if limits.max_total_bytes is None else -1 if self.closed else limits.max_total_bytes - self.size_bytes,
            min_keep=limits.min_keep if not self.rows and not self.closed else 0,
        )
        kept, counted = first_kept(sizes, left)
        if limits.max_total_bytes is not None and not self.counted and sizes and sizes[-1] > limits.max_total_bytes:
            self.newest_passes = True
        self.closed = self.closed or kept > counted
        self.rows += len(sizes) - kept
        self.counted += len(sizes) - counted
        if limits.max_total_bytes is not None:
            self.size_bytes += sum(islice(reversed(sizes), len(sizes) - kept))
        return kept, counted


# What a logical read shows: the table under "What a read shows" in docs/rules.md.


def is_hidden(message: Message, policy: Policy, at: Instant) -> bool:
    """A message that is dead or too old is hidden at once, while it may still be there."""
    return holds(expiry.hidden(policy), message, at)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeyondLimits:
    """Offsets by partition that lie beyond the topic's limits by number and size: first and last of each run, ascending."""

    firsts: Mapping[int, list[int]] = field(default_factory=dict)
    lasts: Mapping[int, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, answer: RowAnswer) -> BeyondLimits:
        """Of a store's answer to `message_cleaner.shown`."""
        found: dict[int, list[range]] = {}
        for entry in answer.due:
            if entry.reason in ("retention_count", "retention_bytes"):
                found.setdefault(entry.partition, []).extend(ranges_of(entry.taken))
        for runs in found.values():
            runs.sort(key=lambda run: run.start)
        return cls(
            firsts={partition: [run.start for run in runs] for partition, runs in found.items()},
            lasts={partition: [run.stop - 1 for run in runs] for partition, runs in found.items()},
        )

    def __contains__(self, message: Message) -> bool:
        firsts = self.firsts.get(message.partition)
        if firsts is None:
            return False
        at = bisect_right(firsts, message.offset) - 1
        return at >= 0 and message.offset <= self.lasts[message.partition][at]


NONE_BEYOND = BeyondLimits()


def _never(_message: Message) -> bool:
    return False


def visible(
    messages: Iterable[Message],
    policy: Policy,
    *,
    at: Instant | None,
    progress: Iterable[Progress] = (),
    since: Instant | None = None,
    beyond: BeyondLimits = NONE_BEYOND,
) -> Iterator[Message]:
    """Messages that a logical read at `at` shows (None: nothing is hidden). `progress`: the reading consumer's, which still
    sees what is kept for it alone: what it has not processed, while it is not silent (EXP-6). `beyond`: what the limits by number
    and size leave out, counted over the whole log."""
    unread_from = {p.partition: p.offset + 1 for p in progress if at is None or p.pins_at(at, policy.consumer_expiry_us)}
    ttl = expiry.ttl(policy)
    is_hidden_now = _never if at is None else predicate(expiry.hidden(policy), at)
    is_dead = _never if at is None or ttl is None else predicate(ttl, at)
    limited = at is not None and bool(beyond.firsts)
    for message in messages:
        if since is not None and message.append_time is not None and message.append_time < since:
            continue
        if unread_from and message.offset >= unread_from.get(message.partition, message.offset + 1):
            # Of its own TTL a message is kept for nobody.
            if not is_dead(message):
                yield message
        elif not (is_hidden_now(message) or (limited and message in beyond)):
            yield message


def kept_of_one(messages: Iterable[Message], limits: Limits) -> deque[Message]:
    """What the limits keep of messages in ascending rank that are one group (RET-1, RET-3): one partition's, all that no rule of age hides.

    In one pass, which holds no more than is kept up to there: what does not fit with a newer message does not fit with more of them."""
    kept: deque[Message] = deque()
    newest_one: Message | None = None
    sizes: deque[int] = deque()
    total, records, most = 0, limits.max_records, limits.max_total_bytes
    for newest_one in messages:
        kept.append(newest_one)
        if most is not None:
            size = newest_one.size_bytes
            sizes.append(size)
            total += size
            while total > most:
                kept.popleft()
                total -= sizes.popleft()
        if records is not None and len(kept) > records:
            kept.popleft()
            if most is not None:
                total -= sizes.popleft()
    if limits.min_keep and not kept and newest_one is not None:
        kept.append(newest_one)
    return kept


def newest(messages: Iterable[Message], limit: int) -> list[Message]:
    """The newest `limit` (at least 1) of messages in order of (partition, offset), ranked as retention ranks them, in that order (RET-4,
    RET-5). Holds no more than these."""
    by_row: Iterator[tuple[Row, Message]] = ((_row(message), message) for message in messages)
    found = heapq.nlargest(limit, ((rank, message) for message, rank in ranked(by_row)), key=itemgetter(0))
    return sorted((message for _, message in found), key=lambda message: (message.partition, message.offset))


def _row(message: Message) -> Row:
    # The size decides nothing here.
    return Row(partition=message.partition, offset=message.offset, append_time=message.append_time, size_bytes=0)
