"""The rules by which age takes messages, as one policy states them: single ones, for the plan and for every read (CLK-2, TTL-5); and segments
of a partition, with what stands before each, by metadata alone (EXP-4 to EXP-6, CLK-4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from message_lifecycle.model.facts import READERS, Segment
from message_lifecycle.model.hold import SparedOffsets
from message_lifecycle.model.instants import INT64_MAX, Instant, deadline, format_instant
from message_lifecycle.model.plan import Bound, Holder
from message_lifecycle.model.rules import After, Both, Either, Known, Never, Not, Rule
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.barriers import Barriers


def expiry(policy: Policy) -> Rule | None:
    """Of messages in an expired segment: those that their own TTL does not keep (EXP-5). None: nothing expires."""
    if not policy.message_expiry_us:
        return None
    return _unless_kept(After("append_time", policy.message_expiry_us), policy)


def ttl(policy: Policy) -> Rule | None:
    """None: the topic does not heed it (TTL-6)."""
    return After("expires_at", 0) if policy.allow_msg_ttl else None


def retention_age(policy: Policy) -> Rule | None:
    """Too old: strictly older than the limit, so one microsecond after it (CLK-2, RET-2). None: no limit, or one beyond all of time."""
    if policy.max_age_us is None or policy.max_age_us >= INT64_MAX:
        return None
    return _unless_kept(After("append_time", policy.max_age_us + 1), policy)


def hidden(policy: Policy) -> Rule:
    """What a logical read hides, though it may still be there."""
    rules = (expiry(policy), ttl(policy), retention_age(policy))
    return Either(tuple(rule for rule in rules if rule is not None))


def kept_by_own_ttl(policy: Policy) -> Never | Either | None:
    """Which messages no age takes but their own (TTL-5). None: the topic does not heed it."""
    if not policy.allow_msg_ttl:
        return None
    return Either((Never(), Known("expires_at"))) if policy.ttl_overrides_age else Never()


def _unless_kept(rule: Rule, policy: Policy) -> Rule:
    kept = kept_by_own_ttl(policy)
    return rule if kept is None else Both((rule, Not(kept)))


# Which segments of a partition are expired.


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """An expired segment: its position among the partition's segments, and what holds it (None: nothing)."""

    position: int
    segment: Segment
    holder: Holder | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """One partition. `next_due_at`: the first instant at which a segment more can go, as far as is known now."""

    bounds: tuple[Bound, ...]
    expired: tuple[Expired, ...]
    next_due_at: Instant | None


def walk(partition: int, segments: tuple[Segment, ...], barriers: Barriers, policy: Policy, as_of: Instant, spared: SparedOffsets) -> Walk:
    """Walk the partition from its oldest segment up to the lowest of named bounds. A segment that is `spared` is skipped, and no bound;
    nor is one that has lost its last message, whatever its files say of times."""
    expiry_us = policy.message_expiry_us
    blocker = next((segment for segment in segments if segment.rows and not segment.is_expired(expiry_us, as_of)), None)
    live = Bound(
        name="message_expiry",
        partition=partition,
        offset=blocker.base_offset if blocker else None,
        reason=_why_live(blocker, expiry_us),
    )
    slowest = barriers.slowest(partition)
    live_cut = INT64_MAX if live.offset is None else live.offset
    read_cut = INT64_MAX if slowest is None or slowest[0].offset is None else slowest[0].offset

    expired = []
    for position, segment in enumerate(segments):
        if segment is blocker or not segment.is_expired(expiry_us, as_of):
            continue
        kept = spared.touching(partition, segment.base_offset, segment.last_offset)
        if kept is not None:
            expired.append(Expired(position=position, segment=segment, holder=kept.holder, detail=kept.detail))
        elif segment.base_offset >= live_cut and blocker is not None:
            holder: Holder = "unknown_time" if blocker.newest_at is None else "earlier_segment"
            detail = f"segment {blocker.base_offset}: {live.reason}"
            expired.append(Expired(position=position, segment=segment, holder=holder, detail=detail))
        elif segment.last_offset >= read_cut and slowest is not None:
            detail = f"{slowest[0].name} {slowest[0].reason}"
            expired.append(Expired(position=position, segment=segment, holder=slowest[1], detail=detail))
        else:
            expired.append(Expired(position=position, segment=segment))

    held_by_readers = any(entry.holder in READERS for entry in expired)
    due_at = None if held_by_readers or blocker is None else blocker.expires_at(expiry_us)
    next_times = (
        barriers.next_silent_at if held_by_readers else None,
        None if due_at == INT64_MAX else due_at,
        _late_are_due(segments, policy, as_of),
    )
    return Walk(
        bounds=(live,),
        expired=tuple(expired),
        next_due_at=min((instant for instant in next_times if instant is not None), default=None),
    )


def _why_live(blocker: Segment | None, expiry_us: int) -> str:
    if blocker is None:
        return "every segment is expired"
    due_at = blocker.expires_at(expiry_us)
    if due_at is None:
        return "a message without a known append_time: never expired (CLK-4)"
    if due_at == INT64_MAX:
        return "the deadline is beyond the end of time: never due (CLK-3)"
    return f"its newest message ({format_instant(blocker.newest_at)}) expires at {format_instant(due_at)}"


def _late_are_due(segments: Iterable[Segment], policy: Policy, as_of: Instant) -> Instant | None:
    """No message later than `as_of` + skew can be expired before this; how much later it is was not looked at (CLK-4)."""
    if not any(segment.late_rows for segment in segments):
        return None
    return deadline(Instant(as_of + policy.clock_skew_us), policy.message_expiry_us)


def warnings(segments: tuple[Segment, ...], expiry_us: int) -> Iterator[str]:
    """What a person should know of the partition's times."""
    unknown = [segment for segment in segments if segment.newest_at is None and segment.rows]
    if unknown:
        first = unknown[0].base_offset
        yield f"partition {segments[0].partition}: {len(unknown)} segment(s) hold a message without a known append_time, the first at offset {first}; they never expire (CLK-4)"
    late = sum(segment.late_rows for segment in segments)
    if late:
        yield f"partition {segments[0].partition}: {late} message(s) carry a time later than as_of + clock_skew; they were left out of their segment's age (CLK-4)"
    if any(segment.expires_at(expiry_us) == INT64_MAX for segment in segments):
        yield f"partition {segments[0].partition}: a deadline lies beyond the end of time; such messages never expire (CLK-3)"
