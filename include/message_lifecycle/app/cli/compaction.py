"""`lifecycle compact`: keep each key's latest message in a view beside the log (CMP-10)."""

from __future__ import annotations

from typing import Annotated

import typer

from message_lifecycle.app.cli import drawing, results
from message_lifecycle.app.cli.context import AsOfOption, OutputOption, instant_of, services
from message_lifecycle.app.cli.exits import DIFFERENT, of_outcome
from message_lifecycle.app.cli.planning import ByOption, YesOption, approver_of
from message_lifecycle.app.cli.screen import Output, Screen, View, emit, working
from message_lifecycle.app.cli.words import count, reasons, size
from message_lifecycle.app.previews import preview
from message_lifecycle.app.services import Services
from message_lifecycle.model.errors import UnknownPartition
from message_lifecycle.model.names import TopicUri


def compact(
    ctx: typer.Context,
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC",
            help="The topic: `stream/topic`, or persistent://TENANT/NAMESPACE/TOPIC for the stream TENANT.NAMESPACE.",
            show_default=False,
        ),
    ],
    as_of: AsOfOption = None,
    status: Annotated[bool, typer.Option("--status", metavar="", help="Only tell how compaction stands; 1 where it ended badly.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", metavar="", help="Only show the plan; record nothing.")] = False,
    anew: Annotated[
        bool,
        typer.Option("--anew", metavar="", help="Begin anew from the log where the view's table is gone; what it alone had is lost."),
    ] = False,
    yes: YesOption = None,
    by: ByOption = None,
    output: OutputOption = Output.text,
) -> int:
    """Bring a topic's compacted view up to date: each key's latest message; the log itself stays as it is."""
    from message_lifecycle.app.compact import begin_anew
    from message_lifecycle.app.compact import compact as run
    from message_lifecycle.app.views.outcomes import outcome_view
    from message_lifecycle.app.views.plans import plan_view

    if sum((status, dry_run, anew)) > 1:
        raise typer.BadParameter("--status, --dry-run and --anew are three different things: give one")
    approver = approver_of(yes, by)
    s = services(ctx)
    uri = _checked(s, topic)
    name = uri.name
    if status:
        return _status(s, uri, output)
    at = instant_of(s, as_of)
    note = _whole(uri)
    if note and output is Output.text:
        Screen().sentence(note)
    if dry_run:
        with working(f"planning {name}"):
            planned = plan_view(preview(s, name, as_of=at, work="compaction"))
        emit(output, planned, lambda screen: drawing.plan(screen, planned))
        return 0
    if anew:
        begin_anew(s, name)
    with working(f"{name}: plan, stage, gate, publish, verify"):
        outcome = run(s, name, as_of=at, approver=approver)
    told = {**outcome_view(outcome), "note": note}
    emit(output, told, lambda screen: results.outcome(screen, told))
    return of_outcome(outcome.name)


def _checked(s: Services, text: str) -> TopicUri:
    """Raises InvalidTopicUri, UnknownTopic, UnknownPartition."""
    uri = TopicUri.parse(text)
    partitions = s.topics.describe(uri.name).partitions
    if uri.partition is not None and uri.partition >= partitions:
        raise UnknownPartition(str(uri.name), uri.partition, range(partitions))
    return uri


def _whole(uri: TopicUri) -> str | None:
    return None if uri.partition is None else f"partition {uri.partition} was named; {uri.name} is compacted as a whole"


def _status(s: Services, uri: TopicUri, output: Output) -> int:
    from message_lifecycle.app.views.compaction import compaction_status

    found = compaction_status(s, uri.name)
    emit(output, found, lambda screen: _show(screen, found))
    return DIFFERENT if found["status"] == "ERROR" else 0


def _show(screen: Screen, found: View) -> None:
    style = {"SUCCESS": "green", "ERROR": "red"}.get(found["status"])
    screen.sentence(f"{found['topic']}: {found['status']}: {found['message']}", style=style)
    view = found["view"]
    screen.facts(
        [
            ("  as of", found["as_of"] or ""),
            ("  ended at", found["ended_at"] or ""),
            ("  left out", reasons(found["removed"] or {})),
            ("  duration", "" if found["duration_seconds"] is None else f"{found['duration_seconds']:.1f} s ({found['engine']})"),
            ("  read", _rate(found["bytes_read"], found["read_bytes_per_second"])),
            ("  written", _rate(found["bytes_written"], found["write_bytes_per_second"])),
            ("  view", "" if view is None else f"{count(view['messages'])} messages, {size(view['bytes'])}"),
            ("  next due", "" if view is None else view["due_at"] or ""),
        ]
    )
    screen.heading("Partitions")
    screen.table(
        ("partition", "compacted up to", "end", "behind"),
        [(str(p["partition"]), _horizon(p["horizon"]), str(p["end_offset"]), count(p["lag"])) for p in found["partitions"]],
        right=("partition", "compacted up to", "end", "behind"),
    )


def _horizon(offset: int | None) -> str:
    return "nothing yet" if offset is None else str(offset)


def _rate(amount: int | None, per_second: int | None) -> str:
    if amount is None:
        return ""
    return size(amount) if per_second is None else f"{size(amount)}, {size(per_second)} per second"
