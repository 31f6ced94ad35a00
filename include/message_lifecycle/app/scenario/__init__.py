"""Scenarios: a policy tried on small data that a file states. Here stands the world that one runs in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from message_lifecycle.app.services import Services
from message_lifecycle.model.backends import StoreOptions
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import Value
from message_lifecycle.ports import MessageWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A scratch store and ledger for one scenario. `set_now` moves the ledger's clock: scenarios bring their own time.

    `scratch`: put before the scenario's stream, so that no topic of a shared catalog is met; `close` takes all of it away.
    `damage`: spoils a line of a topic's file, counted from 1; None: the store has no files of lines. `quarantined`: damaged lines.
    """

    services: Services
    writer: MessageWriter
    set_now: Callable[[Instant], None]
    scratch: str = ""
    close: Callable[[], None] = lambda: None
    damage: Callable[[TopicName, int, str], None] | None = None
    quarantined: Callable[[TopicName], int] = lambda _name: 0


class MakeWorld(Protocol):
    """A world with these server settings and options of its store."""

    def __call__(self, server: Mapping[str, Value], options: StoreOptions = ...) -> World: ...
