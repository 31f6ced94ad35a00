"""Scenarios: a policy tried on small data that a file states. Here stands the world that one runs in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from message_lifecycle.app.services import Services
from message_lifecycle.model.errors import InvalidScenario
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.topic import StoreOptions
from message_lifecycle.ports import MessageWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A scratch store and ledger for one scenario. `set_now` moves the ledger's clock: scenarios bring their own time.

    `scratch`: put before the scenario's stream, so that no topic of a shared catalog is met; `close` takes all of it away.
    `damage`: spoils a line of a topic's file, counted from 1; None: the store has no files of lines. `quarantined`: damaged lines. `made_at`: the
    time on this machine.
    """

    services: Services
    writer: MessageWriter
    set_now: Callable[[Instant], None]
    scratch: str = ""
    close: Callable[[], None] = lambda: None
    damage: Callable[[TopicName, int, str], None] | None = None
    quarantined: Callable[[TopicName], int] = lambda _name: 0
    made_at: Instant = field(default_factory=lambda: Instant(time.time_ns() // 1_000))


class MakeWorld(Protocol):
    """A world with these server settings and options of its store."""

    def __call__(self, server: Mapping[str, Value], options: StoreOptions = ...) -> World: ...


def spoil(files: Iterable[Path], line: int, text: str) -> None:
    """Damage as a failing disk or a careless hand does it: put `text` in the place of a line, counted from 1 through all files.

    Raises InvalidScenario where there is no such line."""
    left = line
    for file in files:
        lines = file.read_bytes().split(b"\n")
        if left <= len(lines) - 1:
            lines[left - 1] = text.encode()
            file.write_bytes(b"\n".join(lines))
            return
        left -= len(lines) - 1
    raise InvalidScenario("corrupt.line", line, "a line that is there")
