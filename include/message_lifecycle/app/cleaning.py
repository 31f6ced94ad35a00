"""What the message cleaner plans from, where compaction may be too far behind to be waited for (CMP-9)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from message_lifecycle.app.sparing import holds_of, spared_in_view
from message_lifecycle.model.facts import Facts
from message_lifecycle.model.hold import SparedOffsets
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import RowAnswer, RowQuestion
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.view import NONE_OUTLIVED
from message_lifecycle.operations import message_cleaner
from message_lifecycle.operations.compaction_lag import NOTHING_WAITS, Lag, Waiting, held_back, takes_past, waiting_of

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services

_TRIES = 4
"""How often what must wait is taken out of the plan: what stays may make more of it wait. Then everything waits."""


def plan_cleaning(s: Services, facts: Facts, policy: Policy, *, as_of: Instant) -> Plan:
    """The cleaner's plan for one topic."""
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
