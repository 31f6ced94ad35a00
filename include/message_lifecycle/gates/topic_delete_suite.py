"""What deleting a whole topic, and bringing it back, is held to (DEL-2, DEL-3, DEL-7): the tables are those of the plan, counted anew.

Frames: `tables`, one row per table that would move: `same` (uuid, snapshot and kind as planned), `rows`; `taken`, one row per table that
has the place of one; `figures`, one row.
"""

from __future__ import annotations

from message_lifecycle.gates.declared import (
    FIGURES,
    AllAre,
    ColumnSum,
    Suite,
    asked,
    asks_counted,
    count,
    figure,
    rule,
    same_settings,
)
from message_lifecycle.model.actions import DeleteTable, ReturnTable
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy


def topic_suite(plan: Plan, policy: Policy) -> Suite:
    """It is always a person's word: the last check asks for it."""
    moves = [action for action in plan.actions if isinstance(action, DeleteTable | ReturnTable)]
    tables = (
        rule(
            "same",
            "Each of them is the table that was planned for, at its snapshot.",
            "tables that are others",
            AllAre(frame="tables", column="same", value=True),
        ),
        rule(
            "rows",
            "They hold as many rows as planned, by another reading.",
            "rows",
            ColumnSum(frame="tables", column="rows", equals=sum(action.rows for action in moves)),
        ),
    )
    return (
        same_settings(policy.hash, plan.requirements.policy_hash),
        rule("tables", "Exactly the planned tables move.", "tables that move", count("tables", len(moves))),
        *(tables if moves else ()),
        rule("taken", "No table has the place of one that moves.", "places that are taken", count("taken", 0)),
        rule("figures", "The figures are one row.", "rows of figures", count(FIGURES, 1)),
        rule("holds_none", "No legal hold stands on the topic.", "legal holds", figure("holds", len(plan.requirements.heeded))),
        asks_counted(plan),
        asked("topic", "No topic goes, or comes back, without a person's word.", plan),
    )
