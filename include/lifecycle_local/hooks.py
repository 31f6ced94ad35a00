"""The embedded default's answers to the product (`EmbeddedDefault` in message_lifecycle.app.embedded); each imports its own when asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from message_lifecycle.model.topic import Backend

if TYPE_CHECKING:
    from message_lifecycle.app.scenario import MakeWorld

_COMMANDS = "lifecycle_local.commands"


def commands() -> Mapping[str, str]:
    """Return the places of the commands by name."""
    return {name: f"{_COMMANDS}:{name}" for name in ("demo", "up", "down")}


def load_environment() -> None:
    """Make this process one of the stack's, if one is set up here."""
    from lifecycle_local.environment import load_environment as load

    load()


def scratch_worlds() -> Mapping[Backend, MakeWorld]:
    """Return the makers of a lake for one process, and of streams on the embedded Redis."""
    from lifecycle_local.worlds import SCRATCH

    return SCRATCH
