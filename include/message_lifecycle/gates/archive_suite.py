"""What goes is archived first, all of it and as it is (RET-7). Frame: `archive`, one row about the plan's file."""

from __future__ import annotations

from message_lifecycle.gates.declared import AllAre, ColumnSum, Suite, count, rule
from message_lifecycle.model.plan import CLEANING, Plan
from message_lifecycle.model.settings import Policy

_FRAME = "archive"


def archive_suite(plan: Plan, policy: Policy) -> Suite:
    """Nothing where the policy deletes, or nothing goes; what a person asks to have removed is kept nowhere."""
    if policy.archive_to is None or plan.operation not in CLEANING or not plan.expected.removed_rows:
        return ()
    return (
        rule("archive", "The archive has the plan's file.", "files of the archive", count(_FRAME, 1)),
        rule(
            "archive_rows",
            "The archive has as many messages as go.",
            "messages in the archive",
            ColumnSum(frame=_FRAME, column="rows", equals=plan.expected.removed_rows),
        ),
        rule(
            "archive_same",
            "The digest of what the archive has is that of what goes.",
            "files that differ",
            AllAre(frame=_FRAME, column="same", value=True),
        ),
    )
