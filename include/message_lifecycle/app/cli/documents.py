"""`lifecycle document`: what a client of a document does, what is known of one, and settings of its own (SNP-1 to SNP-9)."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from message_lifecycle.app.cli import document_screen
from message_lifecycle.app.cli.context import OutputOption, TopicArgument, complete_setting_name, instant, pairs, services
from message_lifecycle.app.cli.screen import Output, Screen, emit, emit_long, working
from message_lifecycle.model.names import TopicName, normalise_name
from message_lifecycle.model.settings import Value, parse_topic_settings, topic_changes
from message_lifecycle.sources.files import UnreadableFile

app = typer.Typer(no_args_is_help=True, help="Documents: their changes, snapshots, clients and history.")
DocumentArgument = Annotated[str, typer.Argument(metavar="DOCUMENT", help="The document's name.", show_default=False)]
ClientArgument = Annotated[str, typer.Argument(metavar="CLIENT", help="The client's name.", show_default=False)]
EpochOption = Annotated[
    int | None,
    typer.Option(
        "--epoch", min=0, help="The epoch that the client knows, from its last pull; by default the current one.", show_default=False
    ),
]
_STDIN = "-"


@app.command()
def add(
    ctx: typer.Context,
    topic: TopicArgument,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="A file of JSON lines; by default standard input.")] = _STDIN,
    epoch: EpochOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Add changes, all or none, from JSON lines: document, server_seq, client, payload, and at (the time, if it is known).

    A server_seq is the document's next one: 1, 2, 3 and so on. The payload is what the topic's fold takes.
    """
    from message_lifecycle.app.change_lines import read_changes
    from message_lifecycle.app.documents import add_changes
    from message_lifecycle.app.services import policy_of

    s, name = services(ctx), TopicName.parse(topic)
    fold = policy_of(s, name).fold
    where, lines = _lines(file)
    changes = list(read_changes(lines, where=where, fold=fold or ""))
    with working(f"{name}: adding {len(changes)} changes"):
        newest = add_changes(s, name, changes, epoch=epoch)
    erased = sum(change.document not in newest for change in changes)
    told = {"topic": str(name), "changes": len(changes) - erased, "erased": erased, "newest": newest}
    emit(output, told, lambda screen: document_screen.added(screen, told))


