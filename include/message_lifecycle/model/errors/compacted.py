"""Compacted views."""

from __future__ import annotations

from message_lifecycle.model.errors.kinds import BadInput, Refused


class CompactedTableMissing(Refused):
    """The compacted view of a topic is not there, or cannot be read. The log is no substitute: it may be trimmed (CMP-4)."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic, self.reason = topic, reason
        super().__init__(
            f"topic {topic}: the compacted view cannot be read: {reason}. The log itself may be trimmed, so it is not read instead. "
            f"`lifecycle compact {topic} --status` says what was compacted and when."
        )


class CompactedTableThere(Refused):
    """To begin anew would throw away a view that is in order."""

    def __init__(self, topic: str, table: str) -> None:
        self.topic, self.table = topic, table
        super().__init__(
            f"topic {topic} has its compacted view, in table {table}: nothing is begun anew. Run `lifecycle compact` without --anew; or, "
            "if the view is to be given up, with every message that is in it alone, drop that table first."
        )


class HorizonBeyondLog(Refused):
    """The view claims messages that the log never had: one of the two was restored or made anew."""

    def __init__(self, topic: str, partition: int, horizon: int, end_offset: int) -> None:
        self.topic, self.partition, self.horizon, self.end_offset = topic, partition, horizon, end_offset
        super().__init__(
            f"topic {topic}, partition {partition}: the compacted view reaches to offset {horizon}, but the log ends before {end_offset}. "
            "The log or the view was restored or made anew; nothing was changed. If the log is right, drop the view's table and run "
            "`lifecycle compact --anew`."
        )


class TopicWithoutKeys(BadInput):
    """No message of the topic has a key: compaction would only copy it."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic}: none of its messages has a key, so there is nothing to compact; the view was left as it is.")


class CompactionRunning(Refused):
    """Another compaction of the topic is under way (CMP-10)."""

    def __init__(self, topic: str, plan_id: str) -> None:
        self.topic, self.plan_id = topic, plan_id
        super().__init__(
            f"topic {topic}: another compaction is running (plan {plan_id}); this one was refused. Try again when it has ended."
        )
