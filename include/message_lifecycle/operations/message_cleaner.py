"""Plans of the message cleaner and of retention: the messages that leave a topic at `as_of`, and the holders of the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal, get_args

from message_lifecycle.model.change import CommitLog, SealSegment, non_empty_commits
from message_lifecycle.model.facts import READERS, Facts, Segment
from message_lifecycle.model.hold import Spared, SparedBy, SparedOffsets
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import AskRows, DueRows, LimitQuestion, Place, Reason, RowAnswer, RowQuestion, offsets_of
from message_lifecycle.model.phrases import amount
from message_lifecycle.model.plan import Bound, Held, Holder, Plan, Selection
from message_lifecycle.model.reasons import RemovalReason, cleaner_reasons, limit_reasons
from message_lifecycle.model.rules import AnyOfRules
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import expiry
from message_lifecycle.operations.expiry import ExpiredSegment, PartitionWalk, TopicReaders, topic_readers
from message_lifecycle.operations.planning import SparedRows, drop, empty_plan_of_log, removal_of, split_spared, tightened_text

# The budget of one pass (EXP-7).


@dataclass(slots=True, kw_only=True)
class PassBudget:
    """Counts the admitted segments and messages in order.

    The first one always fits; otherwise a large segment would never leave. After a refusal nothing fits.
    """

    segments: int
    rows: int
    size_bytes: int
    segments_taken: int = 0
    rows_taken: int = 0
    bytes_taken: int = 0
    spent: bool = False

    @classmethod
    def from_policy(cls, policy: Policy) -> PassBudget:
        segments, rows, size_bytes = policy.budget
        return cls(segments=segments, rows=rows, size_bytes=size_bytes)

    def admits(self, *, rows: int, size_bytes: int = 0) -> bool:
        """Count one segment, or messages of one segment, if they fit. Return False if they do not."""
        over = (
            (self.segments and self.segments_taken + 1 > self.segments)
            or (self.rows and self.rows_taken + rows > self.rows)
            or (self.size_bytes and self.bytes_taken + size_bytes > self.size_bytes)
        )
        if self.spent or (over and self.segments_taken):
            self.spent = True
            return False
        self.segments_taken += 1
        self.rows_taken += rows
        self.bytes_taken += size_bytes
        return True


# A plan of removals from a log: whole segments, then single messages, until the budget is spent (DEL-1, DEL-9, EXP-7).


_BUDGET = "the run has reached its limit in [message_cleaner]. The next run continues"


@dataclass(slots=True, kw_only=True)
class _Removals:
    """The removals of the plan, in order of (partition, segment)."""

    whole: list[ExpiredSegment] = field(default_factory=list)
    by_row: list[ExpiredSegment] = field(default_factory=list)
    """Segments that keep some messages."""
    rows: list[DueRows] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)


def plan_removal(
    operation: Literal["message_cleaner", "retention"],
    facts: Facts,
    policy: Policy,
    readers: TopicReaders,
    answer: RowAnswer,
    *,
    as_of: Instant,
    walks: Mapping[int, PartitionWalk],
    bounded: bool = True,
    warnings: Iterable[str] = (),
    reasons: tuple[RemovalReason, ...],
) -> Plan:
    """Return the plan of these removals.

    Args:
        operation: The operation that plans.
        facts: The facts of the topic.
        policy: The topic's policy.
        readers: The readers of the topic at `as_of`.
        answer: Single messages that leave.
        as_of: Judge ages at this instant.
        walks: Expired segments by partition.
        bounded: Readers bound the removals.
        warnings: Warnings that the plan shows.
        reasons: The reasons that the plan may use.
    """
    answer, spared = split_spared(answer, SparedOffsets(facts.spared))
    taken = _choose_removals(walks, answer, readers, policy, spared)
    going = taken.whole + taken.by_row
    removed = Counter[str]({"expiry": sum(entry.segment.rows for entry in taken.whole)})
    for entry in taken.rows:
        removed[entry.reason] += entry.rows
    whole_files = _whole_files(answer, taken.rows)
    changes = non_empty_commits(_change(taken, facts, policy.archive_to if removed.total() else None))
    made = empty_plan_of_log(operation, facts, policy, as_of=as_of)
    return replace(
        made,
        bounds=tuple(_bounds(walks, readers, facts.log.end_offsets) if bounded else ()) + tuple(taken.bounds),
        changes=changes,
        selection=Selection(files=tuple(sorted([*(name for entry in taken.whole for name in entry.segment.files), *whole_files]))),
        expected=replace(
            made.expected,
            removed=tuple((reason, removed[reason]) for reason in cleaner_reasons() if removed[reason]),
            removed_bytes=sum(entry.segment.size_bytes for entry in taken.whole) + sum(whole_files.values()),
            segments=len(going),
        ),
        held=tuple(taken.held),
        warnings=(*warnings, *_warn_about_unread(taken.rows, readers), *_limit_questions(answer, policy)),
        asks=tuple(_approval_reasons(facts, policy, answer)) if changes else (),
        more=any(entry.holder == "budget" for entry in taken.held),
        due_since=min([*_due_times(going, policy), *(entry.since for entry in taken.rows if entry.reason != "expiry")], default=None),
        next_due_at=_next_due(walks, answer, taken, readers, as_of),
        reasons=reasons,
    )


def warn_about_silent_readers(readers: TopicReaders, policy: Policy) -> list[str]:
    """Return a warning for each silent reader (EXP-6)."""
    return [
        f"consumer {name} keeps nothing: it is silent for longer than {policy.text('consumer_expiry')} (consumer_expiry)"
        for name in readers.silent
    ]


def lowest_needed_offsets(partitions: Iterable[int], readers: TopicReaders, *, of_ttl: bool) -> dict[int, int]:
    """Return the lowest offset that a reader still needs, for each partition with readers."""
    slowest = ((partition, readers.slowest(partition, of_ttl=of_ttl)) for partition in partitions)
    return {partition: found[0].offset or 0 for partition, found in slowest if found is not None}


def _approval_reasons(facts: Facts, policy: Policy, answer: RowAnswer) -> Iterator[str]:
    """Return the reasons that require approval whatever the counts (DEL-3, RET-3)."""
    accepted = policy.values if facts.accepted is None else facts.accepted
    if facts.accepted is None:
        yield "no earlier run of this topic is recorded"
    for name in policy.tightened_since(accepted):
        yield tightened_text(name, accepted, policy)
    if answer.emptied:
        yield (
            f"{amount(answer.emptied, 'groups')} of retention_scope {policy['retention_scope']} would keep nothing: the newest message is larger "
            f"than max_total_bytes = {policy['max_total_bytes']}. Set min_keep = 1 to keep it (RET-3)"
        )


def _limit_questions(answer: RowAnswer, policy: Policy) -> Iterator[str]:
    if answer.unknown_times and policy.max_age_us is not None:
        yield f"max_age_seconds keeps messages of unknown append_time: up to {answer.unknown_times:,} here (RET-2)"
    if answer.oversized:
        yield f"min_keep keeps the newest message of {amount(answer.oversized, 'groups')}, although it is larger than max_total_bytes (RET-3)"


def _due_times(expired: Iterable[ExpiredSegment], policy: Policy) -> Iterator[Instant]:
    expiry_us = policy.message_expiry_us
    for entry in expired:
        due_at = entry.segment.expires_at(expiry_us)
        if due_at is not None:
            yield due_at


def may_keep_some(segment: Segment, policy: Policy) -> bool:
    """Return True if an expired segment may keep messages: late ones (CLK-4), or those that their own TTL keeps (EXP-5)."""
    own = (segment.never or (segment.own_ttl and policy.ttl_overrides_age)) and policy.allow_msg_ttl
    return segment.late_rows > 0 or own


def _choose_removals(
    walks: Mapping[int, PartitionWalk], answer: RowAnswer, readers: TopicReaders, policy: Policy, spared: tuple[SparedRows, ...]
) -> _Removals:
    """Expired segments in order, then single messages, until the budget is spent (DEL-9, EXP-7)."""
    budget, taken = PassBudget.from_policy(policy), _Removals()
    expiring: dict[Place, list[DueRows]] = {}
    for entry in answer.due:
        if entry.reason == "expiry":
            expiring.setdefault((entry.partition, entry.base_offset), []).append(entry)
    held: list[ExpiredSegment] = []
    for expired in (entry for _, walk in sorted(walks.items()) for entry in walk.expired):
        segment, due = expired.segment, expiring.get(segment_place(expired.segment), [])
        partly = may_keep_some(segment, policy)
        rows = sum(entry.rows for entry in due) if partly else segment.rows
        if expired.holder is not None:
            held.append(expired)
        elif partly and not rows:
            continue  # the remaining messages are not expired
        elif not budget.admits(rows=rows, size_bytes=segment.size_bytes):
            held.append(replace(expired, holder="budget", detail=_BUDGET))
        elif partly:
            taken.by_row.append(expired)
            taken.rows += due
        else:
            taken.whole.append(expired)
    # Such a segment is overdue and held whole, so its messages are not reported a second time.
    reported = {segment_place(entry.segment) for entry in held if not may_keep_some(entry.segment, policy)}
    for entry in answer.due:
        if entry.reason != "expiry":
            _add_rows(entry, taken, budget, readers, reported)
    taken.held += _held_entries(kept for kept in spared if (kept.entry.partition, kept.entry.base_offset) not in reported)
    otherwise = Counter[Place]()
    for entry in taken.rows:
        otherwise[entry.partition, entry.base_offset] += entry.rows
    for refused in taken.held:
        if refused.holder == "budget":
            otherwise[refused.partition, refused.first_base] += refused.rows

    def overdue(expired: ExpiredSegment) -> int:
        place = segment_place(expired.segment)
        if may_keep_some(expired.segment, policy):
            return sum(entry.rows + entry.held + entry.spared for entry in expiring.get(place, []))
        return expired.segment.rows - otherwise[place]

    taken.held = [*_held_segments(((entry, overdue(entry)) for entry in held), policy), *taken.held]
    for stopped in held:
        if stopped.holder == "budget" and all(bound.partition != stopped.segment.partition for bound in taken.bounds):
            reason = "max_segments, max_rows or max_bytes of [message_cleaner]"
            taken.bounds.append(
                Bound(name="budget", partition=stopped.segment.partition, offset=stopped.segment.base_offset, reason=reason)
            )
    return taken


def _add_rows(entry: DueRows, taken: _Removals, budget: PassBudget, readers: TopicReaders, reported: set[Place]) -> None:
    if entry.rows and budget.admits(rows=entry.rows):
        taken.rows.append(entry)
    elif entry.rows:
        taken.held.append(_held_rows(entry, entry.rows, "budget", _BUDGET))
    if entry.held and (entry.partition, entry.base_offset) not in reported:
        slowest = readers.slowest(entry.partition, of_ttl=entry.reason == "ttl")
        assert slowest is not None, "a held message has a reader that holds it"
        taken.held.append(_held_rows(entry, entry.held, slowest[1], f"{slowest[0].name} {slowest[0].reason}"))


def _held_entries(spared: Iterable[SparedRows]) -> Iterator[Held]:
    """Return one entry for each segment, reason and holder. A segment may have hundreds of files with spared rows."""
    found: dict[tuple[int, int, RemovalReason, Spared], list[SparedRows]] = {}
    for kept in spared:
        found.setdefault((kept.entry.partition, kept.entry.base_offset, kept.entry.reason, kept.by), []).append(kept)
    for (_, _, _, by), group in found.items():
        entries = [kept.entry for kept in group]
        whole = replace(entries[0], since=min(e.since for e in entries), last_offset=max(e.last_offset for e in entries))
        yield _held_rows(whole, sum(kept.rows for kept in group), by.holder, by.detail)


def _held_rows(entry: DueRows, rows: int, holder: Holder, detail: str) -> Held:
    return Held(
        partition=entry.partition,
        first_base=entry.base_offset,
        last_offset=entry.last_offset,
        rows=rows,
        overdue_since=entry.since,
        holder=holder,
        detail=detail,
        reason=entry.reason,
    )


def _held_segments(entries: Iterable[tuple[ExpiredSegment, int]], policy: Policy) -> Iterator[Held]:
    """Return the held segments with their overdue messages. Neighbours with the same holder form one entry."""
    overdue = [(entry, rows) for entry, rows in entries if rows]

    def run_of(numbered: tuple[int, tuple[ExpiredSegment, int]]) -> tuple[int, Holder | None, str, int]:
        at, (entry, _) = numbered
        # Other segments may leave between two segments that a hold keeps.
        apart = entry.position - at if entry.holder in get_args(SparedBy) else 0
        return entry.segment.partition, entry.holder, entry.detail, apart

    for (partition, holder, detail, _), group in groupby(enumerate(overdue), key=run_of):
        found = [numbered for _, numbered in group]
        segments = [entry.segment for entry, _ in found]
        assert holder is not None, "each of these segments has a holder"
        yield Held(
            partition=partition,
            first_base=segments[0].base_offset,
            last_offset=segments[-1].last_offset,
            rows=sum(rows for _, rows in found),
            overdue_since=min(_due_times((entry for entry, _ in found), policy), default=None),
            holder=holder,
            detail=detail,
        )


def _whole_files(answer: RowAnswer, rows: Iterable[DueRows]) -> dict[str, int]:
    """Return the files that lose every message, with their sizes.

    A segment loses all of its candidates or none: the store judged, without all of them, that the segment still shows its newest time
    (EXP-4).
    """
    taken = Counter[str]()
    for entry in rows:
        taken[entry.file] += entry.rows
    due = Counter[str]()
    where: dict[str, Place] = {}
    for entry in answer.due:
        due[entry.file] += entry.rows + entry.held + entry.spared
        where[entry.file] = entry.partition, entry.base_offset
    stay = {where[name] for name in answer.whole if taken[name] != due[name]}
    return {name: size for name, size in answer.whole.items() if where[name] not in stay}


def _warn_about_unread(rows: Iterable[DueRows], readers: TopicReaders) -> Iterator[str]:
    """Return a warning for each consumer that loses unread messages, because TTL waits for no consumer (TTL-7)."""
    gone = [entry for entry in rows if entry.reason == "ttl"]
    for reader in readers.readers:
        if reader.kind != "consumer":
            continue
        # A reader has read no message at or above its bound.
        unread = sum(
            sum(offset >= (reader.bound(entry.partition).offset or 0) for offset in offsets_of(entry.taken))
            for entry in gone
            if entry.last_offset >= (reader.bound(entry.partition).offset or 0)
        )
        if unread:
            yield f"removes {amount(unread, 'messages')} past their own TTL that consumer {reader.name} has not read (TTL-7)"


def _bounds(walks: Mapping[int, PartitionWalk], readers: TopicReaders, partitions: Iterable[int]) -> Iterator[Bound]:
    for partition in sorted({*partitions, *walks}):
        if partition in walks:
            yield from walks[partition].bounds
        yield from (reader.bound(partition) for reader in readers.readers)


def _next_due(
    walks: Mapping[int, PartitionWalk], answer: RowAnswer, taken: _Removals, readers: TopicReaders, as_of: Instant
) -> Instant | None:
    if any(entry.holder == "budget" for entry in taken.held):
        return as_of
    times = [walk.next_due_at for walk in walks.values()] + [answer.next_at]
    if any(entry.reason != "expiry" and entry.holder in READERS for entry in taken.held):
        times.append(readers.next_silent_at)
    return min((instant for instant in times if instant is not None), default=None)


def _change(taken: _Removals, facts: Facts, keep: str | None) -> CommitLog:
    going = sorted(taken.whole + taken.by_row, key=lambda entry: segment_place(entry.segment))
    # Neighbouring segments form one run: names stay exact, plans stay short.
    runs = groupby(enumerate(taken.whole), key=lambda entry: (entry[1].segment.partition, entry[1].position - entry[0]))
    order = cleaner_reasons()
    return CommitLog(
        seal=tuple(
            SealSegment(partition=partition, base_offset=base, next_offset=facts.log.end_offsets[partition])
            for partition, base in (segment_place(entry.segment) for entry in going if not entry.segment.sealed)
        ),
        drop=tuple(drop([expired.segment for _, expired in group], "expiry") for _, group in runs),
        mark=tuple(
            removal_of(rows)
            for rows in sorted(taken.rows, key=lambda due: (due.partition, due.base_offset, due.file, order.index(due.reason)))
        ),
        keep=keep,
    )


def segment_place(segment: Segment) -> Place:
    return segment.partition, segment.base_offset


# The message cleaner, and `retention`, the only cleaning of topics in backends (RET-5): the messages that leave a topic at `as_of`, and the
# holders of the rest (EXP-1 to EXP-7, TTL-5 to TTL-7, CLK-4, DEL-9).
#
# Whole segments come first: the leading run of expired segments in each partition, by metadata alone. Then the store finds single messages:
# those of an expired segment that keeps some, those past their own TTL, those past the topic's age, and of the rest those beyond the limits
# of number and size. The active segment leaves only if all of it is expired. The plan then seals it first.


def plan(facts: Facts, policy: Policy, *, as_of: Instant, ask: AskRows) -> Plan:
    """Plan the cleaner's removals from one topic at `as_of`. Pure: equal facts, answers, policy and `as_of` give an equal plan."""
    readers = topic_readers(facts.consumers, policy, as_of)
    warnings = [*warn_about_silent_readers(readers, policy), *expiry.future_times(facts.log)]
    walks: dict[int, PartitionWalk] = {}
    spared = SparedOffsets(facts.spared)
    answer = RowAnswer()
    if not policy.cleaner_enabled:
        warnings = ["the message cleaner is disabled ([message_cleaner] enabled = false): nothing is removed"]
    else:
        if policy.message_expiry_us:
            for partition, group in groupby(facts.log.segments, key=lambda segment: segment.partition):
                segments = tuple(group)
                warnings += expiry.warn_about_times(segments, policy.message_expiry_us)
                walks[partition] = expiry.walk(partition, segments, readers, policy, as_of, spared)
        question = _question(walks, facts, readers, policy, as_of)
        if question.reasons or question.beyond is not None:
            answer = ask(question)
    return plan_removal(
        "message_cleaner",
        facts,
        policy,
        readers,
        answer,
        as_of=as_of,
        walks=walks,
        bounded=policy.cleaner_enabled,
        warnings=warnings,
        reasons=cleaner_reasons() if policy.cleaner_enabled else (),
    )


