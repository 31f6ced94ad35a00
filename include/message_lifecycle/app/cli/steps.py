"""Commands that show due work, preview a plan, and make its steps one by one: stage, gate, approve or refuse, publish, verify.

Every step can be repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from message_lifecycle.app.cli.context import exit_code_of_judgement, instant_of, report_result, scheduled_work, services, worst_exit_code
from message_lifecycle.app.cli.options import (
    AsOfOption,
    ByOption,
    DryRunOption,
    OutputOption,
    PlanArgument,
    TextOption,
    TopicArgument,
    argument,
    consent_of,
    flag,
)
from message_lifecycle.app.cli.screen import Output, emit, show_progress
from message_lifecycle.app.rendering import ABSENT, as_json
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.phrases import amount, short

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services


def due(
    ctx: typer.Context,
    topics: Annotated[list[str] | None, argument("[TOPIC...]", "Topics to ask about; by default all.")] = None,
    as_of: AsOfOption = None,
    output: OutputOption = Output.text,
) -> int:
    """Say which topics have something to remove, without starting Spark.

    Exit status 0: every topic was judged, due or not. Otherwise the status depends on the error in a topic's line.
    """
    from message_lifecycle.app.due import due as judge
    from message_lifecycle.app.known import all_topics
    from message_lifecycle.app.views.topics import DueTopic, DueView

    s = services(ctx)
    at = instant_of(s, as_of)
    names = [TopicName.parse(topic) for topic in topics] if topics else all_topics(s)
    of_lake = [name for name in names if name not in s.backends]
    found = [*judge(s, of_lake, as_of=at), *judge(s, of_lake, as_of=at, work="snapshot_with_purge")]
    found += judge(s, [name for name in names if name in s.backends], as_of=at, work="retention")
    found.sort(key=lambda answer: answer.topic)
    # An unreadable topic was judged twice, for messages and for documents, so drop the second answer.
    emit(output, DueView(as_of=at, topics=tuple(dict.fromkeys(map(DueTopic.of, found)))))
    return worst_exit_code(answer.error.exit_code for answer in found if answer.error is not None)


def plan(
    ctx: typer.Context,
    topic: TopicArgument,
    as_of: AsOfOption = None,
    dry_run: DryRunOption = False,
    files: Annotated[bool, flag("--files", "List the name of every data file that goes, too.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """Show the messages that a run would remove, the rule for each, and the holders of the others; nothing is removed.

    Without --dry-run the ledger records the plan as open, for `lifecycle stage`. Scheduled runs then leave the topic alone for an hour.
    `lifecycle run TOPIC` replaces the plan, and removes what is due.
    """
    from message_lifecycle.app.views.plans import plan_view, record_view

    s = services(ctx)
    at = instant_of(s, as_of)
    name = TopicName.parse(topic)
    work = scheduled_work(s, name)
    with show_progress(f"planning {name}"):
        if dry_run:
            from message_lifecycle.app.operations.registry import preview

            record, made = None, preview(s, name, as_of=at, work=work)
        else:
            from message_lifecycle.app import steps

            record = steps.plan(s, name, as_of=at, work=work)
            made = record.plan
    names = made.selection.files if files else ABSENT
    emit(output, plan_view(made, names=names) if record is None else record_view(record, names=names))


def stage(ctx: typer.Context, plan: PlanArgument, output: OutputOption = Output.text) -> None:
    """Stage a plan's changes where no reader sees them."""
    from message_lifecycle.app import steps

    s, plan_id = _find_plan(ctx, plan)
    with show_progress("staging"):
        staged = steps.stage(s, plan_id)
    answer = {"plan_id": plan_id, "branch": staged.branch, "snapshot_id": staged.snapshot_id}
    where = {"branch": staged.branch, "snapshot": str(staged.snapshot_id) if staged.branch else None}
    emit(output, answer, [f"Staged plan {short(plan_id)}", where, f"Next: lifecycle mark {short(plan_id)}"])


def mark(ctx: typer.Context, plan: PlanArgument, output: OutputOption = Output.text) -> None:
    """Stage the markers of emptied keys, if the topic makes markers."""
    from message_lifecycle.app import steps

    s, plan_id = _find_plan(ctx, plan)
    with show_progress("looking for keys without a message"):
        staged = steps.mark(s, plan_id)
    answer = {"plan_id": plan_id, "markers": None if staged.markers is None else staged.markers.count, "snapshot_id": staged.snapshot_id}
    said = "the topic makes no markers" if staged.markers is None else amount(staged.markers.count, "markers")
    emit(output, answer, [f"Plan {short(plan_id)}: {said}", f"Next: lifecycle gate {short(plan_id)}"])


