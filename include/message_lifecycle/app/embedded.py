"""The embedded default, the package `lifecycle_local`, if it is installed next to the product. Only this module imports it, by name.

The product works without it. Then the environment names the ledger, and there are no commands that start servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, cast

from message_lifecycle.model.topic import Backend

if TYPE_CHECKING:
    from message_lifecycle.app.scenario import MakeWorld  # its import loads pydantic, which only scenarios need

PACKAGE = "lifecycle_local"


class EmbeddedDefault(Protocol):
    """The functions of the module `hooks` in that package."""

    def commands(self) -> Mapping[str, str]:
        """Return the places of its commands by name, as `module:function`."""

    def load_environment(self) -> None:
        """Set this process's variables as the servers that are set up here need them; without any, do nothing."""

    def scratch_worlds(self) -> Mapping[Backend, MakeWorld]:
        """Return the makers of scratch logs that need a server, by backend."""


@cache
def embedded_default() -> EmbeddedDefault | None:
    """Return the embedded default, or None where only the product is installed."""
    return cast(EmbeddedDefault, import_module(f"{PACKAGE}.hooks")) if find_spec(PACKAGE) else None
