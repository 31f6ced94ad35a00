"""What a person asks for by name: `lifecycle message`, `key`, `topic truncate` (MRK-2, PRG-1), and `undo`, which takes a published plan back or
lets what came back go again (DEL-7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from message_lifecycle.app.cli import drawing
from message_lifecycle.app.cli.context import (
    ByOption,
    OutputOption,
    PlanArgument,
    TextOption,
    TopicArgument,
    argument,
    key_of,
    option,
    position,
    services,
    word_of,
)
from message_lifecycle.app.cli.screen import Output, emit, working
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.request import PurgeKey, RemoveMessages, RemoveNullKeys, Request, TruncateLog, UndoPlan, invalid_request
from message_lifecycle.model.undo import QUARANTINE

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services

PartitionOption = Annotated[int | None, option("--partition", "P", "Of the offsets; needed where the topic has more than one.")]

messages = typer.Typer(no_args_is_help=True, help="Single messages of a topic.")
keys = typer.Typer(no_args_is_help=True, help="All messages of one key.")


@messages.command()
def delete(
    ctx: typer.Context,
    topic: TopicArgument,
    positions: Annotated[list[str], argument("PARTITION:OFFSET...", "The messages, such as 0:1234.")],
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
    first: Annotated[int, option("--from", "OFFSET", "From this offset on.")],
    last: Annotated[int, option("--to", "OFFSET", "Up to and with it.")],
    partition: PartitionOption = None,
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
    before: Annotated[int, option("--before", "OFFSET", "The first offset that stays.")],
    partition: PartitionOption = None,
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
        raise invalid_request(f"topic {name} has {len(partitions)} partitions, each with offsets of its own: name one with --partition")
    return partitions[0]


@keys.command()
def purge(
    ctx: typer.Context,
    topic: TopicArgument,
    key: Annotated[str, argument("KEY", "The key: text, or base64 with --base64.")],
    by: ByOption,
    text: TextOption,
    before: Annotated[int | None, option("--before", "OFFSET", "Only messages below it.")] = None,
    keep: Annotated[int | None, option("--keep", "N", "All but the newest N.")] = None,
    is_base64: Annotated[bool, typer.Option("--base64", help="KEY is base64.")] = False,
    output: OutputOption = Output.text,
) -> int:
    """Remove a key's messages now: planned, gated and recorded like every deletion, with your word as its approval.

    Where the topic makes markers, a key that is left without a message gets one with the reason Purge.
    """
    request = PurgeKey(key=key_of(key, is_base64=is_base64, where="KEY"), before=before, keep=keep)
    return _carry_out(ctx, topic, lambda _s, _name: request, by, text, output)


def undo(
    ctx: typer.Context,
    plan: PlanArgument,
    by: ByOption,
    text: TextOption,
    release: Annotated[bool, typer.Option("--release", help="Of a plan that was undone: the rules may take its messages again.")] = False,
    output: OutputOption = Output.text,
) -> int:
    """Bring back what a published plan removed, while the topic's undo_window lasts.

    Planned, gated and published like a deletion, with your word as its approval. What came since stays. Rules leave alone what came back, until you say --release or ask for its removal by name.
    """
    word = word_of(by, text, "an undo")
    s = services(ctx)
    if release:
        return _release(s, plan, word[1], word[2], output)
    taken_back = s.ledger.record(plan).plan
    return _run(s, taken_back.topic, UndoPlan(plan_id=taken_back.plan_id), word, output, taken_back.things)


def _release(s: Services, plan: str, by: str, text: str, output: Output) -> int:
    from message_lifecycle.app.operations.undo import release

    released = release(s, plan, by=by, text=text)
    told: dict[str, Any] = {
        "plan_id": released.plan_id,
        "topic": str(released.topic),
        "undone_by": released.undone_by,
        "undone_at": format_instant(released.undone_at),
        "messages_in": [{"partition": of, "from": first, "to": last} for of, first, last in released.ranges if of != QUARANTINE],
        "refused_in": [
            {"from": format_instant(Instant(first)), "to": format_instant(Instant(last))}
            for of, first, last in released.ranges
            if of == QUARANTINE
        ],
        "released_at": format_instant(released.released_at),
        "released_by": released.released_by,
        "text": released.text,
    }
    said = f"what came back of plan {released.plan_id} was released by {released.released_by} at {told['released_at']}"
    emit(output, told, f"{said}. The next run of {released.topic} may take it again")
    return 0


def _carry_out(ctx: typer.Context, topic: str, asked: Callable[[Services, TopicName], Request], by: str, text: str, output: Output) -> int:
    word = word_of(by, text)
    s, name = services(ctx), TopicName.parse(topic)
    return _run(s, name, asked(s, name), word, output)


def _run(
    s: Services, name: TopicName, request: Request | UndoPlan, word: tuple[bool, str, str], output: Output, things: str = "messages"
) -> int:
    from message_lifecycle.app import steps

    with working(f"{name}: plan, stage, gate, publish, verify"):
        outcome = steps.run(s, name, as_of=s.ledger.now(), approver=lambda _plan, _report: word, work=request, requested_by=word[1])
    return drawing.ended(output, outcome, things)
