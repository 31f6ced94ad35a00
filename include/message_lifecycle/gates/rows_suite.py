"""What the removal of single messages is held to (CNT-1, TTL-7, PRG-1).

Frames: `rows`, one row per file that loses single messages; `purged`, one row about the keys of all that a purge takes.
"""

from __future__ import annotations

from message_lifecycle.gates.declared import AllAre, ColumnSum, Suite, Within, count, rule
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan


def rows_suite(plan: Plan, staged: Staged) -> Suite:
    """Exactly the named messages go, each for the reason that the plan gives (CNT-1, TTL-7)."""
    removals = plan.row_removals + staged.superseded
    files = len({action.file for action in removals})
    counted = rule("rows", "Single messages go from exactly the planned files.", "files that lose single messages", count("rows", files))
    if not files:
        return (counted,)
    return (
        counted,
        rule(
            "rows_rows",
            "Exactly as many single messages go as the plan names.",
            "single messages that go",
            ColumnSum(frame="rows", column="rows", equals=sum(action.rows for action in removals)),
        ),
        rule(
            "rows_named",
            "Every single message that goes is named by the plan.",
            "messages not named",
            ColumnSum(frame="rows", column="unnamed", equals=0),
        ),
        rule(
            "rows_justified",
            "The rule that the plan gives as its reason holds for every single message that goes.",
            "messages without a reason",
            ColumnSum(frame="rows", column="unjustified", equals=0),
        ),
        rule(
            "rows_active",
            "No message expires out of a segment that still takes messages.",
            "files of active segments",
            AllAre(frame="rows", column="active", value=False),
        ),
    )


def purged_suite(plan: Plan) -> Suite:
    """The key itself is not known here, for no plan holds one; that there is but one can be shown without it (PRG-1)."""
    if not any(action.reason == "purged" for action in plan.row_removals):
        return (rule("purged", "No key is purged.", "purges", count("purged", 0)),)
    return (
        rule("purged", "The keys of all that is purged were looked at.", "purges", count("purged", 1)),
        rule(
            "purged_key",
            "Everything that a purge takes has one and the same key.",
            "keys that lose messages",
            Within(frame="purged", column="keys", minimum=1, maximum=1),
        ),
        rule(
            "purged_keyless",
            "A purge takes no message without a key.",
            "files that lose messages without a key",
            ColumnSum(frame="purged", column="keyless", equals=0),
        ),
    )
