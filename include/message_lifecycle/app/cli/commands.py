"""All commands, in the order of work. One is imported and built when it is called or listed: no call pays for the others."""

from __future__ import annotations

from collections import UserDict
from functools import cache
from pkgutil import resolve_name
from typing import Any

import typer
from typer.core import TyperGroup

_ORDER = {
    "Start here": {
        "demo": "trying:demo",
        "up": "trying:up",
        "down": "trying:down",
    },
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
        "hold": "holds:app",
        "erase": "erasures:app",
        "quarantine": "runs:quarantine",
        "reclaim": "runs:reclaim",
    },
    "See what is, what was done, and why": {
        "status": "looking:status",
        "explain": "looking:explain",
        "receipt": "erasures:receipts",
        "backends": "looking:backends",
        "ledger": "ledger:app",
    },
    "Try a policy before it touches data": {
        "scenario": "trying:scenario",
    },
}
"""Panel of the help: command: its module and, there, its function or its group."""
_PANELS = {name: panel for panel, places in _ORDER.items() for name in places}


class _Commands(UserDict[str, Any]):
    """Commands by name, each made when it is first asked for."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(_PANELS))

    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            self.data[name] = _made(name)
        return self.data[name]


class _Lazy(TyperGroup):
    """Names its commands without making them: to complete a word, and to tell what an unknown one is most like."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Commands()

    def list_commands(self, _ctx: Any) -> list[str]:
        return list(self.commands)

    def get_command(self, _ctx: Any, name: str) -> Any:
        return self.commands[name] if name in self.commands else None  # noqa: SIM401 - `get` would take a module's own KeyError for no command


app = typer.Typer(
    cls=_Lazy,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Deletion you can prove, for message logs on the lakehouse.\n\n"
    "Messages go because a setting of their topic says so: planned, checked on a staged copy, published in one commit, verified, explained.",
    epilog="Exit status: 0 done (or nothing to do), 1 something does not hold, 2 wrong input, 3 refused by a rule, "
    "4 a system does not answer, 5 waits for a person, 70 a fault of the program.",
)


@app.callback()
def _root() -> None:
    """Keeps `lifecycle` a group whatever it holds."""


@cache
def tree() -> Any:
    """`lifecycle`; the same one at every call, for what is made of it holds nothing of a call."""
    return typer.main.get_command(app)


def _made(name: str) -> Any:
    panel = _PANELS[name]
    found = resolve_name(f"{__package__}.{_ORDER[panel][name]}")
    alone = typer.Typer(add_completion=False)
    alone.callback()(_root)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name, rich_help_panel=panel)
    else:
        alone.command(name, rich_help_panel=panel)(found)
    group = typer.main.get_group(alone)
    return group.commands[name]
