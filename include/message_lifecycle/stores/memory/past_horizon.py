"""What would be seen again if messages past the horizons of a compacted view went (CMP-9)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from message_lifecycle.model.message import Message
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.view import Outlived, ViewRow


def outlived(past: Sequence[Message], rows: Iterable[ViewRow], plan: Plan) -> Outlived:
    """`past`: what lies past the horizons, in order of (partition, offset); `rows`: of the view."""
    going: set[tuple[int, bytes]] = set()
    staying: set[tuple[int, bytes]] = set()
    in_log: dict[int, list[int]] = {}
    for message in past:
        if message.key is None:
            continue
        place = message.partition, message.key
        if plan.taking(message.partition, message.offset) is None:
            staying.add(place)
            continue
        going.add(place)
        if place in staying:
            in_log.setdefault(message.partition, []).append(message.offset)
    of_view: dict[int, list[int]] = {}
    for row in rows:
        message = row.message
        if message.key is not None and not row.remembered and (message.partition, message.key) in going:
            of_view.setdefault(message.partition, []).append(message.offset)
    return Outlived(of_view=of_view, in_log=in_log)
