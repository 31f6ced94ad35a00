"""What commands share: the services they work with, and how their arguments are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from message_lifecycle.app.cli.screen import Output
from message_lifecycle.model.backends import BACKENDS, NO_OPTIONS, Backend, StoreOptions
from message_lifecycle.model.errors import BadInput
from message_lifecycle.model.instants import Instant, parse_instant
from message_lifecycle.model.settings import SETTINGS, Value, resolve

if TYPE_CHECKING:
    from message_lifecycle.app.scenario import MakeWorld, World
    from message_lifecycle.app.services import Services
    from message_lifecycle.ledger.ledger import SqlLedger

_INTEGER = re.compile(r"-?[0-9]{1,20}")
_POSITION = re.compile(r"([0-9]{1,10}):([0-9]{1,19})")


def _lake() -> Services:
    from message_lifecycle.app import wiring

    return wiring.lake()


def _world(store: Backend) -> MakeWorld:
    """Of the store that has this name; what it needs is imported when it is made."""

    def make(server: Mapping[str, Value], options: StoreOptions = NO_OPTIONS) -> World:
        from message_lifecycle.app import wiring

        found: World = wiring.SCRATCH_WORLDS[store](server, options)
        return found

    return make


def _ledger_url() -> str:
    from message_lifecycle.app.config import load_config

    return load_config().ledger_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """Where commands get their services; tests give their own."""

    lake: Callable[[], Services] = _lake
    ledger_url: Callable[[], str] = _ledger_url
    worlds: Mapping[str, MakeWorld] = field(default_factory=lambda: {backend: _world(backend) for backend in BACKENDS})

    def ledger(self) -> SqlLedger:
        """The ledger alone, for its own care. Raises LedgerNotMigrated and what else `open_ledger` raises."""
        from message_lifecycle.ledger.ledger import open_ledger

        return open_ledger(self.ledger_url())


def wiring_of(ctx: typer.Context) -> Wiring:
    found = ctx.find_object(Wiring)
    assert found is not None, "main() puts it there"
    return found


def services(ctx: typer.Context) -> Services:
    """The lake of this configuration; Spark starts only where a step needs it."""
    return wiring_of(ctx).lake()


class InvalidPosition(BadInput):
    """Not `PARTITION:OFFSET`."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(f"{text!r} is not a position in a log. Allowed: PARTITION:OFFSET, two whole numbers such as 0:1234.")


def position(text: str) -> tuple[int, int]:
    """Read `PARTITION:OFFSET`. Raises InvalidPosition."""
    found = _POSITION.fullmatch(text)
    if found is None:
        raise InvalidPosition(text)
    return int(found[1]), int(found[2])


def instant(text: str) -> Instant:
    """Read ISO 8601, or integer microseconds. Raises InvalidInstant."""
    return parse_instant(int(text) if _INTEGER.fullmatch(text) else text)


def instant_of(s: Services, as_of: str | None) -> Instant:
    """The time to judge by: the ledger's clock unless one is given. Raises InvalidInstant, FutureAsOf (CLK-1)."""
    if as_of is None:
        return s.ledger.now()
    given = instant(as_of)
    s.ledger.check_as_of(given, resolve(topic={}, server=s.server).clock_skew_us)
    return given


def pairs(texts: list[str], option: str) -> dict[str, str]:
    """Read `NAME=VALUE` options; a name may stand there once."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE, such as message_expiry=3600", param_hint=option)
        if name.strip() in found:
            raise typer.BadParameter(f"{name.strip()!r} is given twice", param_hint=option)
        found[name.strip()] = value.strip()
    return found


def complete_setting(incomplete: str) -> list[tuple[str, str]]:
    """For the shell: `name=` of every topic setting."""
    return [(f"{s.name}=", s.help) for s in SETTINGS if s.on_topic and s.name.startswith(incomplete)]


def complete_setting_name(incomplete: str) -> list[tuple[str, str]]:
    return [(s.name, s.help) for s in SETTINGS if s.on_topic and s.name.startswith(incomplete)]


TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic: `stream/topic`, or `topic` alone in the stream `default`.", show_default=False)
]
PlanArgument = Annotated[str, typer.Argument(metavar="PLAN", help="The plan's id, or a unique beginning of it.", show_default=False)]
AsOfOption = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="Judge ages by this time, as 2026-11-21T00:00:00Z; by default the ledger's clock now. A time to come is refused.",
        show_default=False,
    ),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Print text for people or JSON for programs.")]
