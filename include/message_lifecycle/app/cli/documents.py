"""`lifecycle document`: the calls of a document's client, the state of a document, and its own settings (SNP-1 to SNP-9)."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import typer

from message_lifecycle.app.cli.context import find_topic
from message_lifecycle.app.cli.options import (
    AtOption,
    OutputOption,
    TopicArgument,
    argument,
    complete_setting_name,
    flag,
    instant,
    option,
    parse_setting_changes,
)
from message_lifecycle.app.cli.screen import Output, Screen, emit, emit_long, show_progress
from message_lifecycle.app.rendering import Table, as_json
from message_lifecycle.app.wording import ROWS, count
from message_lifecycle.model.names import normalise_name
from message_lifecycle.model.phrases import amount
from message_lifecycle.sources.files import unreadable_file

app = typer.Typer(no_args_is_help=True, help="Documents: their changes, snapshots, clients and history.")
DocumentArgument = Annotated[str, argument("DOCUMENT", "The document's name.")]
ClientArgument = Annotated[str, argument("CLIENT", "The client's name.")]
EpochOption = Annotated[
    int | None,
    option("--epoch", None, "The epoch that the client knows, from its last pull; by default the current one.", min=0),
]
_STDIN = "-"
_NEWEST = Table(columns={"document": lambda one: one[0], "now at": lambda one: count(one[1])}, right=("now at",), most=ROWS)


@app.command()
def add(
    ctx: typer.Context,
    topic: TopicArgument,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="A file of JSON lines; by default standard input.")] = _STDIN,
    epoch: EpochOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Add changes, all or none, from JSON lines: document, server_seq, client, payload, and at (the time, if it is known).

    A server_seq is the document's next one: 1, 2, 3 and so on. The payload is in the format of the topic's fold.
    """
    from message_lifecycle.app.change_lines import read_changes
    from message_lifecycle.app.documents import add_changes
    from message_lifecycle.app.services import policy_of

    s, name = find_topic(ctx, topic)
    fold = policy_of(s, name).fold
    where, lines = _read_lines(file)
    changes = list(read_changes(lines, where=where, fold=fold or ""))
    with show_progress(f"{name}: adding {len(changes)} changes"):
        newest = add_changes(s, name, changes, epoch=epoch)
    erased = sum(change.document not in newest for change in changes)
    answer = {"topic": name, "changes": len(changes) - erased, "erased": erased, "newest": newest}
    left_out = f", rejected {count(erased)} of erased documents" if erased else ""
    emit(output, answer, [f"{name}: added {amount(len(changes) - erased, 'changes')}{left_out}", _NEWEST.of(newest.items())])


