"""Consumers, replicas and their origins."""

from __future__ import annotations

from message_lifecycle.model.errors.kinds import BadInput, Refused


class UnknownConsumer(BadInput):
    """No such consumer is registered for the topic."""

    def __init__(self, topic: str, consumer: str) -> None:
        self.topic, self.consumer = topic, consumer
        super().__init__(f"consumer {consumer!r} of topic {topic!r} is not registered. `lifecycle consumer list` shows those that are.")


class InvalidProgress(BadInput):
    """A consumer's commit that cannot be: an offset below 0, or one the log has not given yet."""

    def __init__(self, consumer: str, reason: str) -> None:
        self.consumer, self.reason = consumer, reason
        super().__init__(f"commit of consumer {consumer!r} refused: {reason}")


class ReplicaProgress(Refused):
    """TTL-6: a replica's progress is what its own table holds; a person's word could let messages go that were never copied."""

    def __init__(self, topic: str, replica: str) -> None:
        self.topic, self.replica = topic, replica
        super().__init__(
            f"{replica!r} is a replica of topic {topic!r}: its progress is what it has copied. `lifecycle topic copy {replica}` moves it on."
        )


class OriginBehind(Refused):
    """TTL-6: a replica has copied offsets that its origin has not given: the origin is another log than the one that was copied."""

    def __init__(self, topic: str, origin: str, partition: int, copied: int, end_offset: int) -> None:
        self.topic, self.origin, self.partition, self.copied, self.end_offset = topic, origin, partition, copied, end_offset
        super().__init__(
            f"topic {topic!r} has copied partition {partition} of {origin!r} up to offset {copied}, and that ends at {end_offset}: "
            "it was restored from before, or made anew. Nothing was copied, and what was copied before stays. Make a new replica of what is "
            f"there now (`lifecycle topic create NAME --set origin={origin} --set role=ROLE`), then take this one off: "
            f"`lifecycle consumer remove {origin} {topic}`."
        )


class AnotherOrigin(Refused):
    """TTL-6, MSG-5: the origin's table is not the one that the replica has copied; its offsets name other messages."""

    def __init__(self, topic: str, origin: str, copied_uuid: str, found_uuid: str) -> None:
        self.topic, self.origin, self.copied_uuid, self.found_uuid = topic, origin, copied_uuid, found_uuid
        super().__init__(
            f"topic {topic!r} has copied another log of the name {origin!r}: table {copied_uuid} then, {found_uuid} now; it was made anew. "
            "Nothing was copied, and what was copied before stays. Make a new replica of what is there now "
            f"(`lifecycle topic create NAME --set origin={origin} --set role=ROLE`), then take this one off: "
            f"`lifecycle consumer remove {origin} {topic}`."
        )
