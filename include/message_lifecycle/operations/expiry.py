"""Expired segments, messages that age removes, and the readers that still need them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

from message_lifecycle.model import reasons
from message_lifecycle.model.change import RemoveFromView, RemoveRows, non_empty_commits
from message_lifecycle.model.facts import READERS, Facts, LogState, PinOverride, Progress, ReaderKind, Segment
from message_lifecycle.model.hold import SparedOffsets
from message_lifecycle.model.instants import (
    INT64_MAX,
    MICROS_PER_SECOND,
    Instant,
    deadline,
    format_duration,
    format_to_second,
    newest_known,
)
from message_lifecycle.model.message import NOTHING, DueRows, OlderRows, RowAnswer, ViewState, offsets_of, parse_ranges_text, ranges_text
from message_lifecycle.model.phrases import amount
from message_lifecycle.model.plan import Bound, Holder, Plan
from message_lifecycle.model.reasons import AgeReason
from message_lifecycle.model.rules import AllOfRules, AnyOfRules, NeverExpires, NotRule, PeriodPassed, Rule, TimeKnown
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.planning import view_requirements

# The readers that still need a topic's messages: consumers, replicas and compaction (EXP-6, TTL-6, CMP-9).


READER = "compaction"
"""The name of the compaction horizon in reports (CMP-9)."""
_TOLD: dict[ReaderKind, tuple[str, str]] = {
    "consumer": ("consumer {}", "processed"),
    "replica": ("replica {}", "copied"),
    "compaction": ("{}", "compacted"),
}
"""For each kind of reader, its title and the verb for the messages that it has read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A reader that still pins messages, with its progress by partition."""

    name: str
    progress: dict[int, Progress]
    kind: ReaderKind
    silent_at: Instant | None
    """When the reader stops pinning unless it commits again. None: unknown, or never."""

    def bound(self, partition: int) -> Bound:
        # A reader without a commit in the partition has read nothing there (unknown keeps data).
        mine = self.progress.get(partition)
        called, did = _TOLD[self.kind]
        name = called.format(self.name)
        if mine is not None and mine.lift is not None:
            return Bound(name=name, partition=partition, offset=mine.lift.through + 1, reason=mine.lift.reason)
        return Bound(
            name=name,
            partition=partition,
            offset=0 if mine is None else mine.offset + 1,
            reason=f"has {did} nothing here yet" if mine is None or mine.offset < 0 else f"has {did} up to offset {mine.offset}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReaders:
    """The readers of a topic at the run's `as_of`."""

    readers: tuple[Reader, ...]
    """Readers that pin messages."""
    silent: tuple[str, ...]
    """Names of readers that fell silent and pin no more."""

    def slowest(self, partition: int, *, of_ttl: bool = False) -> tuple[Bound, ReaderKind] | None:
        """Return the lowest bound of a partition and the kind of its reader. No consumer bounds TTL (EXP-6)."""
        bounds = [(reader.bound(partition), reader.kind) for reader in self.readers if reader.kind != "consumer" or not of_ttl]
        return min(bounds, key=lambda found: found[0].offset or 0, default=None)

    @property
    def next_silent_at(self) -> Instant | None:
        return min((reader.silent_at for reader in self.readers if reader.silent_at is not None), default=None)


def topic_readers(consumers: Iterable[Progress], policy: Policy, as_of: Instant) -> TopicReaders:
    # By kind, too: a consumer may have the name "compaction".
    by_name: dict[tuple[str, ReaderKind], dict[int, Progress]] = {}
    for progress in consumers:
        by_name.setdefault((progress.consumer, progress.kind), {})[progress.partition] = progress
    readers, silent = [], []
    for (name, kind), progress_of in sorted(by_name.items()):
        # A commit in one partition is a sign of life for all: the others may have nothing new to read.
        if any(progress.pins_at(as_of, policy.consumer_expiry_us) for progress in progress_of.values()):
            readers.append(Reader(name=name, progress=progress_of, kind=kind, silent_at=silent_at(progress_of.values(), policy)))
        else:
            silent.append(name)
    return TopicReaders(readers=tuple(readers), silent=tuple(silent))


