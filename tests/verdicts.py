"""Verdicts that no gate has given, for tests of what comes after one."""

from __future__ import annotations

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.outcome import Check, GateReport, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.operations.verdict import Verdict, decide
from message_lifecycle.ports import CommitContext


def let_pass(plan: Plan, staged: Staged) -> Verdict:
    """As after a gate that passed."""
    passed = Check(id="all", says="", kind="rule", evaluated=True, passed=True, found="")
    report = GateReport(plan_id=plan.plan_id, staged_snapshot_id=staged.snapshot_id, declared=1, checks=(passed,))
    verdict = decide(plan, staged, report, None, asked_at=Instant(0), now=Instant(0), approval_ttl_us=1)
    assert isinstance(verdict, Verdict)
    return verdict


def by(ledger: tuple[str, int]) -> CommitContext:
    """Return the context of a commit by a ledger with this identity."""
    return CommitContext(ledger=lambda: ledger)
