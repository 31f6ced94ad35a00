"""Names of keys. The braces make all keys of a topic fall into one slot of a cluster, which alone lets one step change them together;
no name of a topic holds a brace (NAME-1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from message_lifecycle.model.names import TopicName

DEFAULT_PREFIX = "lifecycle"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicKeys:
    """Keys of one topic; `prefix` sets all of a backend's apart from whatever else the server holds."""

    prefix: str
    name: TopicName

    @property
    def topic(self) -> str:
        """A hash: the head, and how many entries each stream should have."""
        return f"{self.prefix}:{{{self.name}}}"

    @property
    def lock(self) -> str:
        return f"{self.topic}:lock"

    def stream(self, partition: int) -> str:
        return f"{self.topic}:{partition}"

    def streams(self, partitions: Iterable[int]) -> list[str]:
        return [self.stream(partition) for partition in partitions]


def topics_key(prefix: str) -> str:
    """A set: the names of all topics there, so that none has to be searched for among a server's keys."""
    return f"{prefix}:topics"
