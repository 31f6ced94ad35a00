"""`lifecycle ingest`: bring files into a topic."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from message_lifecycle.app.cli.context import OutputOption, TopicArgument
from message_lifecycle.app.cli.screen import Output, Screen, emit, working
from message_lifecycle.app.cli.words import count, ends
from message_lifecycle.model.names import TopicName

_UNITS = "iso (text), or a number: s, ms, us, ns"


def _field(option: str, what: str) -> Any:
    return typer.Option(option, metavar="FIELD", help=what, show_default=False)


def ingest(
    topic: TopicArgument,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A folder of files, or one file.", show_default=False)],
    key: Annotated[str | None, _field("--key-field", "The field that is the message's key; without it messages have none.")] = None,
    value: Annotated[
        str | None, _field("--value-field", "The field that is the message's value; by default the whole record as JSON.")
    ] = None,
    append_time: Annotated[
        str | None, _field("--time-field", "The field with the time that ages are measured on; unknown times never expire.")
    ] = None,
    append_time_unit: Annotated[str, typer.Option("--time-unit", metavar="UNIT", help=f"How it is written: {_UNITS}.")] = "iso",
    event_time: Annotated[str | None, _field("--event-time-field", "The field with the time of the event itself.")] = None,
    event_time_unit: Annotated[str, typer.Option("--event-time-unit", metavar="UNIT", help=f"How it is written: {_UNITS}.")] = "iso",
    headers: Annotated[str | None, _field("--headers-field", "The field with the message's headers.")] = None,
    partition: Annotated[
        str | None, _field("--partition-field", "The field with the partition's number; by default the key chooses it.")
    ] = None,
    delimiter: Annotated[str, typer.Option("--delimiter", metavar="CHAR", help="What separates the fields of CSV files.")] = ",",
    shift_to: Annotated[
        str | None,
        typer.Option(
            "--shift-to",
            metavar="DAY",
            help="Move all times by whole days so that the newest falls on this day, as 2026-11-21; kept for later files.",
            show_default=False,
        ),
    ] = None,
    allow_implausible_times: Annotated[
        bool,
        typer.Option("--allow-implausible-times", metavar="", help="Take times far from now, which mostly mean a wrong unit."),
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Bring a folder of JSON lines, CSV or Parquet files into a topic, each file exactly once."""
    from message_lifecycle.app.ingest import ingest as take

    name = TopicName.parse(topic)
    with working(f"{name}: reading {path}"):
        result = take(
            topic,
            path,
            key=key,
            value=value,
            append_time=append_time,
            append_time_unit=append_time_unit,
            event_time=event_time,
            event_time_unit=event_time_unit,
            headers=headers,
            partition=partition,
            delimiter=delimiter,
            shift_to=shift_to,
            allow_implausible_times=allow_implausible_times,
        )
    told = {
        "topic": str(result.topic),
        "batch_ids": list(result.batch_ids),
        "files": list(result.files),
        "files_before": result.files_before,
        "messages": result.rows,
        "quarantined": dict(result.quarantined),
        "erased": result.erased,
        "end_offsets": {str(partition): end for partition, end in sorted(result.end_offsets.items())},
        "segments": result.segments,
        "unknown_times": result.unknown_times,
        "shift_days": result.shift_days,
    }
    emit(output, told, lambda screen: _show(screen, told))


def _show(screen: Screen, told: dict[str, Any]) -> None:
    if not told["files"]:
        screen.line(f"{told['topic']}: nothing new, {count(told['files_before'])} files were taken before")
        return
    screen.line(f"{told['topic']}: {count(told['messages'])} messages out of {count(len(told['files']))} files", style="green")
    refused = ", ".join(f"{count(number)} by {code}" for code, number in told["quarantined"].items())
    screen.facts(
        [
            ("segments", count(told["segments"])),
            ("end offsets", ends(told["end_offsets"])),
            ("quarantined", refused),
            ("erased", f"{count(told['erased'])} messages of keys that may not come in, not taken" if told["erased"] else ""),
            ("unknown times", f"{count(told['unknown_times'])} messages, which never expire" if told["unknown_times"] else ""),
            ("shifted by", f"{told['shift_days']} days" if told["shift_days"] else ""),
        ]
    )
