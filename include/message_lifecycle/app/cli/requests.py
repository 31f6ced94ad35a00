"""`lifecycle message delete` and `lifecycle key purge`: what a person asks to have removed (MRK-2, PRG-1)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from message_lifecycle.app.cli import results
from message_lifecycle.app.cli.context import OutputOption, TopicArgument, position, services
from message_lifecycle.app.cli.exits import of_outcome
from message_lifecycle.app.cli.screen import Output, emit, working
from message_lifecycle.app.cli.verbs import ByOption, TextOption
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import InvalidRequest, PurgeKey, RemoveMessages, RemoveNullKeys, Request, TruncateLog

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services

_PARTITION = "Of the offsets; needed where the topic has more than one."

messages = typer.Typer(no_args_is_help=True, help="Single messages of a topic.")
keys = typer.Typer(no_args_is_help=True, help="All messages of one key.")


@messages.command()
def delete(
    ctx: typer.Context,
    topic: TopicArgument,
    positions: Annotated[
        list[str], typer.Argument(metavar="PARTITION:OFFSET...", help="The messages, such as 0:1234.", show_default=False)
    ],
    by: ByOption,
    text: TextOption,
    output: OutputOption = Output.text,
) -> int:
    """Remove single messages now: planned, gated and recorded like every deletion, with your word as its approval.

    Where the topic makes markers, a key that is left without a message gets one with the reason Remove.
    """
    request = RemoveMessages(positions=tuple(sorted({position(entry) for entry in positions})))
    return _carry_out(ctx, topic, lambda _s, _name: request, by, text, output)


@messages.command("delete-null-keys")
def delete_null_keys(
    ctx: typer.Context,
    topic: TopicArgument,
    by: ByOption,
    text: TextOption,
    first: Annotated[int, typer.Option("--from", metavar="OFFSET", help="From this offset on.", show_default=False)],
    last: Annotated[int, typer.Option("--to", metavar="OFFSET", help="Up to and with it.", show_default=False)],
    partition: Annotated[int | None, typer.Option("--partition", metavar="P", help=_PARTITION, show_default=False)] = None,
    output: OutputOption = Output.text,
) -> int:
    """Remove the messages without a key of a range of offsets now, which no purge of a key reaches."""
    return _carry_out(
        ctx, topic, lambda s, name: RemoveNullKeys(partition=_partition(s, name, partition), first=first, last=last), by, text, output
    )


def truncate(
    ctx: typer.Context,
    topic: TopicArgument,
    by: ByOption,
    text: TextOption,
    before: Annotated[int, typer.Option("--before", metavar="OFFSET", help="The first offset that stays.", show_default=False)],
    partition: Annotated[int | None, typer.Option("--partition", metavar="P", help=_PARTITION, show_default=False)] = None,
    output: OutputOption = Output.text,
) -> int:
    """Remove everything of a partition below an offset now, as Kafka's DeleteRecords.

    Planned, gated and recorded like every deletion, with your word as its approval. Where the topic makes markers, a key that is left without a message gets one with the reason Remove.
    """
    return _carry_out(ctx, topic, lambda s, name: TruncateLog(partition=_partition(s, name, partition), before=before), by, text, output)


def _partition(s: Services, name: TopicName, given: int | None) -> int:
    """Raises InvalidRequest where the topic has several and none is named."""
    if given is not None:
        return given
    partitions = sorted(s.reader.end_offsets(name))
    if len(partitions) != 1:
        raise InvalidRequest(f"topic {name} has {len(partitions)} partitions, each with offsets of its own: name one with --partition")
    return partitions[0]


@keys.command()
def purge(
    ctx: typer.Context,
    topic: TopicArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key: text, or base64 with --base64.", show_default=False)],
    by: ByOption,
    text: TextOption,
    before: Annotated[int | None, typer.Option("--before", metavar="OFFSET", help="Only messages below it.", show_default=False)] = None,
    keep: Annotated[int | None, typer.Option("--keep", metavar="N", help="All but the newest N.", show_default=False)] = None,
    is_base64: Annotated[bool, typer.Option("--base64", help="KEY is base64.")] = False,
    output: OutputOption = Output.text,
) -> int:
    """Remove a key's messages now: planned, gated and recorded like every deletion, with your word as its approval.

    Where the topic makes markers, a key that is left without a message gets one with the reason Purge.
    """
    try:
        content = base64.b64decode(key, validate=True) if is_base64 else key.encode()
    except binascii.Error as error:
        raise typer.BadParameter(f"not base64: {error}", param_hint="KEY") from None
    request = PurgeKey(key=content, before=before, keep=keep)
    return _carry_out(ctx, topic, lambda _s, _name: request, by, text, output)


def _carry_out(ctx: typer.Context, topic: str, asked: Callable[[Services, TopicName], Request], by: str, text: str, output: Output) -> int:
    from message_lifecycle.app import steps
    from message_lifecycle.app.views.outcomes import outcome_view

    if not by.strip() or not text.strip():
        raise typer.BadParameter("a request has a name and a reason: --by NAME --text WHY")
    s, name = services(ctx), TopicName.parse(topic)
    request = asked(s, name)
    word = (True, by.strip(), text.strip())
    with working(f"{name}: plan, stage, gate, publish, verify"):
        outcome = steps.run(s, name, as_of=s.ledger.now(), approver=lambda _plan, _report: word, work=request, requested_by=word[1])
    view = outcome_view(outcome)
    emit(output, view, lambda screen: results.outcome(screen, view))
    return of_outcome(outcome.name)
