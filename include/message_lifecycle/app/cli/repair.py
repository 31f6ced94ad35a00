"""`lifecycle topic repair`: show and repair the state of a log after another engine worked on its table (MSG-4)."""

from __future__ import annotations

from typing import Annotated

import typer

from message_lifecycle.app.cli.context import find_topic
from message_lifecycle.app.cli.options import OutputOption, TopicArgument, consent_of, flag, option
from message_lifecycle.app.cli.screen import Output, emit, show_progress
from message_lifecycle.model.errors import EXIT_REFUSED


def repair(
    ctx: typer.Context,
    topic: TopicArgument,
    accept_rollback: Annotated[
        bool, flag("--accept-rollback", "Accept that another engine rolled the table back: what came after is lost.")
    ] = False,
    give_up_tables: Annotated[
        bool,
        flag(
            "--give-up-tables", "Say that missing tables next to the log were dropped with their files: erasures no longer wait for them."
        ),
    ] = False,
    by: Annotated[str | None, option("--by", "NAME", "Your name, kept in the ledger; without it nothing is changed.")] = None,
    text: Annotated[str | None, option("--why", "WHY", "Why; kept in the ledger with your name.")] = None,
    output: OutputOption = Output.text,
) -> int:
    """Show the remaining state of a topic's log, and repair it with --by and --why.

    Another engine's expiry, property change or rollback can remove the end offsets. Until a repair, nothing is written or removed.
    """
    from message_lifecycle.app.views.repair import repair_view
    from message_lifecycle.app.witness import inspect_topic
    from message_lifecycle.app.witness import repair as carry_out

    if (by is None) != (text is None):
        raise typer.BadParameter("--by NAME and --why WHY belong together")
    if (accept_rollback or give_up_tables) and by is None:
        raise typer.BadParameter("--accept-rollback and --give-up-tables need --by NAME and --why WHY")
    s, name = find_topic(ctx, topic)
    if by is None or text is None:
        found = inspect_topic(s, name)
        emit(output, repair_view(found))
        return EXIT_REFUSED if found.missing or any(one.problem for one in found.found) else 0
    _, by, text = consent_of(by, text, "a repair")
    with show_progress(f"{name}: repairing the log's state"):
        done = carry_out(s, name, by=by, text=text, accept_rollback=accept_rollback, give_up_tables=give_up_tables)
    emit(output, repair_view(done))
    return EXIT_REFUSED if done.missing != done.given_up else 0
