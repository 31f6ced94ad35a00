"""`lifecycle read`: a topic's messages, one at a time, whatever their number."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from message_lifecycle.app.cli.context import OutputOption, TopicArgument, instant, services
from message_lifecycle.app.cli.screen import Output, emit_line
from message_lifecycle.app.cli.words import safe
from message_lifecycle.model.instants import format_instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName, normalise_name


def read(
    ctx: typer.Context,
    topic: TopicArgument,
    start: Annotated[int, typer.Option("--from", metavar="OFFSET", min=0, help="First offset to show, in every partition.")] = 0,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="Only this partition.", show_default=False)] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Only the newest so many messages.", show_default=False)] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only messages of this time or later, and of unknown time.", show_default=False),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="Show what a reader sees at this time; by default now.", show_default=False),
    ] = None,
    consumer: Annotated[
        str | None, typer.Option("--consumer", help="Read as this consumer, which still sees what is kept for it.", show_default=False)
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", metavar="", help="Show what is stored, expired or not.")] = False,
    compacted: Annotated[
        bool, typer.Option("--compacted", metavar="", help="Of what is compacted show each key's latest message alone, then the log.")
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Print a topic's messages as a reader sees them.

    With --output json, one object per line.
    """
    from message_lifecycle.app.reading import read as messages_of
    from message_lifecycle.model.errors import UnknownConsumer, UnknownPartition

    if compacted and consumer is not None:
        raise typer.BadParameter("--compacted and --consumer exclude each other: what is kept for a consumer is in the log")
    name = TopicName.parse(topic)
    earliest = None if since is None else instant(since)
    given = None if at is None else instant(at)
    s = services(ctx)
    judged_at = None if raw else s.ledger.now() if given is None else given
    progress = []
    if consumer is not None:
        progress = [p for p in s.ledger.consumers(name) if p.consumer == normalise_name(consumer)]
        if not progress:
            raise UnknownConsumer(str(name), consumer)
    if partition is not None and partition not in (known := range(s.topics.describe(name).partitions)):
        raise UnknownPartition(str(name), partition, known)
    shown = messages_of(
        s,
        name,
        at=judged_at,
        partition=partition,
        start=start,
        compacted=compacted,
        progress=progress,
        since=earliest,
        limit=limit,
    )
    if output is Output.json:
        for message in shown:
            emit_line(_message_view(message))
    else:
        _print_messages(shown)


def _message_view(message: Message) -> dict[str, Any]:
    from message_lifecycle.app.scenario_file import text_of

    return {
        "partition": message.partition,
        "offset": message.offset,
        "append_time": None if message.append_time is None else format_instant(message.append_time),
        "event_time": None if message.event_time is None else format_instant(message.event_time),
        "key": text_of(message.key),
        "value": text_of(message.value),
        "headers": [[name, text_of(content)] for name, content in message.headers],
        "segment": message.segment,
    }


def _print_messages(messages: Iterable[Message]) -> None:
    """A line a message; on a terminal cut at its edge."""
    width = None
    if sys.stdout.isatty():
        import shutil

        width = shutil.get_terminal_size().columns
    for message in messages:
        place = f"{message.partition}:{message.offset}"
        line = (
            f"{place:<12} {format_instant(message.append_time):<20} {_text(message.key, '(no key)')} {_text(message.value, '(no value)')}"
        )
        print(line if width is None or len(line) <= width else line[: width - 3] + "...")


def _text(content: bytes | None, nothing: str) -> str:
    return nothing if content is None else safe(content.decode(errors="backslashreplace"))
