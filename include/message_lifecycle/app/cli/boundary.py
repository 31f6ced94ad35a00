"""`main`: the one place that turns errors into a message and an exit status."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import traceback
from collections.abc import Sequence
from itertools import pairwise

import typer

from message_lifecycle.app.cli.context import Wiring
from message_lifecycle.app.config import wants_trace
from message_lifecycle.model.errors import EXIT_BAD_INPUT, EXIT_INTERNAL, LifecycleError

INTERRUPTED = 130
BROKEN_PIPE = 141
PROGRAM = "lifecycle"


def main(arguments: Sequence[str] | None = None, *, wiring: Wiring | None = None) -> int:
    """Run one command and return its exit status; `wiring`: other services than the configured ones, for tests."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = _wants_json(given)
    try:
        status = _run(given, wiring or Wiring())
        sys.stdout.flush()
    except LifecycleError as error:
        status = _tell(error, error.code, str(error), error.exit_code, as_json=as_json)
    except typer.TyperException as error:
        status = _tell_usage(error, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except BrokenPipeError:
        status = _leave_quietly()
    except Exception as error:  # noqa: BLE001 - the boundary: whatever it is, a person gets a line and a status
        hint = "" if wants_trace() else " Set LIFECYCLE_DEBUG=1 and run it again to see the trace."
        said = f"{type(error).__name__}: {_beginning(error)}. This is a fault of the program; `lifecycle status` tells what was done.{hint}"
        status = _tell(error, "InternalError", said, EXIT_INTERNAL, as_json=as_json)
    return status


def _run(given: list[str], wiring: Wiring) -> int:
    from message_lifecycle.app.cli.commands import tree

    try:
        return int(tree().main(given, prog_name=PROGRAM, standalone_mode=False, obj=wiring) or 0)
    except SystemExit as left:
        # Typer leaves by itself in two cases: to complete a line for a shell, and when the reader of our output has gone.
        if isinstance(left.__context__, BrokenPipeError):
            raise left.__context__ from None
        return left.code if isinstance(left.code, int) else 0


def _wants_json(given: Sequence[str]) -> bool:
    """Known before the arguments are parsed, so that a wrong argument, too, is told as JSON."""
    return any(
        one in ("--output=json", "-ojson") or (one in ("--output", "-o") and value == "json") for one, value in pairwise([*given, ""])
    )


def _tell(error: BaseException, name: str, said: str, status: int, *, as_json: bool) -> int:
    if wants_trace():
        traceback.print_exception(error)
    try:
        if as_json:
            print(json.dumps({"error": name, "message": said}, ensure_ascii=False), flush=True)
        else:
            print(_wrapped(f"{name}: {said}"), file=sys.stderr, flush=True)
    except BrokenPipeError:
        _leave_quietly()
    return status


def _beginning(error: Exception) -> str:
    """An engine's error is its trace, hundreds of lines long; its name and reason stand first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])


def _wrapped(text: str) -> str:
    """Between words on a terminal; one line where a program reads."""
    if not sys.stderr.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


def _tell_usage(error: typer.TyperException, *, as_json: bool) -> int:
    if as_json:
        return _tell(error, "UsageError", error.format_message(), EXIT_BAD_INPUT, as_json=True)
    from typer import rich_utils

    rich_utils.rich_format_error(error)  # type: ignore[arg-type]  # of typer's own, whose classes it does not export
    return EXIT_BAD_INPUT


def _leave_quietly() -> int:
    """The reader has gone: what is still buffered must not be complained about when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE
