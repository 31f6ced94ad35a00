"""`lifecycle erase` and `lifecycle receipt`: erase keys everywhere, and prove the erasure (DEL-7)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from message_lifecycle.app.cli.context import DIFFERENT, exit_code_of_outcome, services, worst_exit_code
from message_lifecycle.app.cli.options import (
    IN_VALUES,
    ByOption,
    LimitOption,
    OutputOption,
    TextOption,
    argument,
    consent_of,
    option,
    read_key,
    read_keys,
)
from message_lifecycle.app.cli.screen import Output, emit, show_progress
from message_lifecycle.model.names import TopicName

if TYPE_CHECKING:
    from collections.abc import Collection

    from message_lifecycle.app.services import Services
    from message_lifecycle.model.in_values import InValues


class _NoKeyAsArgument(TyperGroup):
    """Refuses an unknown subcommand without printing it. The word is most likely a key, and by now stands in the shell's history."""

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
    help="Erase keys everywhere. The keys are read from standard input, one a line, and kept nowhere but as keyed hashes.",
)
receipts = typer.Typer(no_args_is_help=True, help="What was seen to be gone after an erasure.")
RequestArgument = Annotated[str, argument("REQUEST", "The request's id, or a unique beginning of it.")]


@app.callback()
def erase(
    ctx: typer.Context,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only here; may be given again. By default everywhere.")
    ] = None,
    forbid: Annotated[bool, typer.Option("--forbid", help="What comes in with one of the keys from now on is not taken.")] = False,
    by: ByOption = "",
    text: Annotated[str, option("--why", "WHY", "Why; kept with it. Never a key.")] = "",
    is_base64: Annotated[bool, typer.Option("--base64", help="Each line that is read is base64.")] = False,
    empty_key: Annotated[bool, typer.Option("--empty-key", help="An empty line is the empty key.")] = False,
    in_values: Annotated[bool, IN_VALUES] = False,
    later: Annotated[
        bool, typer.Option("--later", help="Record the request only; `erase run` or the DAG `erasure` carries it out.")
    ] = False,
    output: OutputOption = Output.text,
) -> int | None:
    """Erase keys: `lifecycle erase --by NAME --why WHY < FILE`, one key a line. A terminal asks for one key without echo."""
    if ctx.invoked_subcommand is not None:
        return None
    from message_lifecycle.app.erasures import ask
    from message_lifecycle.app.in_values import check_searchable

    consent_of(by, text, "an erasure")
    s = services(ctx)
    topics = [TopicName.parse(name) for name in topic or ()]
    keys = read_keys(is_base64=is_base64, empty_is_a_key=empty_key)
    if in_values:
        check_searchable(keys)
    request = ask(s, keys, topics=topics, forbid=forbid, by=by, why=text)
    sought = keys if in_values else ()
    del keys
    if later:
        return _show_request(ctx, request.request_id, output, sought=sought)
    return _carry_out(ctx, request.request_id, by, text, output, sought=sought)


@app.command()
def run(ctx: typer.Context, request: RequestArgument, by: ByOption, text: TextOption, output: OutputOption = Output.text) -> int:
    """Carry out a recorded request, or continue it; --by and --why are its approval."""
    return _carry_out(ctx, services(ctx).ledger.erasure(request).request_id, by, text, output)


@app.command("list")
def list_(
    ctx: typer.Context,
    limit: LimitOption = 20,
    output: OutputOption = Output.text,
) -> None:
    """List requests, the newest first."""
    from message_lifecycle.app.views.erasures import ErasureView, erasures_view

    emit(output, erasures_view(services(ctx), limit=limit), ErasureView.table)


@app.command()
def show(ctx: typer.Context, request: RequestArgument, output: OutputOption = Output.text) -> int:
    """Show one request."""
    return _show_request(ctx, request, output)


@app.command()
def allow(ctx: typer.Context, request: RequestArgument, by: ByOption, text: TextOption, output: OutputOption = Output.text) -> int:
    """Let the keys of a --forbid request come in again; erased messages stay erased."""
    from message_lifecycle.app.erasures import allow_keys_again

    lifted = allow_keys_again(services(ctx), request, by=by, why=text)
    return _show_request(ctx, lifted.request_id, output)


