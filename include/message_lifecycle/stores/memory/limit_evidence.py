"""What the gate judges of limits by number and by size in memory: each message ranked and added up once more, as the rules read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from message_lifecycle.model.message import Message
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import LimitReason
from message_lifecycle.model.rules import Limits
from message_lifecycle.stores.memory.log import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A message in its group: how many there are from it to the newest, itself included, and how many bytes."""

    message: Message
    group: object
    rows: int
    size_bytes: int

    @property
    def position(self) -> Position:
        return self.message.partition, self.message.offset


def ranked(counted: Iterable[Message], limits: Limits, lapsed: Callable[[Message], bool]) -> list[Ranked]:
    """Messages in order of (partition, offset), all that no rule of age takes (RET-1, RET-4)."""
    messages = list(counted)
    newest: dict[tuple[int, bool], tuple[bool, int]] = {}
    newness: dict[Position, tuple[object, ...]] = {}
    for message in messages:
        over = lapsed(message)
        known = (False, 0) if message.append_time is None else (True, message.append_time)
        newest[message.partition, over] = found = max(known, newest.get((message.partition, over), known))
        newness[message.partition, message.offset] = (not over, found, message.partition, message.offset)
    groups: dict[object, list[Message]] = {}
    for message in sorted(messages, key=lambda m: newness[m.partition, m.offset], reverse=True):
        if limits.scope != "key" or message.key is not None:
            groups.setdefault({"topic": 0, "partition": message.partition, "key": message.key}[limits.scope], []).append(message)
    return [
        Ranked(message=message, group=group, rows=rows, size_bytes=size)
        for group, members in groups.items()
        for rows, (message, size) in enumerate(zip(members, accumulate(m.size_bytes for m in members), strict=True), start=1)
    ]


def beyond(rows: Iterable[Ranked], limits: Limits) -> dict[Position, LimitReason]:
    """Why each message beyond the limits lies there."""
    found: dict[Position, LimitReason] = {}
    for row in rows:
        if limits.min_keep and row.rows == 1:
            continue
        if limits.max_records is not None and row.rows > limits.max_records:
            found[row.position] = "retention_count"
        elif limits.max_total_bytes is not None and row.size_bytes > limits.max_total_bytes:
            found[row.position] = "retention_bytes"
    return found


def limits_row(
    rows: list[Ranked], why: Mapping[Position, LimitReason], limits: Limits, plan: Plan, stays: set[Position]
) -> dict[str, object]:
    """The frame `limits`, of what the staged change really left."""
    kept: dict[object, list[Ranked]] = {}
    within = 0
    for row in rows:
        if row.position in stays:
            if not (row.position in why and _is_held(row.message, plan)):
                kept.setdefault(row.group, []).append(row)
        elif (action := plan.taking(*row.position)) is not None and action.reason in ("retention_count", "retention_bytes"):
            within += row.position not in why

    def size_of(stay: list[Ranked]) -> int:
        alone = limits.min_keep and len(stay) == 1
        return 0 if alone or limits.max_total_bytes is None else sum(row.message.size_bytes for row in stay)

    return {
        "most_records": max((len(stay) for stay in kept.values()), default=0),
        "most_bytes": max((size_of(stay) for stay in kept.values()), default=0),
        "within": within,
        "beyond": len(why),
    }


def _is_held(message: Message, plan: Plan) -> bool:
    return any(
        held.partition == message.partition and held.first_base <= message.offset <= held.last_offset
        for held in plan.held
        if held.reason in ("retention_count", "retention_bytes")
    )