@app.command()
def pull(
    ctx: typer.Context,
    topic: TopicArgument,
    document: DocumentArgument,
    start: Annotated[int, typer.Option("--from", metavar="SEQ", min=0, help="What the client has: every change up to this one.")] = 0,
    client: Annotated[str | None, typer.Option("--client", help="Which client asks.", show_default=False)] = None,
    epoch: EpochOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Show what a client gets: the changes it lacks, or the snapshot and what came after it where it lacks many."""
    from message_lifecycle.app import documents
    from message_lifecycle.app.services import policy_of
    from message_lifecycle.app.views.documents import pulled_view

    s, name = services(ctx), TopicName.parse(topic)
    pulled = documents.pull(s, name, document, client_seq=start, client=client, epoch=epoch, at=s.ledger.now())
    found = pulled_view(pulled, policy_of(s, name).fold)
    emit(output, found, lambda screen: document_screen.pulled(screen, found))


@app.command()
def attach(
    ctx: typer.Context, topic: TopicArgument, document: DocumentArgument, client: ClientArgument, output: OutputOption = Output.text
) -> None:
    """Begin anew as a client: the newest snapshot, if there is one, and what came after it."""
    from message_lifecycle.app import documents
    from message_lifecycle.app.services import policy_of
    from message_lifecycle.app.views.documents import pulled_view

    s, name = services(ctx), TopicName.parse(topic)
    found = pulled_view(documents.attach(s, name, document, client=client), policy_of(s, name).fold)
    emit(output, found, lambda screen: document_screen.pulled(screen, found))


@app.command()
def sync(
    ctx: typer.Context,
    topic: TopicArgument,
    document: DocumentArgument,
    client: ClientArgument,
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=0, help="It has every change up to this one.", show_default=False)],
    epoch: EpochOption = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="When that was; by default the ledger's clock now.", show_default=False)
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Record how far a client has synchronised: from that change on, everything is kept for it."""
    from message_lifecycle.app import documents

    s, name = services(ctx), TopicName.parse(topic)
    given = s.ledger.now() if at is None else instant(at)
    done = documents.sync(s, name, document, client=client, server_seq=seq, at=given, epoch=epoch)
    told = {"topic": str(name), "document": done.document, "client": done.client, "server_seq": done.server_seq, "epoch": done.epoch}
    emit(output, told, lambda screen: document_screen.synced(screen, told))


@app.command()
def detach(
    ctx: typer.Context, topic: TopicArgument, document: DocumentArgument, client: ClientArgument, output: OutputOption = Output.text
) -> None:
    """Take a client off: nothing is kept for it any more."""
    from message_lifecycle.app import documents

    s, name = services(ctx), TopicName.parse(topic)
    was_there = documents.detach(s, name, document, client=client)
    told = {"topic": str(name), "document": normalise_name(document), "client": normalise_name(client), "was_there": was_there}
    said = "keeps nothing any more" if was_there else "kept nothing"
    emit(output, told, lambda screen: screen.line(f"{told['document']}: {told['client']} {said}"))


@app.command()
def history(
    ctx: typer.Context,
    topic: TopicArgument,
    document: DocumentArgument,
    start: Annotated[int, typer.Option("--from", metavar="SEQ", min=0, help="Begin with this change, or the first that is there.")] = 0,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show so many at the most.")] = 1000,
    output: OutputOption = Output.text,
) -> None:
    """Show the document after each of its changes, as far back as they are there."""
    from message_lifecycle.app import documents
    from message_lifecycle.app.views.documents import history_entry_view

    s, name = services(ctx), TopicName.parse(topic)
    entries = map(history_entry_view, documents.history(s, name, document, start=start, limit=limit + 1))
    # Printed as they come: a history of large states is larger than memory. The one past the limit says where to go on.
    shown = islice(entries, limit)

    def following() -> int | None:
        return next((entry["server_seq"] for entry in entries), None)

    if output is Output.json:
        emit_long({"document": normalise_name(document)}, "history", shown, lambda: {"goes_on_from": following()})
    else:
        document_screen.history(Screen(), normalise_name(document), shown, following)


@app.command("describe")
def describe_(
    ctx: typer.Context,
    topic: TopicArgument,
    document: Annotated[
        str | None, typer.Argument(metavar="[DOCUMENT]", help="The document; by default all of the topic.", show_default=False)
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Show what is stored of a document, which clients keep it, and which settings act on it."""
    from message_lifecycle.app import documents
    from message_lifecycle.app.views.documents import document_view, documents_view

    s, name = services(ctx), TopicName.parse(topic)
    if document is None:
        whole = {"topic": str(name), **documents_view(s, name)}
        emit(output, whole, lambda screen: document_screen.documents(screen, whole))
        return
    (described,) = documents.describe(s, name, document)
    found = {"topic": str(name), **document_view(described, s.ledger.now(), settings=True)}
    emit(output, found, lambda screen: document_screen.document(screen, found))


@app.command()
def alter(
    ctx: typer.Context,
    topic: TopicArgument,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="Settings, such as changes_keep_last=100.", show_default=False),
    ] = None,
    user: Annotated[str | None, typer.Option("--user", help="Of all documents that this user owns.", show_default=False)] = None,
    document: Annotated[str | None, typer.Option("--document", help="Of this document.", show_default=False)] = None,
    unset: Annotated[
        list[str],
        typer.Option(
            "--unset",
            metavar="NAME",
            help="Take a value away, so that the wider level's counts; may be repeated.",
            autocompletion=complete_setting_name,
            show_default=False,
        ),
    ] = [],  # noqa: B006 - typer reads it and makes a new list
    owner: Annotated[str | None, typer.Option("--owner", metavar="USER", help="Whose the document is.", show_default=False)] = None,
    no_owner: Annotated[bool, typer.Option("--no-owner", metavar="", help="It is nobody's.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """Set what is to happen to one document, or to all of a user; the narrowest setting wins: document, user, topic, server."""
    from message_lifecycle.app.document_settings import alter_document, alter_user

    if (user is None) is (document is None):
        raise typer.BadParameter("give --user USER or --document DOCUMENT: one of them")
    if user is not None and (owner is not None or no_owner):
        raise typer.BadParameter("--owner and --no-owner are said of a --document")
    if owner is not None and no_owner:
        raise typer.BadParameter("--owner and --no-owner exclude each other")
    changes = _changes(settings or [], unset)
    if not changes and owner is None and not no_owner:
        raise typer.BadParameter("nothing to change: give NAME=VALUE, --unset NAME or --owner USER")
    s, name = services(ctx), TopicName.parse(topic)
    if document is not None:
        alter_document(s, name, document, changes, owner=owner, disown=no_owner)
    elif user is not None:
        alter_user(s, name, user, changes)
    own = s.ledger.own_settings(name)
    level, of = ("user", normalise_name(user)) if user is not None else ("document", normalise_name(document or ""))
    now = (own.users if level == "user" else own.documents).get(of, {})
    told = {"topic": str(name), "level": level, "name": of, "settings": dict(sorted(now.items())), "owner": own.owners.get(of)}
    emit(output, told, lambda screen: document_screen.altered(screen, told))


def _changes(settings: list[str], unset: list[str]) -> dict[str, Value | None]:
    given = parse_topic_settings(pairs(settings, "NAME=VALUE"), where="NAME=VALUE")
    both = sorted(set(given) & set(unset))
    if both:
        raise typer.BadParameter(f"{both[0]!r} is both set and unset", param_hint="--unset")
    return {**given, **topic_changes(dict.fromkeys(unset), where="--unset")}


def _lines(file: str) -> tuple[str, list[bytes]]:
    """Where the lines are from, and they. Raises UnreadableFile."""
    if file == _STDIN:
        return "standard input", sys.stdin.buffer.readlines()
    try:
        return file, Path(file).read_bytes().splitlines()
    except OSError as error:
        raise UnreadableFile(file, error.strerror or str(error)) from error
