"""The table of all commands, each imported when it is called, and the single boundary for errors."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import traceback
from collections import UserDict
from collections.abc import Sequence
from functools import cache
from pkgutil import resolve_name
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from message_lifecycle import __version__
from message_lifecycle.app.cli.context import Wiring
from message_lifecycle.app.cli.interrupts import INTERRUPTED, MESSAGE, wants_json
from message_lifecycle.app.config import wants_trace
from message_lifecycle.app.embedded import embedded_default
from message_lifecycle.model.errors import EXIT_BAD_INPUT, EXIT_INTERNAL, LifecycleError
from message_lifecycle.model.names import safe

__all__ = ["as_process", "main", "tree"]


BROKEN_PIPE = 141
PROGRAM = "lifecycle"


# Pydantic, which PyIceberg's classes use, would look for plugins of its own in the metadata of every installed package: 200 files, 0.1 s.
_WITHOUT_PLUGINS = ("PYDANTIC_DISABLE_PLUGINS", "__all__")


def as_process() -> int:
    """Run `main` in a process that ends with it."""
    os.environ.setdefault(*_WITHOUT_PLUGINS)
    return main()


def main(arguments: Sequence[str] | None = None, *, wiring: Wiring | None = None) -> int:
    """Run one command and return its exit status. Tests give their own services as `wiring`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = wants_json(given)
    try:
        status = _run(given, wiring or Wiring())
        sys.stdout.flush()
    except LifecycleError as error:
        status = _print_error(error, error.code, str(error), error.exit_code, as_json=as_json)
    except typer.TyperException as error:
        status = _print_usage_error(error, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort) as error:
        status = _print_error(error, "Interrupted", MESSAGE, INTERRUPTED, as_json=as_json)
    except BrokenPipeError:
        status = _discard_output()
    except Exception as error:  # noqa: BLE001 - the boundary: whatever it is, a person gets a line and a status
        hint = "" if wants_trace() else " Set LIFECYCLE_DEBUG=1 and run it again to see the trace."
        said = f"{type(error).__name__}: {_headline(error)}. This is a fault of the program; `lifecycle status` tells what was done.{hint}"
        status = _print_error(error, "InternalError", said, EXIT_INTERNAL, as_json=as_json)
    return status


def _run(given: list[str], wiring: Wiring) -> int:
    try:
        status = int(tree().main(given, prog_name=PROGRAM, standalone_mode=False, obj=wiring) or 0)
        if status == INTERRUPTED:  # Typer has made a status of it
            raise KeyboardInterrupt
        return status
    except SystemExit as left:
        # Typer exits by itself in two cases: after completing a line for a shell, and when the reader of our output has closed the pipe.
        if isinstance(left.__context__, BrokenPipeError):
            raise left.__context__ from None
        return left.code if isinstance(left.code, int) else 0


def _print_error(error: BaseException, name: str, said: str, status: int, *, as_json: bool) -> int:
    if wants_trace():
        traceback.print_exception(error)
    try:
        if as_json:
            print(json.dumps({"error": name, "message": said}, ensure_ascii=False), flush=True)
        else:
            print(_wrap_text("\n".join(map(safe, f"{name}: {said}".split("\n")))), file=sys.stderr, flush=True)
    except BrokenPipeError:
        _discard_output()
    return status


def _headline(error: Exception) -> str:
    """Return the first two lines of an engine's error: its name and reason. The rest is a trace of hundreds of lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])


def _wrap_text(text: str) -> str:
    """Wrap the text between words on a terminal. Otherwise return the text unwrapped, for programs."""
    if not sys.stderr.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


def _print_usage_error(error: typer.TyperException, *, as_json: bool) -> int:
    if as_json:
        return _print_error(error, "UsageError", error.format_message(), EXIT_BAD_INPUT, as_json=True)
    from typer import rich_utils

    rich_utils.rich_format_error(error)  # type: ignore[arg-type]  # of typer's own, whose classes it does not export
    return EXIT_BAD_INPUT


def _discard_output() -> int:
    """Discard the buffered output after the reader has closed the pipe, so that the ending interpreter prints no error about it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


