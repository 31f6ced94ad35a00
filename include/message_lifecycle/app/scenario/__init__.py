"""Scenarios: a test of a policy on small data from a file. A scenario runs in a `World`, a scratch store and ledger."""

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
    """A scratch store and ledger for one scenario.

    Attributes:
        set_now: Moves the ledger's clock, because a scenario has its own time.
        scratch: A prefix of the scenario's stream, so that its topics differ from other topics of a shared catalog.
        close: Removes the scratch store and ledger.
        damage: Damages a line of a topic's file, counted from 1. None: the store has no files of lines.
        quarantined: The number of a topic's damaged lines.
        made_at: The time on this machine.
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


def corrupt_line(files: Iterable[Path], line: int, text: str) -> None:
    """Replace a line with `text`, as a failing disk or a careless person would. Lines are counted from 1 through all files.

    Raises:
        InvalidScenario: There is no such line.
    """
    left = line
    for file in files:
        lines = file.read_bytes().split(b"\n")
        if left <= len(lines) - 1:
            lines[left - 1] = text.encode()
            file.write_bytes(b"\n".join(lines))
            return
        left -= len(lines) - 1
    raise InvalidScenario("corrupt.line", line, "a line that is there")
