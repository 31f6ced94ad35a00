"""All commands, in the order of work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from message_lifecycle.app.cli import (
    backends,
    compaction,
    consumers,
    documents,
    erasures,
    explaining,
    health,
    holds,
    landing,
    ledger,
    planning,
    reading,
    reclaiming,
    requests,
    scenarios,
    stack,
    topics,
    undoing,
    verbs,
)

_SETUP, _TOPICS, _RUN, _LOOK, _TRY = (
    "Start here",
    "Topics and their messages",
    "Remove what is due: all steps at once, or one by one",
    "See what is, what was done, and why",
    "Try a policy before it touches data",
)


class _InOrder(TyperGroup):
    """Lists commands as they are declared below; typer would put groups before commands."""

    def list_commands(self, _ctx: Any) -> list[str]:
        return [name for names in _ORDER.values() for name in names]


_ORDER = {
    _SETUP: ("demo", "up", "down"),
    _TOPICS: ("topic", "ingest", "read", "consumer", "compact", "document"),
    _RUN: (
        "due",
        "run",
        "plan",
        "stage",
        "mark",
        "gate",
        "approve",
        "refuse",
        "publish",
        "verify",
        "message",
        "key",
        "undo",
        "hold",
        "erase",
        "quarantine",
        "reclaim",
    ),
    _LOOK: ("status", "explain", "receipt", "backends", "ledger"),
    _TRY: ("scenario",),
}
_GROUPS = {
    "topic": topics.app,
    "consumer": consumers.app,
    "document": documents.app,
    "ledger": ledger.app,
    "scenario": scenarios.app,
    "message": requests.messages,
    "key": requests.keys,
    "erase": erasures.app,
    "receipt": erasures.receipts,
    "hold": holds.app,
    "reclaim": reclaiming.app,
}
_COMMANDS: dict[str, Callable[..., int | None]] = {
    "demo": stack.demo,
    "up": stack.up,
    "down": stack.down,
    "ingest": landing.ingest,
    "read": reading.read,
    "compact": compaction.compact,
    "due": planning.due,
    "run": planning.run,
    "quarantine": planning.quarantine,
    "plan": planning.plan,
    "stage": verbs.stage,
    "mark": verbs.mark,
    "gate": verbs.gate,
    "approve": verbs.approve,
    "refuse": verbs.refuse,
    "publish": verbs.publish,
    "verify": verbs.verify,
    "undo": undoing.undo,
    "status": health.status,
    "explain": explaining.explain,
    "backends": backends.backends,
}

# A request like those of `message` and `key`, which people look for beside what else is done to a topic.
topics.app.command()(requests.truncate)

app = typer.Typer(
    cls=_InOrder,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Deletion you can prove, for message logs on the lakehouse.\n\n"
    "Messages go because a setting of their topic says so: planned, checked on a staged copy, published in one commit, verified, explained.",
    epilog="Exit status: 0 done (or nothing to do), 1 something does not hold, 2 wrong input, 3 refused by a rule, "
    "4 a system does not answer, 5 waits for a person, 70 a fault of the program.",
)
for _panel, _names in _ORDER.items():
    for _name in _names:
        if _name in _GROUPS:
            app.add_typer(_GROUPS[_name], name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_COMMANDS[_name])


@app.callback()
def _root() -> None:
    """Keeps `lifecycle` a group whatever it holds."""
