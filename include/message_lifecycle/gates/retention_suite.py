"""What the limits by number and by size are held to, by what is left when the plan is carried out (RET-1 to RET-4, P5).

Frame: `limits`, one row about all groups of the scope: of what stays within the limits, and of what goes or is held beyond them. Only
what no rule of age takes is counted (DEL-9).
"""

from __future__ import annotations

from message_lifecycle.gates.declared import ColumnSum, Suite, Within, count, rule
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy

_FRAME = "limits"


def kept_suite(plan: Plan, policy: Policy, *, enabled: bool = True) -> Suite:
    """Kept messages satisfy every limit, the next older one would break one, and what is beyond goes or is held."""
    limits = policy.limits
    if limits is None or not enabled:
        return ()  # nothing goes by them: `rows_justified` would tell
    beyond = sum(rows for reason, rows in plan.expected.removed if reason in ("retention_count", "retention_bytes"))
    held = sum(entry.rows for entry in plan.held if entry.reason in ("retention_count", "retention_bytes"))
    return (
        rule("limits", "The limits were looked at, all groups together.", "rows about limits", count(_FRAME, 1)),
        rule(
            "limits_records",
            "No group keeps more messages than max_records.",
            "most messages kept of a group",
            Within(frame=_FRAME, column="most_records", minimum=0, maximum=limits.max_records),
        ),
        rule(
            "limits_bytes",
            "No group keeps more bytes than max_total_bytes, but for a single message that min_keep keeps.",
            "most bytes kept of a group",
            Within(frame=_FRAME, column="most_bytes", minimum=0, maximum=limits.max_total_bytes),
        ),
        rule(
            "limits_within",
            "Nothing goes by number or size that the limits keep: of each group the next older message would break one.",
            "messages within the limits that go",
            ColumnSum(frame=_FRAME, column="within", equals=0),
        ),
        rule(
            "limits_beyond",
            "Exactly the messages beyond the limits go, or are held.",
            "messages beyond the limits",
            ColumnSum(frame=_FRAME, column="beyond", equals=beyond + held),
        ),
    )
