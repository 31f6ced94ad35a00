"""Messages past their expiry that stay because their segment has a younger message: their number and their end (EXP-4, EXP-5).

`status`, `explain`, `topic describe`, the preview of changed settings and the pages all show this figure. Such messages are not overdue,
because segments are removed whole, and their segment is not due (OBL-1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from message_lifecycle.app.rendering import Count, View
from message_lifecycle.app.services import Services
from message_lifecycle.model.facts import LogState, Segment
from message_lifecycle.model.instants import INT64_MAX, Instant, deadline, format_to_second, is_dead
from message_lifecycle.model.message import DueRows, LimitQuestion, Place, Reason, RowQuestion, parse_ranges_text
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.phrases import amount
from message_lifecycle.model.reasons import is_limit
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import expiry


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBySegment:
    """The number of messages of one segment past their expiry, and the time when the whole segment is due. None: unknown, or never."""

    messages: int
    until: Instant | None


def kept_by_segments(s: Services, name: TopicName, policy: Policy, as_of: Instant) -> dict[Place, KeptBySegment]:
    """Return, by segment, the expired messages that stay because their segment is not expired yet.

    Messages that another rule removes at `as_of` are not counted. Metadata shows which segments may have such messages, so only the message
    times of these segments are read.

    Raises:
        UnknownTopic: No topic has this name.
    """
    rule = expiry.expiry_rule(policy)
    if rule is None:
        return {}
    log = s.reader.log(name, latest_allowed_time=policy.latest_allowed_time(as_of))
    alive = {_place(segment): segment for segment in log.segments if _keeps_expired_messages(segment, policy, as_of)}
    if not alive:
        return {}
    # A message belongs to the first of the reasons that has it.
    kept = Reason(name="expiry", rule=rule, segments=frozenset(alive))
    due = s.reader.rows(log, RowQuestion(as_of=as_of, reasons=(*_row_rules(policy), kept))).due
    beyond = _offsets_beyond_limits(s, log, policy, as_of)
    counts = Counter[Place]()
    for entry in due:
        if entry.reason == kept.name:
            counts[entry.partition, entry.base_offset] += entry.rows - _count_overlap(entry, beyond)
    return {place: KeptBySegment(messages=rows, until=_expires_at(alive[place], policy)) for place, rows in sorted(counts.items()) if rows}


class PastExpiry(View):
    """The figure of a topic of messages.

    Args:
        until: When the first of their segments is due.
        last_until: When the last of their segments is due.
        never: Messages whose segment may never become due.
    """

    messages: Count
    segments: Count
    until: Instant | None
    last_until: Instant | None
    never: Count
    text: str | None
    """The figures as a sentence. None: no message is past its expiry."""


def past_expiry_view(s: Services, name: TopicName, policy: Policy, as_of: Instant) -> PastExpiry:
    kept = kept_by_segments(s, name, policy, as_of)
    times = [one.until for one in kept.values() if one.until is not None]
    first, last = min(times, default=None), max(times, default=None)
    return PastExpiry(
        messages=sum(one.messages for one in kept.values()),
        segments=len(kept),
        until=first,
        last_until=last,
        never=sum(one.messages for one in kept.values() if one.until is None),
        text=_summary_text(kept, first, last) if kept else None,
    )


def _summary_text(kept: Mapping[Place, KeptBySegment], first: Instant | None, last: Instant | None) -> str:
    total, never = sum(one.messages for one in kept.values()), sum(one.messages for one in kept.values() if one.until is None)
    until = "with no end (unknown times)" if first is None else f"until {format_to_second(first)}"
    if first != last:
        until = f"until {format_to_second(first)} to {format_to_second(last)}"
    if first is not None and never:
        until += f", {never:,} of them with no end (unknown times)"
    past = f"{amount(total, 'messages')} past expiry, kept by {amount(len(kept), 'segments')} {until}"
    return f"{past}. To delete single messages, set max_age_seconds"


def _row_rules(policy: Policy) -> tuple[Reason, ...]:
    """The rules of age that take single messages."""
    return tuple(Reason(name=name, rule=rule) for name, rule in expiry.age_rules(policy, without=("expiry",)).items())


def _place(segment: Segment) -> Place:
    return segment.partition, segment.base_offset


def _keeps_expired_messages(segment: Segment, policy: Policy, as_of: Instant) -> bool:
    """Return whether the segment stays although its oldest message is past its expiry."""
    if not segment.rows or segment.oldest_at is None or segment.is_expired(policy.message_expiry_us, as_of):
        return False
    return is_dead(deadline(segment.oldest_at, policy.message_expiry_us), as_of)


def _expires_at(segment: Segment, policy: Policy) -> Instant | None:
    until = segment.expires_at(policy.message_expiry_us)
    return None if until == INT64_MAX else until


def _offsets_beyond_limits(s: Services, log: LogState, policy: Policy, as_of: Instant) -> Mapping[int, list[range]]:
    """Return, by partition, the offsets that limits by number and size remove. Expired messages go before visible ones (DEL-9)."""
    if policy.limits is None:
        return {}
    dead = frozenset(_place(segment) for segment in log.segments if segment.is_expired(policy.message_expiry_us, as_of))
    question = RowQuestion(
        as_of=as_of,
        reasons=_row_rules(policy),
        going=dead,
        beyond=LimitQuestion(limits=policy.limits, lapsed=expiry.expiry_rule(policy), dead=dead),
    )
    found: dict[int, list[range]] = {}
    for entry in s.reader.rows(log, question).due:
        if is_limit(entry.reason):
            found.setdefault(entry.partition, []).extend(parse_ranges_text(entry.taken))
    return found


def _count_overlap(entry: DueRows, beyond: Mapping[int, Iterable[range]]) -> int:
    """Return how many messages of the entry are in the partition's ranges of `beyond`."""
    others = sorted(beyond.get(entry.partition, ()), key=lambda run: run.start)
    total = 0
    for run in parse_ranges_text(entry.taken) if others else ():
        total += sum(max(0, min(run.stop, other.stop) - max(run.start, other.start)) for other in others)
    return total
