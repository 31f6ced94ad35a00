"""What a logical read shows: the table under "What a read shows" in docs/rules.md."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from message_lifecycle.model.facts import Progress
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.rows import RowAnswer, ranges_of
from message_lifecycle.model.rules import Limits, holds, predicate
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import age_rules
from message_lifecycle.operations.limits import Row, ranked


def is_hidden(message: Message, policy: Policy, at: Instant) -> bool:
    """A message that is dead or too old is hidden at once, while it may still be there."""
    return holds(age_rules.hidden(policy), message, at)


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
    ttl = age_rules.ttl(policy)
    is_hidden_now = _never if at is None else predicate(age_rules.hidden(policy), at)
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
