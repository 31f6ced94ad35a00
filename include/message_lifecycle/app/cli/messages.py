"""Commands for messages in and out: `lifecycle ingest`, `read` and `consumer`.

`read` prints one message at a time, so that any number fits in memory. `consumer` shows who still reads a topic, and until when the topic
keeps unread messages for them (EXP-6).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from message_lifecycle.app.cli.context import WAITS, find_topic, report_result, services
from message_lifecycle.app.cli.options import (
    AtOption,
    OutputOption,
    TopicArgument,
    argument,
    consent_of,
    flag,
    instant,
    option,
    parse_position,
)
from message_lifecycle.app.cli.screen import Output, emit, emit_line, show_progress
from message_lifecycle.app.rendering import Notes
from message_lifecycle.app.wording import text_of
from message_lifecycle.model.errors import unknown_consumer, unknown_partition
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName, safe

if TYPE_CHECKING:
    from message_lifecycle.app.ingest_result import IngestResult, RemapView
    from message_lifecycle.app.intake import IngestOptions, Intake
    from message_lifecycle.app.remap import RemapResult
    from message_lifecycle.app.services import Services

consumers = typer.Typer(no_args_is_help=True, help="Register readers: messages that a reader has not processed are kept for it.")
ConsumerArgument = Annotated[str, argument("CONSUMER", "The consumer's name.")]
_UNITS = "iso (text), or a number: s, ms, us, ns"


def ingest(
    ctx: typer.Context,
    topic: TopicArgument,
    path: Annotated[str, argument("PATH", "A folder of files, or one file, on a disk, or as s3://bucket/folder.")],
    key: Annotated[
        str | None, option("--key-field", "FIELD", "The field that is the message's key; without it messages have none.")
    ] = None,
    value: Annotated[
        str | None, option("--value-field", "FIELD", "The field that is the message's value; by default the whole record as JSON.")
    ] = None,
    append_time: Annotated[
        str | None, option("--time-field", "FIELD", "The field with the time that ages are measured on; unknown times never expire.")
    ] = None,
    append_time_unit: Annotated[str, typer.Option("--time-unit", metavar="UNIT", help=f"How it is written: {_UNITS}.")] = "iso",
    event_time: Annotated[str | None, option("--event-time-field", "FIELD", "The field with the time of the event itself.")] = None,
    event_time_unit: Annotated[str, typer.Option("--event-time-unit", metavar="UNIT", help=f"How it is written: {_UNITS}.")] = "iso",
    append_time_format: Annotated[
        str | None, option("--time-format", "FORMAT", "How the time is written, as strptime reads it: '%d.%m.%Y %H:%M:%S'.")
    ] = None,
    event_time_format: Annotated[str | None, option("--event-time-format", "FORMAT", "The same for the event time.")] = None,
    time_zone: Annotated[
        str | None,
        option("--time-zone", "ZONE", "The zone of times that name none: UTC, +02:00 or Europe/Berlin. Without it they are refused."),
    ] = None,
    headers: Annotated[str | None, option("--headers-field", "FIELD", "The field with the message's headers.")] = None,
    partition: Annotated[
        str | None, option("--partition-field", "FIELD", "The field with the partition's number; by default the key chooses it.")
    ] = None,
    delimiter: Annotated[str, typer.Option("--delimiter", metavar="CHAR", help="What separates the fields of CSV files.")] = ",",
    encoding: Annotated[
        str,
        typer.Option(
            "--encoding", metavar="NAME", help="How the letters of text files are written, as latin-1; UTF-16 is converted first."
        ),
    ] = "utf-8",
    shift_to: Annotated[
        str | None,
        option(
            "--shift-to", "DAY", "Move all times by whole days so that the newest falls on this day, as 2026-11-21; kept for later files."
        ),
    ] = None,
    allow_implausible_times: Annotated[
        bool, flag("--allow-implausible-times", "Take times far from now, which mostly mean a wrong unit.")
    ] = False,
    skip_changed: Annotated[
        bool, flag("--skip-changed", "Pass over files that were taken before with other content, and name them; else nothing is taken.")
    ] = False,
    include: Annotated[
        list[str] | None,
        option(
            "--include", "PATTERN", "Take only files whose name matches, as '*.jsonl'; with a / the path below the folder. May be repeated."
        ),
    ] = None,
    exclude: Annotated[list[str] | None, option("--exclude", "PATTERN", "Pass over files whose name matches. May be repeated.")] = None,
    remap: Annotated[
        bool,
        flag(
            "--remap",
            "Take the batches of these files again under this mapping: a plan removes the messages that they brought, then their files come in. Needs --by and --why.",
        ),
    ] = False,
    by: Annotated[str, option("--by", "NAME", "With --remap: your name, kept in the ledger.")] = "",
    why: Annotated[str, option("--why", "WHY", "With --remap: why, kept with it.")] = "",
    output: OutputOption = Output.text,
) -> int:
    """Bring a folder of JSON lines, CSV or Parquet files into a topic, each file exactly once.

    Exit status 5: every row of a batch was refused, and no message was taken; or the removal of a remap waits for a person. After the
    approval, the same command continues.
    """
    from message_lifecycle.app.ingest import ingest as take
    from message_lifecycle.app.remap import RemovalOpen

    name = TopicName.parse(topic)
    again = _Remapping(ctx, topic, by, why) if remap else None
    if again is None and (by or why):
        raise typer.BadParameter("--by and --why belong to --remap")
    try:
        result = _take_files(
            name,
            path,
            again,
            take,
            topic,
            path,
            key=key,
            value=value,
            append_time=append_time,
            append_time_unit=append_time_unit,
            event_time=event_time,
            event_time_unit=event_time_unit,
            append_time_format=append_time_format,
            event_time_format=event_time_format,
            time_zone=time_zone,
            headers=headers,
            partition=partition,
            delimiter=delimiter,
            encoding=encoding,
            shift_to=shift_to,
            allow_implausible_times=allow_implausible_times,
            skip_changed=skip_changed,
            include=include or (),
            exclude=exclude or (),
        )
    except RemovalOpen as waits:
        return _removal_open(services(ctx), waits.remapped, output)
    return show_result(result if again is None else replace(result, remapped=again.result_view()), output)


def _take_files(
    name: TopicName, path: str, again: _Remapping | None, take: Callable[..., IngestResult], *arguments: str, **options: object
) -> IngestResult:
    with show_progress(f"{name}: reading {path}"):
        return take(*arguments, **options) if again is None else take(*arguments, **options, remap=again)


class _Remapping:
    """Takes files again under another mapping, and stores the result in `found`."""

    def __init__(self, ctx: typer.Context, topic: str, by: str, why: str) -> None:
        from message_lifecycle.app.remap import RemapRequest

        _, by, why = consent_of(by, why, "a remap")
        self._word = RemapRequest(by=by, why=why)
        self._services = services(ctx)
        TopicName.parse(topic)
        self.found: RemapResult | None = None

    def __call__(self, intake: Intake, name: TopicName, path: str, options: IngestOptions) -> IngestResult:
        from message_lifecycle.app import steps
        from message_lifecycle.app.remap import RemovalOpen, remap

        s = self._services
        self.found = remap(s, intake, name, path, options, self._word)
        if self.found.result is None:
            raise RemovalOpen(self.found)
        if self.found.refused:
            steps.run(s, name, as_of=s.ledger.now(), work="quarantine")
        return self.found.result

    def result_view(self) -> RemapView:
        from message_lifecycle.app.ingest_result import RemapView
        from message_lifecycle.app.views.state import outcome_view

        assert self.found is not None, "the ingest calls it"
        return RemapView(batches=self.found.batches, removal=None if self.found.removal is None else outcome_view(self.found.removal))


def _removal_open(s: Services, found: RemapResult, output: Output) -> int:
    assert found.removal is not None, "a remap without a result has a removal"
    note = "No message was ingested yet. Run the same command again after the removal is published."
    return report_result(s, output, found.removal, after=[Notes([note])], batches=list(found.batches))


def show_result(result: IngestResult, output: Output) -> int:
    """Print the result of an ingest and return the exit status."""
    emit(output, result)
    return WAITS if result.refused_batches else 0


def read(
    ctx: typer.Context,
    topic: TopicArgument,
    start: Annotated[int, typer.Option("--from", metavar="OFFSET", min=0, help="First offset to show, in every partition.")] = 0,
    partition: Annotated[int | None, option("--partition", None, "Only this partition.", min=0)] = None,
    limit: Annotated[int | None, option("--limit", None, "Only the newest so many messages.")] = None,
    since: Annotated[str | None, option("--since", "TIME", "Only messages of this time or later, and of unknown time.")] = None,
    at: Annotated[str | None, option("--at", "TIME", "Show what a reader sees at this time; by default now.")] = None,
    consumer: Annotated[str | None, option("--consumer", None, "Read as this consumer, which still sees what is kept for it.")] = None,
    raw: Annotated[bool, flag("--raw", "Show what is stored, expired or not.")] = False,
    compacted: Annotated[bool, flag("--compacted", "Of what is compacted show each key's latest message alone, then the log.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """Print a topic's messages as a reader sees them.

    With --output json, one object per line.
    """
    from message_lifecycle.app.reading import progress_of
    from message_lifecycle.app.reading import read as messages_of

    if compacted and consumer is not None:
        raise typer.BadParameter("--compacted and --consumer exclude each other")
    earliest = None if since is None else instant(since)
    given = None if at is None else instant(at)
    s, name = find_topic(ctx, topic)
    judged_at = None if raw else s.ledger.now() if given is None else given
    progress = []
    if consumer is not None:
        progress = progress_of(s, name, consumer)
        if not progress:
            raise unknown_consumer(str(name), consumer)
    if partition is not None and partition not in (known := range(s.topics.describe(name).partitions)):
        raise unknown_partition(str(name), partition, known)
    shown = messages_of(
        s, name, at=judged_at, partition=partition, start=start, compacted=compacted, progress=progress, since=earliest, limit=limit
    )
    if output is Output.json:
        for message in shown:
            emit_line(_message_view(message))
    else:
        _print_messages(shown)


def _message_view(message: Message) -> dict[str, object]:
    def exact(time: Instant | None) -> str | None:
        return None if time is None else format_instant(time)

    return {
        "partition": message.partition,
        "offset": message.offset,
        "append_time": exact(message.append_time),
        "event_time": exact(message.event_time),
        "key": text_of(message.key),
        "value": text_of(message.value),
        "headers": [[name, text_of(content)] for name, content in message.headers],
        "segment": message.segment,
    }


def _print_messages(messages: Iterable[Message]) -> None:
    """A line a message; on a terminal cut at its edge."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for message in messages:
        place = f"{message.partition}:{message.offset}"
        line = (
            f"{place:<12} {format_instant(message.append_time):<20} {_text(message.key, '(no key)')} {_text(message.value, '(no value)')}"
        )
        print(line if width is None or len(line) <= width else line[: width - 3] + "...")