def silent_at(progress: Iterable[Progress], policy: Policy) -> Instant | None:
    """Return when a reader stops pinning: its newest commit in any partition counts. None: never, because its time is unknown."""
    return newest_known(one.silent_at(policy.consumer_expiry_us) for one in progress)


# The way out when compaction has stopped: past `max_compaction_lag` the cleaner no longer waits for it (CMP-9).
#
# Dead messages past the horizon then leave as anywhere else. The same plan first removes older messages of their keys from the view. A
# message waits while an older message of its key, past the horizon too, stays: the next compaction would take that one for the latest.


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingMessages:
    """Messages that still wait for compaction, by partition.

    Otherwise they would leave before an older message of their key, which readers would then see again. Or a limit other than age would
    remove them while they live.
    """

    cuts: Mapping[int, int] = field(default_factory=dict)
    """All messages from this offset on, because segments leave whole."""
    rows: Mapping[int, frozenset[int]] = field(default_factory=dict)
    """Single messages."""

    def __or__(self, more: WaitingMessages) -> WaitingMessages:
        rows = {
            partition: self.rows.get(partition, frozenset()) | more.rows.get(partition, frozenset())
            for partition in {*self.rows, *more.rows}
        }
        return WaitingMessages(cuts={**self.cuts, **more.cuts}, rows=rows)

    def __bool__(self) -> bool:
        return bool(self.cuts or self.rows)

    def hold_back(self, answer: RowAnswer) -> RowAnswer:
        """Return the answer with these messages held. Only its segment holds a message that expires with a segment."""
        return replace(answer, due=tuple(self._held(entry) for entry in answer.due)) if self.rows else answer

    def _held(self, entry: DueRows) -> DueRows:
        waiting = self.rows.get(entry.partition)
        if not waiting or entry.reason == "expiry":
            return entry
        taken = [offset for offset in offsets_of(entry.taken) if offset not in waiting]
        if len(taken) == entry.rows:
            return entry
        return replace(entry, taken=ranges_text(taken), rows=len(taken), held=entry.held + entry.rows - len(taken))

    def waiting_text(self, partition: int) -> str:
        cut, rows = self.cuts.get(partition), self.rows.get(partition, frozenset())
        parts = [f"all messages from offset {cut} wait for it"] if cut is not None else []
        parts += [f"{amount(len(rows), 'messages')} from offset {min(rows)} wait for it"] if rows else []
        if not parts:
            return "nothing waits for it any more"
        return f"{' and '.join(parts)}. Otherwise their keys show older values, or are lost"


