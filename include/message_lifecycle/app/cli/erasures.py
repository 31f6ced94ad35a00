"""`lifecycle erase` and `lifecycle receipt`: a key that is to be gone everywhere, and what was seen to be gone (DEL-7)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from message_lifecycle.app.cli import drawing
from message_lifecycle.app.cli.context import (
    DIFFERENT,
    ByOption,
    LimitOption,
    OutputOption,
    TextOption,
    argument,
    of_outcome,
    option,
    read_key,
    services,
    topic_of,
    word_of,
    worst,
)
from message_lifecycle.app.cli.screen import Output, Screen, View, count, emit, working
from message_lifecycle.model.erasure import Receipt
from message_lifecycle.model.instants import format_instant

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services


class _NoKeyAsArgument(TyperGroup):
    """What stands where a subcommand may stand is most likely a key, which would then be in the shell's history: it is not told again."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None:
            raise typer.BadParameter(
                "a key is never an argument: it is read from standard input, as in `lifecycle erase --by NAME --why WHY < FILE`. "
                f"Subcommands: {', '.join(self.list_commands(ctx))}"
            )
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_NoKeyAsArgument,
    invoke_without_command=True,
    help="Erase a key everywhere. The key is read from standard input, one line, and kept nowhere but as a keyed hash.",
)
receipts = typer.Typer(no_args_is_help=True, help="What was seen to be gone after an erasure.")
IN_VALUES = typer.Option(
    "--in-values", help="Look for the key in the values and headers of other messages, too, and name the places. Nothing there is changed."
)
RequestArgument = Annotated[str, argument("REQUEST", "The request's id, or a unique beginning of it.")]
NOT_FOUND = (
    "Warning: the key was found nowhere, and nothing was erased. Keys are compared byte by byte: check upper and lower case, spaces, and "
    "whether the key needs --base64."
)
_NOT_DONE = "not done because"
"""Beside the reason that a person gave: what stands against the request."""


@app.callback()
def erase(
    ctx: typer.Context,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only here; may be given again. By default everywhere.")
    ] = None,
    forbid: Annotated[bool, typer.Option("--forbid", help="What comes in with the key from now on is not taken.")] = False,
    by: ByOption = "",
    text: Annotated[str, option("--why", "WHY", "Why; kept beside it. Never the key.")] = "",
    is_base64: Annotated[bool, typer.Option("--base64", help="The line that is read is base64.")] = False,
    empty_key: Annotated[bool, typer.Option("--empty-key", help="An empty line is the empty key.")] = False,
    in_values: Annotated[bool, IN_VALUES] = False,
    later: Annotated[
        bool, typer.Option("--later", help="Record the request only; `erase run` or the DAG `erasure` carries it out.")
    ] = False,
    output: OutputOption = Output.text,
) -> int | None:
    """Erase a key: `lifecycle erase --by NAME --why WHY < FILE`, or asked for without echo on a terminal."""
    if ctx.invoked_subcommand is not None:
        return None
    from message_lifecycle.app.erasures import ask
    from message_lifecycle.app.in_values import check_searchable

    word_of(by, text, "an erasure")
    s = services(ctx)
    topics = [topic_of(s, name) for name in topic or ()]
    key = read_key(is_base64=is_base64, empty_is_a_key=empty_key)
    if in_values:
        check_searchable(key)
    request = ask(s, key, topics=topics, forbid=forbid, by=by, why=text)
    sought = key if in_values else None
    del key
    if later:
        return _show_request(ctx, request.request_id, output, sought=sought)
    return _carry_out(ctx, request.request_id, by, text, output, sought=sought)


@app.command()
def run(ctx: typer.Context, request: RequestArgument, by: ByOption, text: TextOption, output: OutputOption = Output.text) -> int:
    """Carry out a recorded request, or go on with it; your word is its approval."""
    return _carry_out(ctx, services(ctx).ledger.erasure(request).request_id, by, text, output)


@app.command("list")
def list_(
    ctx: typer.Context,
    limit: LimitOption = 20,
    output: OutputOption = Output.text,
) -> None:
    """List requests, the newest first."""
    from message_lifecycle.app.views.state import erasures_view

    emit(output, erasures_view(services(ctx), limit=limit), _show_requests)


def _show_requests(screen: Screen, found: list[View]) -> None:
    rows = [
        (
            entry["request_id"][: drawing.SHORT],
            entry["state"],
            ", ".join(entry["topics"]) or "all",
            "forbidden" if entry["forbids"] else "",
            screen.when(entry["requested_at"]),
            entry["requested_by"],
            entry["why"],
            entry["detail"],
        )
        for entry in found
    ]
    headers = ("request", "state", "topics", "key", "requested", "by", "why", _NOT_DONE)
    screen.table(headers, rows, wrap=("topics", "why", _NOT_DONE), none="no key was asked to be erased yet")


