"""That nothing goes which a legal hold keeps (DEL-8): a second look at the holds, for every operation. Frame `holds`: one row."""

from __future__ import annotations

from message_lifecycle.gates.declared import ColumnSum, Suite, count, rule
from message_lifecycle.model.plan import Plan

_FRAME = "holds"


def holds_suite(plan: Plan) -> Suite:
    """Nothing where no hold stood when the plan was made: one that came since makes it plan again, before the gate and before the publish."""
    if not plan.requirements.heeded:
        return ()
    return (
        rule("holds", "The legal holds on the topic were looked at.", "looks at holds", count(_FRAME, 1)),
        rule(
            "holds_heeded",
            "The plan heeds every legal hold that stands.",
            "holds that the plan does not know",
            ColumnSum(frame=_FRAME, column="unheeded", equals=0),
        ),
        rule(
            "holds_untouched",
            "Nothing goes that a legal hold may keep.",
            "messages, segments or documents under a hold that go",
            ColumnSum(frame=_FRAME, column="touched", equals=0),
        ),
    )
