"""What a staged compacted view is held to (CMP-1 to CMP-4, CMP-7, CMP-8, CNT-1, DEL-2).

Frames: `partitions`, one row per partition that the plan compacts, with what is wrong in it; `figures`, one row. Beside it the suites of
what leaves the view, or goes from the log before it is compacted, by other operations (PRG-1, CMP-9).
"""

from __future__ import annotations

from message_lifecycle.gates.suite import (
    FIGURES,
    ColumnSum,
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


def view_removals_suite(plan: Plan) -> Suite:
    """What another operation takes from the compacted view: what the plan names, and nothing else (PRG-1, CMP-9). Frame `view`: one row per
    partition that loses messages."""
    if not plan.on_view.mark:
        return ()
    return (
        rule("view", "The view loses messages of the planned partitions.", "partitions", count("view", len(plan.on_view.mark))),
        rule(
            "view_rows",
            "Exactly as many messages go from the view as the plan names.",
            "messages that go from the view",
            ColumnSum(frame="view", column="rows", equals=sum(action.rows for action in plan.on_view.mark)),
        ),
        rule("view_named", "Each is named by the plan.", "messages not named", ColumnSum(frame="view", column="unnamed", equals=0)),
        rule("view_added", "Nothing comes into the view.", "messages that came", ColumnSum(frame="view", column="added", equals=0)),
    )


def outlived_suite(plan: Plan) -> Suite:
    """That nothing older comes back where an age takes what is not compacted yet (CMP-9, P3). Frame `outlived`: one row."""
    if not plan.past_horizon:
        return ()
    return (
        rule("outlived", "The keys of what goes from past the horizon were looked at.", "looks", count("outlived", 1)),
        rule(
            "outlived_view",
            "The view keeps no older message of a key of which one goes that is not compacted yet.",
            "messages that go before an older one of the view",
            ColumnSum(frame="outlived", column="in_view", equals=0),
        ),
        rule(
            "outlived_log",
            "Nothing goes from past the horizon before an older message of its key.",
            "messages that go before an older one of the log",
            ColumnSum(frame="outlived", column="in_log", equals=0),
        ),
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
        same_settings(policy.hash, plan.requirements.policy_hash),
        rule(
            "horizons",
            "No horizon moves back.",
            "partitions whose horizon would",
            Same(found=",".join(map(str, lowered)), wanted=""),
        ),
        rule(
            "partitions",
            "Every partition of the plan was looked at.",
            "partitions",
            count("partitions", len(plan.on_view.compact)),
        ),
        *(
            rule(column, says, what, ColumnSum(frame="partitions", column=column, equals=0))
            for column, says, what in (_WRONG if plan.on_view.compact else ())
        ),
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
