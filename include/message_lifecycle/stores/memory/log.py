"""A version of the log: messages by their places, and what no removal of messages changes; how a commit makes another of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from message_lifecycle.model.change import Commit, SealSegment
from message_lifecycle.model.erasure import KeyMatch
from message_lifecycle.model.facts import ActiveSegment, CopyState, Segment
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.rows import offsets_of
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.admission import Refusal, admission, admit

Position = tuple[int, int]
"""(partition, offset), or (partition, base offset of a segment)"""


@dataclass(slots=True, kw_only=True)
class Version:
    """Written on only by whoever made it, until it is in a table."""

    messages: dict[Position, Message] = field(default_factory=dict)
    end_offsets: dict[int, int] = field(default_factory=dict)
    active: dict[int, ActiveSegment] = field(default_factory=dict)
    # EXP-4: fixed when a segment is sealed (last offset, newest time or None, messages); later removals do not change them.
    sealed: dict[Position, tuple[int, Instant | None, int]] = field(default_factory=dict)
    # EXP-4: the known times of all that was ever written to a segment.
    written: dict[Position, Sequence[Instant]] = field(default_factory=dict)
    # TTL-6: of a replica, the origin's last offset by partition that was copied, and the uuid of its table.
    copied: dict[int, int] = field(default_factory=dict)
    copied_from: str | None = None
    # CMP-9: the last offset by partition that was purged because the compacted view covers it.
    purged_through: dict[int, int] = field(default_factory=dict)

    @property
    def copy_state(self) -> CopyState:
        return CopyState(offsets=dict(self.copied), origin_uuid=self.copied_from)

    def copy(self) -> Version:
        """To be written on. Messages are shared: nothing changes one."""
        return replace(
            self,
            messages=dict(self.messages),
            end_offsets=dict(self.end_offsets),
            active={partition: replace(segment) for partition, segment in self.active.items()},
            sealed=dict(self.sealed),
            written=dict(self.written),
            copied=dict(self.copied),
            purged_through=dict(self.purged_through),
        )

    def without(self, gone: Iterable[Position]) -> Version:
        after = self.copy()
        for position in gone:
            after.messages.pop(position, None)
        return after


def apply(version: Version, change: Commit, source: Version | None) -> Version:
    """The log after the change: exactly the messages that it names go or come back, and nothing else. `source`: holds what comes back."""
    named: dict[int, list[range]] = {}
    for partition, run in change.taken():
        named.setdefault(partition, []).append(run)
    after = version.without((p, offset) for p, offset in version.messages if any(offset in run for run in named.get(p, ())))
    for rows in change.back:
        assert source is not None, "what comes back says where it lies"
        for offset in offsets_of(rows.offsets):
            after.messages[rows.partition, offset] = source.messages[rows.partition, offset]
        _seal_as_in(source, after, (rows.partition, rows.base_offset))
    for seal in change.seal:
        _seal_unless_grown(after, seal)
    after.purged_through |= {run.partition: run.last_offset for run in change.drop if run.reason == "compacted"}
    return after


def _seal_unless_grown(version: Version, seal: SealSegment) -> None:
    """A segment that got messages since the plan goes on (EXP-3)."""
    active = version.active[seal.partition]
    if active.base_offset == seal.base_offset and version.end_offsets[seal.partition] == seal.next_offset:
        active.restart(seal.next_offset)


def _seal_as_in(source: Version, version: Version, place: Position) -> None:
    """A segment that was active when it went is sealed: its partition has gone on to another."""
    then = source.active.get(place[0])
    if place in version.sealed or place[1] >= version.active[place[0]].base_offset or then is None or then.base_offset != place[1]:
        return
    last = max(offset for (partition, offset), message in source.messages.items() if (partition, message.segment) == place)
    version.sealed[place] = last, None if then.any_unknown else then.newest_at, then.rows


def append(version: Version, message: NewMessage, policy: Policy, forbidden: KeyMatch | None = None) -> Position | Refusal:
    """Onto a version that is being made. Raises InvalidAppend."""
    own = admission(message, policy, forbidden)
    if isinstance(own, Refusal):
        return own
    partition = message.partition
    end = version.end_offsets.get(partition, 0)
    active = version.active.setdefault(partition, ActiveSegment(base_offset=end))
    before = replace(active)
    offset, segment = admit(message, end_offset=end, active=active, policy=policy)
    if before.rows and segment != before.base_offset:
        _fix_bounds(version, partition, before)
    stored = message.stored(offset=offset, segment=segment, expires_at=own.expires_at, never=own.never)
    version.messages[partition, offset] = stored
    if stored.append_time is not None:
        version.written[partition, segment] = (*version.written.get((partition, segment), ()), stored.append_time)
    version.end_offsets[partition] = offset + 1
    return partition, offset


def seal(version: Version, partition: int) -> None:
    """Close the active segment of a version that is being made, unless it is empty (EXP-3)."""
    active = version.active.get(partition)
    if active is not None and active.rows:
        _fix_bounds(version, partition, active)
        active.restart(version.end_offsets[partition])


def _fix_bounds(version: Version, partition: int, closed: ActiveSegment) -> None:
    inside = [offset for (p, offset), message in version.messages.items() if p == partition and message.segment == closed.base_offset]
    newest = None if closed.any_unknown else closed.newest_at
    version.sealed[partition, closed.base_offset] = (max(inside, default=closed.base_offset), newest, closed.rows)


def position_of(message: Message) -> Position:
    return message.partition, message.offset


def segment_of(message: Message) -> Position:
    return message.partition, message.segment


def by_segment(messages: Iterable[Message]) -> Iterator[tuple[Position, list[Message]]]:
    """`messages`: in order of (partition, offset)."""
    for place, group in groupby(messages, key=segment_of):
        yield place, list(group)


def in_order(messages: Mapping[Position, Message]) -> list[Message]:
    return [messages[position] for position in sorted(messages)]


def segments(version: Version, late_after: Instant | None) -> Iterator[Segment]:
    """See `ports.MessageReader.log`."""
    for (partition, base), messages in by_segment(in_order(version.messages)):
        known = [message.append_time for message in messages if message.append_time is not None]
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
            files=(file_of((partition, base)),),
            late_rows=late,
            never=any(message.never for message in messages),
            own_ttl=any(message.expires_at is not None for message in messages),
        )


def file_of(place: Position) -> str:
    """A segment stands for a file here."""
    return f"{place[0]}/{place[1]}"


def _bounds_of_active(version: Version, partition: int) -> tuple[int, Instant | None]:
    """Last offset and newest time ever taken by the active segment; a removal changes neither, as file bounds do not."""
    active = version.active[partition]
    return version.end_offsets[partition] - 1, None if active.any_unknown else active.newest_at
