"""What the message cleaner plans from, where compaction may be too far behind to be waited for (CMP-9)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from message_lifecycle.model.facts import Facts
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.view import NONE_OUTLIVED
from message_lifecycle.operations import message_cleaner
from message_lifecycle.operations.compaction_lag import Lag, cuts_of, takes_past

if TYPE_CHECKING:
    from message_lifecycle.app.steps import Services

_TRIES = 4
"""How often the bound is lowered to what may go without anything older coming back; each time may be the one at which all fits. Then
everything waits for compaction."""


def plan_cleaning(s: Services, facts: Facts, policy: Policy, *, as_of: Instant) -> Plan:
    """The cleaner's plan for one topic."""
    ask = partial(s.reader.rows, facts.log)
    limit_us = policy.max_compaction_lag_us
    view = None if limit_us is None or not policy.cleaner_enabled else s.views.view(facts.log.topic)
    if limit_us is None or view is None:
        return message_cleaner.plan(facts, policy, as_of=as_of, ask=ask)
    lag = Lag(view=view, oldest=s.views.oldest_past(facts.log, view), limit_us=limit_us, as_of=as_of)
    cuts: dict[int, int] = {}
    for _ in range(_TRIES):
        made = message_cleaner.plan(lag.lifted(facts, cuts), policy, as_of=as_of, ask=ask)
        outlived = s.views.outlived(view, made) if takes_past(made, view) else NONE_OUTLIVED
        lower = cuts_of(made, view, outlived)
        if not lower:
            return lag.completed(made, outlived)
        cuts |= lower
    waiting = {partition: view.horizon(partition) + 1 for partition in facts.log.end_offsets}
    return lag.completed(message_cleaner.plan(lag.lifted(facts, waiting), policy, as_of=as_of, ask=ask), NONE_OUTLIVED)