@app.command()
def pull(
    ctx: typer.Context,
    topic: TopicArgument,
    document: DocumentArgument,
    start: Annotated[int, typer.Option("--from", metavar="SEQ", min=0, help="What the client has: every change up to this one.")] = 0,
    client: Annotated[str | None, option("--client", None, "Which client asks.")] = None,
    epoch: EpochOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Show the answer to a client: the changes that it lacks, or the snapshot and the later changes if it lacks many."""
    from message_lifecycle.app import documents
    from message_lifecycle.app.services import policy_of
    from message_lifecycle.app.views.documents import pulled_view

    s, name = find_topic(ctx, topic)
    pulled = documents.pull(s, name, document, client_seq=start, client=client, epoch=epoch, at=s.ledger.now())
    emit(output, pulled_view(pulled, policy_of(s, name).fold))


@app.command()
def attach(
    ctx: typer.Context, topic: TopicArgument, document: DocumentArgument, client: ClientArgument, output: OutputOption = Output.text
) -> None:
    """Start again as a client: show the newest snapshot, if there is one, and the later changes."""
    from message_lifecycle.app import documents
    from message_lifecycle.app.services import policy_of
    from message_lifecycle.app.views.documents import pulled_view

    s, name = find_topic(ctx, topic)
    emit(output, pulled_view(documents.attach(s, name, document, client=client), policy_of(s, name).fold))


@app.command()
def sync(
    ctx: typer.Context,
    topic: TopicArgument,
    document: DocumentArgument,
    client: ClientArgument,
    seq: Annotated[int, argument("SEQ", "It has every change up to this one.", min=0)],
    epoch: EpochOption = None,
    at: AtOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Record how far a client has synchronised; the topic keeps every change from there on for the client."""
    from message_lifecycle.app import documents

    s, name = find_topic(ctx, topic)
    given = s.ledger.now() if at is None else instant(at)
    done = documents.sync(s, name, document, client=client, server_seq=seq, at=given, epoch=epoch)
    has = f"has all changes up to {count(done.server_seq)} of epoch {done.epoch}. The topic keeps changes from {count(done.server_seq)} on"
    answer = has if done.server_seq else "has no change yet, so the topic keeps none for it"
    emit(output, {"topic": name, **as_json(done)}, f"{done.document}: {done.client} {answer}")


@app.command()
def detach(
    ctx: typer.Context, topic: TopicArgument, document: DocumentArgument, client: ClientArgument, output: OutputOption = Output.text
) -> None:
    """Remove a client; the topic keeps no change for it any more."""
    from message_lifecycle.app import documents

    s, name = find_topic(ctx, topic)
    kept = normalise_name(document)
    who = normalise_name(client)
    was_there = documents.detach(s, name, kept, client=who)
    answer = {"topic": name, "document": kept, "client": who, "was_there": was_there}
    emit(output, answer, f"{kept}: {who} {'is removed, and keeps no changes' if was_there else 'was not attached'}")


@app.command()
def history(
    ctx: typer.Context,
    topic: TopicArgument,
    document: DocumentArgument,
    start: Annotated[int, typer.Option("--from", metavar="SEQ", min=0, help="Begin with this change, or the first that is there.")] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show so many at the most.")] = 1000,
    output: OutputOption = Output.text,
) -> None:
    """Show the document after each of its changes, as far back as the stored changes allow."""
    from message_lifecycle.app import documents
    from message_lifecycle.app.views.documents import StateView, history_blocks, not_shown_view

    s, name = find_topic(ctx, topic)
    kept = normalise_name(document)
    (described,) = documents.describe(s, name, kept)
    hidden = not_shown_view(described.state, start)
    entries = iter(documents.history(s, name, kept, start=start, limit=limit + 1))
    # Print states as they come, because a history of large states is larger than memory. The state after the limit gives the next start.
    shown = islice(entries, limit)

    def following() -> int | None:
        return next((seq for seq, _ in entries), None)

    if output is Output.json:
        states = (StateView(server_seq=seq, state=state) for seq, state in shown)
        emit_long({"document": kept, "not_shown": hidden}, "history", states, lambda: {"goes_on_from": following()})
    else:
        Screen().draw(history_blocks(kept, shown, following, hidden))


@app.command("describe")
def describe_document(
    ctx: typer.Context,
    topic: TopicArgument,
    document: Annotated[str | None, argument("[DOCUMENT]", "The document; by default all of the topic.")] = None,
    output: OutputOption = Output.text,
) -> None:
    """Show a document: its stored changes and snapshots, the clients that keep changes, and the effective settings."""
    from message_lifecycle.app import documents
    from message_lifecycle.app.views.documents import described_view, documents_view

    s, name = find_topic(ctx, topic)
    if document is None:
        emit(output, documents_view(s, name))
        return
    (described,) = documents.describe(s, name, document)
    emit(output, described_view(name, described, s.ledger.now()))


@app.command()
def alter(
    ctx: typer.Context,
    topic: TopicArgument,
    settings: Annotated[list[str] | None, argument("[NAME=VALUE]...", "Settings, such as changes_keep_last=100.")] = None,
    user: Annotated[str | None, option("--user", None, "Of all documents that this user owns.")] = None,
    document: Annotated[str | None, option("--document", None, "Of this document.")] = None,
    unset: Annotated[
        list[str],
        option(
            "--unset", "NAME", "Take a value away, so that the wider level's counts; may be repeated.", autocompletion=complete_setting_name
        ),
    ] = [],  # noqa: B006 - typer reads it and makes a new list
    owner: Annotated[str | None, option("--owner", "USER", "Whose the document is.")] = None,
    no_owner: Annotated[bool, flag("--no-owner", "It is nobody's.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """Change settings of one document, or of all documents of a user; the narrowest wins: document, user, topic, server."""
    from message_lifecycle.app.documents import alter_document, alter_user
    from message_lifecycle.app.views.documents import AlteredView

    if (user is None) is (document is None):
        raise typer.BadParameter("give either --user USER, or --document DOCUMENT")
    if user is not None and (owner is not None or no_owner):
        raise typer.BadParameter("--owner and --no-owner need --document")
    if owner is not None and no_owner:
        raise typer.BadParameter("--owner and --no-owner exclude each other")
    changes = parse_setting_changes(settings or [], unset, "NAME=VALUE")
    if not changes and owner is None and not no_owner:
        raise typer.BadParameter("no change given. Give NAME=VALUE, --unset NAME or --owner USER")
    s, name = find_topic(ctx, topic)
    if user is not None:
        of = alter_user(s, name, user, changes)
    else:
        of = alter_document(s, name, document or "", changes, owner=owner, disown=no_owner)
    own = s.ledger.settings_below_topic(name)
    level: Literal["user", "document"] = "document" if user is None else "user"
    settings_now = dict(sorted((own.documents if user is None else own.users).get(of, {}).items()))
    emit(output, AlteredView(topic=name, level=level, name=of, settings=settings_now, owner=own.owners.get(of)))


def _read_lines(file: str) -> tuple[str, list[bytes]]:
    """Return the name of the source and its lines. Raises UnreadableFile."""
    if file == _STDIN:
        return "standard input", sys.stdin.buffer.readlines()
    try:
        return file, Path(file).read_bytes().splitlines()
    except OSError as error:
        raise unreadable_file(file, error.strerror or str(error)) from error
