"""What of an origin is new to a source or mirror, and whether it is the log that was copied so far (MSG-5, TTL-6)."""

from __future__ import annotations

from message_lifecycle.model.errors import another_origin, origin_behind
from message_lifecycle.model.facts import CopyState, LogState
from message_lifecycle.model.names import TopicName


def new_in_origin(replica: TopicName, origin: LogState, copied: CopyState) -> dict[int, int]:
    """The origin's last offset to copy, of each partition that has any; by metadata alone.

    Offsets say nothing across logs: one that was made anew under the same name, and has grown longer than what was copied, would be
    copied with a hole. `origin` may be older than what is copied: a rival copy has then gone further. Raises AnotherOrigin.
    """
    if copied.origin_uuid not in (None, origin.table_uuid):
        raise another_origin(str(replica), str(origin.topic), str(copied.origin_uuid), origin.table_uuid)
    return {partition: end - 1 for partition, end in origin.end_offsets.items() if end - 1 > copied.offsets.get(partition, -1)}


def check_origin(replica: TopicName, newest: LogState, copied: CopyState) -> None:
    """The origin, as it is now, is the log that was copied, and ends past all that was. Raises AnotherOrigin, OriginBehind."""
    new_in_origin(replica, newest, copied)
    for partition, last in copied.offsets.items():
        if last >= (end := newest.end_offsets.get(partition, 0)):
            raise origin_behind(str(replica), str(newest.topic), partition, last, end)
