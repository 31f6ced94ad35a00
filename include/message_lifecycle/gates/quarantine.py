"""What the removal of quarantine rows by their age is held to (QUA-1, DEL-2), and taking it back (DEL-7)."""

from __future__ import annotations

from message_lifecycle.gates.suite import (
    AllAre,
    ColumnSum,
    Suite,
    Within,
    asks_counted,
    comes_back,
    count,
    figure,
    nothing_else_differs,
    one_row_of_figures,
    rule,
    same_settings,
    tightened,
)
from message_lifecycle.model.instants import INT64_MAX, seconds
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy


def quarantine_suite(plan: Plan, policy: Policy) -> Suite:
    """Whole files go that have reached their age, those that the plan names, and nothing else.

    Frames: `going`, one row per file that goes, read once more: `rows`, `newest_at` (the newest time among its rows), `planned`;
    `difference`, other files that differ; `figures`, one row.
    """
    files, removed = len(plan.selection.files), plan.expected.removed_rows
    age = policy["quarantine_max_age"]
    assert isinstance(age, int), "the setting has a default"
    newest_allowed = min(plan.as_of, INT64_MAX - 1) - seconds(age)
    going = (
        rule(
            "going_rows",
            "Exactly the rows of the planned files go.",
            "rows that go",
            ColumnSum(frame="going", column="rows", equals=removed),
        ),
        rule(
            "going_old",
            "Every row that goes has reached its age.",
            "newest time of what goes",
            Within(frame="going", column="newest_at", minimum=None, maximum=newest_allowed, shown_as="instant"),
        ),
        rule(
            "going_planned", "Whatever goes is named by the plan.", "files not named", AllAre(frame="going", column="planned", value=True)
        ),
    )
    return (
        same_settings(policy.hash, plan.requirements.policy_hash),
        rule("going", "Exactly the planned files go.", "files that go", count("going", files)),
        *(going if files else ()),
        nothing_else_differs(),
        one_row_of_figures(),
        rule("rows_in", "There are as many rows as when it was planned.", "rows before", figure("rows_in", plan.expected.rows_in)),
        rule("rows_kept", "Every row that does not go is still there.", "rows kept", figure("rows_kept", plan.expected.rows_in - removed)),
        asks_counted(plan),
        tightened(plan),
    )


def quarantine_undo_suite(plan: Plan, policy: Policy) -> Suite:
    """Exactly the files that the removal took are there again, byte for byte.

    Frames: `back`, one row per file that is new: `rows`, as it is read, `same` (the bytes of the file that the plan names for it), `planned`;
    `difference`, other files that differ; `figures`, one row.
    """
    rows, rows_in = plan.restored_rows, plan.expected.rows_in
    return (
        same_settings(policy.hash, plan.requirements.policy_hash),
        rule("back", "As many files come back as planned.", "files that come back", count("back", len(plan.on_quarantine.files_back))),
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
        one_row_of_figures(),
        rule("rows_in", "There are as many rows as when it was planned.", "rows before", figure("rows_in", rows_in)),
        rule("rows_restored", "As many rows come back as planned.", "rows", figure("rows_restored", rows)),
        rule("rows_kept", "Every row that was there stays.", "rows", figure("rows_kept", rows_in + rows)),
        asks_counted(plan),
        comes_back(plan),
    )
