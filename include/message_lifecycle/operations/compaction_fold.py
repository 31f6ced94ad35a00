"""Two-pass compaction of one topic as a fold over messages: the rule that every engine is held to (CMP-1 to CMP-3, CMP-7, CMP-8, CMP-12).

Pass one finds each key's latest message over the view and the tail; pass two keeps those, unchanged, and says of each other message
why it is not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant, is_dead
from message_lifecycle.model.marker import is_marker
from message_lifecycle.model.message import Message
from message_lifecycle.model.rows import ViewReason
from message_lifecycle.model.rules import Rule, holds
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.view import ViewRow
from message_lifecycle.operations import age_rules

_NEVER = Instant(INT64_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldRules:
    """What decides at `as_of`. `ages`: rules by which a latest message is dead, in the order in which the first that holds counts.

    `tombstones_until`: the delete horizon of tombstones met first now; None: they are left out at once (CMP-7).
    `remember_until`: until when what is dropped now is remembered (CMP-12); None: it is not."""

    as_of: Instant
    ages: tuple[tuple[ViewReason, Rule], ...]
    empty_is_value: bool
    retain_null_key: bool
    by_event_time: bool
    tombstones_until: Instant | None
    remember_until: Instant | None


@dataclass(slots=True, kw_only=True)
class Folded:
    """`rows`: the new view, in order of (partition, offset). `removed` counts messages, not memories of them."""

    rows: list[ViewRow] = field(default_factory=list)
    removed: Counter[ViewReason] = field(default_factory=Counter)


def rules_of(policy: Policy, *, as_of: Instant, tombstones_until: Instant | None) -> FoldRules:
    """The rules of a topic's settings."""
    ages: tuple[tuple[ViewReason, Rule | None], ...] = (
        ("expiry", age_rules.expiry(policy)),
        ("ttl", age_rules.ttl(policy)),
        ("retention_age", age_rules.retention_age(policy)),
    )
    return FoldRules(
        as_of=as_of,
        ages=tuple((reason, rule) for reason, rule in ages if rule is not None),
        empty_is_value=policy.empty_is_value,
        retain_null_key=policy.retain_null_key,
        by_event_time=policy.by_event_time,
        tombstones_until=tombstones_until,
        remember_until=Instant(as_of + policy.delete_retention_us) if policy.by_event_time else None,
    )


def is_tombstone(message: Message, *, empty_is_value: bool) -> bool:
    """Whether the message deletes its key (CMP-2)."""
    if message.value is None:
        return True
    return not empty_is_value and (message.value == b"" or is_marker(message.headers))


def fold(view: Iterable[ViewRow], tail: Iterable[Message], rules: FoldRules) -> Folded:
    """The view of all of `view` and `tail`. Keys do not cross partitions (MSG-3)."""
    before, folded = list(view), Folded()
    known = {(row.message.partition, row.message.offset) for row in before}
    candidates = [*before, *(ViewRow(message=message) for message in tail)]
    latest = _latest(candidates, rules)
    for row in sorted(candidates, key=lambda row: (row.message.partition, row.message.offset)):
        place = row.message.partition, row.message.offset
        # What is in the view was judged when it was taken up; a memory has no value, and is no deletion for that.
        deletes = place not in known and _is_delete(row.message, rules)
        until = rules.tombstones_until if deletes else row.delete_horizon
        reason = _why_not(row, latest, rules, ends=until if deletes or until is not None else _NEVER)
        if reason is None:
            folded.rows.append(replace(row, delete_horizon=until))
            continue
        if not row.remembered:
            folded.removed[reason] += 1
        if rules.remember_until is not None and not row.remembered and row.message.key is not None and reason != "superseded":
            folded.rows.append(ViewRow(message=_memory(row.message), delete_horizon=rules.remember_until, remembered=True))
    return folded


def _latest(candidates: Iterable[ViewRow], rules: FoldRules) -> Mapping[tuple[int, bytes], Message]:
    """Pass one: the latest message of each key."""
    latest: dict[tuple[int, bytes], Message] = {}
    for message in _messages(candidates):
        if message.key is not None:
            place = message.partition, message.key
            if place not in latest or order(message, by_event_time=rules.by_event_time) > order(
                latest[place], by_event_time=rules.by_event_time
            ):
                latest[place] = message
    return latest


def _messages(rows: Iterable[ViewRow]) -> Iterator[Message]:
    return (row.message for row in rows)


def order(message: Message, *, by_event_time: bool) -> tuple[int, int]:
    """The greatest of a key's messages is the latest; one without an event time is the earliest (CMP-12)."""
    if not by_event_time:
        return 0, message.offset
    return INT64_MIN if message.event_time is None else message.event_time, message.offset


def _why_not(row: ViewRow, latest: Mapping[tuple[int, bytes], Message], rules: FoldRules, *, ends: Instant | None) -> ViewReason | None:
    """Pass two: why a message is not in the view; None: it is. `ends`: when a deletion or a memory may go; None: at once."""
    message = row.message
    if message.key is not None and latest[message.partition, message.key].offset != message.offset:
        return "superseded"
    for reason, rule in rules.ages if not row.remembered else ():
        if holds(rule, message, rules.as_of):
            return reason
    if message.key is None:
        return None if rules.retain_null_key else "null_key"
    return "tombstoned" if ends is None or is_dead(ends, rules.as_of) else None


def _is_delete(message: Message, rules: FoldRules) -> bool:
    return message.key is not None and is_tombstone(message, empty_is_value=rules.empty_is_value)


def _memory(message: Message) -> Message:
    """Key, event time and offset alone."""
    return replace(message, value=None, headers=(), append_time=None, expires_at=None, never=False)