def _question(walks: Mapping[int, PartitionWalk], facts: Facts, readers: TopicReaders, policy: Policy, as_of: Instant) -> RowQuestion:
    """Return the question to the store: the reasons, of which the first that applies counts (CNT-1), and the limits on the rest."""
    expired = [entry for walk in walks.values() for entry in walk.expired]
    partly = frozenset(segment_place(entry.segment) for entry in expired if may_keep_some(entry.segment, policy))
    going = frozenset(segment_place(entry.segment) for entry in expired if entry.holder is None) - partly
    reasons = []
    rule = rule_of_held = expiry.expiry_rule(policy)
    free = frozenset(segment_place(entry.segment) for entry in expired if entry.holder is None) & partly
    if rule is not None and free:
        reasons.append(Reason(name="expiry", rule=rule, segments=free))
    partitions = facts.log.end_offsets
    for name, of_rows in expiry.age_rules(policy, without=("expiry",)).items():
        reasons.append(Reason(name=name, rule=of_rows, below=lowest_needed_offsets(partitions, readers, of_ttl=name == "ttl")))
    if rule_of_held is not None and partly - free:
        # Counted last and never removed: a message of a held segment that another reason removes is not held.
        reasons.append(Reason(name="expiry", rule=rule_of_held, segments=partly - free, below=dict.fromkeys(partitions, 0)))
    beyond = _limit_question(expired, partly, readers, policy, partitions)
    return RowQuestion(as_of=as_of, reasons=tuple(reasons), going=going, beyond=beyond, spared=facts.spared)


