"""The message cleaner, and `retention`, which is all the cleaning that topics of backends have (RET-5)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from message_lifecycle.app import due
from message_lifecycle.app.due import Asked, Due, not_before
from message_lifecycle.app.operations.base import Work
from message_lifecycle.app.operations.messages import Cleaning, facts_of
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.sparing import holds_of, spared_in_view
from message_lifecycle.gates.messages import message_cleaner_suite, retention_suite
from message_lifecycle.model.errors import not_in_a_backend
from message_lifecycle.model.hold import SparedOffsets
from message_lifecycle.model.view import NONE_OUTLIVED
from message_lifecycle.operations import message_cleaner
from message_lifecycle.operations.barriers import NOTHING_WAITS, Lag, Waiting, held_back, takes_past, waiting_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from message_lifecycle.app.services import Services
    from message_lifecycle.gates.suite import Suite
    from message_lifecycle.model.facts import Facts, LogState
    from message_lifecycle.model.instants import Instant
    from message_lifecycle.model.names import TopicName
    from message_lifecycle.model.outcome import Staged
    from message_lifecycle.model.plan import Plan
    from message_lifecycle.model.records import DueState
    from message_lifecycle.model.rows import RowAnswer, RowQuestion
    from message_lifecycle.model.settings import Policy

_TRIES = 4
"""How often what must wait is taken out of the plan: what stays may make more of it wait. Then everything waits."""


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

    def all_topics(self, s: Services) -> Sequence[TopicName]:
        """A table's retention is the cleaner's."""
        return sorted(s.backends)

    def check_place(self, s: Services, name: TopicName) -> None:
        if name not in s.backends:
            raise not_in_a_backend(str(name), [str(known) for known in sorted(s.backends)])
        super().check_place(s, name)

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
    view = None if limit_us is None or not policy.cleaner_enabled else s.views.view(log.topic)
    if limit_us is None or view is None:
        return message_cleaner.plan(facts, policy, as_of=as_of, ask=partial(s.reader.rows, log))
    lag = Lag(view=view, oldest=s.views.oldest_past(log, view), limit_us=limit_us, as_of=as_of)

    def made_with(waiting: Waiting) -> Plan:
        def ask(question: RowQuestion) -> RowAnswer:
            return waiting.heeded(s.reader.rows(log, question))

        return message_cleaner.plan(lag.lifted(facts, waiting), policy, as_of=as_of, ask=ask)

    holds = holds_of(s, log.topic)
    of_view = SparedOffsets(spared_in_view(s, log, view, holds) if holds else ())
    waiting = NOTHING_WAITS
    for _ in range(_TRIES):
        made = made_with(waiting)
        outlived = s.views.outlived(view, made) if takes_past(made, view) else NONE_OUTLIVED
        more = waiting_of(made, view, outlived) | held_back(outlived, view, of_view)
        if not more:
            return lag.completed(made, outlived)
        waiting |= more
    everything = Waiting(cuts={partition: view.horizon(partition) + 1 for partition in log.end_offsets})
    return lag.completed(made_with(everything), NONE_OUTLIVED)
