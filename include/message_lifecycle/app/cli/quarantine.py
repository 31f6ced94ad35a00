"""Refused rows: `lifecycle quarantine list`, `show`, `replay`, `accept`, and `run`, which removes rows that have reached their age (QUA-1)."""

from __future__ import annotations

from dataclasses import replace
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from message_lifecycle.app.cli.context import exit_code_of_outcome, find_topic, services, worst_exit_code
from message_lifecycle.app.cli.messages import ingest, show_result
from message_lifecycle.app.cli.options import (
    ApproverOption,
    AsOfOption,
    ByOption,
    OutputOption,
    TextOption,
    TopicArgument,
    YesOption,
    argument,
    option,
)
from message_lifecycle.app.cli.runs import TopicsArgument, run_each
from message_lifecycle.app.cli.screen import Output, emit, show_progress
from message_lifecycle.model.names import TopicName

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
    emit(output, refused_view(s, TopicName.parse(topic)))


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
    """Show refused rows: the place of each row, the reason for its refusal, and its raw text."""
    from message_lifecycle.app.views.refused import rows_view

    s = services(ctx)
    emit(output, rows_view(s, TopicName.parse(topic), batch=batch, file=file, code=code, limit=limit))


@app.command()
def accept(
    ctx: typer.Context,
    topic: TopicArgument,
    batch: Annotated[str, argument("BATCH", "The batch, as `list` names it.")],
    by: ByOption,
    why: TextOption,
    output: OutputOption = Output.text,
) -> None:
    """Say that a batch's refused rows may stay refused: `status` is ok with them. They are removed at their age."""
    from message_lifecycle.app.refused import accept as settle
    from message_lifecycle.app.views.refused import SettledView

    if not by.strip() or not why.strip():
        raise typer.BadParameter("--by NAME and --why WHY must not be empty")
    s = services(ctx)
    emit(output, SettledView.of(settle(s, TopicName.parse(topic), batch, by=by.strip(), why=why.strip())))


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

    The other options say how to read the rows, as in `lifecycle ingest`. A row that is refused again goes into the quarantine of the new
    batch. A plan removes the replayed rows from the quarantine, as for every deletion.
    """
    from message_lifecycle.app import steps
    from message_lifecycle.app.ingest import ingest as take
    from message_lifecycle.app.replay import Replay
    from message_lifecycle.app.views.state import result_view

    if not by.strip() or not why.strip():
        raise typer.BadParameter("--by NAME and --why WHY must not be empty")
    s, name = find_topic(ctx, topic)
    asked = Replay(batch_id=batch, by=by.strip(), why=why.strip(), header=header)
    with show_progress(f"{name}: reading refused rows again"):
        result = take(str(name), "", **reading, replay=asked)
    with show_progress(f"{name}: removing replayed rows from the quarantine"):
        outcome = steps.run(s, name, as_of=s.ledger.now(), approver=None, work="quarantine")
    return worst_exit_code([show_result(replace(result, removal=result_view(s, outcome)), output), exit_code_of_outcome(outcome.name)])


def _with_options_of_ingest(command: Any) -> Any:
    """Give the command the reading options of `lifecycle ingest`, so that each option is declared once."""
    own = [one for one in signature(command, eval_str=True).parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    left_out = {"path", "include", "exclude", "skip_changed", *(one.name for one in own)}
    read_by = [one for one in signature(ingest, eval_str=True).parameters.values() if one.name not in left_out]
    command.__signature__ = Signature([*own, *read_by])
    command.__annotations__ = {one.name: one.annotation for one in (*own, *read_by)}
    return command


app.command()(_with_options_of_ingest(replay))
