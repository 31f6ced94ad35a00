"""`lifecycle consumer`: who still reads a topic, and until when unread messages are kept for them (EXP-6)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from message_lifecycle.app.cli.context import OutputOption, TopicArgument, instant, position, services
from message_lifecycle.app.cli.screen import Output, Screen, emit
from message_lifecycle.app.cli.words import count, span
from message_lifecycle.model.errors import UnknownPartition
from message_lifecycle.model.names import TopicName, normalise_name, reader_name

app = typer.Typer(no_args_is_help=True, help="Register readers: messages that a reader has not processed are kept for it.")
ConsumerArgument = Annotated[str, typer.Argument(metavar="CONSUMER", help="The consumer's name.", show_default=False)]


@app.command()
def commit(
    ctx: typer.Context,
    topic: TopicArgument,
    consumer: ConsumerArgument,
    at_position: Annotated[
        str,
        typer.Argument(
            metavar="PARTITION:OFFSET",
            help="The last message processed (Kafka's committed offset minus one), such as 0:1234.",
            show_default=False,
        ),
    ],
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="When that was; by default the ledger's clock now.", show_default=False),
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Record how far a consumer has read; its first commit registers it."""
    name = TopicName.parse(topic)
    partition, offset = position(at_position)
    given = None if at is None else instant(at)
    s = services(ctx)
    s.topics.describe(name)
    ends = s.reader.log(name).end_offsets
    if partition not in ends:
        raise UnknownPartition(str(name), partition, sorted(ends))
    s.ledger.commit(name, consumer, partition, offset, s.ledger.now() if given is None else given, end_offset=ends[partition])
    _list(ctx, name, output, only=normalise_name(consumer))


@app.command("list")
def list_(ctx: typer.Context, topic: TopicArgument, output: OutputOption = Output.text) -> None:
    """Show each consumer's progress, and when it falls silent and keeps nothing any more."""
    _list(ctx, TopicName.parse(topic), output)


@app.command()
def remove(ctx: typer.Context, topic: TopicArgument, consumer: ConsumerArgument, output: OutputOption = Output.text) -> None:
    """Forget a consumer, or a replica by its `stream/topic`: no message is kept for it any more."""
    name = TopicName.parse(topic)
    s = services(ctx)
    s.topics.describe(name)
    s.ledger.remove(name, consumer)
    removed = {"topic": str(name), "removed": reader_name(consumer)}
    emit(output, removed, lambda screen: screen.line(f"{removed['topic']}: consumer {removed['removed']} keeps nothing any more"))


def _list(ctx: typer.Context, name: TopicName, output: Output, *, only: str | None = None) -> None:
    from message_lifecycle.app.views.topics import consumers_view

    found = [entry for entry in consumers_view(services(ctx), name) if only in (None, entry["consumer"])]
    emit(output, found, lambda screen: _show(screen, name, found))


def _show(screen: Screen, name: TopicName, found: list[dict[str, Any]]) -> None:
    if not found:
        screen.line(f"{name} has no consumers: nothing is kept for a reader")
        return
    rows = [
        (
            f"{entry['consumer']} (replica)" if entry["replica"] else entry["consumer"],
            str(p["partition"]),
            "nothing yet" if p["offset"] is None else str(p["offset"]),
            count(p["lag"]),
            screen.when(p["at"]),
        )
        for entry in found
        for p in entry["partitions"]
    ]
    screen.table(
        ("consumer", "partition", "processed", "behind", "last commit"),
        rows,
        right=("partition", "processed", "behind"),
        wrap=("consumer",),
    )
    screen.line()
    screen.notes(_keeps(entry) for entry in found)


def _keeps(entry: dict[str, Any]) -> str:
    if entry["replica"]:
        return f"{entry['consumer']} is a replica: it keeps what it has not copied, from every rule of age, and never falls silent"
    unread, without = "keeps what it has not processed", f"{span(entry['consumer_expiry'])} (consumer_expiry) without a commit"
    if not entry["pins"]:
        return f"{entry['consumer']} fell silent at {entry['falls_silent_at']}, after {without}: it keeps nothing any more"
    if entry["falls_silent_at"] is None:
        return f"{entry['consumer']} {unread}; the time of a commit is not known, so it never falls silent"
    return f"{entry['consumer']} {unread}, and falls silent at {entry['falls_silent_at']}: after {without}"
