"""Operations that take messages from the log, from its compacted view, or from both, and then from the view first (PRG-1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast, get_args

from message_lifecycle.app import archiving, changes, due, sparing
from message_lifecycle.app.due import Due, DueContext, nothing_due_text, topics_of_messages
from message_lifecycle.app.holds import holds_of
from message_lifecycle.app.operations.registry import Frames, Operation, Work
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.sparing import horizons_of, readers_of, spared_in_view
from message_lifecycle.app.topics import update_latest_view
from message_lifecycle.gates.messages import marker_generation_suite, message_cleaner_suite, message_request_suite, retention_suite
from message_lifecycle.gates.suite import Suite
from message_lifecycle.model.change import DropSegments, RemoveRows
from message_lifecycle.model.errors import PlanConflict, not_in_a_backend
from message_lifecycle.model.facts import Facts, LogState
from message_lifecycle.model.hold import Hold, SparedBy, SparedOffsets
from message_lifecycle.model.instants import Instant, deadline, is_dead
from message_lifecycle.model.message import NONE_OUTLIVED, RowAnswer, RowQuestion, ViewState, offsets_of
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.obligation import Look, ObligationKind, Owed
from message_lifecycle.model.outcome import DueState, Outcome, PlanRecord, Published, Staged
from message_lifecycle.model.phrases import amount, short
from message_lifecycle.model.plan import Held, Plan
from message_lifecycle.model.reasons import is_age, is_limit, reasons_of_obligation
from message_lifecycle.model.request import PurgeKey, RemoveNullKeys, RemoveRanges, Request, TruncateLog, requested_offsets
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import markers, message_cleaner, requests
from message_lifecycle.operations.expiry import (
    NOTHING_WAITS,
    READER,
    CompactionLag,
    WaitingMessages,
    find_waiting_messages,
    partitions_held_back,
    removes_past_horizon,
)
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import ChangeStore


class MessageOperation(Operation):
    """The common part of the operations on topics of messages."""

    def candidates(self, s: Services, names: Iterable[TopicName], *, named: bool) -> Iterable[TopicName]:
        return topics_of_messages(s, names)

    def plan(self, s: Services, name: TopicName, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        log = s.reader.log(name, latest_allowed_time=policy.latest_allowed_time(as_of))
        return self.plan_of_log(s, log, policy, work, as_of=as_of)

    def plan_of_log(self, s: Services, log: LogState, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        raise NotImplementedError(self.name)

    def combine_published(self, plan: Plan, done: Sequence[Published]) -> Published:
        """Return the last commit, with counts of the log only. Messages that leave the view may still be in the log."""
        return done[-1] if plan.changes_log else replace(done[-1], removed=())

    def needs_separate_commits(self, plan: Plan) -> bool:
        """Return whether the SQL view must be recreated between the commits: it names a snapshot of the compacted view.

        Messages may leave the log only after that.
        """
        return plan.changes_log and bool(plan.view_removal.mark)

    def check_before_commit(self, s: Services, verdict: Verdict, store: ChangeStore) -> None:
        plan = verdict.plan
        if not self.needs_separate_commits(plan):
            return
        if store is s.stores.log:
            # An older SQL view would show removed messages again, once the log has lost the newer messages that hide them.
            update_latest_view(s, plan.topic)
        else:
            assert plan.requirements.snapshot_id is not None, "the plan names messages of the log"
            others = s.reader.removed_by_others(s.reader.log(plan.topic), plan.requirements.snapshot_id)
            if others is None or others:
                raise PlanConflict(plan.plan_id, "another writer has removed messages from the log since it was planned")

    def count_rows_under_hold(self, s: Services, plan: Plan, staged: Staged, holds: Sequence[Hold]) -> int:
        return sparing.count_messages_under_hold(s, plan, staged, holds)

    def differences(self, s: Services, record: PlanRecord, published: Published) -> list[str]:
        plan, staged = record.plan, record.staged
        assert staged is not None, "what is published was staged"
        wrong = []
        if staged.view is not None:
            done = s.stores.view_removal.find_published(plan)
            taken = None if done is None else dict(done.removed)
            if taken != dict(staged.view.removed):
                wrong.append(f"the commit took {taken} from the compacted view, not what the gate judged")
        gone = set(s.reader.removed_files(plan))
        if gone != set(plan.selection.files):
            wrong.append(
                f"the commit took {len(gone)} files out, the plan names {len(plan.selection.files)}, {len(gone ^ set(plan.selection.files))} differ"
            )
        if dict(published.removed) != dict(staged.removed(plan)):
            wrong.append(f"the commit removed {dict(published.removed)}, the plan says {dict(staged.removed(plan))}")
        judged = 0 if staged.markers is None else staged.markers.count
        if published.markers + published.cancelled_markers != judged:
            wrong.append(
                f"the commit made {published.markers} markers and cancelled {published.cancelled_markers}, the gate judged {judged}"
            )
        return wrong

    def on_close(self, s: Services, plan: Plan) -> str:
        if not (self.needs_separate_commits(plan) and changes.is_halfway(s, plan)):
            return ""
        return f"The plan has changed only the compacted view. To restore it: `lifecycle undo {short(plan.plan_id)} --by NAME --why WHY`"


def facts_of(s: Services, log: LogState, view: ViewState | None = None) -> Facts:
    """Return the facts that the rules for messages use."""
    facts = Facts(log=log, consumers=tuple(readers_of(s, log.topic)), accepted=s.ledger.accepted(log.topic))
    return sparing.facts_with_spared(s, facts, view)


def is_view_unchanged(s: Services, plan: Plan) -> bool:
    """Return whether the view is unchanged since the plan, which relies on it or names messages to remove from it."""
    view, done = s.view_of(plan.topic), s.view_commit(plan)
    # A run that died between its two commits has changed the view itself.
    relied_on = done.snapshot_id if done is not None else None if plan.view is None else plan.view.snapshot_id
    return (None if view is None else view.snapshot_id) == relied_on


# The message cleaner, and `retention`, the only cleaning for topics of backends (RET-5).


_TRIES = 4
"""The number of attempts to plan without the waiting messages. Remaining messages may make further messages wait. After the last attempt,
all messages past the horizon wait."""


class Cleaning(MessageOperation):
    """Removals by the topic's own rules. Afterwards, only messages with a holder may be left of the due messages (DEL-6)."""

    marks, undoable = True, True

    def evidence(self, s: Services, plan: Plan, staged: Staged, policy: Policy) -> Frames:
        frames = super().evidence(s, plan, staged, policy)
        if plan.past_horizon:
            frames = {**frames, "outlived": s.stores.view.older_rows_frame(plan, staged)}
        return archiving.evidence(s, plan, frames) if plan.archives else frames

    def check_before_commit(self, s: Services, verdict: Verdict, store: ChangeStore) -> None:
        if verdict.plan.archives:
            archiving.require(s, verdict.plan)
        super().check_before_commit(s, verdict, store)

    def respects_horizon(self, s: Services, plan: Plan) -> bool:
        """Return whether the plan still respects the compacted view's horizons.

        A cleaner that does not wait for compaction relies on the view as planned. Otherwise every horizon binds the plan, because horizons
        only rise.
        """
        if plan.past_horizon or any(bound.name == READER for bound in plan.bounds):
            return not plan.past_horizon or is_view_unchanged(s, plan)
        return not horizons_of(s, plan.topic)

    def check_again(self, s: Services, plan: Plan) -> tuple[Plan | None, list[str]]:
        after = self.preview(s, plan.topic, self.replan_work(plan), as_of=plan.as_of)
        return after, _overdue_without_holder(plan, after)

    def after_outcome(self, s: Services, plan: Plan, after: Plan) -> None:
        """Record the plan's settings as accepted if it removed something, or if the settings are not tighter than before (DEL-3)."""
        accepted = s.ledger.accepted(plan.topic)
        if not plan.is_empty or (accepted is not None and not Policy.from_values(plan.policy).tightened_since(accepted)):
            s.ledger.set_accepted(plan.topic, dict(plan.policy))

    def with_counts(self, outcome: Outcome, plan: Plan, published: Published) -> Outcome:
        return replace(outcome, archived=plan.expected.removed_rows if plan.archives else 0)