@receipts.command("list")
def list_receipts(ctx: typer.Context, limit: LimitOption = 20, output: OutputOption = Output.text) -> None:
    """List receipts, the newest first."""
    from message_lifecycle.app.views.erasures import KeptReceipt, receipts_view

    emit(output, receipts_view(services(ctx), limit=limit), KeptReceipt.table)


@receipts.command("show")
def show_receipt(ctx: typer.Context, request: RequestArgument, output: OutputOption = Output.text) -> None:
    """Show the receipt of an erasure: a digest of each key, the searched tables and the removed files. The JSON has every name."""
    from message_lifecycle.app.views.erasures import receipt_blocks
    from message_lifecycle.model.erasure import Receipt

    s = services(ctx)
    kept = s.ledger.receipt(request)
    in_values = s.ledger.erasure(request).in_values
    answer = {**json.loads(kept), **({} if in_values is None else {"in_values": in_values})}
    emit(output, answer, receipt_blocks(Receipt.from_json(kept), in_values))


@receipts.command("verify")
def verify_receipt(
    ctx: typer.Context,
    request: RequestArgument,
    key_stdin: Annotated[
        bool, typer.Option("--key-stdin", help="Prove one key of the request alone: it is read from standard input, as for `erase`.")
    ] = False,
    is_base64: Annotated[bool, typer.Option("--base64", help="The line of --key-stdin is base64.")] = False,
    empty_key: Annotated[bool, typer.Option("--empty-key", help="An empty line of --key-stdin is the empty key.")] = False,
    output: OutputOption = Output.text,
) -> int:
    """Search the topics again, and compare them with the receipt. Exit status 1: they differ."""
    from message_lifecycle.app.receipts import verify
    from message_lifecycle.app.views.erasures import VerifiedReceipt

    s = services(ctx)
    request_id = s.ledger.erasure(request).request_id
    key = read_key(is_base64=is_base64, empty_is_a_key=empty_key) if key_stdin else None
    with show_progress("searching"):
        wrong = verify(s, request_id, key=key)
    emit(output, VerifiedReceipt(request_id=request_id, holds=not wrong, wrong=wrong))
    return DIFFERENT if wrong else 0


def _carry_out(ctx: typer.Context, request_id: str, by: str, text: str, output: Output, *, sought: Collection[bytes] = ()) -> int:
    """Erase the request's keys and print the result. Afterwards, search values for the keys `sought`, if given."""
    from message_lifecycle.app.erasures import carry_out
    from message_lifecycle.app.views.erasures import TopicError, erasure_view
    from message_lifecycle.app.views.state import outcome_view

    word = consent_of(by, text, "an erasure")
    s = services(ctx)
    with show_progress("plan, stage, gate, publish, verify"):
        found = carry_out(s, request_id, approver=lambda _plan, _report: word)
    outcomes = [outcome_view(one.outcome) for one in found if one.outcome is not None]
    errors = [TopicError(topic=one.topic, error=one.error.code, message=str(one.error)) for one in found if one.error is not None]
    searched = _search(s, request_id, sought)
    emit(output, erasure_view(s.ledger.erasure(request_id), searched, outcomes=outcomes, errors=errors))
    statuses = [exit_code_of_outcome(one.outcome.name) for one in found if one.outcome is not None]
    return worst_exit_code([*statuses, *(one.error.exit_code for one in found if one.error is not None)])


def _search(s: Services, request_id: str, sought: Collection[bytes]) -> InValues | None:
    """Search values for the keys, and record the places with the request. None: no search."""
    from message_lifecycle.app.erasures import topics_of
    from message_lifecycle.app.in_values import find_in_values

    if not sought:
        return None
    with show_progress("searching values"):
        found = find_in_values(s, sought, topics_of(s, s.ledger.erasure(request_id)))
    s.ledger.record_in_values(request_id, found)
    return found


def _show_request(ctx: typer.Context, request: str, output: Output, *, sought: Collection[bytes] = ()) -> int:
    from message_lifecycle.app.views.erasures import erasure_view

    s = services(ctx)
    request_id = s.ledger.erasure(request).request_id
    searched = _search(s, request_id, sought)
    emit(output, erasure_view(s.ledger.erasure(request_id), searched))
    return 0
