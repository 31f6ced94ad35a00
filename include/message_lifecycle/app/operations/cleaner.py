"""The message cleaner, and `retention`, which is all the cleaning that topics of backends have (RET-5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import get_args

from message_lifecycle.app import archiving, due
from message_lifecycle.app.due import Asked, Due, not_before
from message_lifecycle.app.operations.base import Frames, Work
from message_lifecycle.app.operations.messages import OfMessages, facts_of, view_as_relied_on
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.sparing import holds_of, horizons_of, spared_in_view
from message_lifecycle.gates.messages import message_cleaner_suite, retention_suite
from message_lifecycle.gates.suite import Suite
from message_lifecycle.model.change import DropSegments, RemoveRows
from message_lifecycle.model.errors import not_in_a_backend
from message_lifecycle.model.facts import Facts, LogState
from message_lifecycle.model.hold import SparedBy, SparedOffsets
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.records import DueState
from message_lifecycle.model.rows import LimitReason, RowAnswer, RowQuestion
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.view import NONE_OUTLIVED
from message_lifecycle.operations import message_cleaner
from message_lifecycle.operations.barriers import NOTHING_WAITS, READER, Lag, Waiting, held_back, takes_past, waiting_of
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import ChangeStore

_TRIES = 4
"""How often what must wait is taken out of the plan: what stays may make more of it wait. Then everything waits."""

_LIMITS = get_args(LimitReason)


class Cleaning(OfMessages):
    """What removes by the topic's own rules. Nothing of what these take is left afterwards but what somebody holds (DEL-6)."""

    marks, undoable = True, True

    def evidence(self, s: Services, plan: Plan, staged: Staged, policy: Policy) -> Frames:
        frames = super().evidence(s, plan, staged, policy)
        return archiving.evidence(s, plan, frames) if plan.archives else frames

    def before(self, s: Services, verdict: Verdict, store: ChangeStore) -> None:
        if verdict.plan.archives:
            archiving.require(s, verdict.plan)
        super().before(s, verdict, store)

    def heeds_horizon(self, s: Services, plan: Plan) -> bool:
        """Where the cleaner does not wait for compaction it relies on the view as it was; else any horizon binds it, for horizons only rise."""
        if plan.past_horizon or any(bound.name == READER for bound in plan.bounds):
            return not plan.past_horizon or view_as_relied_on(s, plan)
        return not horizons_of(s, plan.topic)

    def look_again(self, s: Services, plan: Plan) -> tuple[Plan | None, list[str]]:
        after = self.preview(s, plan.topic, self.again(plan), as_of=plan.as_of)
        return after, _overdue_without_holder(plan, after)

    def closed(self, s: Services, plan: Plan, after: Plan) -> None:
        """What was removed under these settings was accepted with them; with nothing removed, only a loosening needs no word (DEL-3)."""
        accepted = s.ledger.accepted(plan.topic)
        if not plan.is_empty or (accepted is not None and not Policy.of_values(plan.policy).tightened_since(accepted)):
            s.ledger.set_accepted(plan.topic, dict(plan.policy))

    def counted(self, outcome: Outcome, plan: Plan, published: Published) -> Outcome:
        return replace(outcome, archived=plan.expected.removed_rows if plan.archives else 0)


