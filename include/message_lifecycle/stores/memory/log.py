"""The log at one snapshot, and its segments as metadata would tell them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from message_lifecycle.model.change import SealSegment
from message_lifecycle.model.facts import ActiveSegment, CopyState, Segment
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message

Position = tuple[int, int]


@dataclass(slots=True, kw_only=True)
class Version:
    """The log at one snapshot."""

    messages: dict[Position, Message] = field(default_factory=dict)
    end_offsets: dict[int, int] = field(default_factory=dict)
    active: dict[int, ActiveSegment] = field(default_factory=dict)
    # EXP-4: fixed when a segment is sealed (last offset, newest time or None, messages); later removals do not change them.
    sealed: dict[Position, tuple[int, Instant | None, int]] = field(default_factory=dict)
    # EXP-4: the known times of all that was ever written to a segment.
    written: dict[Position, list[Instant]] = field(default_factory=dict)
    # TTL-6: of a replica, the origin's last offset by partition that was copied, and the uuid of its table.
    copied: dict[int, int] = field(default_factory=dict)
    copied_from: str | None = None
    # CMP-9: the last offset by partition that was purged because the compacted view covers it.
    purged_through: dict[int, int] = field(default_factory=dict)

    @property
    def copy_state(self) -> CopyState:
        return CopyState(offsets=dict(self.copied), origin_uuid=self.copied_from)


def seal(version: Version, partition: int, closed: ActiveSegment) -> None:
    inside = [offset for (p, offset), message in version.messages.items() if p == partition and message.segment == closed.base_offset]
    newest = None if closed.any_unknown else closed.newest_at
    version.sealed[(partition, closed.base_offset)] = (max(inside, default=closed.base_offset), newest, closed.rows)


def publish_seal(version: Version, action: SealSegment) -> None:
    active = version.active[action.partition]
    if active.base_offset == action.base_offset and version.end_offsets[action.partition] == action.next_offset:
        active.restart(action.next_offset)


def segments(version: Version, late_after: Instant | None) -> Iterator[Segment]:
    def place(message: Message) -> Position:
        return message.partition, message.segment

    ordered = (version.messages[position] for position in sorted(version.messages))
    for (partition, base), group in groupby(ordered, key=place):
        messages = list(group)
        times = [message.append_time for message in messages]
        known = [time for time in times if time is not None]
        fixed = version.sealed.get((partition, base))
        last_offset, newest = _bounds_of_active(version, partition) if fixed is None else fixed[:2]
        late = 0
        if newest is not None and late_after is not None and newest > late_after:
            late = sum(time > late_after for time in known)
            newest = max((time for time in version.written[partition, base] if time <= late_after), default=None)
        yield Segment(
            partition=partition,
            base_offset=base,
            last_offset=last_offset,
            newest_at=newest,
            oldest_at=min(known, default=None),
            rows=len(messages),
            size_bytes=sum(message.size_bytes for message in messages),
            sealed=fixed is not None or base < version.active[partition].base_offset,
            files=(f"{partition}/{base}",),
            late_rows=late,
            never=any(message.never for message in messages),
            own_ttl=any(message.expires_at is not None for message in messages),
        )


def _bounds_of_active(version: Version, partition: int) -> tuple[int, Instant | None]:
    """Last offset and newest time ever taken by the active segment; a removal changes neither, as file bounds do not."""
    active = version.active[partition]
    return version.end_offsets[partition] - 1, None if active.any_unknown else active.newest_at
