"""What tests do with topics on Redis: make them, fill them, run their retention, look at what is left, and die on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import redis

from message_lifecycle.app import steps
from message_lifecycle.app.backends import record_log
from message_lifecycle.app.operations.registry import operations_on_records
from message_lifecycle.app.parts import with_parts
from message_lifecycle.app.scenario import World
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import record_log_world
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.record_log.eraser import RecordLogEraser
from message_lifecycle.stores.record_log.store import RecordLogStore
from message_lifecycle.stores.redis_streams.layout import TopicKeys
from message_lifecycle.stores.redis_streams.log import RedisLogs, Server

CLICKS = TopicName(stream="web", topic="clicks")
AS_OF = Instant(1_000_000_000)
SECOND = 1_000_000


class Died(BaseException):
    """The process ends here: nobody catches it, and nothing is sent any more."""


class Dying(redis.Redis):
    """A client that sends so many commands, and no more."""

    left: int

    def execute_command(self, *arguments: Any, **options: Any) -> Any:
        if not self.left:
            raise Died
        self.left -= 1
        return super().execute_command(*arguments, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """A prefix on a server. A lock is free again after `lock_seconds`, for tests that wait for one whose holder died."""

    server: Server
    client: redis.Redis
    prefix: str
    lock_seconds: float = 10.0

    def logs(self, client: redis.Redis | None = None) -> RedisLogs:
        client = client or self.client
        return RedisLogs(self.server, prefix=self.prefix, client=client, lock_seconds=self.lock_seconds, wait_seconds=10.0)

    def dying(self, left: int) -> Dying:
        made = Dying(connection_pool=self.client.connection_pool)
        made.set_response_callback("XRANGE", lambda entries, **_: entries)
        made.left = left
        return made

    def topic(self, *, partitions: int = 1, name: TopicName = CLICKS, **settings: Value) -> Topic:
        logs = self.logs()
        world = record_log_world(logs, {}, close=lambda: None, groups=logs)
        world.set_now(AS_OF)
        create_topic(world.services, name, partitions=partitions, settings={"max_removed_fraction": 1.0, **settings})
        return Topic(streams=self, world=world, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic, with a ledger in memory."""

    streams: Streams
    world: World
    name: TopicName
    keys: TopicKeys = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", TopicKeys(prefix=self.streams.prefix, name=self.name))

    @property
    def services(self) -> Services:
        return self.world.services

    def over(self, client: redis.Redis) -> Services:
        """The same ledger, another connection: as after a new start, or before a death."""
        logs = self.streams.logs(client)
        old = self.services
        made = record_log(
            RecordLogStore(logs, server={}, operations=operations_on_records),
            logs,
            {},
            ledger=old.ledger,
            gate=old.gate,
            eraser=RecordLogEraser(logs, server={}),
            groups=logs,
        )
        return with_parts(made, key_secret=old.key_secret)

    def append(self, *times: int | None, partition: int = 0, key: bytes | None = b"k", value: bytes = b"v") -> None:
        new = [NewMessage(append_time=None if t is None else Instant(t), key=key, value=value, partition=partition) for t in times]
        self.write(new)

    def write(self, messages: Sequence[NewMessage]) -> None:
        self.world.writer.append(self.name, messages, policy_of(self.services, self.name))

    def run(self, services: Services | None = None, *, as_of: Instant = AS_OF) -> Outcome:
        self.world.set_now(as_of)
        return steps.run(
            services or self.services, self.name, as_of=as_of, work="retention", approver=lambda _plan, _report: (True, "tests", "")
        )

    def offsets(self, partition: int = 0) -> list[int]:
        return [message.offset for message in self.services.reader.messages(self.name, partition=partition)]

    def group(self, name: str, *, partition: int = 0, start: str = "0") -> None:
        self.streams.client.xgroup_create(self.keys.stream(partition), name, id=start)

    def deliver(self, group: str, count: int, *, partition: int = 0) -> list[str]:
        """To a consumer of the group; the ids that it got, which are pending then."""
        key = self.keys.stream(partition)
        found: Any = self.streams.client.xreadgroup(group, "one", {key: ">"}, count=count)
        return [entry_id.decode() for entry_id, _ in found[0][1]]

    def acknowledge(self, group: str, *ids: str, partition: int = 0) -> None:
        self.streams.client.xack(self.keys.stream(partition), group, *ids)

    def planned(self) -> str:
        """A plan that has passed its gate."""
        plan_id = steps.plan(self.services, self.name, as_of=AS_OF, work="retention").plan.plan_id
        steps.stage(self.services, plan_id)
        report = steps.gate(self.services, plan_id)
        assert report.judgement == "passed", report
        return plan_id


def patient(streams: Streams) -> Streams:
    """With locks that do not outlive their holder for long."""
    return replace(streams, lock_seconds=0.2)