def _text(content: bytes | None, nothing: str) -> str:
    return nothing if content is None else safe(content.decode(errors="backslashreplace"))


@consumers.command()
def commit(
    ctx: typer.Context,
    topic: TopicArgument,
    consumer: ConsumerArgument,
    at_position: Annotated[
        str,
        argument(
            "PARTITION:OFFSET",
            "The last message processed (Kafka's committed offset minus one), such as 0:1234. 0:-1 registers a consumer that has read nothing yet.",
        ),
    ],
    at: AtOption = None,
    topic_uuid: Annotated[
        str | None,
        option(
            "--topic-uuid",
            "UUID",
            "The uuid of the topic that was read (`lifecycle topic describe`). Needed if another topic had the name before.",
        ),
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Record how far a consumer has read; its first commit registers it."""
    from message_lifecycle.app.reading import commit_progress

    partition, offset = parse_position(at_position, before_first=True)
    given = None if at is None else instant(at)
    s, name = find_topic(ctx, topic)
    known = s.reader.log(name).end_offsets
    if partition not in known:
        raise unknown_partition(str(name), partition, sorted(known))
    at_time = s.ledger.now() if given is None else given
    done = commit_progress(s, name, consumer, partition, offset, at_time, end_offset=known[partition], topic_uuid=topic_uuid)
    _list_consumers(s, name, output, only=done.consumer)


@consumers.command("list")
def list_consumers(ctx: typer.Context, topic: TopicArgument, output: OutputOption = Output.text) -> None:
    """Show each consumer's progress, and when the consumer falls silent and keeps no messages any more."""
    s = services(ctx)
    _list_consumers(s, TopicName.parse(topic), output)


@consumers.command()
def remove(ctx: typer.Context, topic: TopicArgument, consumer: ConsumerArgument, output: OutputOption = Output.text) -> None:
    """Forget a consumer, or a replica by its `stream/topic`; the topic keeps no message for it any more."""
    s, name = find_topic(ctx, topic)
    s.topics.describe(name)
    removed = {"topic": str(name), "removed": s.ledger.remove(name, consumer)}
    emit(output, removed, f"{removed['topic']}: removed consumer {removed['removed']}. It keeps no messages")


def _list_consumers(s: Services, name: TopicName, output: Output, *, only: str | None = None) -> None:
    from message_lifecycle.app.views.topics import ProgressView, consumers_view

    found = [entry for entry in consumers_view(s, name) if only in (None, entry.consumer)]
    if not found:
        emit(output, found, f"{name} has no consumers")
        return
    rows = [progress for entry in found for progress in entry.partitions]
    emit(output, found, [ProgressView.table.of(rows), "", Notes([entry.keeps for entry in found])])