# The commands, in the order of work. A command is imported and built when it is called or listed, so no call pays for the others.


_ORDER = {
    "Topics and their messages": {
        "topic": "topics:app",
        "ingest": "messages:ingest",
        "read": "messages:read",
        "consumer": "messages:consumers",
        "compact": "runs:compact",
        "document": "documents:app",
    },
    "Remove what is due: all steps at once, or one by one": {
        "due": "steps:due",
        "run": "runs:run",
        "plan": "steps:plan",
        "stage": "steps:stage",
        "mark": "steps:mark",
        "gate": "steps:gate",
        "approve": "steps:approve",
        "refuse": "steps:refuse",
        "publish": "steps:publish",
        "verify": "steps:verify",
        "message": "requests:messages",
        "key": "requests:keys",
        "undo": "requests:undo",
        "hold": "requests:hold_commands",
        "erase": "erasures:app",
        "quarantine": "quarantine:app",
        "reclaim": "runs:reclaim",
    },
    "See what is, what was done, and why": {
        "status": "looking:status",
        "metrics": "looking:metrics",
        "explain": "looking:explain",
        "receipt": "erasures:receipts",
        "backends": "looking:backends",
        "ledger": "ledger:app",
    },
    "On a lake and a cluster of your own": {
        "doctor": "cluster:doctor",
        "cluster": "cluster:app",
    },
    "Try a policy before it touches data": {
        "scenario": "scenario:scenario",
    },
}
"""Panel of the help: command: its module and, there, its function or its group. Those of the embedded default come before them."""


@cache
def _places() -> dict[str, tuple[str, str]]:
    """Return the panel and the place of each command, in the order of the help."""
    embedded = embedded_default()
    first = {name: ("Start here", place) for name, place in embedded.commands().items()} if embedded else {}
    return first | {name: (panel, f"{__package__}.{place}") for panel, places in _ORDER.items() for name, place in places.items()}


Command = Any
"""Typer's own class, which it does not export."""


class _Commands(UserDict[str, Command]):
    """Commands by name. A command is built at its first use."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(_places()))

    def __getitem__(self, name: str) -> Command:
        if self.data[name] is None:
            self.data[name] = _make_command(name)
        return self.data[name]


class _Lazy(TyperGroup):
    """Names its commands without building them, to complete a name and to suggest the nearest command for an unknown name."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Commands()

    def list_commands(self, _ctx: object) -> list[str]:
        return list(self.commands)

    def get_command(self, _ctx: object, name: str) -> Command:
        return self.commands[name] if name in self.commands else None  # noqa: SIM401 - `get` would take a module's own KeyError for no command


app = typer.Typer(
    cls=_Lazy,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Deletion you can prove, for message logs on the lakehouse.\n\n"
    "Messages go because a setting of their topic says so: planned, checked on a staged copy, published in one commit, verified, explained.",
    epilog="Exit status: 0 done (or nothing to do), 1 something does not hold, 2 wrong input, 3 refused by a rule, "
    "4 a system does not answer, 5 waits for a person: a question is open, or nothing of a batch was taken, 70 a fault of the program.",
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Keeps `lifecycle` a group whatever it holds."""


@cache
def tree() -> Command:
    """Return the command tree of `lifecycle`. Every call shares one tree, because it holds no state of a call."""
    return typer.main.get_command(app)


def _make_command(name: str) -> Command:
    panel, place = _places()[name]
    found = resolve_name(place)
    alone = typer.Typer(add_completion=False)
    alone.callback()(_root)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name, rich_help_panel=panel)
    else:
        alone.command(name, rich_help_panel=panel)(found)
    group = typer.main.get_group(alone)
    return group.commands[name]
