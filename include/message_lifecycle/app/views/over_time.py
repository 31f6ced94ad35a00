"""Messages by time: what expires when, and how the topic grew and shrank.

The figures come from the bounds of segments, from the ledger and from the summaries of snapshots. No table is scanned.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from message_lifecycle.app.operations.registry import operation_named
from message_lifecycle.app.rendering import Count, Size, View
from message_lifecycle.app.services import Services
from message_lifecycle.model.facts import Segment
from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, MICROS_PER_SECOND, Instant, deadline, format_duration, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import LogSize
from message_lifecycle.model.topic import RECORD_LOGS
from message_lifecycle.operations.message_cleaner import may_keep_some

_MINUTE = 60 * MICROS_PER_SECOND
DAY = 24 * 60 * _MINUTE
DAYS_SHOWN = 30
_PERIODS = (_MINUTE, 10 * _MINUTE, 60 * _MINUTE, DAY // 4, DAY, 7 * DAY, 28 * DAY, 364 * DAY)
"""The lengths of a period. The shortest is taken that needs no more than `_PERIODS_MOST`."""
_PERIODS_MOST = 40
_BAR = 20
"""The length of the longest bar, in characters."""
_OUTCOMES_READ = 500
"""The picture of a longer history begins at the oldest of so many outcomes."""


class Amount(View):
    """Messages, and the bytes of their segments."""

    messages: Count = 0
    bytes: Size = 0


class ExpiryDay(View):
    """The messages that are past their age on one day. `day`: its first instant."""

    day: Instant
    amount: Amount


class Expiries(View):
    """Messages that expire, by day. A segment expires when its newest message is past its age.

    Args:
        days: The next days, today first. A day without an expiry has no messages.
        due: Past their age now.
        later: Past their age after the last of the days.
        never: In segments that no rule of age ends, whose newest time is unknown, or that may keep messages for longer (`may_keep_some`).
    """

    days: tuple[ExpiryDay, ...]
    due: Amount
    later: Amount
    never: Amount


def expiries(segments: Iterable[Segment], policy: Policy, *, now: Instant) -> Expiries | None:
    """Return what expires when. None: the topic has no rule of age for its messages."""
    if not policy.message_expiry_us and policy.max_age_us is None:
        return None
    today = now - now % DAY
    found: Counter[int] = Counter()
    size: Counter[int] = Counter()
    due, later, never = -1, DAYS_SHOWN, DAYS_SHOWN + 1
    for segment in segments:
        end = _end(segment, policy)
        at = never if end is None else due if end <= now else min((end - today) // DAY, later)
        found[at] += segment.rows
        size[at] += segment.size_bytes

    def amount(at: int) -> Amount:
        return Amount(messages=found[at], bytes=size[at])

    return Expiries(
        days=tuple(ExpiryDay(day=Instant(today + at * DAY), amount=amount(at)) for at in range(DAYS_SHOWN)),
        due=amount(due),
        later=amount(later),
        never=amount(never),
    )


def _end(segment: Segment, policy: Policy) -> Instant | None:
    """Return when every message of the segment is past the first of the topic's rules of age. None: unknown, or a message may stay."""
    ages = [age for age in (policy.message_expiry_us, policy.max_age_us) if age]
    if segment.newest_at is None or may_keep_some(segment, policy):
        return None
    end = deadline(segment.newest_at, min(ages))
    return None if end == INT64_MAX else end


class AgePeriod(View):
    """How many messages of one period leave, and how many stay. `since`: its first instant."""

    since: Instant
    leaves: Count
    stays: Count


class Ages(View):
    """Messages that a plan removes and keeps, by the time of each segment's newest message.

    Args:
        periods: Every period from the oldest to the newest segment.
        period_us: The length of a period, in microseconds.
        unknown: Messages of segments whose newest time is unknown.
    """

    periods: tuple[AgePeriod, ...]
    period_us: int
    unknown: AgePeriod | None


