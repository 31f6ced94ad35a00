"""A record log as the reference store sees one, so that its rules and its evidence serve both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.message import Message
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.memory.log import Version
from message_lifecycle.stores.record_log.log import Removal


def version_of(messages: Iterable[Message], end_offsets: Mapping[int, int], segments: Mapping[int, int]) -> Version:
    """The log up to those ends. `segments`: base offset of each partition's segment that takes messages now."""
    found = {(m.partition, m.offset): m for m in messages if m.offset < end_offsets.get(m.partition, 0)}
    version = Version(
        messages=found,
        end_offsets=dict(end_offsets),
        active={partition: ActiveSegment(base_offset=segments.get(partition, 0)) for partition in end_offsets},
    )
    ordered = (found[position] for position in sorted(found))
    for place, group in groupby(ordered, key=lambda message: (message.partition, message.segment)):
        inside = list(group)
        times = [message.append_time for message in inside]
        known = [time for time in times if time is not None]
        version.written[place] = known
        newest = max(known) if len(known) == len(times) else None
        active = version.active[place[0]]
        if place[1] < active.base_offset:
            version.sealed[place] = (inside[-1].offset, newest, len(inside))
        else:
            active.join(size=0, rows=len(inside), newest_at=newest, any_unknown=newest is None)
    return version


def removal_of(plan: Plan, rows: int) -> Removal:
    """What the plan names, merged to runs; `rows` of them are there."""
    named: dict[int, list[range]] = {}
    for partition, run in plan.on_log.taken():
        named.setdefault(partition, []).append(run)
    return Removal(plan_id=plan.plan_id, offsets={partition: merged(runs) for partition, runs in named.items()}, rows=rows)


def merged(runs: Iterable[range]) -> tuple[range, ...]:
    """Ascending; neighbours are one run."""
    found: list[range] = []
    for run in sorted(runs, key=lambda run: run.start):
        if found and run.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, run.stop))
        else:
            found.append(run)
    return tuple(found)


def without(version: Version, removal: Removal) -> Version:
    """The same log when the removal is done."""
    takes = removal.taker()
    kept = {position: message for position, message in version.messages.items() if not takes(*position)}
    return Version(messages=kept, end_offsets=version.end_offsets, active=version.active, sealed=version.sealed, written=version.written)
