"""`lifecycle explain`: why a message is still there, or which plan removed it; and what a plan is."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from message_lifecycle.app.cli import drawing
from message_lifecycle.app.cli.context import AsOfOption, OutputOption, instant_of, position, services
from message_lifecycle.app.cli.screen import Output, Screen, emit
from message_lifecycle.app.cli.words import count
from message_lifecycle.model.names import TopicName

_PLAN_ID = re.compile("[0-9a-f]{1,32}")


def explain(
    ctx: typer.Context,
    subject: Annotated[str, typer.Argument(metavar="TOPIC|PLAN", help="A topic, or the id of a plan.", show_default=False)],
    at_position: Annotated[
        str | None,
        typer.Argument(metavar="[PARTITION:OFFSET]", help="With a topic: the message asked about, such as 0:1234.", show_default=False),
    ] = None,
    as_of: AsOfOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Say why a message is still there or which plan removed it; or show a plan and what became of it."""
    from message_lifecycle.app.views.explanation import explain_message
    from message_lifecycle.app.views.plans import plan_page

    s = services(ctx)
    if at_position is None:
        if _PLAN_ID.fullmatch(subject) is None:
            raise typer.BadParameter("with a topic, name the message too: lifecycle explain TOPIC PARTITION:OFFSET")
        page = plan_page(s, subject)
        emit(output, page, lambda screen: drawing.plan(screen, page))
        return
    partition, offset = position(at_position)
    found = explain_message(s, TopicName.parse(subject), partition, offset, as_of=instant_of(s, as_of))
    emit(output, found, lambda screen: _show_explanation(screen, found))


def _compacted(view: dict[str, Any]) -> str:
    if view["past_horizon"]:
        return f"Not compacted yet: the view reaches to offset {'none' if view['horizon'] is None else view['horizon']}."
    return "In the view." if view["in_view"] else "Not in the view: superseded, or gone by a rule."


def _show_explanation(screen: Screen, found: dict[str, Any]) -> None:
    words = {
        "kept": "is there",
        "held": "is there, overdue and held",
        "due": "is there, and due",
        "gone": "is gone",
        "never_there": "is not there",
        "not_given": "does not exist yet",
    }
    screen.line(f"{found['topic']} {found['partition']}:{found['offset']} {words[found['verdict']]}", style="bold")
    screen.sentence(f"{found['why'][0].upper()}{found['why'][1:]}.")
    message, segment, removal = found["message"], found["segment"], found["removed_by"]
    if message is not None:
        screen.heading("The message")
        screen.facts(
            [
                ("append time", message["append_time"] or "unknown"),
                ("past its expiry", f"{message['past_expiry_at']}" if message["past_expiry_at"] else "never"),
                ("readers", "see it no more (--raw does)" if message["hidden_from_reads"] else "see it"),
            ]
        )
    if found["holds"]:
        screen.heading("Legal holds on it")
        screen.facts([(hold["hold_id"], f"by {hold['placed_by']} since {hold['placed_at']}: {hold['why']}") for hold in found["holds"]])
    if found["compacted"] is not None:
        screen.heading("The compacted view")
        screen.sentence(_compacted(found["compacted"]))
    if segment is not None:
        screen.heading("Its segment")
        screen.facts(
            [
                ("offsets", f"{segment['base_offset']}..{segment['last_offset']}, {'sealed' if segment['sealed'] else 'active'}"),
                ("messages", count(segment["messages"])),
                ("newest message", segment["newest_at"] or "unknown"),
                ("expires at", segment["expires_at"] or "never"),
            ]
        )
    if removal is not None:
        screen.heading("Removed by")
        word = removal["approval"]
        screen.facts(
            [
                ("plan", removal["plan_id"]),
                ("judged as of", removal["as_of"]),
                ("rule", f"{removal['reason']}: {removal['rule']}"),
                ("newest beside it", removal["newest_at"] or "unknown"),
                ("gate report", removal["gate_id"] or ""),
                ("snapshot", str(removal["snapshot_id"] or "")),
                ("approved by", f"{word['by']} at {word['at']}: {word['text']}" if word else "nobody had to"),
            ]
        )
        return
    screen.heading(f"What bounds partition {found['partition']}, as of {found['as_of']}")
    origin = f"message_expiry = {found['message_expiry']['value']} s ({found['message_expiry']['origin']})"
    rows = [(drawing.offset(b["stops_at"]), b["bound"], b["reason"]) for b in found["bounds"]]
    screen.line(origin)
    if rows:
        screen.table(("offset", "bound", "because"), rows, right=("offset",))
    screen.notes(found["warnings"])