NOTHING_WAITS = WaitingMessages()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionLag:
    """The lag of compaction."""

    view: ViewState
    oldest: Mapping[int, Instant]
    """For each partition, the oldest known append_time past the horizon. Unknown times do not count as old."""
    limit_us: int
    """In microseconds, above 0. A message of exactly this age may wait."""
    as_of: Instant

    @property
    def exceeded(self) -> dict[int, int]:
        """For each partition over the limit, the age of the oldest message past the horizon, in microseconds."""
        ages = ((partition, self.as_of - oldest) for partition, oldest in sorted(self.oldest.items()))
        return {partition: age for partition, age in ages if age > self.limit_us}

    def with_overrides(self, facts: Facts, waiting: WaitingMessages) -> Facts:
        """Return facts in which a compaction beyond the limit pins only the `waiting` messages."""
        ends = facts.log.end_offsets
        # `topic_readers` uses the last progress of a reader in a partition.
        lifted = (self._compaction_progress(partition, ends[partition], waiting) for partition in sorted(ends))
        return replace(facts, consumers=(*facts.consumers, *lifted))

    def _compaction_progress(self, partition: int, end: int, waiting: WaitingMessages) -> Progress:
        horizon, age = self.view.horizon(partition), self.exceeded.get(partition)
        reader = Progress(consumer=READER, partition=partition, offset=horizon, at=None, kind="compaction")
        if age is None:
            return reader
        reason = f"{_reach_text(horizon)}, and {self._lag_text(age)}: {waiting.waiting_text(partition)}"
        return replace(reader, lift=PinOverride(through=waiting.cuts.get(partition, end) - 1, reason=reason))

    def _lag_text(self, age: int) -> str:
        return f"the oldest message past that is {_duration(age)} old, more than max_compaction_lag = {_duration(self.limit_us)}"

    def complete_plan(self, made: Plan, outlived: OlderRows) -> Plan:
        """Return the plan with its removals from the view and its warnings."""
        warnings = tuple(
            f"partition {partition}: compaction {_reach_text(self.view.horizon(partition))}, and {self._lag_text(age)}. Dead messages after it are "
            "removed without compaction (CMP-9)"
            for partition, age in self.exceeded.items()
        )
        made = replace(made, warnings=(*made.warnings, *warnings), next_due_at=self._next_due(made))
        if not removes_past_horizon(made, self.view):
            return made
        of_view = non_empty_commits(RemoveFromView(mark=tuple(_view_removals(outlived))))
        return replace(made, changes=(*of_view, *made.changes), view=view_requirements(self.view))

    def _next_due(self, made: Plan) -> Instant | None:
        """Messages that compaction holds now may leave when its lag exceeds the limit."""
        held = {entry.partition for entry in made.held if entry.holder == "compaction"}
        begins = (Instant(self.oldest[partition] + self.limit_us + 1) for partition in held if partition in self.oldest)
        times = [made.next_due_at, *(begin for begin in begins if begin > self.as_of)]
        return min((time for time in times if time is not None), default=None)


def removes_past_horizon(made: Plan, view: ViewState) -> bool:
    """Return True if the plan removes messages past a horizon.

    It may also return True for a whole segment whose remaining messages are all compacted.
    """
    return any(run.last_offset > view.horizon(run.partition) for run in made.log_commit.drop) or any(
        _first_past(action, view) is not None for action in made.log_commit.mark
    )


def find_waiting_messages(made: Plan, view: ViewState, outlived: OlderRows) -> WaitingMessages:
    """Return the messages that the plan names but must leave."""
    rows: dict[int, set[int]] = {}
    single: dict[int, set[int]] = {}
    for action in made.log_commit.mark:
        if _first_past(action, view) is None:
            continue
        past = {offset for offset in offsets_of(action.offsets) if offset > view.horizon(action.partition)}
        # A message that an age removes is dead in the view, too. Any other limit bounds only the log: live messages need compaction first.
        if not reasons.is_age(action.reason):
            rows.setdefault(action.partition, set()).update(past)
        elif action.reason != "expiry":
            single.setdefault(action.partition, set()).update(past)
    cuts: dict[int, int] = {}
    for partition, offsets in outlived.in_log.items():
        singly = single.get(partition, set()).intersection(offsets)
        if singly:
            rows.setdefault(partition, set()).update(singly)
        with_segment = [offset for offset in offsets if offset not in singly and offset not in rows.get(partition, ())]
        if with_segment:
            cuts[partition] = min(with_segment)
    return WaitingMessages(cuts=cuts, rows={partition: frozenset(offsets) for partition, offsets in rows.items()})


def partitions_held_back(outlived: OlderRows, view: ViewState, of_view: SparedOffsets) -> WaitingMessages:
    """Return the partitions that wait whole, because a hold keeps an older message that would have to leave the view (DEL-8)."""
    held = (
        partition
        for partition, offsets in outlived.of_view.items()
        if any(of_view.find_spared(partition, offset, offset) for offset in offsets)
    )
    return WaitingMessages(cuts={partition: view.horizon(partition) + 1 for partition in held})