def ages(segments: Iterable[Segment], leaving: Callable[[Segment], int], *, most: int = _PERIODS_MOST) -> Ages | None:
    """Return what leaves and what stays. None: no segment has a message.

    Args:
        segments: The segments of the log before the plan.
        leaving: Returns how many messages of a segment leave.
        most: The largest number of periods.
    """
    full = [segment for segment in segments if segment.rows]
    if not full:
        return None
    times = [segment.newest_at for segment in full if segment.newest_at is not None]
    first, last = min(times, default=0), max(times, default=0)
    length = _period_length(last - first, _PERIODS[_PERIODS.index(DAY) :], most)
    start = first - first % length
    leaves, stays = Counter[int | None](), Counter[int | None]()
    for segment in full:
        at = None if segment.newest_at is None else (segment.newest_at - start) // length
        gone = min(leaving(segment), segment.rows)
        leaves[at] += gone
        stays[at] += segment.rows - gone
    lost = AgePeriod(since=Instant(0), leaves=leaves[None], stays=stays[None])
    return Ages(
        periods=tuple(
            AgePeriod(since=Instant(since), leaves=leaves[at], stays=stays[at]) for at, since in enumerate(range(start, last + 1, length))
        ),
        period_us=length,
        unknown=lost if lost.leaves + lost.stays else None,
    )


