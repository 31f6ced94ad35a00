"""The limits by number and by size, and the messages that a logical read shows."""

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
from message_lifecycle.model.message import Message, RowAnswer, parse_ranges_text
from message_lifecycle.model.reasons import LimitReason
from message_lifecycle.model.rules import Limits, Scope, predicate, rule_holds
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import expiry

# The messages that the limits by number and by size keep (RET-1 to RET-5): one rule for the read filter, the plan, the gate and every store.
#
# The rule walks each group of the scope from its newest message back. It keeps the newest `max_records` messages, and of these the newest
# messages that together fit `max_total_bytes`, an exact fit included, up to the first message that does not fit. Each partition of a group
# therefore keeps its newest part, and its cut is one offset. Time only decides between partitions: rows rank by the running maximum of
# `append_time` within their partition, then by partition, then by offset (RET-4).
#
# Age comes first: the caller leaves out the messages that a rule of age removes, held messages included (DEL-9). Messages have lapsed if no
# read shows them but their segment keeps them. They rank after all others, so that they displace no visible message.
#
# Rows come one by one (`find_cuts`, `first_kept`), or many at once from metadata (`GroupWalk`). The walk reads single rows only where a cut falls.


class RankedRow(NamedTuple):
    """The part of a message that the limits look at."""

    partition: int
    offset: int
    append_time: int | None
    """In microseconds. None: unknown."""
    size_bytes: int
    """As MSG-2 counts."""
    key: bytes | None = None
    lapsed: bool = False
    """See the comment above."""


Group = int | bytes | None
"""A partition, a key, or the whole topic."""
Rank = tuple[bool, int, int, int]
"""(not lapsed, running maximum of the times, partition, offset) (RET-4)."""
Of = TypeVar("Of")
Lane = tuple[Group, int, bool]
"""The rows of one group in one partition, either lapsed or not. Their offsets give their order."""


class LaneCut(NamedTuple):
    """The cut through one lane: `max_records` removes offsets below `counted_from`, `max_total_bytes` the others below `kept_from`."""

    kept_from: int
    counted_from: int

    def reason(self, offset: int) -> LimitReason | None:
        """Return why the message at this offset leaves. None: the limits keep it."""
        if offset >= self.kept_from:
            return None
        return "retention_count" if offset < self.counted_from else "retention_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCuts:
    """The cuts through all groups."""

    scope: Scope
    of: Mapping[Lane, LaneCut] = field(default_factory=dict)
    """Lanes that lose rows. The limits keep all others whole."""
    emptied: int = 0
    """Groups that keep nothing, because their newest message alone exceeds the limit of bytes (RET-3)."""
    oversized: int = 0
    """Groups that keep such a message because of `min_keep` (RET-3)."""

    def reason(self, row: RankedRow) -> LimitReason | None:
        """Return why the row leaves. None: the limits keep it."""
        if self.scope == "key" and row.key is None:
            return None
        cut = self.of.get((group_of(row, self.scope), row.partition, row.lapsed))
        return None if cut is None else cut.reason(row.offset)


def group_of(row: RankedRow, scope: Scope) -> Group:
    """Return the group that counts the row (RET-4)."""
    return None if scope == "topic" else row.partition if scope == "partition" else row.key


def first_kept(sizes: Sequence[int], limits: Limits) -> tuple[int, int]:
    """Cut one group by its sizes in ascending rank.

    Returns:
        (index of the first kept row, index of the first row within `max_records`). Rows below the second index leave by number, rows
        between the two by size. The cost is one read of each size within `max_records`.
    """
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


def find_cuts(rows: Iterable[RankedRow], limits: Limits) -> GroupCuts:
    """Cut the rows, which come in order of (partition, offset) without those that a rule of age removes."""
    groups: dict[Group, list[tuple[Rank, RankedRow]]] = {}
    for row, rank in rank_rows((row, row) for row in rows):
        if limits.scope != "key" or row.key is not None:
            groups.setdefault(group_of(row, limits.scope), []).append((rank, row))
    of: dict[Lane, LaneCut] = {}
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
            of[lane] = LaneCut(row.offset + 1, beyond)
    return GroupCuts(scope=limits.scope, of=of, emptied=emptied, oversized=oversized)


def rank_rows(rows: Iterable[tuple[RankedRow, Of]]) -> Iterator[tuple[Of, Rank]]:
    """Return the item of each row with the row's rank. The greatest rank is the newest.

    Rows come in order of (partition, offset). An unknown time leaves the running maximum as it is.
    """
    newest: dict[tuple[int, bool], int] = {}
    for row, of_row in rows:
        place = row.partition, row.lapsed
        time = newest.get(place, INT64_MIN) if row.append_time is None else max(row.append_time, newest.get(place, INT64_MIN))
        newest[place] = time
        yield of_row, (not row.lapsed, time, row.partition, row.offset)


