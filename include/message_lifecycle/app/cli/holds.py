"""`lifecycle hold`: what must not go, whoever asks, until a person releases it (DEL-8)."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

import typer

from message_lifecycle.app.cli.context import OutputOption, TopicArgument, services
from message_lifecycle.app.cli.key_input import read_key
from message_lifecycle.app.cli.screen import Output, Screen, emit, working
from message_lifecycle.app.cli.verbs import ByOption, TextOption
from message_lifecycle.model.errors import InvalidHold
from message_lifecycle.model.hold import HeldRange
from message_lifecycle.model.names import TopicName

app = typer.Typer(no_args_is_help=True, help="Legal holds: what they name goes by no rule and by no request, until a person releases them.")
HoldArgument = Annotated[str, typer.Argument(metavar="HOLD", help="The hold's id, or a unique beginning of it.", show_default=False)]
KeysOption = Annotated[bool, typer.Option("--keys", help="Print held keys themselves; otherwise their digests.")]


@app.command()
def add(
    ctx: typer.Context,
    topic: TopicArgument,
    by: ByOption,
    text: TextOption,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="All messages of this key; of a topic of documents: this document.", show_default=False),
    ] = None,
    key_stdin: Annotated[
        bool, typer.Option("--key-stdin", help="Read the key from standard input, one line, and never from the command line.")
    ] = False,
    is_base64: Annotated[bool, typer.Option("--base64", help="The key is given as base64.")] = False,
    empty_key: Annotated[bool, typer.Option("--empty-key", help="An empty line is the empty key.")] = False,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="P", help="Of the offsets; by default 0.", show_default=False)
    ] = None,
    first: Annotated[int | None, typer.Option("--from", metavar="OFFSET", help="From this offset on.", show_default=False)] = None,
    last: Annotated[
        int | None, typer.Option("--to", metavar="OFFSET", help="Up to and with it; by default all that come, too.", show_default=False)
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Place a legal hold: on the topic, on a key, or on a range of offsets.

    A removal that is being published now is waited for; every one after it leaves alone what the hold names. What is dead is hidden from
    readers all the same, and is not removed.
    """
    from message_lifecycle.app.holds import place_hold
    from message_lifecycle.app.views.holds import hold_view

    name = TopicName.parse(topic)
    given = _key(key, from_stdin=key_stdin, is_base64=is_base64, empty_key=empty_key)
    offsets = None if first is None else HeldRange(partition=partition or 0, first=first, last=last)
    if first is None and last is not None:
        raise InvalidHold("to", last, "nothing without --from")
    if first is None and partition is not None:
        raise InvalidHold("partition", partition, "nothing without --from; --from 0 holds all of it")
    with working(f"{name}: waiting for whoever publishes"):
        hold = place_hold(services(ctx), name, by=by, why=text, key=given, offsets=offsets)
    emit(output, hold_view(hold), lambda screen: screen.line(f"{hold.told}: {_what(hold_view(hold))} of {name} stays from now on"))


@app.command()
def release(ctx: typer.Context, hold: HoldArgument, by: ByOption, text: TextOption, output: OutputOption = Output.text) -> None:
    """End a hold: what it kept may go with the next run. Of a held key a digest alone is left in the ledger."""
    from message_lifecycle.app.holds import release_hold
    from message_lifecycle.app.views.holds import hold_view

    released = release_hold(services(ctx), hold, by=by, why=text)
    view = hold_view(released)
    emit(output, view, lambda screen: screen.line(f"hold {released.hold_id} on {released.topic} is released by {by.strip()}"))


@app.command("list")
def list_(
    ctx: typer.Context,
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="By default all topics.", show_default=False)] = None,
    released: Annotated[bool, typer.Option("--all", help="Those that were released, too.")] = False,
    keys: KeysOption = False,
    output: OutputOption = Output.text,
) -> None:
    """Show the holds that stand: what they keep, whose they are, and why."""
    from message_lifecycle.app.views.holds import holds_view

    s = services(ctx)
    name = None if topic is None else TopicName.parse(topic)
    found = holds_view(s, name, released=released, keys=keys)
    if name is not None and not found:
        s.topics.describe(name)  # a deleted topic may be held; one that nobody knows is a mistake
    emit(output, found, lambda screen: _show(screen, found))


def _key(text: str | None, *, from_stdin: bool, is_base64: bool, empty_key: bool) -> bytes | None:
    if text is not None and from_stdin:
        raise typer.BadParameter("--key and --key-stdin exclude each other")
    if text is None and not from_stdin:
        return None
    if text is None:
        return read_key(is_base64=is_base64, empty_is_a_key=empty_key)
    try:
        return base64.b64decode(text, validate=True) if is_base64 else text.encode()
    except binascii.Error as error:
        raise typer.BadParameter(f"not base64: {error}", param_hint="--key") from None


def _show(screen: Screen, found: list[dict[str, Any]]) -> None:
    if not found:
        screen.line("no legal hold stands")
        return
    rows = [
        (view["hold_id"], view["topic"], _what(view), view["placed_by"], screen.when(view["placed_at"]), _ended(view), view["why"])
        for view in found
    ]
    screen.table(("hold", "topic", "keeps", "by", "since", "released", "why"), rows, wrap=("keeps", "why"))


def _what(view: dict[str, Any]) -> str:
    match view["holds"]:
        case "key":
            return f"key {view['key']}" if "key" in view else f"a key (digest {view['key_digest'][:12]})"
        case "range":
            end = "on" if view["to"] is None else f"to {view['to']}"
            return f"partition {view['partition']} from {view['from']} {end}"
        case _:
            return "everything"


def _ended(view: dict[str, Any]) -> str:
    return "" if view["released_at"] is None else f"{view['released_at']} by {view['released_by']}"