@app.command()
def show(ctx: typer.Context, request: RequestArgument, output: OutputOption = Output.text) -> int:
    """Show one request."""
    return _show_request(ctx, request, output)


@app.command()
def allow(ctx: typer.Context, request: RequestArgument, by: ByOption, text: TextOption, output: OutputOption = Output.text) -> int:
    """Let the key of a request come in again that was made with --forbid; what was erased stays so."""
    lifted = services(ctx).ledger.allow_again(request, by=by, why=text)
    return _show_request(ctx, lifted.request_id, output)


@receipts.command("list")
def list_receipts(ctx: typer.Context, limit: LimitOption = 20, output: OutputOption = Output.text) -> None:
    """List receipts, the newest first."""
    kept = [(at, Receipt.from_json(text)) for at, text in services(ctx).ledger.receipts(limit=limit)]
    found = [
        {
            "request_id": receipt.request_id,
            "at": format_instant(at),
            "topics": [topic.topic for topic in receipt.topics],
            "messages": sum(topic.rows for topic in receipt.topics),
            "files_gone": sum(len(table.gone) for topic in receipt.topics for table in topic.tables),
        }
        for at, receipt in kept
    ]
    emit(output, found, _show_receipts)


def _show_receipts(screen: Screen, found: list[View]) -> None:
    screen.table(
        ("request", "kept", "topics", "messages", "files gone"),
        [
            (
                entry["request_id"][: drawing.SHORT],
                screen.when(entry["at"]),
                ", ".join(entry["topics"]),
                count(entry["messages"]),
                count(entry["files_gone"]),
            )
            for entry in found
        ],
        right=("messages", "files gone"),
        wrap=("topics",),
        none="no receipts: nothing was erased",
    )


@receipts.command("show")
def show_receipt(ctx: typer.Context, request: RequestArgument, output: OutputOption = Output.text) -> None:
    """Show the receipt of an erasure: a digest of the key, the tables that were searched, the files that went; each by name in the JSON."""
    from message_lifecycle.app.views.state import erasure_view

    s = services(ctx)
    kept = s.ledger.receipt(request)
    in_values = erasure_view(s.ledger.erasure(request))["in_values"]
    beside = {} if in_values is None else {"in_values": in_values}
    emit(output, {**json.loads(kept), **beside}, lambda screen, _told: _receipt(screen, Receipt.from_json(kept), in_values))


@receipts.command("verify")
def verify_receipt(ctx: typer.Context, request: RequestArgument, output: OutputOption = Output.text) -> int:
    """Search the topics again for what the receipt says is gone. Exit status 1: something of it is there."""
    from message_lifecycle.app.receipts import verify

    s = services(ctx)
    request_id = s.ledger.erasure(request).request_id
    with working("searching"):
        wrong = verify(s, request_id)
    told = {"request_id": request_id, "holds": not wrong, "wrong": wrong}

    def render(screen: Screen, _told: View) -> None:
        screen.line(f"receipt {request_id}: {'holds' if not wrong else 'does not hold'}", style="red" if wrong else "green")
        screen.notes(wrong)

    emit(output, told, render)
    return DIFFERENT if wrong else 0


def _receipt(screen: Screen, receipt: Receipt, in_values: View | None) -> None:
    screen.line(f"Receipt of erasure request {receipt.request_id}", style="bold")
    screen.facts([("digest of the key", receipt.digest), ("secret", receipt.secret)])
    for topic in receipt.topics:
        screen.heading(topic.topic)
        times = [
            ("hidden", format_instant(topic.hidden_at)),
            ("rewritten", format_instant(topic.rewritten_at)),
            ("unreachable", format_instant(topic.unreachable_at)),
        ]
        screen.facts(
            [
                ("plan", topic.plan_id),
                ("messages erased", "none: the key was found nowhere" if topic.found_nowhere else count(topic.rows)),
                *([("searched", format_instant(topic.unreachable_at))] if topic.found_nowhere else times),
                ("made by", f"version {topic.code_version}"),
            ]
        )
        screen.table(
            ("table", "uuid", "snapshots searched", "files searched", "rows erased", "files gone"),
            [
                (t.table, t.table_uuid, count(len(t.snapshots)), count(t.files_searched), count(t.rows or 0), count(len(t.gone)))
                for t in topic.tables
            ],
            right=("snapshots searched", "files searched", "rows erased", "files gone"),
            wrap=("uuid",),
        )
        remains = [table.remains for table in topic.tables if table.remains is not None]
        screen.titled("May still hold bytes of the key, where no search and no reader sees them", remains)
    show_in_values(screen, in_values)
    screen.line()
    screen.line(f"To search again for what is gone: lifecycle receipt verify {receipt.request_id[: drawing.SHORT]}")