@dataclass(slots=True, kw_only=True)
class GroupWalk:
    """A walk through one group in blocks, newest first. A block is a run of neighbouring rows with a known number and size."""

    limits: Limits
    rows: int = 0
    """Rows kept so far."""
    size_bytes: int = 0
    """Bytes kept so far."""
    counted: int = 0
    """Rows that `max_records` admits so far."""
    closed: bool = False
    """No further row fits the limit of bytes."""
    newest_passes: bool = False
    """The group's newest message alone exceeds the limit of bytes."""

    @property
    def full(self) -> bool:
        """True if every older row leaves by number, whatever its size."""
        return self.limits.max_records is not None and self.counted >= self.limits.max_records

    @property
    def needs_sizes(self) -> bool:
        """True if the size of the next block matters."""
        return self.limits.max_total_bytes is not None and not self.closed and not self.full

    def judge_block(self, rows: int, size_bytes: int | None) -> Literal["kept"] | LimitReason | None:
        """Judge a whole block.

        Args:
            rows: The number of the block's rows.
            size_bytes: None: unknown. Enough unless `needs_sizes`.

        Returns:
            "kept", or why the whole block leaves. None: a cut falls into the block, and the caller passes it to `split`.
        """
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
        """Return as `first_kept` for the sizes of the next block in ascending rank."""
        limits = self.limits
        left = Limits(
            max_records=None if limits.max_records is None else limits.max_records - self.counted,
            # No row fits any more, not even an empty one.
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


# The messages that a logical read shows: see the table under "Messages that a read shows" in docs/rules.md.


def is_hidden(message: Message, policy: Policy, at: Instant) -> bool:
    """Return True for a dead or too old message. Readers stop seeing it at once, although the log may still hold it."""
    return rule_holds(expiry.hiding_rule(policy), message, at)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeyondLimits:
    """Offsets beyond the topic's limits by number and size: the first and the last of each run, ascending, by partition."""

    firsts: Mapping[int, list[int]] = field(default_factory=dict)
    lasts: Mapping[int, list[int]] = field(default_factory=dict)

    @classmethod
    def from_answer(cls, answer: RowAnswer) -> BeyondLimits:
        """Make it from a store's answer to `message_cleaner.shown`."""
        found: dict[int, list[range]] = {}
        for entry in answer.due:
            if entry.reason in ("retention_count", "retention_bytes"):
                found.setdefault(entry.partition, []).extend(parse_ranges_text(entry.taken))
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


def visible_messages(
    messages: Iterable[Message],
    policy: Policy,
    *,
    at: Instant | None,
    progress: Iterable[Progress] = (),
    since: Instant | None = None,
    beyond: BeyondLimits = NONE_BEYOND,
) -> Iterator[Message]:
    """Return the messages that a logical read shows.

    Args:
        messages: The stored messages.
        policy: The topic's policy.
        at: The time of the read. None: show all messages.
        progress: The progress of the reading consumer. While it is not silent, it still sees the messages that it has not processed,
            because the log keeps them for it (EXP-6).
        since: Leave out messages with an older append time.
        beyond: Messages beyond the limits by number and size, counted over the whole log.
    """
    unread_from = {p.partition: p.offset + 1 for p in progress if at is None or p.pins_at(at, policy.consumer_expiry_us)}
    ttl = expiry.ttl_rule(policy)
    is_hidden_now = _never if at is None else predicate(expiry.hiding_rule(policy), at)
    is_dead = _never if at is None or ttl is None else predicate(ttl, at)
    limited = at is not None and bool(beyond.firsts)
    for message in messages:
        if since is not None and message.append_time is not None and message.append_time < since:
            continue
        if unread_from and message.offset >= unread_from.get(message.partition, message.offset + 1):
            # A message past its own TTL stays for no reader.
            if not is_dead(message):
                yield message
        elif not (is_hidden_now(message) or (limited and message in beyond)):
            yield message


def kept_in_group(messages: Iterable[Message], limits: Limits) -> deque[Message]:
    """Return the messages of one group that the limits keep (RET-1, RET-3).

    The messages come in ascending rank, from one partition, without those that a rule of age hides. One pass is enough and holds no more
    than the kept messages: a message that does not fit next to a newer one does not fit next to several.
    """
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


def newest_messages(messages: Iterable[Message], limit: int) -> list[Message]:
    """Return the newest messages as retention ranks them (RET-4, RET-5), in order of (partition, offset). Holds no others in memory.

    Args:
        messages: In order of (partition, offset).
        limit: The number of messages, at least 1.
    """
    by_row: Iterator[tuple[RankedRow, Message]] = ((_row(message), message) for message in messages)
    found = heapq.nlargest(limit, ((rank, message) for message, rank in rank_rows(by_row)), key=itemgetter(0))
    return sorted((message for _, message in found), key=lambda message: (message.partition, message.offset))


def _row(message: Message) -> RankedRow:
    # The size does not matter here.
    return RankedRow(partition=message.partition, offset=message.offset, append_time=message.append_time, size_bytes=0)
