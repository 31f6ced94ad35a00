"""Whose a topic's open plan is, whether it waits for a person (DEL-1), and what becomes of one that an earlier version made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from message_lifecycle.app.changes import has_begun
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.instants import Instant, seconds
from message_lifecycle.model.outcome import OutcomeName
from message_lifecycle.model.plan import PLAN_FORMAT, Plan
from message_lifecycle.model.records import PlanRecord
from message_lifecycle.model.settings import Policy

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services

UNDER_WAY_US = seconds(3_600)
"""A run closes its plans at its end, also when it fails. Beyond this its machine is gone, and the topic is anybody's again; what
makes that safe is the fence in the commit."""


def belongs_to_another(s: Services, plan_id: str, recorded_at: Instant, run: str | None) -> bool:
    """Whether an open plan is under way in another run: were it superseded by every interval, a slow topic would never be cleaned.

    A run by hand (None) takes any plan over, and so does everybody once the plan is UNDER_WAY_US old.
    """
    own = {entry.plan_id for entry in s.ledger.run_entries(run)} if run is not None else set()
    return plan_id not in own and s.ledger.now() < recorded_at + UNDER_WAY_US


def is_under_way(s: Services, record: PlanRecord, run: str | None) -> bool:
    """Whether the open plan of what works beside the log is another run's, and under way (CMP-10). By hand the lock of its stage decides."""
    return run is not None and not waits(s, record) and belongs_to_another(s, record.plan.plan_id, record.recorded_at, run)


def waits(s: Services, record: PlanRecord) -> bool:
    """The gate left it to a person, and the question still stands or has been granted. One of an earlier version is asked again."""
    if record.report is None or record.reported_at is None or record.report.judgement != "needs_approval" or record.plan.is_older:
        return False
    ttl_us = Policy.of_values(record.plan.policy).approval_ttl_us
    return record.approval is not None or s.ledger.now() <= record.reported_at + ttl_us


def asked_by_itself(record: PlanRecord, by: str) -> bool:
    """Whether `by` asked for the plan and may therefore not approve it."""
    if record.requested_by is None or not Policy.of_values(record.plan.policy).approver_is_not_requester:
        return False
    return by.strip().casefold() == record.requested_by.strip().casefold()


def require_todays(s: Services, plan: Plan) -> None:
    """Raises PlanConflict of a plan that an earlier version made and of which nothing is done: what has judged it may have known less than
    what would judge it now. What takes its place closes it (`replaced`). One of which something is done goes to its end."""
    if plan.is_older and not has_begun(s, plan):
        raise PlanConflict(plan.plan_id, _of_earlier_version(plan))


def replaced(record: PlanRecord, by: str) -> tuple[OutcomeName, str]:
    """How an open plan ends whose place another takes: the outcome and its words."""
    if record.plan.is_older:
        return "superseded", f"{by} took its place: {_of_earlier_version(record.plan)}"
    asked = record.report is not None and record.report.judgement == "needs_approval"
    return "lapsed" if asked else "superseded", f"{by} took its place"


def _of_earlier_version(plan: Plan) -> str:
    return f"it was planned by an earlier version, as plans of format {plan.format} are; this one makes format {PLAN_FORMAT}"
