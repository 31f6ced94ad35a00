"""What taking back a removal of quarantine rows is held to (DEL-7): exactly the files that it took are there again, byte for byte.

Frames: `back`, one row per file that is new: `rows`, as it is read, `same` (the bytes of the file that the plan names for it), `planned`;
`difference`, other files that differ; `figures`, one row.
"""

from __future__ import annotations

from message_lifecycle.gates.declared import FIGURES, AllAre, ColumnSum, Suite, asked, asks_counted, count, figure, rule, same_settings
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy


def quarantine_undo_suite(plan: Plan, policy: Policy) -> Suite:
    """An undo is always a person's word: the last check asks for it."""
    rows, rows_in = plan.restored_rows, plan.expected.rows_in
    return (
        same_settings(policy.hash, plan.requirements.policy_hash),
        rule("back", "As many files come back as planned.", "files that come back", count("back", len(plan.quarantine_returns))),
        rule(
            "back_rows",
            "Exactly the rows of the planned files come back.",
            "rows that come back",
            ColumnSum(frame="back", column="rows", equals=rows),
        ),
        rule(
            "back_planned",
            "Whatever comes back is named by the plan.",
            "files not named",
            AllAre(frame="back", column="planned", value=True),
        ),
        rule("back_same", "Every file comes back as it was.", "files that differ", AllAre(frame="back", column="same", value=True)),
        rule("difference", "Beside what comes back nothing differs.", "other files that differ", count("difference", 0)),
        rule("figures", "The figures are one row.", "rows of figures", count(FIGURES, 1)),
        rule("rows_in", "There are as many rows as when it was planned.", "rows before", figure("rows_in", rows_in)),
        rule("rows_restored", "As many rows come back as planned.", "rows", figure("rows_restored", rows)),
        rule("rows_kept", "Every row that was there stays.", "rows", figure("rows_kept", rows_in + rows)),
        asks_counted(plan),
        asked("undo", "Nothing comes back without a person's word.", plan),
    )
