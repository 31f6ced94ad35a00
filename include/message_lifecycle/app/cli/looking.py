"""What is, what was done, and why: `lifecycle status`, `explain` and `backends` (RET-6)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer

from message_lifecycle.app.cli import drawing
from message_lifecycle.app.cli.context import (
    DIFFERENT,
    AsOfOption,
    OutputOption,
    argument,
    instant_of,
    position,
    services,
    topic_of,
)
from message_lifecycle.app.cli.screen import Output, Screen, emit, working
from message_lifecycle.app.rendering import SHORT, Document, count, size
from message_lifecycle.model.instants import duration, format_instant, span
from message_lifecycle.model.topic import matrix

_HOLDERS_SHOWN = 5
_PLAN_ID = re.compile("[0-9a-f]{1,32}")


def status(
    ctx: typer.Context,
    topic: Annotated[str | None, argument("[TOPIC]", "The topic; by default every one.")] = None,
    output: OutputOption = Output.text,
) -> int:
    """Say whether every topic is cleaned as it should be; exit status 1 when one is not.

    A topic is not well when anything that its settings or requests oblige is later than its max_overdue, unless a legal hold or an
    undone plan keeps all of it; when more than half of a batch was refused and nobody has seen to it; when its cleaner is disabled; when nobody answers its question; or when its last run was blocked,
    starved or failed.
    """
    from message_lifecycle.app.views.status import status as judge

    s = services(ctx)
    names = None
    if topic is not None:
        names = [topic_of(s, topic)]
        s.topics.describe(names[0])
    with working("looking at every topic"):
        found = judge(s, names)
    emit(output, found, _show_status)
    return 0 if all(entry["ok"] for entry in found) else DIFFERENT


def metrics(ctx: typer.Context) -> None:
    """Print every topic's state in Prometheus' text format, as `status` tells it; for a file that its node exporter collects."""
    from message_lifecycle.app.views.metrics import exposition
    from message_lifecycle.app.views.status import status as judge

    s = services(ctx)
    with working("looking at every topic"):
        found = judge(s)
    typer.echo(exposition(found), nl=False)


def _show_status(screen: Screen, found: list[Document]) -> None:
    if not found:
        screen.line("no topics yet; `lifecycle topic create NAME` makes one")
        return
    screen.table(
        ("", "topic", "messages", "due", "held", "past expiry", "hidden", "last removal", "last run"),
        [_status_row(screen, entry) for entry in found],
        right=("messages", "due", "held", "past expiry", "hidden"),
        wrap=("topic", "last run"),
    )
    for entry in found:
        notes = list(_status_notes(entry))
        if notes or any(one["state"] != "idle" for one in entry.get("obligations", ())):
            screen.heading(entry["topic"])
            screen.notes(notes, style=None if entry["ok"] else "red")
            drawing.obligations(screen, [one for one in entry.get("obligations", ()) if one["state"] != "idle"])


def _status_row(screen: Screen, entry: Document) -> tuple[str, ...]:
    if "due" not in entry:
        return "not ok", entry["topic"], "", "", "", "", "", "", ""
    removal, last = entry["last_removal"], entry["last_run"]
    ended = f"{last.ended} {screen.when(format_instant(last.at))}" if last else "none"
    removed = f"{screen.when(removal['at'])}{' (undone)' if removal['undone'] else ''}" if removal else "none"
    return (
        "ok" if entry["ok"] else "not ok",
        entry["topic"],
        count(entry["messages"]),
        count(entry["due"]["messages"]),
        count(sum(held.messages for held in entry["held"])),
        count(entry["past_expiry"]["messages"]) if "past_expiry" in entry else "",
        "" if entry["hidden_bytes"] is None else size(entry["hidden_bytes"]),
        removed,
        "waits for a person" if entry["waiting"] else ended,
    )


def _status_notes(entry: Document) -> Iterable[str]:
    yield from entry["problems"]
    if "due" not in entry:
        return
    due, overdue = entry["due"], entry["overdue"]
    things = "changes of documents" if "documents" in entry else "messages"
    if overdue["messages"]:
        yield f"{count(overdue['messages'])} {things} are overdue: the first is due for longer than {span(overdue['max_overdue'])} (max_overdue)"
    elif due["messages"] and "documents" in entry:
        yield f"{count(due['messages'])} changes of documents can go: the next run takes them"
    elif due["messages"]:
        text = f"{count(due['messages'])} messages are due since {due['since']} ({span(due['for_seconds'])})"
        yield f"{text}: the next run removes them; max_overdue is {span(overdue['max_overdue'])}"
    if entry.get("past_expiry", {}).get("told"):
        yield entry["past_expiry"]["told"]
    # What waits for a person is told below, with the command that answers.
    others = [held for held in entry["held"] if not (entry["waiting"] and held.holder == "open_approval")]
    for held in others[:_HOLDERS_SHOWN]:
        yield f"{count(held.messages)} due messages of partition {held.partition} are held: {held.holder}: {held.detail}"
    if len(others) > _HOLDERS_SHOWN:
        yield f"... and {len(others) - _HOLDERS_SHOWN} more such runs of segments; --output json has all"
    if entry["refused"]["rows"]:
        yield f"{count(entry['refused']['rows'])} refused rows are in its quarantine: lifecycle quarantine list {entry['topic']}"
    if entry["waiting"]:
        waiting = entry["waiting"]
        yield (
            f"plan {waiting['plan_id']} waits for a person since {waiting['since']} and lapses at {waiting['lapses_at']}: "
            f"lifecycle approve {waiting['plan_id'][:SHORT]} --by NAME --why WHY"
        )
    yield from entry["warnings"]


def explain(
    ctx: typer.Context,
    subject: Annotated[str, argument("TOPIC|PLAN", "A topic, or the id of a plan.")],
    at_position: Annotated[str | None, argument("[PARTITION:OFFSET]", "With a topic: the message asked about, such as 0:1234.")] = None,
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
        emit(output, plan_page(s, subject), drawing.plan)
        return
    partition, offset = position(at_position)
    found = explain_message(s, topic_of(s, subject), partition, offset, as_of=instant_of(s, as_of))
    emit(output, found, _show_explanation)


def _compacted(view: Document) -> str:
    if view["past_horizon"]:
        return f"Not compacted yet: the view reaches to offset {drawing.offset(view['horizon'])}."
    return "In the view." if view["in_view"] else "Not in the view: superseded, or gone by a rule."


def _show_explanation(screen: Screen, found: Document) -> None:
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
                ("past its expiry", str(message["past_expiry_at"]) if message["past_expiry_at"] else "never"),
                ("readers", "see it no more (--raw does)" if message["hidden_from_reads"] else "see it"),
            ]
        )
    if found["holds"]:
        screen.heading("Legal holds on it")
        screen.facts([(one.hold_id, f"by {one.placed_by} since {format_instant(one.placed_at)}: {one.why}") for one in found["holds"]])
    if found["compacted"] is not None:
        screen.heading("The compacted view")
        screen.sentence(_compacted(found["compacted"]))
    if segment is not None:
        screen.heading("Its segment")
        screen.facts(
            [
                ("offsets", f"{segment['base_offset']}..{segment['last_offset']}, {'sealed' if segment['sealed'] else 'active'}"),
                ("messages", count(segment["messages"])),
                ("past their expiry", f"{count(segment['past_expiry'])}, kept until the segment expires" if segment["past_expiry"] else ""),
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
    screen.line(f"message_expiry = {duration(found['message_expiry']['value'])} ({found['message_expiry']['origin']})")
    rows = [(drawing.offset(b["stops_at"]), b["bound"], b["reason"]) for b in found["bounds"]]
    screen.table(("offset", "bound", "because"), rows, right=("offset",))
    screen.notes(found["warnings"])


def backends(output: OutputOption = Output.text) -> None:
    """List every backend and limit: whether a read hides what the limit takes, and how a run removes it.

    A policy with a limit that its backend refuses is refused when it is loaded.
    """
    found = list(matrix())
    headers = ("backend", "limit", "read filter", "removed by")
    rows = [(s.backend, s.limit, "refused" if s.refused else "yes" if s.logical else "no", s.physical or "refused") for s in found]
    told = [{**asdict(support), "refused": support.refused} for support in found]
    emit(output, told, lambda screen, _told: screen.table(headers, rows))
