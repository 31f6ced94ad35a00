"""Refused rows: `lifecycle quarantine list`, `show`, `replay`, `accept`, and `run`, which removes rows that have reached their age (QUA-1)."""

from __future__ import annotations

from dataclasses import replace
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from message_lifecycle.app.cli.context import (
    ApproverOption,
    AsOfOption,
    ByOption,
    OutputOption,
    TextOption,
    TopicArgument,
    YesOption,
    argument,
    of_outcome,
    option,
    services,
    topic_of,
    worst,
)
from message_lifecycle.app.cli.messages import ingest, show_result
from message_lifecycle.app.cli.runs import TopicsArgument, run_each
from message_lifecycle.app.cli.screen import Output, Screen, emit, working
from message_lifecycle.app.rendering import Document, count, reasons
from message_lifecycle.model.names import safe

BatchOption = Annotated[str | None, option("--batch", "BATCH", "Only rows of this batch.")]
_MOST_ROWS = 10_000


class _RunsByDefault(TyperGroup):
    """A topic in place of a command means `lifecycle quarantine run`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["run", *args])


app = typer.Typer(cls=_RunsByDefault, no_args_is_help=True, help="See refused rows, say what becomes of them, and remove old ones.")


@app.command()
def run(
    ctx: typer.Context,
    topics: TopicsArgument,
    as_of: AsOfOption = None,
    yes: YesOption = None,
    by: ApproverOption = None,
    output: OutputOption = Output.text,
) -> int:
    """Remove refused rows that have been in the topics' quarantine for `quarantine_max_age`, as the DAG `quarantine` does."""
    return run_each(ctx, topics, as_of, yes, by, output, lambda _s, _name: "quarantine")


@app.command("list")
def list_refused(ctx: typer.Context, topic: TopicArgument, output: OutputOption = Output.text) -> None:
    """Count the refused rows by batch, file and code."""
    from message_lifecycle.app.views.refused import refused_view

    s = services(ctx)
    emit(output, refused_view(s, topic_of(s, topic)), _show_batches)


@app.command()
def show(
    ctx: typer.Context,
    topic: TopicArgument,
    batch: BatchOption = None,
    file: Annotated[str | None, option("--file", "FILE", "Only rows of this file.")] = None,
    code: Annotated[str | None, option("--code", "CODE", "Only rows that were refused by this code.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=_MOST_ROWS, help="How many rows, the oldest first.")] = 20,
    output: OutputOption = Output.text,
) -> None:
    """Show refused rows: where each stood, why it was refused, and its raw text."""
    from message_lifecycle.app.views.refused import rows_view

    s = services(ctx)
    emit(output, rows_view(s, topic_of(s, topic), batch=batch, file=file, code=code, limit=limit), _show_rows)


@app.command()
def accept(
    ctx: typer.Context,
    topic: TopicArgument,
    batch: Annotated[str, argument("BATCH", "The batch, as `list` names it.")],
    by: ByOption,
    why: TextOption,
    output: OutputOption = Output.text,
) -> None:
    """Say that a batch's refused rows may stay refused: the topic is not blamed for them. They go when they reach their age."""
    from message_lifecycle.app.refused import accept as settle
    from message_lifecycle.app.views.refused import batch_view

    if not by.strip() or not why.strip():
        raise typer.BadParameter("--by NAME and --why WHY must not be empty: an acceptance has a name and a reason")
    s = services(ctx)
    name = topic_of(s, topic)
    settled = batch_view(settle(s, name, batch, by=by.strip(), why=why.strip()))
    said = (
        f"{name}: {count(settled['refused'])} refused rows of batch {batch}: {settled['settled_as']} by {safe(settled['settled_by'] or '')}"
    )
    emit(output, {"topic": str(name), **settled}, said)


def replay(
    ctx: typer.Context,
    topic: TopicArgument,
    batch: Annotated[str, argument("BATCH", "The batch, as `list` names it.")],
    by: ByOption,
    why: TextOption,
    header: Annotated[str | None, option("--header", "LINE", "The header line of the batch's CSV files.")] = None,
    output: OutputOption = Output.text,
    **reading: Any,
) -> int:
    """Take a batch's refused rows again, after a setting or the mapping was corrected; each comes in once.

    The other options say how the rows are read, as those of `lifecycle ingest` do. A row that is refused again is in the quarantine of
    the new batch. The replayed rows leave the quarantine by a plan, as every deletion does.
    """
    from message_lifecycle.app import steps
    from message_lifecycle.app.ingest import ingest as take
    from message_lifecycle.app.replay import Replay
    from message_lifecycle.app.views.state import outcome_view

    if not by.strip() or not why.strip():
        raise typer.BadParameter("--by NAME and --why WHY must not be empty: a replay has a name and a reason")
    s = services(ctx)
    name = topic_of(s, topic)
    asked = Replay(batch_id=batch, by=by.strip(), why=why.strip(), header=header)
    with working(f"{name}: reading refused rows again"):
        result = take(str(name), "", **reading, replay=asked)
    with working(f"{name}: removing replayed rows from the quarantine"):
        outcome = steps.run(s, name, as_of=s.ledger.now(), approver=None, work="quarantine")
    return worst([show_result(replace(result, removal=outcome_view(outcome)), output), of_outcome(outcome.name)])


def _with_options_of_ingest(command: Any) -> Any:
    """Give the command the options by which `lifecycle ingest` reads files, so that each is declared once."""
    own = [one for one in signature(command, eval_str=True).parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    left_out = {"path", "include", "exclude", "skip_changed", *(one.name for one in own)}
    read_by = [one for one in signature(ingest, eval_str=True).parameters.values() if one.name not in left_out]
    command.__signature__ = Signature([*own, *read_by])
    command.__annotations__ = {one.name: one.annotation for one in (*own, *read_by)}
    return command


app.command()(_with_options_of_ingest(replay))


def _show_batches(screen: Screen, view: Document) -> None:
    if not view["rows"]:
        screen.line(f"{view['topic']}: no refused rows")
        return
    rows = [
        (
            batch["batch"],
            screen.when(batch["at"]),
            "" if batch["taken"] is None else count(batch["taken"]),
            count(batch["rows"]),
            "needs a person" if batch["needs_a_person"] else batch["settled_as"] or "",
        )
        for batch in view["batches"]
    ]
    screen.table(("batch", "refused at", "taken", "refused", "state"), rows, right=("taken", "refused"))
    screen.line()
    files = [(batch["batch"], one["file"], reasons(one["codes"])) for batch in view["batches"] for one in batch["files"]]
    screen.table(("batch", "file", "refused rows"), files, wrap=("file",))
    screen.notes([f"to see the rows: lifecycle quarantine show {view['topic']} --batch BATCH"])


def _show_rows(screen: Screen, view: Document) -> None:
    if not view["rows"]:
        screen.line(f"{view['topic']}: no such refused rows")
        return
    for row in view["rows"]:
        screen.line(f"{row['file']}:{row['position']}  {row['code']}: {row['reason'] or 'no reason was kept'}", style="bold")
        screen.sentence("(no raw text was kept)" if row["raw"] is None else row["raw"])
    if view["more"]:
        screen.notes([f"only the first {count(len(view['rows']))} rows: --limit shows more"])
