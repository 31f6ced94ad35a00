"""Markers for the keys that a change in memory empties, and the older markers that they replace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.marker import Marker, is_marker
from message_lifecycle.model.message import Message
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import RemovalReason, ranges_text
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.markers import markers
from message_lifecycle.stores.memory.log import Version

Gone = list[tuple[Message, RemovalReason]]


def removed_by(before: Version, after: Version, plan: Plan) -> Gone:
    """What the staged change takes, with the reasons."""
    return [
        (message, action.reason)
        for position, message in before.messages.items()
        if position not in after.messages and (action := plan.taking(*position)) is not None
    ]


def owed(versions: Mapping[int, Version], removals: Iterable[int]) -> Gone:
    """What other writers' removals took of keys that it left without a live message."""
    gone: Gone = []
    for snapshot_id in removals:
        was, became = versions[snapshot_id - 1], versions[snapshot_id]
        live = {message.key for message in became.messages.values() if not is_marker(message.headers)}
        gone += [(m, "removed") for position, m in was.messages.items() if position not in became.messages and m.key not in live]
    return gone


def markers_of(before: Version, after: Version, gone: Gone, plan: Plan, policy: Policy) -> tuple[Marker, ...]:
    assert policy.marker_ttl_us is not None
    live = {message.key for message in after.messages.values() if message.key is not None and not is_marker(message.headers)}
    if plan.on_log.sweep:
        live |= told_already(gone, after)
    newest: dict[int, Instant] = {}
    for message in before.messages.values():
        if message.append_time is not None:
            newest[message.partition] = max(message.append_time, newest.get(message.partition, message.append_time))
    return markers(gone, live, as_of=plan.as_of, marker_ttl_us=policy.marker_ttl_us, newest=newest)


def told_already(gone: Gone, log: Version) -> set[bytes]:
    """Keys of which a marker was made after the removal, for another reason."""
    newest: dict[bytes, int] = {}
    for message, _ in gone:
        if message.key is not None:
            newest[message.key] = max(message.offset, newest.get(message.key, 0))
    return {m.key for m in log.messages.values() if m.key is not None and is_marker(m.headers) and m.offset > newest.get(m.key, m.offset)}


def superseded_by(made: tuple[Marker, ...], after: Version, plan: Plan) -> tuple[RemoveRows, ...]:
    keys = {marker.key for marker in made}
    older = [m for at, m in sorted(after.messages.items()) if m.key in keys and is_marker(m.headers) and not plan.spares(*at)]
    return tuple(
        RemoveRows(
            partition=place[0],
            base_offset=place[1],
            file=f"{place[0]}/{place[1]}",
            offsets=ranges_text(offsets),
            rows=len(offsets),
            reason="superseded",
        )
        for place, group in groupby(older, key=lambda message: (message.partition, message.segment))
        if (offsets := [message.offset for message in group])
    )
