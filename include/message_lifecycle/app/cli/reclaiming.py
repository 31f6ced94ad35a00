"""`lifecycle reclaim`: give back the space of what was removed longer ago than the undo window (DEL-7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from message_lifecycle.app.cli import drawing, results
from message_lifecycle.app.cli.context import AsOfOption, OutputOption, instant_of, services
from message_lifecycle.app.cli.exits import of_outcome
from message_lifecycle.app.cli.planning import ByOption, YesOption, approver_of
from message_lifecycle.app.cli.screen import Output, emit, working
from message_lifecycle.model.names import TopicName

if TYPE_CHECKING:
    from message_lifecycle.app.operations.registry import Work
    from message_lifecycle.app.services import Services

app = typer.Typer(no_args_is_help=True, help="Give back the space of what was removed longer ago than the undo window.")
FilesOption = Annotated[bool, typer.Option("--files", metavar="", help="List the name of every file that goes, too.")]
TopicArgument = Annotated[
    str | None,
    typer.Argument(metavar="TOPIC", help="The topic: `stream/topic`, or `topic` alone in the stream `default`.", show_default=False),
]
DeletedOption = Annotated[
    str | None,
    typer.Option(
        "--deleted",
        metavar="PLAN",
        help="In place of a topic: the plan that deleted one (`lifecycle topic list --deleted`), which then goes for good.",
        show_default=False,
    ),
]


@app.command()
def plan(
    ctx: typer.Context,
    topic: TopicArgument = None,
    deleted: DeletedOption = None,
    as_of: AsOfOption = None,
    files: FilesOption = False,
    output: OutputOption = Output.text,
) -> None:
    """Show which snapshots and files of a topic's tables nothing needs any more; nothing is recorded or removed."""
    from message_lifecycle.app.operations.registry import preview
    from message_lifecycle.app.views.plans import plan_view

    s = services(ctx)
    at = instant_of(s, as_of)
    name, work = _subject(s, topic, deleted)
    with working(f"planning {name}"):
        made = preview(s, name, as_of=at, work=work)
    view = plan_view(made)
    if files:
        view["removes"]["files"]["names"] = [file for removal in made.file_removals for file in removal.files]
    emit(output, view, lambda screen: drawing.plan(screen, view))


@app.command()
def run(
    ctx: typer.Context,
    topic: TopicArgument = None,
    deleted: DeletedOption = None,
    as_of: AsOfOption = None,
    yes: YesOption = None,
    by: ByOption = None,
    output: OutputOption = Output.text,
) -> int:
    """Plan, gate, expire the snapshots, remove the files, and verify; what goes cannot be taken back."""
    from message_lifecycle.app import steps
    from message_lifecycle.app.operations.deleted_reclaim import end_lost
    from message_lifecycle.app.topic_requests import reclaim_deleted
    from message_lifecycle.app.views.outcomes import outcome_view

    approver = approver_of(yes, by)
    s = services(ctx)
    at = instant_of(s, as_of)
    lost = None if deleted is None or topic is not None else _lost(s, deleted)
    if lost is not None:
        ended = outcome_view(end_lost(s, lost))
        emit(output, ended, lambda screen: results.outcome(screen, ended))
        return of_outcome(ended["outcome"])
    name, work = _subject(s, topic, deleted)
    with working(f"{name}: plan, gate, publish, verify"):
        if deleted is None:
            outcome = steps.run(s, name, as_of=at, approver=approver, work=work, requested_by=by)
        else:
            outcome = reclaim_deleted(s, deleted, as_of=at, approver=approver, by=by)
    told = outcome_view(outcome)
    emit(output, told, lambda screen: results.outcome(screen, told))
    return of_outcome(outcome.name)


def _lost(s: Services, beginning: str) -> str | None:
    """The reclaim of that name which has begun and which the ledger does not know."""
    from message_lifecycle.app.operations.deleted_reclaim import lost

    found = [plan_id for plan_id in lost(s) if beginning and plan_id.startswith(beginning)]
    return found[0] if len(found) == 1 else None


def _subject(s: Services, topic: str | None, deleted: str | None) -> tuple[TopicName, Work]:
    """Raises InvalidName, UnknownPlan, NothingDeleted."""
    from message_lifecycle.app.operations.deleted_reclaim import deletion_of
    from message_lifecycle.model.request import ReclaimDeleted

    if deleted is not None and topic is None:
        deletion = deletion_of(s, deleted)
        return deletion.topic, ReclaimDeleted(plan_id=deletion.plan_id)
    if topic is None or deleted is not None:
        raise typer.BadParameter("either a topic, or the plan that deleted one: TOPIC or --deleted PLAN")
    return TopicName.parse(topic), "reclaim"