def gate(ctx: typer.Context, plan: PlanArgument, output: OutputOption = Output.text) -> int:
    """Judge the staged changes, before any reader sees them."""
    from message_lifecycle.app import steps
    from message_lifecycle.app.views.plans import plan_page

    s, plan_id = _find_plan(ctx, plan)
    with show_progress("judging"):
        report = steps.gate(s, plan_id)
    page = plan_page(s, plan_id)
    emit(output, page.gate, page.judged())
    return exit_code_of_judgement(report.judgement)


def approve(
    ctx: typer.Context,
    plan: PlanArgument,
    by: ByOption,
    text: TextOption,
    report: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The gate report that you have read. If a newer report exists, the command approves nothing."),
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Approve a pending plan and its gate report. A later change of settings makes the approval void."""
    from message_lifecycle.app.views.state import continue_command

    answer = _answer(ctx, plan, granted=True, by=by, text=text, report=report)
    following = continue_command(answer["plan_id"], answer["operation"], answer["topic"])
    said = f"Approved plan {short(answer['plan_id'])}"
    emit(output, answer, [said, {"by": answer["by"], "gate report": answer["gate_id"]}, f"Next: {following}"])


def refuse(ctx: typer.Context, plan: PlanArgument, by: ByOption, text: TextOption, output: OutputOption = Output.text) -> None:
    """Refuse an open plan, so that it removes nothing. The plan need not wait for an answer."""
    answer = _answer(ctx, plan, granted=False, by=by, text=text)
    emit(output, answer, [f"Refused plan {short(answer['plan_id'])}. Nothing was removed.", {"by": answer["by"]}])


def publish(ctx: typer.Context, plan: PlanArgument, output: OutputOption = Output.text) -> int:
    """Publish a plan after its gate: make the change visible, in one commit for each table."""
    from message_lifecycle.app import steps

    s = services(ctx)
    recorded = s.ledger.record(plan).plan
    plan_id = recorded.plan_id
    with show_progress("publishing"):
        result = steps.publish(s, plan_id)
    if isinstance(result, Outcome):
        return report_result(s, output, result, recorded.things)
    answer: dict[str, object] = {"plan_id": plan_id, "snapshot_id": None, "removed": {}}
    said = f"Plan {short(plan_id)} removes nothing, so there is no commit."
    if result is not None:
        answer |= {"snapshot_id": result.snapshot_id, "removed": dict(result.removed)}
        said = f"Published plan {short(plan_id)} as snapshot {result.snapshot_id}."
    emit(output, answer, [said, f"Next: lifecycle verify {short(plan_id)}"])
    return 0


def verify(ctx: typer.Context, plan: PlanArgument, output: OutputOption = Output.text) -> int:
    """Read the tables again: check that the plan did what it says, and that every overdue message left has a named holder."""
    from message_lifecycle.app import erasures, steps

    s = services(ctx)
    recorded = s.ledger.record(plan).plan
    with show_progress("verifying"):
        result = steps.verify(s, recorded.plan_id)
        if recorded.erasure is not None:
            erasures.settle_latest(s, s.ledger.erasure(recorded.erasure.request_id))
    return report_result(s, output, result, recorded.things)


def _find_plan(ctx: typer.Context, beginning: str) -> tuple[Services, str]:
    """The services, and the whole id. Raises UnknownPlan."""
    s = services(ctx)
    return s, s.ledger.record(beginning).plan.plan_id


def _answer(ctx: typer.Context, beginning: str, *, granted: bool, by: str, text: str, report: str | None = None) -> dict[str, Any]:
    from message_lifecycle.app import steps
    from message_lifecycle.app.views.plans import ApprovalView

    _, by, text = consent_of(by, text, "an answer")
    s = services(ctx)
    record = s.ledger.record(beginning)
    plan, standing = record.plan, "" if record.report is None else record.report.gate_id
    read = standing if report and standing.startswith(report) else report
    approval = steps.approve(s, plan.plan_id, granted=granted, by=by, text=text, gate_id=read)
    return {"plan_id": plan.plan_id, "topic": plan.topic, "operation": plan.operation, **as_json(ApprovalView.of(approval))}
