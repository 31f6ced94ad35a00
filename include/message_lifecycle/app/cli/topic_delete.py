"""`lifecycle topic delete`, and the list of what it has deleted (DEL-7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from message_lifecycle.app.cli import results
from message_lifecycle.app.cli.context import OutputOption, TopicArgument, services
from message_lifecycle.app.cli.exits import of_outcome
from message_lifecycle.app.cli.screen import Output, Screen, emit, working
from message_lifecycle.app.cli.verbs import ByOption, TextOption
from message_lifecycle.app.cli.words import count, size
from message_lifecycle.model.names import TopicName

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services


def delete(ctx: typer.Context, topic: TopicArgument, by: ByOption, text: TextOption, output: OutputOption = Output.text) -> int:
    """Delete a topic with all that lies beside its log: planned, gated and recorded like every deletion, with your word as its approval.

    `lifecycle undo PLAN_ID` brings it back while its undo_window lasts. A legal hold on any part of it refuses.
    """
    from message_lifecycle.app.topic_requests import delete_topic
    from message_lifecycle.app.views.outcomes import outcome_view

    if not by.strip() or not text.strip():
        raise typer.BadParameter("a request has a name and a reason: --by NAME --text WHY")
    s, name = services(ctx), TopicName.parse(topic)
    with working(f"{name}: plan, stage, gate, publish, verify"):
        outcome = delete_topic(s, name, by=by.strip(), text=text.strip())
    view = outcome_view(outcome)

    def render(screen: Screen) -> None:
        results.outcome(screen, view, "messages" if outcome.plan_id is None else s.ledger.record(outcome.plan_id).plan.things)
        if outcome.name == "published" and outcome.plan_id is not None:
            screen.line(f"To bring it back: lifecycle undo {outcome.plan_id[: results.SHORT]} --by NAME --text WHY")

    emit(output, view, render)
    return of_outcome(outcome.name)


def list_deleted(s: Services, stream: str | None, output: Output) -> None:
    """Of one stream, or of all; the newest first."""
    from message_lifecycle.app.topic_requests import deleted_topics, deleted_view

    found = [deleted_view(s, topic) for topic in deleted_topics(s) if stream in (None, topic.topic.stream)]

    def render(screen: Screen) -> None:
        if not found:
            screen.line("no deleted topics")
            return
        screen.table(
            ("topic", "plan", "deleted", "undone until", "now", "messages", "size"),
            [
                (
                    t["topic"],
                    t["plan_id"][: results.SHORT],
                    screen.when(t["deleted_at"]),
                    screen.when(t["undo_until"]),
                    "can be undone" if t["undoable"] else "waits for reclaim",
                    count(t["messages"]),
                    size(t["bytes"]),
                )
                for t in found
            ],
            right=("messages", "size"),
        )
        if any(not t["undoable"] for t in found):
            screen.line("What waits goes for good by: lifecycle reclaim run --deleted PLAN --by NAME --yes WHY")

    emit(output, found, render)