def _first_past(action: RemoveRows, view: ViewState) -> int | None:
    """Return the first offset past the horizon that the action removes."""
    start = view.horizon(action.partition) + 1
    return next((max(run.start, start) for run in parse_ranges_text(action.offsets) if run.stop > start), None)


def _view_removals(outlived: OlderRows) -> Iterator[RemoveRows]:
    for partition, offsets in sorted(outlived.of_view.items()):
        if offsets:
            yield RemoveRows(partition=partition, offsets=ranges_text(offsets), rows=len(offsets), reason="superseded")


def _reach_text(horizon: int) -> str:
    return "has compacted nothing here yet" if horizon <= NOTHING else f"has compacted up to offset {horizon}"


def _duration(us: int) -> str:
    return format_duration(us / MICROS_PER_SECOND)


# The rules of age of one policy: for single messages, in the plan and in every read (CLK-2, TTL-5), and for whole segments by metadata
# alone (EXP-4 to EXP-6, CLK-4).


def expiry_rule(policy: Policy) -> Rule | None:
    """Return the rule for messages of an expired segment: all except those that their own TTL keeps (EXP-5). None: nothing expires."""
    if not policy.message_expiry_us:
        return None
    return _unless_kept(PeriodPassed("append_time", policy.message_expiry_us), policy)


def ttl_rule(policy: Policy) -> Rule | None:
    """Return the rule of a message's own lifetime. None: the topic ignores it (TTL-6)."""
    return PeriodPassed("expires_at", 0) if policy.allow_msg_ttl else None


def retention_age(policy: Policy) -> Rule | None:
    """Return the rule of the topic's age: strictly older than the limit, so one microsecond after it (CLK-2, RET-2).

    None: no limit, or a limit beyond the range of times.
    """
    if policy.max_age_us is None or policy.max_age_us >= INT64_MAX:
        return None
    return _unless_kept(PeriodPassed("append_time", policy.max_age_us + 1), policy)


def hiding_rule(policy: Policy) -> Rule:
    """Return the rule that hides messages from logical reads, although the log may still hold them."""
    return AnyOfRules(tuple(age_rules(policy).values()))


RULES: dict[AgeReason, Callable[[Policy], Rule | None]] = {"expiry": expiry_rule, "ttl": ttl_rule, "retention_age": retention_age}
"""The rule of each reason of the family `age`, by the topic's settings."""


def age_rules(policy: Policy, *, without: Collection[AgeReason] = ()) -> dict[AgeReason, Rule]:
    """Return the rules of age that act, in the order of the table: the first that applies counts (CNT-1)."""
    found = {reason: RULES[reason](policy) for reason in reasons.reasons_of_family("age") if reason not in without}
    return {reason: rule for reason, rule in found.items() if rule is not None}


def kept_by_own_ttl(policy: Policy) -> NeverExpires | AnyOfRules | None:
    """Return the rule for messages that only their own TTL removes (TTL-5). None: the topic ignores TTL."""
    if not policy.allow_msg_ttl:
        return None
    return AnyOfRules((NeverExpires(), TimeKnown("expires_at"))) if policy.ttl_overrides_age else NeverExpires()


def _unless_kept(rule: Rule, policy: Policy) -> Rule:
    kept = kept_by_own_ttl(policy)
    return rule if kept is None else AllOfRules((rule, NotRule(kept)))


# The expired segments of a partition.


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredSegment:
    """An expired segment, with its position among the partition's segments and its holder (None: no holder)."""

    position: int
    segment: Segment
    holder: Holder | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionWalk:
    """The walk through the segments of one partition."""

    bounds: tuple[Bound, ...]
    expired: tuple[ExpiredSegment, ...]
    next_due_at: Instant | None
    """The first instant when another segment can leave, by today's knowledge."""


