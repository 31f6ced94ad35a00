"""Taking a plan back in memory: what it took is in the version before its commit, message by message (DEL-7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from message_lifecycle.model.change import RemoveRows, RestoreRows
from message_lifecycle.model.marker import is_marker
from message_lifecycle.model.message import Message
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import offsets_of, ranges_text
from message_lifecycle.model.undo import Effect, Range, Returning, lies_in
from message_lifecycle.stores.memory.log import Position, Version

Ranges = tuple[Range, ...]


def given(before: Version, after: Version) -> Ranges:
    """Offsets that a commit of ours has given: those of its markers."""
    starts = {partition: before.end_offsets.get(partition, 0) for partition in after.end_offsets}
    return tuple((partition, starts[partition], end - 1) for partition, end in sorted(after.end_offsets.items()) if end > starts[partition])


def returning(
    before: Version, head: Version, plan: Plan, superseded: Sequence[RemoveRows], *, source_id: int, own: Ranges, without: Ranges
) -> Returning:
    """See `ports.HistoryReader`. `before`: the version before the plan's commit."""
    older = {(action.partition, offset) for action in superseded for offset in offsets_of(action.offsets)}
    taken = [m for position, m in sorted(before.messages.items()) if plan.taking(*position) is not None or position in older]
    taken = [m for m in taken if not lies_in(without, m.partition, m.offset)]
    away = [m for m in taken if (m.partition, m.offset) not in head.messages]
    standing = {(message.partition, message.segment) for message in head.messages.values()}
    markers = [m for position, m in sorted(head.messages.items()) if lies_in(own, *position) and is_marker(m.headers)]
    return Returning(
        source_id=source_id,
        rows=tuple(
            RestoreRows(
                partition=place[0],
                base_offset=place[1],
                file=f"{place[0]}/{place[1]}",
                offsets=ranges_text(message.offset for message in messages),
                rows=len(messages),
                size_bytes=sum(message.size_bytes for message in messages),
                standing=place in standing,
            )
            for place, messages in _by_segment(away)
        ),
        markers=tuple(
            RemoveRows(
                partition=place[0],
                base_offset=place[1],
                file=f"{place[0]}/{place[1]}",
                offsets=ranges_text(message.offset for message in messages),
                rows=len(messages),
                reason="undone",
            )
            for place, messages in _by_segment(markers)
        ),
        present=len(taken) - len(away),
    )


def restore(version: Version, source: Version, plan: Plan) -> None:
    """Put back what the plan names. A segment that was active when it went is sealed: its partition has gone on to another."""
    for action in plan.on_log.back:
        for offset in offsets_of(action.offsets):
            version.messages[action.partition, offset] = source.messages[action.partition, offset]
        place, then = (action.partition, action.base_offset), source.active.get(action.partition)
        if place in version.sealed or action.base_offset >= version.active[action.partition].base_offset:
            continue
        if then is not None and then.base_offset == action.base_offset:
            last = max(offset for (partition, offset), m in source.messages.items() if (partition, m.segment) == place)
            version.sealed[place] = last, None if then.any_unknown else then.newest_at, then.rows


def returned(head: Version, plan: Plan) -> Effect:
    back = sum((action.partition, offset) in head.messages for action in plan.on_log.back for offset in offsets_of(action.offsets))
    marked = sum((action.partition, offset) in head.messages for action in plan.on_log.mark for offset in offsets_of(action.offsets))
    return Effect(rows=back, twice=0, markers=marked)


def evidence(before: Version, after: Version, source: Version | None, plan: Plan, own: Ranges) -> Mapping[str, object]:
    """The frames of `undo_suite`, message by message. `source`: what comes back, where anything does."""
    come = {position: m for position, m in after.messages.items() if position not in before.messages}
    gone = {position: m for position, m in before.messages.items() if position not in after.messages}
    named = {(action.partition, offset) for action in plan.on_log.back for offset in offsets_of(action.offsets)}
    marks = {(action.partition, offset) for action in plan.on_log.mark for offset in offsets_of(action.offsets)}
    restored = [
        {
            "rows": sum(position in come for position in wanted),
            "missing": sum(position not in come for position in wanted),
            "unnamed": sum(_of(m, action) and position not in named for position, m in come.items()),
            "same": source is not None and all(come.get(position) == source.messages.get(position) for position in wanted),
        }
        for action in plan.on_log.back
        for wanted in [_positions(action)]
    ]
    rows = [
        {"rows": len(messages), "unnamed": sum((m.partition, m.offset) not in marks for m in messages)}
        for _, messages in _by_segment(m for _, m in sorted(gone.items()))
    ]
    places = {(action.partition, action.base_offset) for action in plan.on_log.back}
    other = [position for position, m in come.items() if (m.partition, m.segment) not in places]
    other += [position for position, m in before.messages.items() if after.messages.get(position, m) != m]
    left = [p for p, m in after.messages.items() if lies_in(own, *p) and is_marker(m.headers)]
    return {
        "restored": restored,
        "rows": rows,
        "twice": [],  # a dictionary holds each offset once
        "markers_left": [{"partition": partition, "offset": offset} for partition, offset in left],
        "difference": [{"name": f"{partition}:{offset}", "how": "differs"} for partition, offset in other],
        "figures": [
            {
                "rows_in": len(before.messages),
                "rows_restored": len(come),
                "rows_removed": len(gone),
                "rows_kept": len(after.messages),
                "asks": len(plan.asks),
            }
        ],
    }


def _of(message: Message, action: RestoreRows) -> bool:
    return (message.partition, message.segment) == (action.partition, action.base_offset)


def _positions(action: RestoreRows) -> list[Position]:
    return [(action.partition, offset) for offset in offsets_of(action.offsets)]


def _by_segment(messages: Iterable[Message]) -> Iterator[tuple[Position, list[Message]]]:
    """`messages` in order of (partition, offset)."""
    for place, group in groupby(messages, key=lambda message: (message.partition, message.segment)):
        yield place, list(group)