def _limit_question(
    expired: list[ExpiredSegment], partly: frozenset[Place], readers: TopicReaders, policy: Policy, partitions: Iterable[int]
) -> LimitQuestion | None:
    """Return the limits of number and size on the remaining messages (DEL-9). A message of an earlier rule does not remain, even if held."""
    if policy.limits is None:
        return None
    return LimitQuestion(
        limits=policy.limits,
        lapsed=expiry.expiry_rule(policy),
        dead=frozenset(segment_place(entry.segment) for entry in expired) - partly,
        below=lowest_needed_offsets(partitions, readers, of_ttl=False),
    )


# The operation `retention`: only the limits by age, number and size, on any store (RET-5).


def plan_retention(facts: Facts, policy: Policy, *, as_of: Instant, ask: AskRows) -> Plan:
    """Plan the removal of messages beyond the topic's limits at `as_of`, within the cleaner's bounds. Pure, like the cleaner's plan."""
    readers = topic_readers(facts.consumers, policy, as_of)
    bounds = lowest_needed_offsets(facts.log.end_offsets, readers, of_ttl=False)
    age = expiry.retention_age(policy)
    # Expired messages and messages past their TTL belong to the cleaner, and no read shows them.
    dead = tuple(rule for rule in (expiry.expiry_rule(policy), expiry.ttl_rule(policy)) if rule is not None)
    beyond = None if policy.limits is None else LimitQuestion(limits=policy.limits, lapsed=AnyOfRules(dead) if dead else None, below=bounds)
    reasons = () if age is None else (Reason(name="retention_age", rule=age, below=bounds),)
    answer, warnings = RowAnswer(), [*warn_about_silent_readers(readers, policy), *expiry.future_times(facts.log)]
    if reasons or beyond is not None:
        answer = ask(RowQuestion(as_of=as_of, reasons=reasons, beyond=beyond, spared=facts.spared))
    return plan_removal("retention", facts, policy, readers, answer, as_of=as_of, walks={}, warnings=warnings, reasons=limit_reasons())


def shown(policy: Policy, as_of: Instant) -> RowQuestion | None:
    """Return the question of a logical read at `as_of`: which messages that no rule of age hides lie beyond the limits (RET-5)?

    None: the topic has no such limits.
    """
    if policy.limits is None:
        return None
    hidden = Reason(name="retention_age", rule=expiry.hiding_rule(policy))
    return RowQuestion(as_of=as_of, reasons=(hidden,), beyond=LimitQuestion(limits=policy.limits))