def _owed_of_plan(made: Plan, kind: ObligationKind) -> Owed:
    reasons = reasons_of_obligation(kind)
    # A message beyond a limit by number or size has no due time of its own. The plan says `as_of` instead, so drop that time.
    held = tuple(
        replace(entry, overdue_since=None) if entry.overdue_since == made.as_of else entry for entry in made.held if entry.reason in reasons
    )
    removed = {reason: count for reason, count in made.expected.removed if reason in reasons}
    exact = bool(removed) and all(map(is_age, removed))
    return Owed(kind=kind, amount=sum(removed.values()), since=made.due_since if exact else None, exact=exact, held=held)


class MessageCleaner(Cleaning):
    """Removes messages that are expired, past their own TTL, or beyond the topic's limits."""

    name = "message_cleaner"
    command = "run"
    stops_when_disabled = True

    def find_owed(self, s: Services, name: TopicName, policy: Policy, made: Callable[[], Plan], look: Look) -> Sequence[Owed]:
        if policy.has_documents:
            return ()
        found: list[Owed] = []
        if policy.message_expiry_us:
            expiry = _owed_of_plan(made(), "expiry")
            found.append(replace(expiry, held=(*expiry.held, *_held_by_unknown_time(s, made(), policy))))
        if policy.allow_msg_ttl:
            found.append(_owed_of_plan(made(), "ttl"))
        return [*found, *_owed_by_limits(policy, made)]

    def due(self, s: Services, name: TopicName, asked: DueContext) -> Due:
        """Plan the topic only if its remembered due time has come, or after a change.

        A change is a new state of its table, its settings, or a consumer that holds overdue messages.
        """
        if (waiting := asked.question(name)) is not None:
            return waiting
        s.ledger.check(name, s.topics.describe(name).ledger)
        marker, state = s.reader.marker(name), asked.cached(due.due_states).get(name)
        disabled = not policy_of(s, name).cleaner_enabled
        if state is not None and not _has_changed(s, name, state, marker) and not _is_reached(state, asked.as_of):
            return Due(topic=name, due=False, reason=nothing_due_text(state.next_due_at), waits=disabled or bool(state.holders))
        made = self.preview(s, name, self.name, as_of=asked.as_of)
        if made.is_empty:
            due.note_due(s, made, marker)
            return Due(topic=name, due=False, reason=nothing_due_text(made.next_due_at), waits=disabled or bool(made.held))
        return asked.due_unless_blocked(
            made, f"{amount(made.expected.removed_rows, 'messages')} in {amount(made.expected.segments, 'segments')} due"
        )

    def plan_of_log(self, s: Services, log: LogState, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        return _plan(s, facts_of(s, log), policy, as_of=as_of)

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return message_cleaner_suite(plan, staged, policy)

    def after_outcome(self, s: Services, plan: Plan, after: Plan) -> None:
        super().after_outcome(s, plan, after)
        due.note_due(s, after)


class RetentionCleaner(Cleaning):
    """Removes messages beyond the topic's limits by age, number and size (RET-5)."""

    name = "retention"
    on_records = True

    def find_owed(self, s: Services, name: TopicName, policy: Policy, made: Callable[[], Plan], look: Look) -> Sequence[Owed]:
        return _owed_by_limits(policy, made)

    def topics_to_check(self, s: Services, given: Sequence[TopicName]) -> Sequence[TopicName]:
        """A table's retention is the cleaner's."""
        for name in given:
            if name not in s.backends:
                raise not_in_a_backend(str(name), [str(known) for known in sorted(s.backends)])
        return given or sorted(s.backends)

    def due(self, s: Services, name: TopicName, asked: DueContext) -> Due:
        if (waiting := asked.question(name)) is not None:
            return waiting
        s.ledger.check(name, s.topics.describe(name).ledger)
        made = self.preview(s, name, self.name, as_of=asked.as_of)
        if made.is_empty:
            return Due(topic=name, due=False, reason=nothing_due_text(made.next_due_at), waits=bool(made.held))
        return asked.due_unless_blocked(made, f"{amount(made.expected.removed_rows, 'messages')} beyond its limits")

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return retention_suite(plan, staged, policy)

    def plan_of_log(self, s: Services, log: LogState, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        return message_cleaner.plan_retention(facts_of(s, log), policy, as_of=as_of, ask=partial(s.reader.rows, log))


def _owed_by_limits(policy: Policy, made: Callable[[], Plan]) -> list[Owed]:
    return [] if policy.limits is None and policy.max_age_us is None else [_owed_of_plan(made(), "limits")]


def _held_by_unknown_time(s: Services, made: Plan, policy: Policy) -> Iterator[Held]:
    """Segments with a message past its expiry that never expire, because the time of another is not known (CLK-4)."""
    if not made.warnings:
        return
    for segment in s.reader.log(made.topic).segments:
        since = None if segment.oldest_at is None else deadline(segment.oldest_at, policy.message_expiry_us)
        if segment.rows and segment.newest_at is None and since is not None and is_dead(since, made.as_of):
            yield Held(
                partition=segment.partition,
                first_base=segment.base_offset,
                last_offset=segment.last_offset,
                rows=segment.rows,
                overdue_since=since,
                holder="unknown_time",
                detail=f"segment {segment.base_offset}: a message without a known append_time keeps all of it: never expired (CLK-4)",
            )


def _has_changed(s: Services, name: TopicName, state: DueState, marker: str) -> bool:
    if state.marker != marker or policy_of(s, name).hash != state.policy_hash:
        return True
    return due.have_changed(s, name, state.holders)


def _is_reached(state: DueState, as_of: Instant) -> bool:
    return state.next_due_at is not None and as_of >= state.next_due_at


def _plan(s: Services, facts: Facts, policy: Policy, *, as_of: Instant) -> Plan:
    """Plan the cleaning. If compaction is too late to wait for, messages whose older versions the view would still show wait (CMP-9)."""
    log, limit_us = facts.log, policy.max_compaction_lag_us
    view = None if limit_us is None or not policy.cleaner_enabled else s.view_of(log.topic)
    if limit_us is None or view is None:
        return message_cleaner.plan(facts, policy, as_of=as_of, ask=partial(s.reader.rows, log))
    lag = CompactionLag(view=view, oldest=s.stores.view.oldest_past(log, view), limit_us=limit_us, as_of=as_of)

    def made_with(waiting: WaitingMessages) -> Plan:
        def ask(question: RowQuestion) -> RowAnswer:
            return waiting.hold_back(s.reader.rows(log, question))

        return message_cleaner.plan(lag.with_overrides(facts, waiting), policy, as_of=as_of, ask=ask)

    holds = holds_of(s, log.topic)
    of_view = SparedOffsets(spared_in_view(s, log, view, holds) if holds else ())
    waiting = NOTHING_WAITS
    for _ in range(_TRIES):
        made = made_with(waiting)
        outlived = s.stores.view.find_older_rows(view, made) if removes_past_horizon(made, view) else NONE_OUTLIVED
        more = find_waiting_messages(made, view, outlived) | partitions_held_back(outlived, view, of_view)
        if not more:
            return lag.complete_plan(made, outlived)
        waiting |= more
    everything = WaitingMessages(cuts={partition: view.horizon(partition) + 1 for partition in log.end_offsets})
    return lag.complete_plan(made_with(everything), NONE_OUTLIVED)


def _overdue_without_holder(plan: Plan, after: Plan) -> list[str]:
    """Describe messages that the run should have removed: they are still due, existed at planning, and had no holder.

    Three kinds of messages may wait for the next run:

    * Messages whose holder went away: a reader moved on, or this run emptied the segment before them.
    * Messages that newer messages, including the run's own markers, pushed beyond a limit by number or size.
    * Messages that a held message now displaces: after the removal it ranks before them, by the remaining times (RET-4).
    """
    ends = dict(plan.requirements.end_offsets)
    ranks_anew = dict(after.requirements.end_offsets) != ends or any(held.holder in get_args(SparedBy) for held in plan.held)
    going: tuple[DropSegments | RemoveRows, ...] = (*after.log_commit.drop, *after.log_commit.mark)
    left = [
        action
        for action in going
        if action.last_offset < ends.get(action.partition, 0)
        and not _was_held(plan, action)
        and not (ranks_anew and is_limit(action.reason))
    ]
    if not left or plan.more:
        return []
    return [
        f"partition {action.partition}: messages up to offset {action.last_offset} are still overdue and nothing named holds them"
        for action in left
    ]


def _was_held(plan: Plan, action: DropSegments | RemoveRows) -> bool:
    first = action.first_base if isinstance(action, DropSegments) else action.base_offset
    held = [entry for entry in plan.held if entry.partition == action.partition]
    return all(any(entry.first_base <= offset <= entry.last_offset for entry in held) for offset in (first, action.last_offset))


# Removals that a person requests, from the log and from its compacted view: the named messages, and older messages that would otherwise
# reappear in the view (PRG-1).


Offsets = dict[int, set[int]]
"""By partition."""


class MessageRequest(MessageOperation):
    """Removes the messages that a person names."""

    name = "message_request"
    by_request, marks, undoable, on_records = True, True, True, True

    def is_plan_for(self, plan: Plan, work: Work) -> bool:
        """Return False, because a request is planned again each time."""
        return False

    def plan_of_log(self, s: Services, log: LogState, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        request, view = cast(Request, work), s.view_of(log.topic)
        facts = facts_of(s, log, view)
        requests.check(log, request)
        found = s.reader.find_requested_rows(log, request, as_of=as_of)
        of_view = {} if view is None else _rows_of_view(s, log, view, request, found, as_of=as_of)
        return requests.plan(facts, policy, request, found, as_of=as_of, view=view, of_view=of_view)

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return message_request_suite(plan, staged, policy)

    def respects_horizon(self, s: Services, plan: Plan) -> bool:
        return is_view_unchanged(s, plan)


def _rows_of_view(
    s: Services, log: LogState, view: ViewState, request: Request, found: RowAnswer, *, as_of: Instant
) -> Mapping[int, set[int]]:
    """Return the offsets of the view's messages that the request removes. `found`: its removals from the log."""
    going: Offsets = {}
    for entry in found.due:
        going.setdefault(entry.partition, set()).update(offsets_of(entry.taken))
    if isinstance(request, PurgeKey):
        return _find_by_key(s, log, view, request, going, as_of)
    if isinstance(request, TruncateLog | RemoveNullKeys):
        return _find_in_span(s, log, view, request)
    if isinstance(request, RemoveRanges):
        taken = _find_in_ranges(s, log, view, request)
    else:
        taken = {}
        for partition, offset in request.positions:
            taken.setdefault(partition, set()).add(offset)
    keys = _newest_past_horizon(s, log, view, going)
    rows = s.stores.view.places_of(log.topic, view, offsets=taken, keys={key for _, key in keys})
    chosen: Offsets = {}
    for partition, offset, key in rows:
        named = offset in taken.get(partition, ())
        older = key is not None and offset < keys.get((partition, key), -1)
        if named or older:
            chosen.setdefault(partition, set()).add(offset)
    return chosen


def _find_in_ranges(s: Services, log: LogState, view: ViewState, request: RemoveRanges) -> Offsets:
    """Offsets of the view's messages within the ranges."""
    chosen: Offsets = {}
    for partition in sorted({partition for partition, _, _ in request.ranges}):
        spans = request.of(partition)
        for row in s.stores.view.view_rows(log.topic, view, partition=partition, start=min(span.start for span in spans)):
            if not row.remembered and any(row.message.offset in span for span in spans):
                chosen.setdefault(partition, set()).add(row.message.offset)
    return chosen


def _find_in_span(s: Services, log: LogState, view: ViewState, request: TruncateLog | RemoveNullKeys) -> Offsets:
    """Return the offsets of the requested messages that the view has. An older message of a key is in the span, too: its offset is lower."""
    span, chosen = requested_offsets(request), set[int]()
    for row in s.stores.view.view_rows(log.topic, view, partition=request.partition, start=span.start):
        if row.message.offset >= span.stop:
            break
        if not row.remembered and (isinstance(request, TruncateLog) or row.message.key is None):
            chosen.add(row.message.offset)
    return {request.partition: chosen} if chosen else {}


def _newest_past_horizon(s: Services, log: LogState, view: ViewState, going: Offsets) -> dict[tuple[int, bytes], int]:
    """Return, by key, the newest message to remove past the horizon. Older messages of the key in the view would outlive it."""
    newest: dict[tuple[int, bytes], int] = {}
    for partition, offsets in going.items():
        past = {offset for offset in offsets if offset > view.horizon(partition)}
        if not past:
            continue
        for message in s.reader.messages(log.topic, at=log, after=view.horizons, partition=partition, start=min(past)):
            if message.offset in past and message.key is not None:
                newest[partition, message.key] = message.offset
            if message.offset >= max(past):
                break
    return newest


def _find_by_key(s: Services, log: LogState, view: ViewState, request: PurgeKey, going: Offsets, as_of: Instant) -> Offsets:
    in_log = s.reader.find_requested_rows(log, PurgeKey(key=request.key), as_of=as_of)
    of_log: Offsets = {}
    for entry in in_log.due:
        of_log.setdefault(entry.partition, set()).update(offsets_of(entry.taken))
    chosen: Offsets = {}
    for partition, offset, _ in s.stores.view.places_of(log.topic, view, offsets={}, keys={request.key}):
        if _is_removed(offset, request, of_log.get(partition, set()), going.get(partition, set())):
            chosen.setdefault(partition, set()).add(offset)
    return chosen


def _is_removed(offset: int, request: PurgeKey, of_log: Iterable[int], going: Iterable[int]) -> bool:
    if request.before is not None:
        return offset < request.before or any(offset < gone for gone in going)
    if request.keep is not None:
        return sum(other > offset for other in of_log) >= request.keep
    return True


# The sweep for missing markers after removals by another writer (MRK-2). The sweep reads only the table's history.


class MarkerGeneration(MessageOperation):
    """Makes missing markers. The first sweep of a topic finds nothing missing, because the earlier state is unknown."""

    name = "marker_generation"
    gives_way, marks, stops_when_disabled = True, True, True
    not_undone = (
        "it made the markers owed for what another writer removed, which is gone; `lifecycle message delete` removes single markers"
    )

    def find_owed(self, s: Services, name: TopicName, policy: Policy, made: Callable[[], Plan], look: Look) -> Sequence[Owed]:
        if policy.has_documents or policy.marker_ttl_us is None:
            return ()
        return [Owed(kind="markers", amount=len(made().log_commit.sweep), unit="snapshots of another writer", by_setting=False)]

    def due(self, s: Services, name: TopicName, asked: DueContext) -> Due:
        if policy_of(s, name).marker_ttl_us is None:
            return Due(topic=name, due=False, reason="the topic makes no markers")
        s.ledger.check(name, s.topics.describe(name).ledger)
        made = self.preview(s, name, self.name, as_of=asked.as_of)
        if not made.is_empty:
            return Due(
                topic=name,
                due=True,
                reason=f"another writer removed messages in {amount(len(made.log_commit.sweep), 'snapshots')} since the last sweep",
            )
        if not policy_of(s, name).cleaner_enabled:  # the markers stay owed, so do not record the sweep
            return Due(topic=name, due=False, reason="no markers while [message_cleaner] enabled = false", waits=True)
        snapshot_id = made.requirements.snapshot_id
        if snapshot_id is not None and snapshot_id != s.ledger.last_swept_snapshot(name):
            s.ledger.set_last_swept_snapshot(name, snapshot_id)
        return Due(topic=name, due=False, reason="; ".join(made.warnings) or "no other writer has removed messages")

    def plan_of_log(self, s: Services, log: LogState, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        since = s.ledger.last_swept_snapshot(log.topic)
        # Before the first sweep there is no state to compare with, so no marker is owed for earlier removals.
        removals = () if since is None or log.snapshot_id is None else s.reader.removed_by_others(log, since)
        return markers.plan(facts_of(s, log), policy, removals, as_of=as_of)

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return marker_generation_suite(plan, staged, policy)

    def record_effects(self, s: Services, plan: Plan, staged: Staged | None) -> None:
        if plan.requirements.snapshot_id is not None:
            s.ledger.set_last_swept_snapshot(plan.topic, plan.requirements.snapshot_id)
