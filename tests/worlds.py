"""A small lake in memory behind the `lifecycle` command, for tests of what people see."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from message_lifecycle.app.cli import main
from message_lifecycle.app.cli.context import Wiring
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.model.instants import Instant, parse_instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value

NOW = parse_instant("2026-11-21T12:00:00Z")
SECOND = 1_000_000
HOUR = 3_600 * SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The output of a command, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """Topics in memory with their ledger, whose clock says NOW until a test moves it."""

    world: World
    capsys: pytest.CaptureFixture[str]

    @property
    def services(self) -> Services:
        return self.world.services

    def topic(self, name: str, *, partitions: int = 1, **settings: Value) -> TopicName:
        topic = TopicName.parse(name)
        create_topic(self.services, topic, partitions=partitions, settings=settings)
        return topic

    def append(self, topic: TopicName, *hours_old: float, partition: int = 0, value: bytes = b"value") -> None:
        """One message per age, each in a sealed segment of its own; after them the active segment is empty."""
        for age in hours_old:
            self.append_at(topic, Instant(int(NOW - age * HOUR)), partition=partition, value=value)

    def append_at(self, topic: TopicName, at: Instant | None, *, partition: int = 0, value: bytes = b"value") -> None:
        message = NewMessage(append_time=at, key=b"key", value=value, partition=partition)
        self.world.writer.append(topic, [message], policy_of(self.services, topic))
        self.world.writer.seal(topic, partition)

    def stored(self, topic: TopicName) -> list[int]:
        return [message.offset for message in self.services.reader.messages(topic)]

    def say(self, *arguments: str) -> Told:
        """Run the command in this process."""
        self.capsys.readouterr()
        status = main(arguments, wiring=Wiring(lake=lambda: self.services))
        said = self.capsys.readouterr()
        return Told(status=status, out=said.out, err=said.err)


def make_lake(capsys: pytest.CaptureFixture[str], **server: Value) -> Lake:
    world = memory_world(server)
    world.set_now(NOW)
    return Lake(world=world, capsys=capsys)
