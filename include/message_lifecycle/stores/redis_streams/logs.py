"""The topics of one Redis server, and who reads them through consumer groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from message_lifecycle.model.backends import Backend
from message_lifecycle.model.errors import UnknownTopic, foreign_key, topic_exists
from message_lifecycle.model.facts import Progress
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.record_log.head import Head
from message_lifecycle.stores.redis_streams import layout
from message_lifecycle.stores.redis_streams.layout import DEFAULT_PREFIX, TopicKeys, offset_of, topics_key
from message_lifecycle.stores.redis_streams.log import RedisLog, text_of
from message_lifecycle.stores.redis_streams.server import Server, named_errors

LOCK_SECONDS = 10.0
WAIT_SECONDS = 30.0


class RedisLogs:
    """RecordLogs over one server. `client`: the tests' own, to die between two commands."""

    def __init__(
        self,
        server: Server,
        *,
        prefix: str = DEFAULT_PREFIX,
        client: redis.Redis | None = None,
        lock_seconds: float = LOCK_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._name, self._prefix = server.name, prefix
        self._client = server.connect() if client is None else client
        self._lock_seconds, self._wait_seconds = lock_seconds, wait_seconds

    @property
    def backend(self) -> Backend:
        return "redis_streams"

    def names(self) -> Sequence[TopicName]:
        with named_errors(self._name, "(all)", topics_key(self._prefix)):
            found: Any = self._client.smembers(topics_key(self._prefix))
            names = sorted(TopicName.parse(text.decode()) for text in found)
            # A name is put down first: of a creation that died there is nothing else.
            return [name for name in names if self._client.exists(self._keys(name).topic)]

    def create(self, name: TopicName, head: Head) -> None:
        keys = self._keys(name)
        with named_errors(self._name, str(name), keys.topic):
            self._client.sadd(topics_key(self._prefix), str(name))
        streams = keys.streams(range(head.partitions))
        with named_errors(self._name, str(name), keys.topic, doing=f"creating topic {name}"):
            told: Any = self._client.eval(layout.CREATE, 1 + len(streams), keys.topic, *streams, text_of(head))
        if told == b"there":
            raise topic_exists(str(name))
        if told != b"done":
            raise foreign_key(str(name), told.decode(), "is there, and the topic is not")

    def open(self, name: TopicName) -> RedisLog:
        keys = self._keys(name)
        with named_errors(self._name, str(name), keys.topic):
            if not self._client.exists(keys.topic):
                raise UnknownTopic(str(name))
        return RedisLog(self._client, keys, backend=self._name, lock_seconds=self._lock_seconds, wait_seconds=self._wait_seconds)

    def progress(self, name: TopicName) -> Sequence[Progress]:
        """Consumer groups as readers: each needs everything from its oldest entry on that is pending or not delivered yet. Redis tells
        no time of it, so a group never falls silent; `XGROUP DESTROY` ends its claim. A stream that a group was not made for is none that
        it reads: nothing of that partition is kept for it. Raises UnknownTopic."""
        keys, head = self._keys(name), self.open(name).head()
        needs: dict[tuple[bytes, int], int] = {}
        for partition in range(head.partitions):
            key = keys.stream(partition)
            with named_errors(self._name, str(name), key):
                groups: Any = self._client.xinfo_groups(key) if self._client.exists(key) else []
                for group in groups:
                    needed = offset_of(group["last-delivered-id"]) + 1
                    if group["pending"]:
                        pending: Any = self._client.xpending(key, group["name"])
                        needed = min(needed, offset_of(pending["min"] or group["last-delivered-id"]))
                    needs[group["name"], partition] = needed
        return [
            Progress(
                consumer=_reader(group), partition=partition, at=None, offset=needs.get((group, partition), head.end_offsets[partition]) - 1
            )
            for group in sorted({group for group, _ in needs})
            for partition in range(head.partitions)
        ]

    def drop(self, name: TopicName) -> None:
        """All of the topic, for scratch ones."""
        keys, partitions = self._keys(name), self.open(name).head().partitions
        with named_errors(self._name, str(name), keys.topic, doing=f"dropping topic {name}"):
            self._client.delete(keys.topic, keys.lock, *keys.streams(range(partitions)))
            self._client.srem(topics_key(self._prefix), str(name))

    def close(self) -> None:
        self._client.close()

    def _keys(self, name: TopicName) -> TopicKeys:
        return TopicKeys(prefix=self._prefix, name=name)


def _reader(group: bytes) -> str:
    """As plans name it, apart from the consumers that the ledger knows."""
    return f"group {group.decode(errors='replace')}"