def _carry_out(ctx: typer.Context, request_id: str, by: str, text: str, output: Output, *, sought: bytes | None = None) -> int:
    """`sought`: a key to look for in values afterwards."""
    from message_lifecycle.app.erasures import carry_out
    from message_lifecycle.app.views.state import erasure_view, outcome_view

    word = word_of(by, text, "an erasure")
    s = services(ctx)
    with working("plan, stage, gate, publish, verify"):
        found = carry_out(s, request_id, approver=lambda _plan, _report: word)
    outcomes = [outcome_view(one.outcome) for one in found if one.outcome is not None]
    errors = [{"topic": str(one.topic), "error": one.error.code, "message": str(one.error)} for one in found if one.error is not None]
    told = {**erasure_view(s.ledger.erasure(request_id)), **_search(s, request_id, sought), "outcomes": outcomes, "errors": errors}

    def render(screen: Screen, told: View) -> None:
        if told["state"] == "not_found":
            screen.line(NOT_FOUND, style="yellow")
        _request(screen, told)
        for view in outcomes:
            drawing.outcome(screen, view)
        for error in errors:
            if error["message"] not in told["detail"]:
                screen.line(f"{error['topic']}: {error['error']}: {error['message']}", style="red")
        show_in_values(screen, told["in_values"])
        if told["state"] in ("erased", "not_found"):
            screen.line(f"To search again for what is gone: lifecycle receipt verify {request_id[: drawing.SHORT]}")
        if told["state"] == "requested":
            screen.line(f"Not all of it is done. To go on: lifecycle erase run {request_id[: drawing.SHORT]} --by NAME --why WHY")

    emit(output, told, render)
    statuses = [of_outcome(one.outcome.name) for one in found if one.outcome is not None]
    return worst([*statuses, *(one.error.exit_code for one in found if one.error is not None)])


def _search(s: Services, request_id: str, sought: bytes | None) -> View:
    """Look for the key in values, keep where it was found, and return it for the output; nothing where nobody asked."""
    from message_lifecycle.app.erasures import topics_of
    from message_lifecycle.app.in_values import find_in_values
    from message_lifecycle.app.views.state import in_values_view

    if sought is None:
        return {}
    with working("searching values"):
        found = find_in_values(s, sought, topics_of(s, s.ledger.erasure(request_id)))
    s.ledger.record_in_values(request_id, found)
    return {"in_values": in_values_view(found)}


def show_in_values(screen: Screen, found: View | None) -> None:
    """Where a key was found inside values: a line for each table and partition; nothing where nobody searched."""
    if found is None:
        return
    screen.heading(f"The key inside other messages, searched at {screen.when(found['searched_at'])}")
    places = [(topic["topic"], place) for topic in found["topics"] for place in topic["places"]]
    screen.table(
        ("topic", "table", "partition", "rows", "readers see", "where"),
        [
            (
                topic,
                place["table"],
                "" if place["partition"] is None else str(place["partition"]),
                count(place["rows"]),
                count(place["live"]),
                " ".join(filter(None, (place["file"], place["offsets"], ", ".join(place["names"]), "..." if place["is_cut"] else ""))),
            )
            for topic, place in places
        ],
        right=("partition", "rows", "readers see"),
        wrap=("where",),
        none="in no value and no header",
    )
    screen.notes(f"{topic['topic']}: {count(topic['more'])} more places" for topic in found["topics"] if topic["more"])
    for topic in found["topics"]:
        if topic["error"]:
            screen.line(f"{topic['topic']} could not be searched: {topic['error']}", style="red")
    if places:
        screen.line("Nothing of this was erased. To remove single messages: lifecycle message delete TOPIC PARTITION:OFFSET")


def _show_request(ctx: typer.Context, request: str, output: Output, *, sought: bytes | None = None) -> int:
    from message_lifecycle.app.views.state import erasure_view

    s = services(ctx)
    request_id = s.ledger.erasure(request).request_id
    told = {**erasure_view(s.ledger.erasure(request_id)), **_search(s, request_id, sought)}

    def render(screen: Screen, told: View) -> None:
        _request(screen, told)
        show_in_values(screen, told["in_values"])
        if told["state"] == "requested":
            screen.line(f"To carry it out: lifecycle erase run {told['request_id'][: drawing.SHORT]} --by NAME --why WHY")
            screen.line(f'or the DAG `erasure` with {{"request_id": "{told["request_id"]}"}}')

    emit(output, told, render)
    return 0


def _request(screen: Screen, told: View) -> None:
    screen.line(f"Erasure request {told['request_id']}: {told['state']}", style="bold")
    lifted: View | None = told["lifted"]
    screen.facts(
        [
            ("topics", ", ".join(told["topics"]) or "all"),
            ("asked by", f"{told['requested_by']}: {told['why']}"),
            ("key", "may not come in again" if told["forbids"] else ""),
            ("allowed again", "" if lifted is None else f"{lifted['by']}: {lifted['why']}"),
            (_NOT_DONE, told["detail"]),
        ]
    )