def _period_length(span_us: int, lengths: Sequence[int] = _PERIODS, most: int = _PERIODS_MOST) -> int:
    """Return the shortest length of a period that divides the span into few enough periods.

    A log may hold any time that fits into 64 bits. A longer span gets periods of several of the longest length.
    """
    longest = lengths[-1]
    return next((one for one in lengths if span_us // one < most - 1), longest * (span_us // (longest * (most - 1)) + 1))


def ages_table(found: Ages) -> list[str]:
    """Return the lines of a Markdown table, with a bar for each period that has messages."""
    shown = [one for one in found.periods if one.leaves or one.stays]
    most = max((one.leaves + one.stays for one in shown), default=1)
    rows = [
        (format_instant(one.since).partition("T")[0], one, "█" * -(-_BAR * one.leaves // most) + "░" * (_BAR * one.stays // most))
        for one in shown
    ]
    if found.unknown is not None:
        rows.append(("unknown", found.unknown, ""))
    head = [f"| {format_duration(found.period_us // MICROS_PER_SECOND)} from | leave █ | stay ░ | |", "|---|--:|--:|---|"]
    return [*head, *(f"| {since} | {one.leaves:,} | {one.stays:,} | {bar} |" for since, one, bar in rows)]


class SizeAt(View):
    """The size of the log from one instant on. `bytes` is None if only the ledger knows that time."""

    at: Instant
    messages: Count
    bytes: Size | None


class Period(View):
    """One period: messages added, removed by reason, and restored by an undo. `messages`: their number at its end. None: unknown."""

    since: Instant
    messages: Count | None
    added: Count
    removed: Mapping[str, int]
    restored: Count

    @property
    def changes(self) -> bool:
        return bool(self.added or self.removed or self.restored)


class Growth(View):
    """Messages and bytes over time.

    Args:
        sizes: The size of the log, oldest first. The last one is the present size.
        periods: Every period between the first size and now, oldest first.
        period_us: The length of a period, in microseconds.
        reasons: The reasons for removal in any period, the most frequent first.
    """

    sizes: tuple[SizeAt, ...]
    periods: tuple[Period, ...]
    period_us: int
    reasons: tuple[str, ...]


def compute_growth(
    sizes: Sequence[LogSize], ingested: Sequence[tuple[Instant, int]], ended: Sequence[tuple[Instant, Outcome]], last: SizeAt
) -> Growth:
    """Return the growth of a log.

    Args:
        sizes: The size after each snapshot that the table remembers, oldest first.
        ingested: The time and the messages of each batch. The table's own snapshots count instead, from the oldest one on.
        ended: Outcomes with the time of their record.
        last: The present size.
    """
    since = sizes[0].at if sizes else last.at
    committed: dict[int | None, Instant] = {one.snapshot_id: one.at for one in sizes}
    removals = [
        (committed.get(one.snapshot_id, at), one)
        for at, one in ended
        if one.name == "published" and (_removes_messages(one) or one.restored)
    ]
    added = [*((at, rows) for at, rows in ingested if at < since), *((one.at, one.added) for one in sizes)]
    known = [*(SizeAt(at=one.at, messages=one.messages, bytes=one.bytes) for one in sizes), last]
    points = [*_sizes_by_ledger(known[0], added, removals), *known]
    start = points[0].at
    length = _period_length(last.at - start)
    first = start - start % length
    starts = range(first, last.at + 1, length)
    came, back = Counter[int](), Counter[int]()
    went: list[Counter[str]] = [Counter() for _ in starts]
    for at, rows in added:
        came[(at - first) // length] += rows
    for at, outcome in removals:
        if first <= at <= last.at:
            back[(at - first) // length] += outcome.restored
            went[(at - first) // length].update(dict(outcome.removed) if _removes_messages(outcome) else {})
    total: Counter[str] = sum(went, Counter())
    return Growth(
        sizes=tuple(points),
        periods=tuple(
            Period(
                since=Instant(since),
                messages=_newest_size_before(points, since + length),
                added=came[at],
                removed=dict(went[at]),
                restored=back[at],
            )
            for at, since in enumerate(starts)
        ),
        period_us=length,
        reasons=tuple(reason for reason, _ in total.most_common()),
    )


def _newest_size_before(points: Sequence[SizeAt], end: int) -> Count | None:
    """Return the newest known number of messages before an instant."""
    at = bisect_left(points, end, key=lambda one: one.at)
    return points[at - 1].messages if at else None


def _sizes_by_ledger(first: SizeAt, added: Iterable[tuple[Instant, int]], removals: Iterable[tuple[Instant, Outcome]]) -> list[SizeAt]:
    """Return the sizes before the first known one, oldest first, by the ledger's counts alone. Their bytes are unknown."""
    changes = Counter[Instant]()
    for at, rows in added:
        changes[at] += rows
    for at, outcome in removals:
        changes[at] += outcome.restored - (outcome.removed_rows if _removes_messages(outcome) else 0)
    found: list[SizeAt] = []
    messages = first.messages - changes[first.at]
    for at in sorted((at for at in changes if at < first.at), reverse=True):
        found.append(SizeAt(at=at, messages=max(0, messages), bytes=None))
        messages -= changes[at]
    return found[::-1]


def _removes_messages(outcome: Outcome) -> bool:
    """Return True if the outcome's removals are messages of the log."""
    operation = operation_named(outcome.operation)
    return operation.removes and operation.takes_messages


def topic_growth(s: Services, name: TopicName, last: SizeAt) -> Growth | None:
    """Return the growth of a topic's log. `last`: its present size. None: nothing is known of its past."""
    sizes = () if s.backend_of(name) in RECORD_LOGS else s.stores.forget.size_history(name)
    history = s.ledger.history(name, limit=_OUTCOMES_READ)
    # Without the older removals, an older period would show only what it added.
    begin = history[-1][0] if len(history) == _OUTCOMES_READ else INT64_MIN
    ended = [(at, one) for at, one in history if not one.restored or _restores_messages(s, one)]
    ingested = [(at, rows) for at, rows in s.ledger.ingested(name) if at >= begin]
    found = compute_growth([one for one in sizes if one.at >= begin], ingested, ended, last)
    return found if len(found.sizes) > 1 or any(one.changes for one in found.periods) else None


def _restores_messages(s: Services, outcome: Outcome) -> bool:
    return outcome.plan_id is not None and s.ledger.record(outcome.plan_id).plan.things == "messages"
