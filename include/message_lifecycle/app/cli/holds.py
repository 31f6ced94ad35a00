"""`lifecycle hold`: what must not go, whoever asks, until a person releases it (DEL-8)."""

from __future__ import annotations

from typing import Annotated

import typer

from message_lifecycle.app.cli.context import (
    ByOption,
    OutputOption,
    TextOption,
    TopicArgument,
    argument,
    key_of,
    option,
    read_key,
    services,
)
from message_lifecycle.app.cli.screen import Output, Screen, View, emit, working
from message_lifecycle.model.errors import invalid_hold
from message_lifecycle.model.hold import HeldRange
from message_lifecycle.model.names import TopicName

app = typer.Typer(no_args_is_help=True, help="Legal holds: what they name goes by no rule and by no request, until a person releases them.")
HoldArgument = Annotated[str, argument("HOLD", "The hold's id, or a unique beginning of it.")]
KeysOption = Annotated[bool, typer.Option("--keys", help="Print held keys themselves; otherwise their digests.")]


@app.command()
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
    output: OutputOption = Output.text,
) -> None:
    """Place a legal hold: on the topic, on a key, or on a range of offsets.

    A removal that is being published now is waited for; every one after it leaves alone what the hold names. What is dead is hidden from
    readers all the same, and is not removed.
    """
    from message_lifecycle.app.holds import place_hold
    from message_lifecycle.app.views.values import hold_view

    name = TopicName.parse(topic)
    given = _key(key, from_stdin=key_stdin, is_base64=is_base64, empty_key=empty_key)
    offsets = None if first is None else HeldRange(partition=partition or 0, first=first, last=last)
    if first is None and last is not None:
        raise invalid_hold("to", last, "nothing without --from")
    if first is None and partition is not None:
        raise invalid_hold("partition", partition, "nothing without --from; --from 0 holds all of it")
    with working(f"{name}: waiting for whoever publishes"):
        hold = place_hold(services(ctx), name, by=by, why=text, key=given, offsets=offsets)
    view = hold_view(hold)
    emit(output, view, f"{hold.told}: {_what(view)} of {name} stays from now on")


@app.command()
def release(ctx: typer.Context, hold: HoldArgument, by: ByOption, text: TextOption, output: OutputOption = Output.text) -> None:
    """End a hold: what it kept may go with the next run. Of a held key a digest alone is left in the ledger."""
    from message_lifecycle.app.holds import release_hold
    from message_lifecycle.app.views.values import hold_view

    released = release_hold(services(ctx), hold, by=by, why=text)
    emit(output, hold_view(released), f"hold {released.hold_id} on {released.topic} is released by {by.strip()}")


@app.command("list")
def list_(
    ctx: typer.Context,
    topic: Annotated[str | None, argument("[TOPIC]", "By default all topics.")] = None,
    released: Annotated[bool, typer.Option("--all", help="Those that were released, too.")] = False,
    keys: KeysOption = False,
    output: OutputOption = Output.text,
) -> None:
    """Show the holds that stand: what they keep, whose they are, and why."""
    from message_lifecycle.app.views.values import holds_view

    s = services(ctx)
    name = None if topic is None else TopicName.parse(topic)
    found = holds_view(s, name, released=released, keys=keys)
    if name is not None and not found:
        s.topics.describe(name)  # a deleted topic may be held; one that nobody knows is a mistake
    emit(output, found, _show)


def _key(text: str | None, *, from_stdin: bool, is_base64: bool, empty_key: bool) -> bytes | None:
    if text is not None and from_stdin:
        raise typer.BadParameter("--key and --key-stdin exclude each other")
    if text is None and not from_stdin:
        return None
    if text is None:
        return read_key(is_base64=is_base64, empty_is_a_key=empty_key)
    return key_of(text, is_base64=is_base64, where="--key")


def _show(screen: Screen, found: list[View]) -> None:
    rows = [
        (view["hold_id"], view["topic"], _what(view), view["placed_by"], screen.when(view["placed_at"]), _ended(view), view["why"])
        for view in found
    ]
    screen.table(("hold", "topic", "keeps", "by", "since", "released", "why"), rows, wrap=("keeps", "why"), none="no legal hold stands")


def _what(view: View) -> str:
    match view["holds"]:
        case "key":
            return f"key {view['key']}" if "key" in view else f"a key (digest {view['key_digest'][:12]})"
        case "range":
            end = "on" if view["to"] is None else f"to {view['to']}"
            return f"partition {view['partition']} from {view['from']} {end}"
        case _:
            return "everything"


def _ended(view: View) -> str:
    return "" if view["released_at"] is None else f"{view['released_at']} by {view['released_by']}"
