"""What the removal of quarantine rows by their age is held to (QUA-1, DEL-2).

Frames: `going`, one row per file that goes, read once more: `rows`, `newest_at` (the newest time among its rows), `planned`;
`difference`, other files that differ; `figures`, one row.
"""

from __future__ import annotations

from message_lifecycle.gates.declared import (
    FIGURES,
    AllAre,
    ColumnSum,
    Suite,
    Within,
    asked,
    asks_counted,
    count,
    figure,
    rule,
    same_settings,
)
from message_lifecycle.model.instants import INT64_MAX, seconds
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy


def quarantine_suite(plan: Plan, policy: Policy) -> Suite:
    """Whole files that have reached their age, those that the plan names, and nothing else."""
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
        rule("difference", "Beside what the plan names nothing differs.", "other files that differ", count("difference", 0)),
        rule("figures", "The figures are one row.", "rows of figures", count(FIGURES, 1)),
        rule("rows_in", "There are as many rows as when it was planned.", "rows before", figure("rows_in", plan.expected.rows_in)),
        rule("rows_kept", "Every row that does not go is still there.", "rows kept", figure("rows_kept", plan.expected.rows_in - removed)),
        asks_counted(plan),
        asked("tightened", "No setting was tightened since a removal was last accepted.", plan),
    )
