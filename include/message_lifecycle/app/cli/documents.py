"""`lifecycle document`: what a client of a document does, what is known of one, and settings of its own (SNP-1 to SNP-9)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from message_lifecycle.app.cli.context import (
    AtOption,
    OutputOption,
    TopicArgument,
    argument,
    changes_of,
    complete_setting_name,
    flag,
    instant,
    option,
    services,
    topic_of,
)
from message_lifecycle.app.cli.screen import Output, Screen, emit, emit_long, working
from message_lifecycle.app.rendering import ROWS, Document, count, said
from message_lifecycle.model.names import composed
from message_lifecycle.model.settings import BY_NAME
from message_lifecycle.sources.files import unreadable_file

app = typer.Typer(no_args_is_help=True, help="Documents: their changes, snapshots, clients and history.")
DocumentArgument = Annotated[str, argument("DOCUMENT", "The document's name.")]
ClientArgument = Annotated[str, argument("CLIENT", "The client's name.")]
EpochOption = Annotated[
    int | None,
    option("--epoch", None, "The epoch that the client knows, from its last pull; by default the current one.", min=0),
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

    s = services(ctx)
    name = topic_of(s, topic)
    fold = policy_of(s, name).fold
    where, lines = _lines(file)
    changes = list(read_changes(lines, where=where, fold=fold or ""))
    with working(f"{name}: adding {len(changes)} changes"):
        newest = add_changes(s, name, changes, epoch=epoch)
    taken = set(map(composed, newest))
    erased = sum(composed(change.document) not in taken for change in changes)
    told = {"topic": str(name), "changes": len(changes) - erased, "erased": erased, "newest": newest}
    emit(output, told, _show_added)


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
    """Show what a client gets: the changes it lacks, or the snapshot and what came after it where it lacks many."""
    from message_lifecycle.app import documents
    from message_lifecycle.app.services import policy_of
    from message_lifecycle.app.views.topics import pulled_view

    s = services(ctx)
    name = topic_of(s, topic)
    pulled = documents.pull(s, name, document, client_seq=start, client=client, epoch=epoch, at=s.ledger.now())
    found = pulled_view(pulled, policy_of(s, name).fold)
    emit(output, found, _show_pulled)


@app.command()
def attach(
    ctx: typer.Context, topic: TopicArgument, document: DocumentArgument, client: ClientArgument, output: OutputOption = Output.text
) -> None:
    """Begin anew as a client: the newest snapshot, if there is one, and what came after it."""
    from message_lifecycle.app import documents
    from message_lifecycle.app.services import policy_of
    from message_lifecycle.app.views.topics import pulled_view

    s = services(ctx)
    name = topic_of(s, topic)
    found = pulled_view(documents.attach(s, name, document, client=client), policy_of(s, name).fold)
    emit(output, found, _show_pulled)


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
    """Record how far a client has synchronised: from that change on, everything is kept for it."""
    from message_lifecycle.app import documents

    s = services(ctx)
    name = topic_of(s, topic)
    given = s.ledger.now() if at is None else instant(at)
    done = documents.sync(s, name, document, client=client, server_seq=seq, at=given, epoch=epoch)
    told = {"topic": str(name), "document": done.document, "client": done.client, "server_seq": done.server_seq, "epoch": done.epoch}
    emit(output, told, _show_synced)


@app.command()
def detach(
    ctx: typer.Context, topic: TopicArgument, document: DocumentArgument, client: ClientArgument, output: OutputOption = Output.text
) -> None:
    """Take a client off: nothing is kept for it any more."""
    from message_lifecycle.app import documents
    from message_lifecycle.app.services import document_of

    s = services(ctx)
    name = topic_of(s, topic)
    kept = document_of(s, name, document)
    who = documents.client_of(s, name, kept, client)
    was_there = documents.detach(s, name, kept, client=who)
    told = {"topic": str(name), "document": kept, "client": who, "was_there": was_there}
    kept = "keeps nothing any more" if was_there else "kept nothing"
    emit(output, told, f"{told['document']}: {told['client']} {kept}")


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
    from message_lifecycle.app.services import document_of
    from message_lifecycle.app.views.topics import history_entry_view, not_shown_view

    s = services(ctx)
    name = topic_of(s, topic)
    kept = document_of(s, name, document)
    (described,) = documents.describe(s, name, kept)
    hidden = not_shown_view(described.state, start)
    entries = map(history_entry_view, documents.history(s, name, kept, start=start, limit=limit + 1))
    # Printed as they come: a history of large states is larger than memory. The one past the limit says where to go on.
    shown = islice(entries, limit)

    def following() -> int | None:
        return next((entry["server_seq"] for entry in entries), None)

    if output is Output.json:
        emit_long({"document": kept, "not_shown": hidden}, "history", shown, lambda: {"goes_on_from": following()})
        return
    screen = Screen()
    _show_history(screen, kept, shown, following)
    if hidden is not None:
        why = "what came before them was purged, and no snapshot is there from which on they could be applied"
        screen.line(f"Changes {count(hidden['from'])} to {count(hidden['to'])} are stored and cannot be shown: {why}")


@app.command("describe")
def describe_(
    ctx: typer.Context,
    topic: TopicArgument,
    document: Annotated[str | None, argument("[DOCUMENT]", "The document; by default all of the topic.")] = None,
    output: OutputOption = Output.text,
) -> None:
    """Show what is stored of a document, which clients keep it, and which settings act on it."""
    from message_lifecycle.app import documents
    from message_lifecycle.app.views.topics import document_view, documents_view

    s = services(ctx)
    name = topic_of(s, topic)
    if document is None:
        whole = {"topic": str(name), **documents_view(s, name)}
        emit(output, whole, show_documents)
        return
    (described,) = documents.describe(s, name, document)
    found = {"topic": str(name), **document_view(described, s.ledger.now(), settings=True)}
    emit(output, found, _show_document)


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
    """Set what is to happen to one document, or to all of a user; the narrowest setting wins: document, user, topic, server."""
    from message_lifecycle.app.documents import alter_document, alter_user

    if (user is None) is (document is None):
        raise typer.BadParameter("give --user USER or --document DOCUMENT: one of them")
    if user is not None and (owner is not None or no_owner):
        raise typer.BadParameter("--owner and --no-owner are said of a --document")
    if owner is not None and no_owner:
        raise typer.BadParameter("--owner and --no-owner exclude each other")
    changes = changes_of(settings or [], unset, "NAME=VALUE")
    if not changes and owner is None and not no_owner:
        raise typer.BadParameter("nothing to change: give NAME=VALUE, --unset NAME or --owner USER")
    s = services(ctx)
    name = topic_of(s, topic)
    if user is not None:
        level, of = "user", alter_user(s, name, user, changes)
    else:
        level, of = "document", alter_document(s, name, document or "", changes, owner=owner, disown=no_owner)
    own = s.ledger.own_settings(name)
    now = (own.users if level == "user" else own.documents).get(of, {})
    told = {"topic": str(name), "level": level, "name": of, "settings": dict(sorted(now.items())), "owner": own.owners.get(of)}
    emit(output, told, _show_altered)


def _lines(file: str) -> tuple[str, list[bytes]]:
    """Where the lines are from, and they. Raises UnreadableFile."""
    if file == _STDIN:
        return "standard input", sys.stdin.buffer.readlines()
    try:
        return file, Path(file).read_bytes().splitlines()
    except OSError as error:
        raise unreadable_file(file, error.strerror or str(error)) from error


def _show_added(screen: Screen, found: Document) -> None:
    left_out = f", {count(found['erased'])} left out: their documents were erased and may not come in again" if found["erased"] else ""
    screen.line(f"{found['topic']}: {count(found['changes'])} changes added{left_out}")
    screen.table(("document", "now at"), [(name, count(seq)) for name, seq in found["newest"].items()], right=("now at",), most=ROWS)


def _show_pulled(screen: Screen, found: Document) -> None:
    """What a client gets, and the epoch it is to bring along."""
    screen.line(f"{found['document']}: at change {count(found['seq'])}, epoch {found['epoch']}", style="bold")
    snapshot = found["snapshot"]
    if snapshot is not None:
        screen.line(f"snapshot at {count(snapshot['server_seq'])}: {_json(snapshot['state'])}")
    if found["changes"]:
        screen.table(
            ("change", "client", "at", "payload"),
            [(str(c["server_seq"]), c["client"], screen.when(c["at"]), _json(c["payload"])) for c in found["changes"]],
            right=("change",),
        )
    elif snapshot is None:
        screen.line("nothing is new")


def _show_synced(screen: Screen, found: Document) -> None:
    if not found["server_seq"]:
        screen.line(f"{found['document']}: {found['client']} has nothing yet, so nothing is kept for it")
        return
    kept = f"changes from {count(found['server_seq'])} on are kept for it"
    screen.line(
        f"{found['document']}: {found['client']} has everything up to {count(found['server_seq'])} of epoch {found['epoch']}; {kept}"
    )


def _show_history(screen: Screen, document: str, entries: Iterable[Document], following: Callable[[], int | None]) -> None:
    """Each as it comes, so no table, whose columns are as wide as their widest cell. `following`: asked at the end, where to go on."""
    none = True
    for entry in entries:
        if none:
            screen.line("change  the document after it", style="dim")
        none = False
        screen.line(f"{entry['server_seq']:>6}  {_json(entry['state'])}")
    if none:
        screen.line(f"{document}: no change is there from which on the history can be shown")
    goes_on_from = following()
    if goes_on_from is not None:
        screen.line(f"More: --from {goes_on_from}")


def show_documents(screen: Screen, found: Document) -> None:
    """All documents of a topic."""
    screen.line(f"{found['topic']}: {count(len(found['documents']))} documents, folded as {found['fold']}", style="bold")
    screen.facts(
        [
            ("changes", count(found["changes"])),
            ("snapshots", count(found["snapshots"])),
            ("clients", count(found["clients"])),
            ("purged before", f"{count(found['purged'])} documents"),
        ]
    )
    if found["documents"]:
        screen.heading("Documents")
        screen.table(
            ("document", "owner", "changes", "newest snapshot", "epoch", "lowest synced", "clients"),
            [
                (
                    entry["document"],
                    entry["owner"] or "",
                    _stored(entry),
                    str(entry["snapshots"][-1]) if entry["snapshots"] else "none",
                    str(entry["epoch"]),
                    _lowest(entry),
                    count(len(entry["clients"])),
                )
                for entry in found["documents"]
            ],
            right=("changes", "newest snapshot", "epoch", "lowest synced", "clients"),
            wrap=("document",),
            most=ROWS,
        )
    if found["own_settings"]:
        screen.heading("Settings below the topic's")
        screen.table(
            ("of", "setting", "value"),
            [
                (f"{own['level']} {own['name']}", own["setting"], said(own["value"], BY_NAME[own["setting"]].unit))
                for own in found["own_settings"]
            ],
            most=ROWS,
        )


def _show_document(screen: Screen, found: Document) -> None:
    """One document."""
    screen.line(f"{found['topic']}: {found['document']}", style="bold")
    screen.facts(
        [
            ("owner", found["owner"] or "nobody"),
            ("at change", count(found["seq"])),
            ("stored", _stored(found)),
            ("snapshots", ", ".join(str(seq) for seq in found["snapshots"]) or "none yet"),
            ("epoch", str(found["epoch"])),
            ("lowest synced", f"{_lowest(found)}{'' if found['lowest_synced'] is not None else ': nothing is purged'}"),
        ]
    )
    if found["clients"]:
        screen.heading("Clients")
        screen.table(
            ("client", "has", "behind", "last request", "keeps changes", "falls silent"),
            [
                (
                    client["client"],
                    str(client["server_seq"]),
                    count(client["lag"]),
                    screen.when(client["at"]),
                    "yes" if client["keeps"] else "no, silent for too long",
                    screen.when(client["falls_silent_at"]) or "never",
                )
                for client in found["clients"]
            ],
            right=("has", "behind"),
            wrap=("client",),
        )
    screen.heading("Settings that act on it")
    screen.table(("setting", "value"), [(name, said(value, BY_NAME[name].unit)) for name, value in found["settings"].items()])


def _show_altered(screen: Screen, found: Document) -> None:
    screen.line(f"{found['level']} {found['name']} of {found['topic']}", style="bold")
    screen.facts([("owner", found["owner"] or ""), *((name, said(value, BY_NAME[name].unit)) for name, value in found["settings"].items())])
    if not found["settings"]:
        screen.line("no settings of its own")


def _stored(entry: Document) -> str:
    return "none" if entry["first"] is None else f"{entry['first']}..{entry['seq']}"


def _lowest(entry: Document) -> str:
    return "nobody" if entry["lowest_synced"] is None else str(entry["lowest_synced"])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
