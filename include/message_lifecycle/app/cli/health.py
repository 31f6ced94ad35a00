"""`lifecycle status`: is every topic cleaned as it should be?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from message_lifecycle.app.cli.context import OutputOption, services
from message_lifecycle.app.cli.exits import DIFFERENT
from message_lifecycle.app.cli.screen import Output, Screen, emit, working
from message_lifecycle.app.cli.words import count, size, span
from message_lifecycle.model.names import TopicName

_HOLDERS_SHOWN = 5


def status(
    ctx: typer.Context,
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="The topic; by default every one.", show_default=False)] = None,
    output: OutputOption = Output.text,
) -> int:
    """Say whether every topic is cleaned as it should be; exit status 1 when one is not.

    A topic is not well when messages are overdue for longer than its max_overdue and nothing named holds them, or when its
    last run was blocked, starved or failed.
    """
    from message_lifecycle.app.views.state import status as judge

    s = services(ctx)
    names = None
    if topic is not None:
        names = [TopicName.parse(topic)]
        s.topics.describe(names[0])
    with working("looking at every topic"):
        found = judge(s, names)
    emit(output, found, lambda screen: _show_status(screen, found))
    return 0 if all(entry["ok"] for entry in found) else DIFFERENT


def _show_status(screen: Screen, found: list[dict[str, Any]]) -> None:
    if not found:
        screen.line("no topics yet; `lifecycle topic create NAME` makes one")
        return
    screen.table(
        ("", "topic", "messages", "overdue", "held", "hidden", "last removal", "last run"),
        [_status_row(screen, entry) for entry in found],
        right=("messages", "overdue", "held", "hidden"),
        wrap=("topic", "last run"),
    )
    for entry in found:
        notes = list(_status_notes(entry))
        if notes:
            screen.heading(entry["topic"])
            screen.notes(notes, style=None if entry["ok"] else "red")


def _status_row(screen: Screen, entry: dict[str, Any]) -> tuple[str, ...]:
    if "overdue" not in entry:
        return "not ok", entry["topic"], "", "", "", "", "", ""
    removal, last = entry["last_removal"], entry["last_run"]
    ended = f"{last['outcome']} {screen.when(last['at'])}" if last else "none"
    return (
        "ok" if entry["ok"] else "not ok",
        entry["topic"],
        count(entry["messages"]),
        count(entry["overdue"]["messages"]),
        count(sum(held["messages"] for held in entry["held"])),
        "" if entry["hidden_bytes"] is None else size(entry["hidden_bytes"]),
        screen.when(removal["at"]) if removal else "none",
        "waits for a person" if entry["waiting"] else ended,
    )


def _status_notes(entry: dict[str, Any]) -> Iterable[str]:
    yield from entry["problems"]
    if "overdue" not in entry:
        return
    overdue = entry["overdue"]
    if overdue["messages"] and entry["ok"]:
        if "documents" in entry:
            yield f"{count(overdue['messages'])} changes of documents can go: the next run takes them"
        else:
            late = f"{count(overdue['messages'])} messages are overdue since {overdue['since']} ({span(overdue['for_seconds'])})"
            yield f"{late}: the next run takes them; status fails after {span(overdue['max_overdue'])} (max_overdue)"
    # What waits for a person is told below, with the command that answers.
    others = [held for held in entry["held"] if not (entry["waiting"] and held["holder"] == "open_approval")]
    for held in others[:_HOLDERS_SHOWN]:
        yield f"{count(held['messages'])} overdue messages of partition {held['partition']} are held: {held['holder']}: {held['detail']}"
    if len(others) > _HOLDERS_SHOWN:
        yield f"... and {len(others) - _HOLDERS_SHOWN} more such runs of segments; --output json has all"
    if entry["waiting"]:
        waiting = entry["waiting"]
        yield (
            f"plan {waiting['plan_id']} waits for a person since {waiting['since']} and lapses at {waiting['lapses_at']}: "
            f"lifecycle approve {waiting['plan_id'][:12]} --by NAME --text WHY"
        )
    yield from entry["warnings"]
