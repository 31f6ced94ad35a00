"""`lifecycle backends`: what each backend can hold of a policy (RET-6)."""

from __future__ import annotations

from dataclasses import asdict

from message_lifecycle.app.cli.context import OutputOption
from message_lifecycle.app.cli.screen import Output, Screen, emit
from message_lifecycle.model.backends import Support, matrix


def backends(output: OutputOption = Output.text) -> None:
    """List every backend and limit: whether a read hides what the limit takes, and how a run removes it.

    A policy with a limit that its backend refuses is refused when it is loaded.
    """
    found = list(matrix())
    emit(output, [{**asdict(support), "refused": support.refused} for support in found], lambda screen: _show(screen, found))


def _show(screen: Screen, found: list[Support]) -> None:
    screen.table(
        ("backend", "limit", "read filter", "removed by"),
        [
            (each.backend, each.limit, "refused" if each.refused else "yes" if each.logical else "no", each.physical or "refused")
            for each in found
        ],
    )
