"""How a plan ends: the gate's judgement, the outcome in all its fields, and both at once for a plan that changes nothing."""

from __future__ import annotations

from dataclasses import replace

from message_lifecycle.app import changes, sparing
from message_lifecycle.app.archiving import add_frame
from message_lifecycle.app.operations.registry import operation_of_plan, suite_of
from message_lifecycle.app.services import Services
from message_lifecycle.model.errors import OpenPlan
from message_lifecycle.model.instants import format_to_second
from message_lifecycle.model.outcome import GateReport, Outcome, OutcomeName, PlanRecord, Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy


def judge(s: Services, plan: Plan, staged: Staged, policy: Policy) -> GateReport:
    """Hold the staged change to the checks of its operation and of the legal holds (DEL-2). Records nothing."""
    operation = operation_of_plan(plan)
    with s.topics.look():
        frames = operation.evidence(s, plan, staged, policy)
    if plan.requirements.heeded:
        holds = sparing.evidence(s, plan, lambda holds: operation.count_rows_under_hold(s, plan, staged, holds))
        frames = add_frame(frames, "holds", holds)
    return s.gate.judge(plan, staged, suite_of(plan, staged, policy), frames)


def blocking_text(report: GateReport) -> str:
    """Name the checks that blocked the plan, each with its finding."""
    found = "; ".join(f"{check.id}: {check.found}" for check in report.blocking)
    return found or f"{len(report.checks)} of {report.declared} checks were evaluated"


def conclude(s: Services, plan: Plan, rival: PlanRecord, *, run: str | None, requested_by: str | None) -> PlanRecord:
    """Judge and verify a plan that changes nothing, and record it closed. The topic's open plan stays as it is (DEL-3).

    Args:
        s: The stores, the ledger and the settings.
        plan: The plan that changes nothing.
        rival: The open plan of another operation.
        run: The run that made the plan.
        requested_by: The person who asked for the plan.

    Raises:
        OpenPlan: A person must answer for this plan, too; the open plan comes first.
    """
    assert plan.is_empty, "a plan that changes the topic takes the open plan's place"
    operation = operation_of_plan(plan)
    sparing.require_known_holds(s, plan)
    staged = changes.stage_all(s, plan)
    report = judge(s, plan, staged, Policy.from_values(plan.policy))
    if report.judgement == "needs_approval":
        raise OpenPlan(str(plan.topic), rival.plan.plan_id, format_to_second(rival.recorded_at))
    name: OutcomeName = "blocked"
    detail, after = blocking_text(report), None
    if report.judgement == "passed":
        operation.record_effects(s, plan, staged)
        after, overdue = operation.check_again(s, plan)
        name, detail = ("failed", "; ".join(overdue)) if overdue else ("no_op", operation.detail_text(plan))
    outcome = closing_outcome(s, plan, name, detail, after=after, staged=staged)
    record = s.ledger.add_closed_plan(plan, staged, report, outcome, run=run, requested_by=requested_by)
    if after is not None and name == "no_op":
        operation.after_outcome(s, plan, after)
    return record


def closing_outcome(
    s: Services,
    plan: Plan,
    name: OutcomeName,
    detail: str,
    *,
    published: Published | None = None,
    after: Plan | None = None,
    staged: Staged | None = None,
) -> Outcome:
    """Return the outcome of a plan that ends now, with its counts and warnings. Records nothing."""
    operation = operation_of_plan(plan)
    left = operation.on_close(s, plan)
    outcome = replace(
        outcome_of(plan, name, detail=f"{detail}. {left}" if left else detail),
        warnings=(
            *plan.warnings,
            *(staged.warnings if staged else ()),
            *((*changes.warnings(s, plan), *published.kept_beneath) if published else ()),
        ),
        snapshot_id=published.snapshot_id if published else None,
        removed=published.removed if published else (),
        markers=published.markers if published else 0,
        cancelled_markers=published.cancelled_markers if published else 0,
        removed_bytes=plan.expected.removed_bytes if published else 0,
        rows_kept=plan.expected.rows_in - (sum(rows for _, rows in published.removed) - published.restored if published else 0),
        restored=published.restored if published else 0,
        marker_offsets=tuple(s.reader.marker_offsets(plan.topic, plan.plan_id)) if published and published.markers else (),
        held=after.held if after else plan.held,
        # The run may have removed the holder of a message, which the plan did not foresee: for example, a new marker replaced an older one.
        more=plan.more or (after is not None and not after.is_empty),
        first_plan_id=operation.earlier_plan_id(s, plan) if name == "no_op" else None,
    )
    return operation.with_counts(outcome, plan, published) if published else outcome


def outcome_of(plan: Plan, name: OutcomeName, *, detail: str) -> Outcome:
    """Return an outcome without effects, from the plan's own figures."""
    return Outcome(
        name=name,
        operation=plan.operation,
        topic=plan.topic,
        as_of=plan.as_of,
        plan_id=plan.plan_id,
        rows_in=plan.expected.rows_in,
        more=plan.more,
        held=plan.held,
        warnings=plan.warnings,
        detail=detail,
    )
