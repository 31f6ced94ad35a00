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
        "demo": "stack:demo",
        "up": "stack:up",
        "down": "stack:down",
    },
    "Topics and their messages": {
        "topic": "topics:app",
        "ingest": "landing:ingest",
        "read": "reading:read",
        "consumer": "consumers:app",
        "compact": "compaction:compact",
        "document": "documents:app",
    },
    "Remove what is due: all steps at once, or one by one": {
        "due": "planning:due",
        "run": "planning:run",
        "plan": "planning:plan",
        "stage": "verbs:stage",
        "mark": "verbs:mark",
        "gate": "verbs:gate",
        "approve": "verbs:approve",
        "refuse": "verbs:refuse",
        "publish": "verbs:publish",
        "verify": "verbs:verify",
        "message": "requests:messages",
        "key": "requests:keys",
        "undo": "undoing:undo",
        "hold": "holds:app",
        "erase": "erasures:app",
        "quarantine": "planning:quarantine",
        "reclaim": "reclaiming:app",
    },
    "See what is, what was done, and why": {
        "status": "health:status",
        "explain": "explaining:explain",
        "receipt": "erasures:receipts",
        "backends": "backends:backends",
        "ledger": "ledger:app",
    },
    "Try a policy before it touches data": {
        "scenario": "scenarios:app",
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