class MessageCleaner(Cleaning):
    """Removes what has expired, lived its time, or lies beyond the topic's limits."""

    name = "message_cleaner"
    command = "run"

    def due(self, s: Services, name: TopicName, asked: Asked) -> Due:
        """A topic is looked at closely only when its remembered instant has come, or its table, its settings or a consumer that holds
        overdue messages has changed."""
        if (waiting := asked.question(name)) is not None:
            return waiting
        s.ledger.check(name, s.topics.describe(name).ledger)
        marker, state = s.reader.marker(name), asked.once(due.due_states).get(name)
        if state is not None and not _changed(s, name, state, marker) and not _reached(state, asked.as_of):
            return Due(topic=name, due=False, reason=not_before(state.next_due_at))
        made = self.preview(s, name, self.name, as_of=asked.as_of)
        if made.is_empty:
            due.note_due(s, made, marker)
            return Due(topic=name, due=False, reason=not_before(made.next_due_at))
        return asked.unless_hindered(made, f"{made.expected.removed_rows} messages in {made.expected.segments} segments can go")

    def plan_of_log(self, s: Services, log: LogState, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        return _plan(s, facts_of(s, log), policy, as_of=as_of)

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return message_cleaner_suite(plan, staged, policy)

    def closed(self, s: Services, plan: Plan, after: Plan) -> None:
        super().closed(s, plan, after)
        due.note_due(s, after)


class Retention(Cleaning):
    """Removes what lies beyond the topic's limits by age, number and size (RET-5)."""

    name = "retention"
    on_records = True

    def looked_at(self, s: Services, given: Sequence[TopicName]) -> Sequence[TopicName]:
        """A table's retention is the cleaner's."""
        for name in given:
            if name not in s.backends:
                raise not_in_a_backend(str(name), [str(known) for known in sorted(s.backends)])
        return given or sorted(s.backends)

    def due(self, s: Services, name: TopicName, asked: Asked) -> Due:
        if (waiting := asked.question(name)) is not None:
            return waiting
        s.ledger.check(name, s.topics.describe(name).ledger)
        made = self.preview(s, name, self.name, as_of=asked.as_of)
        if made.is_empty:
            return Due(topic=name, due=False, reason=not_before(made.next_due_at))
        return asked.unless_hindered(made, f"{made.expected.removed_rows} messages lie beyond its limits")

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return retention_suite(plan, staged, policy)

    def plan_of_log(self, s: Services, log: LogState, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        return message_cleaner.plan_retention(facts_of(s, log), policy, as_of=as_of, ask=partial(s.reader.rows, log))


def _changed(s: Services, name: TopicName, state: DueState, marker: str) -> bool:
    if state.marker != marker or policy_of(s, name).hash != state.policy_hash:
        return True
    return due.have_changed(s, name, state.holders)


def _reached(state: DueState, as_of: Instant) -> bool:
    return state.next_due_at is not None and as_of >= state.next_due_at


def _plan(s: Services, facts: Facts, policy: Policy, *, as_of: Instant) -> Plan:
    """Where compaction may be too far behind to be waited for, what the view would still show waits with it (CMP-9)."""
    log, limit_us = facts.log, policy.max_compaction_lag_us
    view = None if limit_us is None or not policy.cleaner_enabled else s.stores.view.view(log.topic)
    if limit_us is None or view is None:
        return message_cleaner.plan(facts, policy, as_of=as_of, ask=partial(s.reader.rows, log))
    lag = Lag(view=view, oldest=s.stores.view.oldest_past(log, view), limit_us=limit_us, as_of=as_of)

    def made_with(waiting: Waiting) -> Plan:
        def ask(question: RowQuestion) -> RowAnswer:
            return waiting.heeded(s.reader.rows(log, question))

        return message_cleaner.plan(lag.lifted(facts, waiting), policy, as_of=as_of, ask=ask)

    holds = holds_of(s, log.topic)
    of_view = SparedOffsets(spared_in_view(s, log, view, holds) if holds else ())
    waiting = NOTHING_WAITS
    for _ in range(_TRIES):
        made = made_with(waiting)
        outlived = s.stores.view.outlived(view, made) if takes_past(made, view) else NONE_OUTLIVED
        more = waiting_of(made, view, outlived) | held_back(outlived, view, of_view)
        if not more:
            return lag.completed(made, outlived)
        waiting |= more
    everything = Waiting(cuts={partition: view.horizon(partition) + 1 for partition in log.end_offsets})
    return lag.completed(made_with(everything), NONE_OUTLIVED)


def _overdue_without_holder(plan: Plan, after: Plan) -> list[str]:
    """Messages that a new plan at the same `as_of` would still take, that were there when the first was made and had no holder then.

    Three things wait for the next run. A reader may have moved on, or the segment before may have lost its last message in this very run:
    what they held. What messages that came since, the run's own markers among them, have pushed beyond a limit by number or size. And what
    a held message beyond a limit has: by the times of those that went it may have ranked behind, and before by those that are left (RET-4)."""
    ends = dict(plan.requirements.end_offsets)
    ranks_anew = dict(after.requirements.end_offsets) != ends or any(held.holder in get_args(SparedBy) for held in plan.held)
    going: tuple[DropSegments | RemoveRows, ...] = (*after.on_log.drop, *after.on_log.mark)
    left = [
        action
        for action in going
        if action.last_offset < ends.get(action.partition, 0)
        and not _was_held(plan, action)
        and not (ranks_anew and action.reason in _LIMITS)
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
