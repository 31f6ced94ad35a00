"""Compaction of a topic: the stretch of the log that its view takes up at `as_of` (CMP-1, CMP-4, CMP-5, CMP-7), and the fold of the view.

The log itself stays as it is (CMP-9).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

from message_lifecycle.model.change import CommitLog, CompactPartition, CompactView, non_empty_commits
from message_lifecycle.model.facts import Facts, LogState, ReaderKind, Segment
from message_lifecycle.model.hold import Spared, SparedOffsets
from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant, is_dead
from message_lifecycle.model.message import NOTHING, Message, Tail, ViewRow, ViewState, is_marker
from message_lifecycle.model.plan import Bound, Expected, Held, Holder, Plan, Selection, ViewRequirements
from message_lifecycle.model.reasons import ViewReason
from message_lifecycle.model.rules import AnyOfRules, Rule, rule_holds
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import ACTS_ON_VIEW, Policy
from message_lifecycle.operations import expiry
from message_lifecycle.operations.expiry import TopicReaders, topic_readers
from message_lifecycle.operations.planning import drop, empty_plan_of_log, tightened_text


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFacts:
    """The facts of a plan.

    Args:
        view: None: the topic has no view yet.
        lag_us: The age of the oldest message that a consumer has not read.
        accepted: The settings at the last accepted removal from the view. None: unknown.
    """

    log: LogState
    view: ViewState | None
    tails: tuple[Tail, ...]
    lag_us: int = 0
    accepted: tuple[tuple[str, Value | None], ...] | None = None
    heeded: tuple[str, ...] = ()
    waits: tuple[Held, ...] = ()
    """Messages under a legal hold that only the view still holds and that it would lose now (DEL-8)."""


def plan(facts: CompactionFacts, policy: Policy, *, as_of: Instant) -> Plan:
    """Plan a compaction. Pure: equal facts, policy and `as_of` give an equal plan.

    The plan is empty if no message is new and none in the view is due (CMP-5). For a topic that never had a message the first plan makes an
    empty view (CMP-4).
    """
    log, view = facts.log, facts.view
    first_of_empty = view is None and not any(log.end_offsets.values())
    tightened = () if view is None or not view.rows else _tightened(facts, policy)
    due_since = None if view is None or view.due_at is None or as_of < view.due_at else view.due_at
    due = is_due(view, policy, as_of=as_of)
    tails = () if facts.waits else facts.tails
    parts = tuple(
        CompactPartition(partition=tail.partition, after=tail.after, through=tail.through, rows=tail.rows)
        for tail in sorted(tails, key=lambda tail: tail.partition)
        if tail.through > tail.after or (due and tail.after > NOTHING) or first_of_empty
    )
    rows = 0 if view is None else view.rows
    return replace(
        empty_plan_of_log("compaction", Facts(log=log, heeded=facts.heeded), policy, as_of=as_of),
        bounds=tuple(_bounds(facts)),
        changes=non_empty_commits(CompactView(compact=parts)),
        expected=Expected(
            rows_in=rows + sum(tail.rows for tail in tails),
            # Only reading the messages shows which of them stay.
            removed=(),
            removed_bytes=None,
            bytes_in=None,
            segments=0,
        ),
        held=facts.waits,
        warnings=tuple(f"the compacted view waits, for it alone has what {held.detail} keeps" for held in facts.waits),
        asks=tightened if parts else (),
        due_since=due_since,
        next_due_at=None if view is None or due else view.due_at,
        view=ViewRequirements(
            table_uuid=None if view is None else view.table_uuid,
            snapshot_id=None if view is None else view.snapshot_id,
            rows=rows,
            rewrite=_rewrite(facts, policy),
            tombstones_until=_tombstones_until(facts, policy, as_of),
        ),
    )


def is_due(view: ViewState | None, policy: Policy, *, as_of: Instant) -> bool:
    """Return True if a message of the view may be due at `as_of` (CMP-5).

    If the settings have changed since the view was made, only reading the view shows what is due.
    """
    return view is not None and ((view.due_at is not None and as_of >= view.due_at) or view.settings_hash != policy.view_hash)


def settings_hash_after(plan: Plan, judged: Iterable[str]) -> str:
    """Return the hash of the settings that have judged every message of the view after the plan. Empty: the settings differ.

    Args:
        plan: The plan that changes the view.
        judged: The hashes of the settings that judged the messages before. Empty for a compaction, which judges every message itself.
    """
    now = Policy.from_values(plan.policy).view_hash
    return now if all(earlier == now for earlier in judged) else ""


def _rewrite(facts: CompactionFacts, policy: Policy) -> bool:
    """Return True to rewrite the view: it has no more messages than the tail, or its files hold too many superseded rows."""
    view, new = facts.view, sum(tail.rows for tail in facts.tails)
    if view is None or policy.by_event_time:
        return True
    return view.rows <= new or view.hidden_rows > policy.compaction_rewrite_fraction * (view.rows + view.hidden_rows)


def _tombstones_until(facts: CompactionFacts, policy: Policy, as_of: Instant) -> Instant | None:
    if not policy.delete_retention_us:
        return None
    return Instant(min(as_of + max(policy.delete_retention_us, facts.lag_us), INT64_MAX))


def _tightened(facts: CompactionFacts, policy: Policy) -> tuple[str, ...]:
    """Return the tighter settings, which require approval: the view may hold the last copy of a message (DEL-3)."""
    if facts.accepted is None:
        return ("everything: no earlier compaction of this topic is known",)
    accepted = dict(facts.accepted)
    return tuple(tightened_text(name, accepted, policy) for name in policy.tightened_since(accepted) if name in ACTS_ON_VIEW)


def _bounds(facts: CompactionFacts) -> list[Bound]:
    """Return the bounds where a later message ends the run (CMP-1)."""
    return [
        Bound(
            name="as_of",
            partition=tail.partition,
            offset=tail.through + 1,
            reason="the next message is later than the run's as_of, and waits for the next run",
        )
        for tail in facts.tails
        if tail.through + 1 < facts.log.end_offsets.get(tail.partition, 0)
    ]


# The purge of raw messages that the compacted view covers (CMP-9): whole sealed segments, never past a horizon or a reader.


def plan_purge(facts: Facts, policy: Policy, horizons: Mapping[int, int], *, as_of: Instant) -> Plan:
    """Plan the purge of compacted messages at `as_of`.

    The leading run of segments of each partition leaves, so that readers meet no hole in the rest of the log.

    Args:
        facts: With the topic's readers except compaction, whose horizon bounds every run anyway.
        policy: The topic's policy.
        horizons: The last compacted offset of each partition. A missing partition loses nothing.
        as_of: Consumers that are silent at this instant hold nothing.
    """
    log, readers = facts.log, topic_readers(facts.consumers, policy, as_of)
    spared = SparedOffsets(facts.spared)
    going: list[Segment] = []
    held: list[Held] = []
    if policy.purges_compacted and policy.cleaner_enabled:
        for partition, group in groupby(log.segments, key=lambda segment: segment.partition):
            covered = [s for s in group if s.sealed and s.last_offset <= horizons.get(partition, -1)]
            slowest = readers.slowest(partition)
            cut = INT64_MAX if slowest is None or slowest[0].offset is None else slowest[0].offset
            free, kept = _leading_segments(covered, cut, spared)
            going += free
            if len(free) < len(covered):
                stay = covered[len(free) :]
                holder, detail = (kept.holder, kept.detail) if kept is not None else _holder_of(slowest)
                held.append(
                    Held(
                        partition=partition,
                        first_base=stay[0].base_offset,
                        last_offset=stay[-1].last_offset,
                        rows=sum(segment.rows for segment in stay),
                        overdue_since=None,
                        holder=holder,
                        detail=detail,
                        reason="compacted",
                    )
                )
    rows = sum(segment.rows for segment in going)
    accepted = facts.accepted or policy.values
    made = empty_plan_of_log("purge_compacted", facts, policy, as_of=as_of)
    return replace(
        made,
        bounds=tuple(_purge_bounds(log.end_offsets, horizons, readers)),
        changes=non_empty_commits(
            CommitLog(drop=tuple(drop(list(run), "compacted") for _, run in groupby(going, key=lambda segment: segment.partition)))
        ),
        selection=Selection(files=tuple(sorted(name for segment in going for name in segment.files))),
        expected=replace(
            made.expected,
            removed=(("compacted", rows),) if rows else (),
            removed_bytes=sum(segment.size_bytes for segment in going),
            segments=len(going),
        ),
        held=tuple(held),
        asks=tuple(
            tightened_text(name, accepted, policy) for name in policy.tightened_since(accepted) if name == "cleanup_policy" and going
        ),
        reasons=("compacted",),
    )


def _leading_segments(covered: list[Segment], cut: int, spared: SparedOffsets) -> tuple[list[Segment], Spared | None]:
    """Return the segments before the first one that a reader needs or that is spared, and the holder of that one."""
    for at, segment in enumerate(covered):
        kept = spared.find_spared(segment.partition, segment.base_offset, segment.last_offset)
        if kept is not None or segment.last_offset >= cut:
            return covered[:at], kept
    return covered, None


def _holder_of(slowest: tuple[Bound, ReaderKind] | None) -> tuple[Holder, str]:
    assert slowest is not None, "a cut was made because a reader makes it"
    return slowest[1], f"{slowest[0].name} {slowest[0].reason}"


def _purge_bounds(partitions: Mapping[int, int], horizons: Mapping[int, int], readers: TopicReaders) -> Iterator[Bound]:
    for partition in sorted(partitions):
        horizon = horizons.get(partition, -1)
        reason = f"is compacted up to offset {horizon}" if horizon >= 0 else "is not compacted yet"
        yield Bound(name="compaction", partition=partition, offset=horizon + 1, reason=reason)
        yield from (reader.bound(partition) for reader in readers.readers)


# Two-pass compaction of one topic as a fold over messages: the reference for every engine (CMP-1 to CMP-3, CMP-7, CMP-8, CMP-12).
#
# Pass one finds each key's latest message over the view and the tail. Pass two keeps these messages unchanged and gives the reason for each
# other message.


_NEVER = Instant(INT64_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRules:
    """The rules of the fold at `as_of`.

    Args:
        ages: Rules that make a latest message dead. The first that holds is the reason.
        tombstones_until: The delete horizon of tombstones that this run meets first. None: the view leaves them out at once (CMP-7).
        remember_until: How long the view remembers messages that it drops now (CMP-12). None: it does not.
    """

    as_of: Instant
    ages: tuple[tuple[ViewReason, Rule], ...] = ()
    empty_is_value: bool = False
    retain_null_key: bool = True
    tombstones_until: Instant | None = None
    remember_until: Instant | None = None

    @property
    def by_event_time(self) -> bool:
        """True if event time orders messages. Only then can a late event bring a key back, so only then the view remembers messages."""
        return self.remember_until is not None

    @property
    def dead(self) -> Rule:
        """True for a message if one of the ages holds."""
        return AnyOfRules(tuple(rule for _, rule in self.ages))


@dataclass(slots=True, kw_only=True)
class Folded:
    """The new view: its rows in order of (partition, offset), and the counts of removed messages without memories."""

    rows: list[ViewRow] = field(default_factory=list)
    removed: Counter[ViewReason] = field(default_factory=Counter)


def rules_of(policy: Policy, *, as_of: Instant, tombstones_until: Instant | None) -> CompactionRules:
    """Return the rules of a topic's settings."""
    return CompactionRules(
        as_of=as_of,
        ages=tuple(expiry.age_rules(policy).items()),
        empty_is_value=policy.empty_is_value,
        retain_null_key=policy.retain_null_key,
        tombstones_until=tombstones_until,
        remember_until=Instant(as_of + policy.delete_retention_us) if policy.by_event_time else None,
    )


