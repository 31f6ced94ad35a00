"""Commands for a person's requests: `lifecycle message`, `key`, `topic truncate` (MRK-2, PRG-1); `undo` (DEL-7); `hold` (DEL-8)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated

import typer

from message_lifecycle.app.cli.context import DIFFERENT, find_topic, report_result, services
from message_lifecycle.app.cli.options import (
    IN_VALUES,
    ByOption,
    OutputOption,
    PlanArgument,
    TextOption,
    TopicArgument,
    argument,
    consent_of,
    key_of,
    option,
    parse_position,
    read_key,
)
from message_lifecycle.app.cli.screen import Output, emit, show_progress
from message_lifecycle.app.rendering import Block
from message_lifecycle.model.errors import invalid_hold
from message_lifecycle.model.hold import HeldRange
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.phrases import amount, short
from message_lifecycle.model.request import (
    PurgeKey,
    RemoveMessages,
    RemoveNullKeys,
    RemoveRanges,
    Request,
    TruncateLog,
    UndoPlan,
    invalid_request,
)
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
    by: ByOption,
    text: TextOption,
    positions: Annotated[list[str] | None, argument("[PARTITION:OFFSET...]", "The messages, such as 0:1234.")] = None,
    batch: Annotated[str | None, option("--batch", "BATCH", "In place of them: all messages that this batch of an ingest brought.")] = None,
    output: OutputOption = Output.text,
) -> int:
    """Remove single messages now: planned, gated and recorded like every deletion, with your --by and --why as its approval.

    If the topic makes markers, a key without a remaining message gets a marker with the reason Remove.
    """
    if (batch is None) == (not positions):
        raise typer.BadParameter("give either messages as PARTITION:OFFSET, or --batch BATCH")
    if batch is not None:
        return _carry_out(ctx, topic, lambda s, name: _ranges_of_batch(s, name, batch), by, text, output)
    request = RemoveMessages(positions=tuple(sorted({parse_position(entry) for entry in positions or ()})))
    return _carry_out(ctx, topic, lambda _s, _name: request, by, text, output)


def _ranges_of_batch(s: Services, name: TopicName, batch_id: str) -> RemoveRanges:
    """Raises UnknownBatch, and InvalidRequest where the batch brought no message, or its offsets are not known."""
    found = s.ledger.taken_batch(name, batch_id)
    if not found.ranges:
        what = "its messages are unknown" if found.ranges is None else "it has no messages"
        raise invalid_request(f"batch {batch_id} of topic {name}: {what}. Name messages as PARTITION:OFFSET")
    return RemoveRanges(ranges=found.ranges)


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
    """Remove the messages without a key in a range of offsets now; no purge of a key reaches them."""
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
    """Remove every message of a partition below an offset now, like Kafka's DeleteRecords.

    Planned, gated and recorded like every deletion, with your --by and --why as its approval. If the topic makes markers, a key without a remaining message gets a marker with the reason Remove.
    """
    return _carry_out(ctx, topic, lambda s, name: TruncateLog(partition=_partition(s, name, partition), before=before), by, text, output)


def _partition(s: Services, name: TopicName, given: int | None) -> int:
    """Raises InvalidRequest where the topic has several and none is named."""
    if given is not None:
        return given
    partitions = sorted(s.reader.end_offsets(name))
    if len(partitions) != 1:
        raise invalid_request(f"topic {name} has {len(partitions)} partitions. Name one with --partition")
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
    in_values: Annotated[bool, IN_VALUES] = False,
    output: OutputOption = Output.text,
) -> int:
    """Remove a key's messages now: planned, gated and recorded like every deletion, with your --by and --why as its approval.

    If the topic makes markers, a key without a remaining message gets a marker with the reason Purge.
    """
    request = PurgeKey(key=key_of(key, is_base64=is_base64, where="KEY"), before=before, keep=keep)
    return _carry_out(ctx, topic, lambda _s, _name: request, by, text, output, sought=(request.key,) if in_values else ())


def undo(
    ctx: typer.Context,
    plan: PlanArgument,
    by: ByOption,
    text: TextOption,
    release: Annotated[bool, typer.Option("--release", help="Of a plan that was undone: the rules may take its messages again.")] = False,
    output: OutputOption = Output.text,
) -> int:
    """Bring back what a published plan removed, while the topic's undo_window lasts.

    Planned, gated and published like a deletion, with your --by and --why as its approval. Messages that arrived since stay. Rules do not remove the messages that came back, until you say --release or request their removal by name.
    """
    word = consent_of(by, text, "an undo")
    s = services(ctx)
    if release:
        return _release(s, plan, word[1], word[2], output)
    taken_back = s.ledger.record(plan).plan
    return _run(s, taken_back.topic, UndoPlan(plan_id=taken_back.plan_id), word, output, taken_back.things)


def _release(s: Services, plan: str, by: str, text: str, output: Output) -> int:
    from message_lifecycle.app.operations.undo import release

    released = release(s, plan, by=by, text=text)
    answer: dict[str, object] = {
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
    emit(
        output, answer, f"Released the messages of plan {short(released.plan_id)}. The next run of {released.topic} may remove them again."
    )
    return 0


def _carry_out(
    ctx: typer.Context,
    topic: str,
    asked: Callable[[Services, TopicName], Request],
    by: str,
    text: str,
    output: Output,
    *,
    sought: Collection[bytes] = (),
) -> int:
    word = consent_of(by, text)
    s, name = find_topic(ctx, topic)
    return _run(s, name, asked(s, name), word, output, sought=sought)


def _run(
    s: Services,
    name: TopicName,
    request: Request | UndoPlan,
    word: tuple[bool, str, str],
    output: Output,
    things: str = "messages",
    *,
    sought: Collection[bytes] = (),
) -> int:
    """Make all steps of the request and print the result. Afterwards, search values for the keys `sought`, if given."""
    from message_lifecycle.app import steps
    from message_lifecycle.app.in_values import check_searchable, find_in_values
    from message_lifecycle.app.views.erasures import in_values_blocks

    if sought:
        check_searchable(sought)
    with show_progress(f"{name}: plan, stage, gate, publish, verify"):
        outcome = steps.run(s, name, as_of=s.ledger.now(), approver=lambda _plan, _report: word, work=request, requested_by=word[1])
    if not sought:
        return report_result(s, output, outcome, things)
    with show_progress(f"{name}: searching values"):
        found = find_in_values(s, sought, [name])
    return report_result(s, output, outcome, things, after=list(in_values_blocks(found)), in_values=found)


# `lifecycle hold`: a hold keeps its messages from every removal, until a person releases the hold (DEL-8).


hold_commands = typer.Typer(
    no_args_is_help=True, help="Legal holds: what they name goes by no rule and by no request, until a person releases them."
)
HoldArgument = Annotated[str, argument("HOLD", "The hold's id, or a unique beginning of it.")]
KeysOption = Annotated[bool, typer.Option("--keys", help="Print held keys themselves; otherwise their digests.")]


@hold_commands.command()
def add(
    ctx: typer.Context,
    topic: TopicArgument,
    by: ByOption,
    text: TextOption,
    key: Annotated[str | None, option("--key", "KEY", "All messages of this key; of a topic of documents: this document.")] = None,
    key_stdin: Annotated[
        bool, typer.Option("--key-stdin", help="Read the key from standard input, one line, and never from the command line.")
    ] = False,
    is_base64: Annotated[bool, typer.Option("--base64", help="The key is given as base64.")] = False,
    empty_key: Annotated[bool, typer.Option("--empty-key", help="An empty line is the empty key.")] = False,
    partition: Annotated[int | None, option("--partition", "P", "Of the offsets; by default 0.")] = None,
    first: Annotated[int | None, option("--from", "OFFSET", "From this offset on.")] = None,
    last: Annotated[int | None, option("--to", "OFFSET", "Up to and with it; by default all that come, too.")] = None,
    in_advance: Annotated[
        bool, typer.Option("--in-advance", help="The hold is for messages to come: covering none now is no error.")
    ] = False,
    output: OutputOption = Output.text,
) -> int:
    """Place a legal hold: on the topic, on a key, or on a range of offsets.

    A hold that covers no message now is placed, too. The exit status is then 1 without --in-advance.

    The command waits for a removal that is being published now; every later removal keeps the held messages. Readers still do not see a
    held message that is dead, but it is not removed.
    """
    from message_lifecycle.app.holds import place_hold
    from message_lifecycle.app.sparing import messages_held
    from message_lifecycle.app.views.state import hold_view

    given = _key(key, from_stdin=key_stdin, is_base64=is_base64, empty_key=empty_key)
    offsets = None if first is None else HeldRange(partition=partition or 0, first=first, last=last)
    if first is None and last is not None:
        raise invalid_hold("to", last, "nothing without --from")
    if first is None and partition is not None:
        raise invalid_hold("partition", partition, "nothing without --from; --from 0 holds all of it")
    s, name = find_topic(ctx, topic)
    with show_progress(f"{name}: waiting for a running publish"):
        hold = place_hold(s, name, by=by, why=text, key=given, offsets=offsets)
    covered = messages_held(s, hold)
    view = hold_view(hold, covers=covered)
    facts = {"hold": hold.hold_id, "topic": str(name), "keeps": view.what, "by": hold.placed_by, "why": hold.why}
    now = "" if covered is None else amount(covered, "messages")
    shown: list[Block] = ["Hold placed", {**facts, "covers now": now}]
    if covered == 0 and not in_advance:
        release = f"lifecycle hold release {short(hold.hold_id)} --by NAME --why WHY"
        emit(output, view, [*shown, f"It covers no message. Check it, or release it: {release}"])
        return DIFFERENT
    emit(output, view, shown)
    return 0


@hold_commands.command()
def release(ctx: typer.Context, hold: HoldArgument, by: ByOption, text: TextOption, output: OutputOption = Output.text) -> None:
    """End a hold; the next run may remove its messages. The ledger keeps only a digest of a held key."""
    from message_lifecycle.app.holds import release_hold
    from message_lifecycle.app.views.state import hold_view

    released = release_hold(services(ctx), hold, by=by, why=text)
    emit(output, hold_view(released), f"Released hold {short(released.hold_id)} on {released.topic}. The next run may remove its messages.")


@hold_commands.command("list")
def list_(
    ctx: typer.Context,
    topic: Annotated[str | None, argument("[TOPIC]", "By default all topics.")] = None,
    released: Annotated[bool, typer.Option("--all", help="Those that were released, too.")] = False,
    keys: KeysOption = False,
    output: OutputOption = Output.text,
) -> None:
    """Show the active holds: what they keep, who placed them, and why."""
    from message_lifecycle.app.views.state import HoldView, holds_view

    s = services(ctx)
    name = None if topic is None else TopicName.parse(topic)
    found = holds_view(s, name, released=released, keys=keys)
    if name is not None and not found:
        s.topics.describe(name)  # a deleted topic may have holds; an unknown name is a mistake
    emit(output, found, HoldView.table)


def _key(text: str | None, *, from_stdin: bool, is_base64: bool, empty_key: bool) -> bytes | None:
    if text is not None and from_stdin:
        raise typer.BadParameter("--key and --key-stdin exclude each other")
    if text is None and not from_stdin:
        return None
    if text is None:
        return read_key(is_base64=is_base64, empty_is_a_key=empty_key)
    return key_of(text, is_base64=is_base64, where="--key")