def walk(
    partition: int, segments: tuple[Segment, ...], barriers: TopicReaders, policy: Policy, as_of: Instant, spared: SparedOffsets
) -> PartitionWalk:
    """Walk the partition from its oldest segment up to the lowest of named bounds.

    The walk skips a `spared` segment, an empty segment, and a segment with only future times. The last one stays and holds no segment
    behind it (CLK-4).
    """
    expiry_us = policy.message_expiry_us
    standing = (segment for segment in segments if segment.rows and not segment.is_in_future)
    blocker = next((segment for segment in standing if not segment.is_expired(expiry_us, as_of)), None)
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
        kept = spared.find_spared(partition, segment.base_offset, segment.last_offset)
        if kept is not None:
            expired.append(ExpiredSegment(position=position, segment=segment, holder=kept.holder, detail=kept.detail))
        elif segment.base_offset >= live_cut and blocker is not None:
            holder: Holder = "unknown_time" if blocker.newest_at is None else "earlier_segment"
            detail = f"segment {blocker.base_offset}: {live.reason}"
            expired.append(ExpiredSegment(position=position, segment=segment, holder=holder, detail=detail))
        elif segment.last_offset >= read_cut and slowest is not None:
            detail = f"{slowest[0].name} {slowest[0].reason}"
            expired.append(ExpiredSegment(position=position, segment=segment, holder=slowest[1], detail=detail))
        else:
            expired.append(ExpiredSegment(position=position, segment=segment))

    held_by_readers = any(entry.holder in READERS for entry in expired)
    due_at = None if held_by_readers or blocker is None else blocker.expires_at(expiry_us)
    next_times = (
        barriers.next_silent_at if held_by_readers else None,
        None if due_at == INT64_MAX else due_at,
        _late_are_due(segments, policy, as_of),
    )
    return PartitionWalk(
        bounds=(live,),
        expired=tuple(expired),
        next_due_at=min((instant for instant in next_times if instant is not None), default=None),
    )


def _why_live(blocker: Segment | None, expiry_us: int) -> str:
    if blocker is None:
        return "every segment is expired"
    due_at = blocker.expires_at(expiry_us)
    if due_at is None:
        return "a message of unknown append_time: never expires (CLK-4)"
    if due_at == INT64_MAX:
        return "its expiry time is out of range: never expires (CLK-3)"
    return f"newest message ({format_to_second(blocker.newest_at)}) expires at {format_to_second(due_at)}"


def _late_are_due(segments: Iterable[Segment], policy: Policy, as_of: Instant) -> Instant | None:
    """Return the earliest time when a message later than `as_of` + skew can expire. Nobody has read its exact time (CLK-4)."""
    if not any(segment.late_rows for segment in segments):
        return None
    return deadline(Instant(as_of + policy.clock_skew_us), policy.message_expiry_us)


def future_times(log: LogState) -> Iterator[str]:
    """Warn about each partition with future times and name its first such message (CLK-4)."""
    for partition, group in groupby(log.segments, key=lambda segment: segment.partition):
        late = [segment for segment in group if segment.first_late is not None]
        if late:
            count, first = sum(segment.late_rows for segment in late), f"{partition}:{late[0].first_late}"
            yield (
                f"partition {partition}: {amount(count, 'messages')} dated in the future (after as_of + clock_skew), the first at {first}. They "
                "are ignored for the age of their segment, and kept until their time (CLK-4). To correct one, ingest it again with the right "
                f"time. Then remove it: lifecycle message delete {log.topic} {first} --by NAME --why WHY"
            )


def warn_about_times(segments: tuple[Segment, ...], expiry_us: int) -> Iterator[str]:
    """Return warnings about the partition's times."""
    unknown = [segment for segment in segments if segment.newest_at is None and segment.rows and not segment.is_in_future]
    if unknown:
        first = unknown[0].base_offset
        yield f"partition {segments[0].partition}: {amount(len(unknown), 'segments')} with a message of unknown append_time never expire, the first at offset {first} (CLK-4)"
    if any(segment.expires_at(expiry_us) == INT64_MAX for segment in segments):
        yield f"partition {segments[0].partition}: an expiry time is out of range. Such messages never expire (CLK-3)"
