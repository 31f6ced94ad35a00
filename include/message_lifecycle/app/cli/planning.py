"""What is due, what would go, and all steps at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from message_lifecycle.app.cli import drawing, results
from message_lifecycle.app.cli.context import AsOfOption, OutputOption, TopicArgument, instant_of, services
from message_lifecycle.app.cli.exits import of_outcome, worst
from message_lifecycle.app.cli.screen import Output, Screen, emit, emit_line, working
from message_lifecycle.app.operations.registry import preview
from message_lifecycle.model.errors import LifecycleError, Unavailable
from message_lifecycle.model.instants import format_instant
from message_lifecycle.model.names import TopicName

if TYPE_CHECKING:
    from message_lifecycle.app.operations.registry import Scheduled
    from message_lifecycle.app.services import Services
    from message_lifecycle.app.steps import Approver

TopicsArgument = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics, as `stream/topic` or `topic`.", show_default=False)]
YesOption = Annotated[
    str | None,
    typer.Option(
        "--yes",
        metavar="WHY",
        help="Approve in advance, with the reason, what the gate leaves to a person; without it such a plan waits.",
        show_default=False,
    ),
]
ByOption = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who approves; needed with --yes.", show_default=False)]
FilesOption = Annotated[bool, typer.Option("--files", metavar="", help="List the name of every data file that goes, too.")]


def approver_of(yes: str | None, by: str | None) -> Approver | None:
    """The word that a person has given in advance; None: such a plan waits."""
    if (yes is None) != (by is None) or (yes is not None and by is not None and not (yes.strip() and by.strip())):
        raise typer.BadParameter("--yes WHY and --by NAME belong together: an approval has a name and a reason")
    if yes is None or by is None:
        return None
    word = (True, by.strip(), yes.strip())
    return lambda _plan, _report: word


def due(
    ctx: typer.Context,
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC...]", help="Topics to ask about; by default all.", show_default=False)
    ] = None,
    as_of: AsOfOption = None,
    output: OutputOption = Output.text,
) -> int:
    """Say which topics have something to remove, without starting Spark.

    Exit status 0: all could be judged, due or not; else by the kind of error that stands in a topic's line.
    """
    from message_lifecycle.app.due import due as judge

    s = services(ctx)
    at = instant_of(s, as_of)
    names = [TopicName.parse(topic) for topic in topics] if topics else [*s.topics.list(), *s.backends]
    of_lake = [name for name in names if name not in s.backends]
    found = [*judge(s, of_lake, as_of=at), *judge(s, of_lake, as_of=at, work="snapshot_with_purge")]
    found += judge(s, [name for name in names if name in s.backends], as_of=at, work="retention")
    found.sort(key=lambda answer: answer.topic)
    told = {
        "as_of": format_instant(at),
        "topics": [{"topic": str(answer.topic), "due": answer.due, "reason": answer.reason} for answer in found],
    }

    def render(screen: Screen) -> None:
        rows = [("due" if answer.due else "-", str(answer.topic), answer.reason) for answer in found]
        if rows:
            screen.table(("", "topic", "why"), rows, wrap=("topic", "why"))
        else:
            screen.line("no topics yet; `lifecycle topic create NAME` makes one")

    emit(output, told, render)
    return worst(answer.error.exit_code for answer in found if answer.error is not None)


def plan(
    ctx: typer.Context,
    topic: TopicArgument,
    as_of: AsOfOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", metavar="", help="Only show the plan; record nothing.")] = False,
    files: FilesOption = False,
    output: OutputOption = Output.text,
) -> None:
    """Show exactly what would go, by which rule, and what holds the rest; nothing is removed."""
    from message_lifecycle.app import steps
    from message_lifecycle.app.views.plans import plan_view, record_view

    s = services(ctx)
    at = instant_of(s, as_of)
    name = TopicName.parse(topic)
    work = work_of(s, name)
    with working(f"planning {name}"):
        record = None if dry_run else steps.plan(s, name, as_of=at, work=work)
        made = preview(s, name, as_of=at, work=work) if record is None else record.plan
    view = plan_view(made) if record is None else record_view(record)
    if files:
        view["removes"]["files"]["names"] = list(made.selection.files)
    emit(output, view, lambda screen: drawing.plan(screen, view))


def run(
    ctx: typer.Context,
    topics: TopicsArgument,
    as_of: AsOfOption = None,
    yes: YesOption = None,
    by: ByOption = None,
    output: OutputOption = Output.text,
) -> int:
    """Plan, stage, gate, publish and verify at once; of a topic of documents: snapshots, and the purge of changes that all clients have.

    A plan over the limits waits for a person: exit status 5. With --output json, one object per topic.
    """
    return _run_each(ctx, topics, as_of, yes, by, output, work_of)


def quarantine(
    ctx: typer.Context,
    topics: TopicsArgument,
    as_of: AsOfOption = None,
    yes: YesOption = None,
    by: ByOption = None,
    output: OutputOption = Output.text,
) -> int:
    """Remove refused rows that have been in the topics' quarantine for `quarantine_max_age`, as the DAG `quarantine` does."""
    return _run_each(ctx, topics, as_of, yes, by, output, lambda _s, _name: "quarantine")


def _run_each(
    ctx: typer.Context,
    topics: list[str],
    as_of: str | None,
    yes: str | None,
    by: str | None,
    output: Output,
    work: Callable[[Services, TopicName], Scheduled],
) -> int:
    from message_lifecycle.app import steps
    from message_lifecycle.app.views.outcomes import outcome_view

    approver = approver_of(yes, by)
    names = [TopicName.parse(topic) for topic in topics]
    s = services(ctx)
    at = instant_of(s, as_of)
    screen = Screen()
    statuses = []
    for number, name in enumerate(names):
        if number and output is Output.text:
            screen.line()
        try:
            with working(f"{name}: plan, stage, gate, publish, verify"):
                outcome = steps.run(s, name, as_of=at, approver=approver, work=work(s, name))
        except Unavailable:
            raise
        except LifecycleError as error:  # the other topics do not suffer for it
            _say_failed(screen, output, name, error)
            statuses.append(error.exit_code)
            continue
        view = outcome_view(outcome)
        if output is Output.json:
            emit_line(view)
        else:
            results.outcome(screen, view)
        statuses.append(of_outcome(outcome.name))
    return worst(statuses)


def work_of(s: Services, name: TopicName) -> Scheduled:
    """What a run of this topic is for: messages are cleaned, of a backend its retention; of documents snapshots are made, and changes
    purged."""
    from message_lifecycle.app.services import policy_of

    return s.work_on(name) if policy_of(s, name).fold is None else "snapshot_with_purge"


def _say_failed(screen: Screen, output: Output, name: TopicName, error: LifecycleError) -> None:
    told: dict[str, Any] = {"topic": str(name), "error": type(error).__name__, "message": str(error)}
    if output is Output.json:
        emit_line(told)
    else:
        screen.sentence(f"{name}: {type(error).__name__}: {error}", style="red")