def is_tombstone(message: Message, *, empty_is_value: bool) -> bool:
    """Return True if the message deletes its key (CMP-2)."""
    if message.value is None:
        return True
    return not empty_is_value and (message.value == b"" or is_marker(message.headers))


def fold(view: Iterable[ViewRow], tail: Iterable[Message], rules: CompactionRules) -> Folded:
    """Fold the tail into the view. A key belongs to one partition (MSG-3)."""
    before, folded = list(view), Folded()
    known = {(row.message.partition, row.message.offset) for row in before}
    candidates = [*before, *(ViewRow(message=message) for message in tail)]
    latest = _latest(candidates, rules)
    for row in sorted(candidates, key=lambda row: (row.message.partition, row.message.offset)):
        place = row.message.partition, row.message.offset
        # The compaction that took up a message of the view has judged it. A memory has no value, but that does not make it a tombstone.
        deletes = place not in known and _is_delete(row.message, rules)
        until = rules.tombstones_until if deletes else row.delete_horizon
        reason = _removal_reason(row, latest, rules, ends=until if deletes or until is not None else _NEVER)
        if reason is None:
            folded.rows.append(replace(row, delete_horizon=until))
            continue
        if not row.remembered:
            folded.removed[reason] += 1
        if rules.remember_until is not None and not row.remembered and row.message.key is not None and reason != "superseded":
            folded.rows.append(ViewRow(message=_remembered_message(row.message), delete_horizon=rules.remember_until, remembered=True))
    return folded


