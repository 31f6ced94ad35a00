"""`lifecycle undo`: take a published plan back, or let what came back go again (DEL-7)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from message_lifecycle.app.cli import results
from message_lifecycle.app.cli.context import OutputOption, PlanArgument, services
from message_lifecycle.app.cli.exits import of_outcome
from message_lifecycle.app.cli.screen import Output, emit, working
from message_lifecycle.app.cli.verbs import ByOption, TextOption
from message_lifecycle.app.services import Services
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.model.undo import QUARANTINE


def undo(
    ctx: typer.Context,
    plan: PlanArgument,
    by: ByOption,
    text: TextOption,
    release: Annotated[bool, typer.Option("--release", help="Of a plan that was undone: the rules may take its messages again.")] = False,
    output: OutputOption = Output.text,
) -> int:
    """Bring back what a published plan removed, while the topic's undo_window lasts.

    Planned, gated and published like a deletion, with your word as its approval. What came since stays. Rules leave alone what came back, until you say --release or ask for its removal by name.
    """
    if not by.strip() or not text.strip():
        raise typer.BadParameter("an undo has a name and a reason: --by NAME --text WHY")
    s = services(ctx)
    if release:
        return _release(s, plan, by.strip(), text.strip(), output)
    return _take_back(s, plan, (True, by.strip(), text.strip()), output)


def _take_back(s: Services, plan: str, word: tuple[bool, str, str], output: Output) -> int:
    from message_lifecycle.app import steps
    from message_lifecycle.app.views.outcomes import outcome_view

    taken_back = s.ledger.record(plan).plan
    with working(f"{taken_back.topic}: plan, stage, gate, publish, verify"):
        outcome = steps.run(
            s,
            taken_back.topic,
            as_of=s.ledger.now(),
            approver=lambda _plan, _report: word,
            work=UndoPlan(plan_id=taken_back.plan_id),
            requested_by=word[1],
        )
    view = outcome_view(outcome)
    emit(output, view, lambda screen: results.outcome(screen, view, taken_back.things))
    return of_outcome(outcome.name)


def _release(s: Services, plan: str, by: str, text: str, output: Output) -> int:

    from message_lifecycle.app.operations.undo import release

    released = release(s, plan, by=by, text=text)
    told: dict[str, Any] = {
        "plan_id": released.plan_id,
        "topic": str(released.topic),
        "undone_by": released.undone_by,
        "undone_at": format_instant(released.undone_at),
        "messages_in": [{"partition": of, "from": first, "to": last} for of, first, last in released.ranges if of != QUARANTINE],
        "refused_in": [
            {"from": format_instant(Instant(first)), "to": format_instant(Instant(last))}
            for of, first, last in released.ranges
            if of == QUARANTINE
        ],
        "released_at": format_instant(released.released_at),
        "released_by": released.released_by,
        "text": released.text,
    }
    said = f"what came back of plan {released.plan_id} was released by {released.released_by} at {told['released_at']}"
    emit(output, told, lambda screen: screen.line(f"{said}. The next run of {released.topic} may take it again"))
    return 0
