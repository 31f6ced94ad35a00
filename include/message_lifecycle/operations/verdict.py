"""Whether a staged plan may be published (DEL-1 to DEL-3). Only `decide` makes a Verdict, and publishing takes nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant, format_duration
from message_lifecycle.model.outcome import Approval, GateReport, Staged
from message_lifecycle.model.phrases import short
from message_lifecycle.model.plan import Plan

_MADE_BY_DECIDE = object()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Leave to publish exactly this staged change. Cannot be made but by `decide`."""

    plan: Plan
    staged: Staged
    gate_id: str
    approval: Approval | None
    proof: object

    def __post_init__(self) -> None:
        if self.proof is not _MADE_BY_DECIDE:
            raise TypeError("a Verdict is made by operations.verdict.decide alone")


@dataclass(frozen=True, slots=True, kw_only=True)
class WithheldVerdict:
    """Why the plan may not be published (now)."""

    outcome: Literal["blocked", "needs_approval", "refused", "lapsed"]
    reason: str


def decide(
    plan: Plan,
    staged: Staged,
    report: GateReport,
    approval: Approval | None,
    *,
    asked_at: Instant,
    now: Instant,
    approval_ttl_us: int,
) -> Verdict | WithheldVerdict:
    """Judge by what the ledger holds: the gate must have judged this very plan and staged snapshot.

    `asked_at`: when the gate reported; a question older than `approval_ttl_us` at `now` has lapsed.
    """
    if report.plan_id != plan.plan_id or staged.plan_id != plan.plan_id:
        return WithheldVerdict(outcome="blocked", reason="the gate's report or the staged change belongs to another plan")
    if report.staged_snapshot_id != staged.snapshot_id:
        return WithheldVerdict(
            outcome="blocked",
            reason=f"the gate judged snapshot {report.staged_snapshot_id}, staged is {staged.snapshot_id}",
        )
    if approval is not None and approval.plan_id != plan.plan_id:
        return WithheldVerdict(outcome="blocked", reason="the approval belongs to another plan")
    if approval is not None and approval.granted and approval.gate_id not in (None, report.gate_id):
        reason = (
            f"{approval.by} answered gate report {short(approval.gate_id or '')}, but the staged change has report {short(report.gate_id)}"
        )
        return WithheldVerdict(outcome="lapsed", reason=reason)
    match report.judgement:
        case "blocked":
            failed = ", ".join(check.id for check in report.blocking)
            return WithheldVerdict(
                outcome="blocked",
                reason=f"gate checks failed or were not evaluated: {failed or 'fewer evaluated than declared'}",
            )
        case "needs_approval":
            if approval is None:
                limits = "; ".join(check.found for check in report.checks if not check.passed)
                if now > asked_at + approval_ttl_us:
                    reason = f"no answer within {format_duration(approval_ttl_us / MICROS_PER_SECOND)}: {limits}"
                    return WithheldVerdict(outcome="lapsed", reason=reason)
                return WithheldVerdict(outcome="needs_approval", reason=limits)
            if approval.at > asked_at + approval_ttl_us:
                return WithheldVerdict(outcome="lapsed", reason=f"{approval.by} answered after the plan had lapsed")
            if not approval.granted:
                return WithheldVerdict(outcome="refused", reason=f"{approval.by} refused: {approval.text or 'no reason given'}")
        case "passed":
            pass
        case never:
            assert_never(never)
    return Verdict(plan, staged, report.gate_id, approval, _MADE_BY_DECIDE)