def _latest(candidates: Iterable[ViewRow], rules: CompactionRules) -> Mapping[tuple[int, bytes], Message]:
    """Pass one: the latest message of each key."""
    latest: dict[tuple[int, bytes], Message] = {}
    for message in _messages(candidates):
        if message.key is not None:
            place = message.partition, message.key
            if place not in latest or recency_key(message, by_event_time=rules.by_event_time) > recency_key(
                latest[place], by_event_time=rules.by_event_time
            ):
                latest[place] = message
    return latest


def _messages(rows: Iterable[ViewRow]) -> Iterator[Message]:
    return (row.message for row in rows)


def recency_key(message: Message, *, by_event_time: bool) -> tuple[int, int]:
    """Return the sort key of a message: the greatest of a key is the latest. One without an event time is the earliest (CMP-12)."""
    if not by_event_time:
        return 0, message.offset
    return INT64_MIN if message.event_time is None else message.event_time, message.offset


def _removal_reason(
    row: ViewRow, latest: Mapping[tuple[int, bytes], Message], rules: CompactionRules, *, ends: Instant | None
) -> ViewReason | None:
    """Pass two: return why the view leaves a message out. None: the view keeps it.

    Args:
        row: The row of the view.
        latest: The latest message of each key.
        rules: The rules of the fold.
        ends: When a tombstone or a memory may leave. None: at once.
    """
    message = row.message
    if message.key is not None and latest[message.partition, message.key].offset != message.offset:
        return "superseded"
    for reason, rule in rules.ages if not row.remembered else ():
        if rule_holds(rule, message, rules.as_of):
            return reason
    if message.key is None:
        return None if rules.retain_null_key else "null_key"
    return "tombstoned" if ends is None or is_dead(ends, rules.as_of) else None


def _is_delete(message: Message, rules: CompactionRules) -> bool:
    return message.key is not None and is_tombstone(message, empty_is_value=rules.empty_is_value)


def _remembered_message(message: Message) -> Message:
    """Return the message with only its key, event time and offset."""
    return replace(message, value=None, headers=(), append_time=None, expires_at=None, never=False)
