"""What was given to us: names, settings, times, messages, scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from message_lifecycle.model.errors.kinds import BadInput, Refused

# Of a longer list the first and the last are told.
_SHOWN = 10


class InvalidName(BadInput):
    """A stream, topic, consumer or document name breaks NAME-1."""

    ALLOWED: ClassVar[str] = "letters, marks, digits, '_', '.', '-' and white space, 1 to 255 bytes of UTF-8, not '.' or '..'"

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(f"invalid name {name!r}: {reason}. Allowed: {self.ALLOWED}.")


class InvalidSetting(BadInput):
    """A configuration value breaks NUM-1; names file, key, value and what is allowed."""

    def __init__(self, *, where: str, key: str, value: object, allowed: str) -> None:
        self.where, self.key, self.value, self.allowed = where, key, value, allowed
        super().__init__(f"{where}: {key} = {value!r} is not valid. Allowed: {allowed}.")


class InvalidInstant(BadInput):
    """A point in time that cannot be read."""

    def __init__(self, text: object) -> None:
        self.text = text
        super().__init__(
            f"{text!r} is not a point in time. Allowed: ISO 8601 in UTC (2026-11-21T00:00:00Z) or integer microseconds since 1970."
        )


class FutureAsOf(Refused):
    """CLK-1: `as_of` lies beyond the ledger's clock plus the skew; deleting by it would be deleting early."""

    def __init__(self, *, as_of: str, now: str, skew_seconds: int) -> None:
        self.as_of, self.now, self.skew_seconds = as_of, now, skew_seconds
        super().__init__(
            f"as_of {as_of} is later than the ledger's clock {now} + {skew_seconds} s. "
            "Give a time that has passed: nothing may be judged by a time that has not come."
        )


class InvalidAppend(BadInput):
    """An append that may not be: into a mirror, or at an offset that is not free (MSG-4, MSG-5)."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"append refused: {reason}")


class UnknownTopic(BadInput):
    """No table for this topic in the catalog."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic!r} does not exist. `lifecycle topic list` shows what does; `lifecycle topic create` makes one.")


class UnknownPartition(BadInput):
    """The topic has no such partition."""

    def __init__(self, topic: str, partition: int, known: Sequence[int]) -> None:
        self.topic, self.partition, self.known = topic, partition, tuple(known)
        some = ", ".join(map(str, known)) if len(known) < _SHOWN else f"{known[0]} to {known[-1]}"
        super().__init__(f"topic {topic!r} has no partition {partition}; it has {some}. `lifecycle topic describe {topic}` shows them.")


class InvalidTopicUri(BadInput):
    """A text with `://` that names no topic of ours."""

    def __init__(self, text: str, reason: str) -> None:
        self.text, self.reason = text, reason
        super().__init__(
            f"{text!r} is not a topic: {reason}. Allowed: persistent://TENANT/NAMESPACE/TOPIC, with -partition-N after it or not, for the "
            "topic TOPIC of the stream TENANT.NAMESPACE (a tenant without a dot); or `stream/topic`."
        )


class OffsetNotGiven(BadInput):
    """A request names a message that the log has not got yet; what it will be, nobody can know."""

    def __init__(self, topic: str, partition: int, offset: int, end_offset: int) -> None:
        self.topic, self.partition, self.offset, self.end_offset = topic, partition, offset, end_offset
        super().__init__(
            f"partition {partition} of topic {topic!r} has not given offset {offset} yet: the next one is {end_offset}. Nothing was removed. "
            f"`lifecycle read {topic} --raw` shows the messages with their offsets."
        )


class TopicExists(Refused):
    """A topic of that name is there already."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic!r} exists already. `lifecycle topic alter` changes its settings.")


class InvalidScenario(BadInput):
    """A scenario file is wrong; names the place in it."""

    def __init__(self, where: str, found: object, allowed: str) -> None:
        self.where, self.found, self.allowed = where, found, allowed
        super().__init__(f"{where}: found {found!r}. Allowed: {allowed}.")
