"""The steps of one plan by hand: stage, gate, approve or refuse, publish, verify. Each can be repeated."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from message_lifecycle.app.cli import results
from message_lifecycle.app.cli.context import OutputOption, PlanArgument, services
from message_lifecycle.app.cli.exits import of_outcome, waiting_or
from message_lifecycle.app.cli.screen import Output, emit, working
from message_lifecycle.model.outcome import Outcome

ByOption = Annotated[str, typer.Option("--by", metavar="NAME", help="Your name, kept in the ledger.", show_default=False)]
TextOption = Annotated[str, typer.Option("--text", metavar="WHY", help="Why; kept in the ledger beside your name.", show_default=False)]


def stage(ctx: typer.Context, plan: PlanArgument, output: OutputOption = Output.text) -> None:
    """Do a plan's work where no reader sees it."""
    from message_lifecycle.app import steps

    s = services(ctx)
    plan_id = s.ledger.record(plan).plan.plan_id
    with working("staging"):
        staged = steps.stage(s, plan_id)
    told = {"plan_id": plan_id, "branch": staged.branch, "snapshot_id": staged.snapshot_id}
    where = f"branch {staged.branch}, snapshot {staged.snapshot_id}" if staged.branch else "the plan is empty, there is nothing to stage"
    emit(output, told, lambda screen: screen.line(f"staged plan {plan_id}: {where}. Next: lifecycle mark {plan_id[:12]}"))


def mark(ctx: typer.Context, plan: PlanArgument, output: OutputOption = Output.text) -> None:
    """Put the markers of emptied keys beside what was staged, where the topic makes any."""
    from message_lifecycle.app import steps

    s = services(ctx)
    plan_id = s.ledger.record(plan).plan.plan_id
    with working("looking for keys without a message"):
        staged = steps.mark(s, plan_id)
    told = {"plan_id": plan_id, "markers": None if staged.markers is None else staged.markers.count, "snapshot_id": staged.snapshot_id}
    said = "the topic makes no markers" if staged.markers is None else f"{staged.markers.count} markers"
    emit(output, told, lambda screen: screen.line(f"plan {plan_id}: {said}. Next: lifecycle gate {plan_id[:12]}"))


def gate(ctx: typer.Context, plan: PlanArgument, output: OutputOption = Output.text) -> int:
    """Judge what was staged, before any reader sees it."""
    from message_lifecycle.app import steps
    from message_lifecycle.app.views.plans import plan_page

    s = services(ctx)
    plan_id = s.ledger.record(plan).plan.plan_id
    with working("judging"):
        report = steps.gate(s, plan_id)
    page = plan_page(s, plan_id)
    emit(output, page["gate"], lambda screen: results.judged(screen, page))
    return waiting_or(report.judgement)


def approve(ctx: typer.Context, plan: PlanArgument, by: ByOption, text: TextOption, output: OutputOption = Output.text) -> None:
    """Let a plan go that the gate left to a person."""
    told = _answer(ctx, plan, granted=True, by=by, text=text)
    following = f"Next: {results.goes_on(told)}"
    emit(output, told, lambda screen: screen.line(f"plan {told['plan_id']} is approved by {told['by']}. {following}"))


def refuse(ctx: typer.Context, plan: PlanArgument, by: ByOption, text: TextOption, output: OutputOption = Output.text) -> None:
    """Refuse a plan; nothing of it is removed."""
    told = _answer(ctx, plan, granted=False, by=by, text=text)
    emit(output, told, lambda screen: screen.line(f"plan {told['plan_id']} is refused by {told['by']}; nothing of it was removed"))


def publish(ctx: typer.Context, plan: PlanArgument, output: OutputOption = Output.text) -> int:
    """Make a judged plan's removal visible, in one commit."""
    from message_lifecycle.app import steps
    from message_lifecycle.app.views.outcomes import outcome_view

    s = services(ctx)
    recorded = s.ledger.record(plan).plan
    plan_id = recorded.plan_id
    with working("publishing"):
        result = steps.publish(s, plan_id)
    if isinstance(result, Outcome):
        view = outcome_view(result)
        emit(output, view, lambda screen: results.outcome(screen, view, recorded.things))
        return of_outcome(result.name)
    told: dict[str, Any] = {"plan_id": plan_id, "snapshot_id": None, "removed": {}}
    said = f"plan {plan_id} removes nothing: there is nothing to commit"
    if result is not None:
        told |= {"snapshot_id": result.snapshot_id, "removed": dict(result.removed)}
        said = f"published plan {plan_id} as snapshot {result.snapshot_id}"
    emit(output, told, lambda screen: screen.line(f"{said}. Next: lifecycle verify {plan_id[:12]}"))
    return 0


def verify(ctx: typer.Context, plan: PlanArgument, output: OutputOption = Output.text) -> int:
    """Read the table again: what went is what was planned, and what is still overdue has a named holder."""
    from message_lifecycle.app import steps
    from message_lifecycle.app.views.outcomes import outcome_view

    s = services(ctx)
    recorded = s.ledger.record(plan).plan
    with working("verifying"):
        result = steps.verify(s, recorded.plan_id)
    view = outcome_view(result)
    emit(output, view, lambda screen: results.outcome(screen, view, recorded.things))
    return of_outcome(result.name)


def _answer(ctx: typer.Context, plan: str, *, granted: bool, by: str, text: str) -> dict[str, Any]:
    from message_lifecycle.app import steps
    from message_lifecycle.app.views.plans import approval_view

    if not by.strip() or not text.strip():
        raise typer.BadParameter("an answer has a name and a reason: --by NAME --text WHY")
    s = services(ctx)
    record = s.ledger.record(plan)
    approval = steps.approve(s, record.plan.plan_id, granted=granted, by=by.strip(), text=text.strip())
    return {"plan_id": record.plan.plan_id, "topic": str(record.plan.topic), "operation": record.plan.operation, **approval_view(approval)}
