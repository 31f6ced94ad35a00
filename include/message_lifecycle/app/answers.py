"""Questions that Airflow asks a person about one plan and one gate report: how a question ended, and the answer in Airflow (DEL-3).

A question may also end elsewhere: the `lifecycle` command answers it, another run replaces the plan, or time runs out. Airflow then ends
its question with a reason from this module. Airflow stores that reason, so it names no document and no key.
"""

from __future__ import annotations

from dataclasses import dataclass

from message_lifecycle.app import changes, steps
from message_lifecycle.app.services import Services
from message_lifecycle.model.errors import Refused
from message_lifecycle.model.names import safe
from message_lifecycle.model.outcome import Approval, OutcomeName, PlanRecord
from message_lifecycle.model.settings import Policy

_ENDINGS: dict[OutcomeName, str] = {
    "published": "was published",
    "no_op": "had nothing left to remove",
    "blocked": "was blocked by a check",
    "needs_approval": "was closed",
    "refused": "was closed; nothing of it was removed",
    "starved": "gave way to other writers; nothing of it was removed",
    "lapsed": "lapsed; nothing of it was removed",
    "superseded": "gave way to a newer plan; nothing of it was removed",
    "failed": "failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionEnd:
    """Why Airflow's question ended without an answer in Airflow.

    Attributes:
        approval: An approval from elsewhere; the plan continues with it.
    """

    reason: str
    approval: Approval | None = None


def find_question_end(s: Services, plan_id: str, gate_id: str, *, with_settings: bool = True) -> QuestionEnd | None:
    """Return how the question ended, None if it still waits for a person.

    Args:
        s: The stores, the ledger and the settings.
        plan_id: The plan that the question is about.
        gate_id: The gate report that the person was shown.
        with_settings: Also read the topic's settings, by the catalog: a change makes the question void.

    Raises:
        UnknownPlan: The ledger has no such plan.
    """
    record = s.ledger.record(plan_id)
    said = _answer_text(record)
    if record.outcome is not None:
        then = f"the plan {_ENDINGS[record.outcome.name]}"
        return QuestionEnd(reason=f"{said}, and {then}" if said else then)
    if record.approval is not None:
        return QuestionEnd(reason=said, approval=record.approval if record.approval.granted else None)
    if record.report is None or record.reported_at is None or record.report.gate_id != gate_id:
        return QuestionEnd(reason="the plan was judged again; the next question shows the new report")
    if s.ledger.now() > record.reported_at + Policy.from_values(record.plan.policy).approval_ttl_us:
        return QuestionEnd(reason="nobody answered in time; nothing of the plan was removed")
    if with_settings and changes.why_outdated(s, record.plan):
        return QuestionEnd(reason="the topic's settings were changed; nothing of the plan was removed, and the next run asks again")
    return None


def record_answer(s: Services, plan_id: str, gate_id: str, *, granted: bool, by: str, text: str) -> QuestionEnd | None:
    """Record a person's answer.

    The first answer counts. A later refusal still closes a plan that another person approved, unless the plan is committed, because a
    refusal keeps data.

    Returns:
        The earlier end of the question, if the answer came too late. Otherwise None.

    Raises:
        OwnRequest, UnnamedPerson, MixedScripts: The person may not give this answer; the plan still waits.
    """
    before = find_question_end(s, plan_id, gate_id) if granted else None
    if before is not None and before.approval is None:
        return before
    earlier = s.ledger.record(plan_id)
    try:
        steps.approve(s, plan_id, granted=granted, by=by, text=text, gate_id=gate_id)
    except Refused:
        ending = find_question_end(s, plan_id, gate_id)
        if ending is None:
            raise
        if ending.approval is not None and not granted:
            return QuestionEnd(reason=f"{ending.reason}, and the plan was carried out before {safe(by)} refused it")
        return ending
    if not granted and earlier.approval is not None and earlier.approval.granted:
        return QuestionEnd(reason=f"{_answer_text(earlier)}, then {safe(by)} refused it; nothing of the plan was removed")
    return None


def _answer_text(record: PlanRecord) -> str:
    approval = record.approval
    return "" if approval is None else f"{safe(approval.by)} {'approved' if approval.granted else 'refused'} the plan elsewhere"
