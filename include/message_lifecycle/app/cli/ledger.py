"""`lifecycle ledger`: show plans and their outcomes, and maintain the ledger itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from message_lifecycle.app.cli.context import find_topic, services, wiring_of
from message_lifecycle.app.cli.options import LimitOption, OutputOption, PlanArgument, TopicArgument, argument
from message_lifecycle.app.cli.screen import Output, emit, show_progress
from message_lifecycle.app.wording import count
from message_lifecycle.model.instants import format_instant, format_to_second
from message_lifecycle.model.names import TopicName

if TYPE_CHECKING:
    from message_lifecycle.ledger.backup import Backup


app = typer.Typer(no_args_is_help=True, help="See past runs and plans; back up, restore and migrate the ledger.")


@app.command("list")
def list_(
    ctx: typer.Context,
    topic: Annotated[str | None, argument("[TOPIC]", "Only this topic's.")] = None,
    limit: LimitOption = 20,
    output: OutputOption = Output.text,
) -> None:
    """List past runs, the newest first."""
    from message_lifecycle.app.views.state import OutcomeView, runs

    s = services(ctx)
    emit(output, runs(s, None if topic is None else TopicName.parse(topic), limit=limit), OutcomeView.table)


@app.command()
def show(ctx: typer.Context, plan: PlanArgument, output: OutputOption = Output.text) -> None:
    """Show a plan, the gate's report, the approval and the outcome."""
    from message_lifecycle.app.views.plans import plan_page

    emit(output, plan_page(services(ctx), plan))


@app.command()
def accept(ctx: typer.Context, topic: TopicArgument, output: OutputOption = Output.text) -> None:
    """Accept a topic for this ledger, and give up the records of another (or a lost) ledger."""
    s, name = find_topic(ctx, topic)
    found = s.topics.describe(name).ledger
    if found is not None:
        s.ledger.accept(name, found)
        s.topics.record_ledger(name, s.ledger.next_identity(name))
    answer = {
        "topic": str(name),
        "ledger": s.ledger.identity()[0],
        "taken_over_from": None if found is None else {"ledger": found[0], "sequence": found[1]},
    }
    emit(output, answer, f"{name} now belongs to ledger {answer['ledger']}")


@app.command()
def backup(
    ctx: typer.Context,
    file: Annotated[Path, argument("FILE", "Where to write it; a file of that name is replaced.")],
    output: OutputOption = Output.text,
) -> None:
    """Write the whole ledger to a file; make and keep one after every run."""
    with show_progress("backing up the ledger"):
        made = wiring_of(ctx).ledger().backup(file)
    _show_backup(output, file, made, "backed up")


@app.command()
def restore(
    ctx: typer.Context,
    file: Annotated[Path, argument("FILE", "A file that `ledger backup` wrote.")],
    output: OutputOption = Output.text,
) -> None:
    """Fill an empty ledger from a backup; topics with newer tables refuse deletions until `ledger accept`."""
    from message_lifecycle.ledger import restore_ledger

    with show_progress("restoring the ledger"):
        made = restore_ledger(wiring_of(ctx).ledger_url(), file)
    _show_backup(output, file, made, "restored")


@app.command()
def migrate(ctx: typer.Context, output: OutputOption = Output.text) -> None:
    """Create the ledger's tables. If this program's tables are there already, change nothing."""
    from message_lifecycle.ledger import migrate_ledger

    found, reached = migrate_ledger(wiring_of(ctx).ledger_url())
    answer = {"found_version": found, "version": reached}
    said = f"Ledger version {reached}" + ("" if found else ", new")
    emit(output, answer, said)


def _show_backup(output: Output, file: Path, made: Backup, what: str) -> None:
    head = made.heading
    answer = {
        "file": str(file),
        "ledger": head.uuid,
        "sequence": head.sequence,
        "version": head.ledger_version,
        "taken_at": format_instant(head.taken_at),
        "rows": made.counts,
    }
    rows = count(sum(made.counts.values()))
    facts = {"file": str(file), "ledger": head.uuid, "number": str(head.sequence), "as of": format_to_second(head.taken_at), "rows": rows}
    emit(output, answer, [f"Ledger {what}", facts])
