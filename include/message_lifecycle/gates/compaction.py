"""What a staged compacted view is held to (CMP-1 to CMP-4, CMP-7, CMP-8, CNT-1, DEL-2).

Frames: `partitions`, one row per partition that the plan compacts, with what is wrong in it; `figures`, one row.
"""

from __future__ import annotations

from message_lifecycle.gates.suite import (
    FIGURES,
    Same,
    Suite,
    Within,
    asks_counted,
    count,
    figure,
    limit,
    one_row_of_figures,
    rule,
    same_settings,
    tightened,
    total,
)
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy

_WRONG = (
    ("repeated_keys", "The view has one message per key.", "messages beside another of their key"),
    (
        "unwanted",
        "Every message in it is the latest of its key, alive, and no deletion that need not be kept.",
        "messages that do not belong",
    ),
    ("missing", "The latest message of every live key is in it.", "keys that are missing"),
    ("null_keys_missing", "Every message without a key that is to be kept is in it.", "messages without a key that are missing"),
    ("changed", "Every message in it is as the log has it.", "messages that differ"),
    ("disordered", "Offsets ascend.", "messages out of order"),
    ("beyond", "No message in it is past the new horizon.", "messages past the horizon"),
)


def compaction_suite(plan: Plan, staged: Staged, policy: Policy) -> Suite:
    """The suite of `operations.compaction`."""
    view = staged.view
    # An empty plan stages nothing: the view is what it was.
    rows_in = plan.expected.rows_in if view is None else view.view_rows + view.tail_rows
    kept = plan.expected.rows_in if view is None else view.rows
    removed = 0 if view is None else sum(rows for _, rows in view.removed)
    lowered = [action.partition for action in plan.on_view.compact if action.through < action.after]
    return (
        same_settings(plan, policy),
        rule("horizons", "No horizon moves back.", "partitions whose horizon would", Same(found=",".join(map(str, lowered)), wanted="")),
        rule("partitions", "Every partition of the plan was looked at.", "partitions", count("partitions", len(plan.on_view.compact))),
        *(rule(column, says, what, total("partitions", column, 0)) for column, says, what in (_WRONG if plan.on_view.compact else ())),
        one_row_of_figures(),
        rule(
            "rows_in",
            "What went in is the view before and what lies past its horizon, as planned.",
            "messages in",
            figure("rows_in", plan.expected.rows_in),
        ),
        rule("rows_told", "The engine read as many.", "messages in", figure("rows_in", rows_in)),
        rule("rows_kept", "The view has as many messages as the engine says.", "messages in the view", figure("rows_kept", kept)),
        rule(
            "rows_removed",
            "Every message that went in is in the view, or counted with a reason why it is not.",
            "messages not in the view",
            figure("rows_removed", removed),
        ),
        asks_counted(plan),
        limit(
            "much_lost",
            "No more than the allowed share of the view goes for another reason than a newer message.",
            "share of the view that goes",
            Within(frame=FIGURES, column="fraction_lost", minimum=None, maximum=policy.max_removed_fraction),
        ),
        limit(
            "emptied",
            "Some of the view stays.",
            "messages in the view",
            Within(frame=FIGURES, column="rows_kept", minimum=1 if plan.view is not None and plan.view.rows else 0, maximum=None),
        ),
        tightened(plan),
    )
