"""Single messages that the rules take, one by one (TTL-7), and the markers of the keys that they empty (MRK-1 to MRK-5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.hold import SparedOffsets
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.marker import Marker, is_marker
from message_lifecycle.model.message import Message
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import PurgeKey, RemoveMessages, RemoveNullKeys, Request, TruncateLog, span_of
from message_lifecycle.model.rows import Beyond, DueRows, LimitReason, Reason, RemovalReason, RowAnswer, RowQuestion, ranges_text
from message_lifecycle.model.rules import holds, holds_from
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.limits import Cuts, Row, cuts
from message_lifecycle.operations.markers import markers
from message_lifecycle.stores.memory.log import Position, Version, by_segment, file_of, in_order, segment_of
from message_lifecycle.stores.memory.table import Table, difference

Gone = list[tuple[Message, RemovalReason]]
_LIMITS: tuple[LimitReason, ...] = get_args(LimitReason)


def due_rows(version: Version, question: RowQuestion) -> RowAnswer:
    """See `ports.MessageReader.rows`."""
    looked_at = [message for message in in_order(version.messages) if segment_of(message) not in question.going]
    reasons: dict[Position, Reason] = {}
    later: list[Instant] = []
    for message in looked_at:
        for reason in question.reasons:
            if reason.segments is not None and segment_of(message) not in reason.segments:
                continue
            begins = holds_from(reason.rule, message)
            if begins is not None and begins <= question.as_of:
                reasons[message.partition, message.offset] = reason
                break
            if begins is not None:
                later.append(begins)
    left = [message for message in looked_at if (message.partition, message.offset) not in reasons]
    beyond, found = ({}, None) if question.beyond is None else _beyond(left, question.beyond, question.as_of)
    due, whole, spared = [], {}, SparedOffsets(question.spared)
    for place, messages in by_segment(looked_at):
        by_reason: dict[int, list[Message]] = {}
        for message in messages:
            reason_of = reasons.get((message.partition, message.offset)) or beyond.get((message.partition, message.offset))
            if reason_of is not None:
                at = (
                    question.reasons.index(reason_of) if isinstance(reason_of, Reason) else len(question.reasons) + _LIMITS.index(reason_of)
                )
                by_reason.setdefault(at, []).append(message)
        of_place = [_due(file_of(place), question, at, of_reason, spared) for at, of_reason in sorted(by_reason.items())]
        due += of_place
        if sum(entry.rows for entry in of_place) == len(messages):
            whole[file_of(place)] = sum(message.size_bytes for message in messages)
    return RowAnswer(
        due=tuple(due),
        whole=whole,
        next_at=min(later, default=None),
        emptied=0 if found is None else found.emptied,
        oversized=0 if found is None else found.oversized,
        unknown_times=sum(message.append_time is None for message in looked_at),
    )


def _beyond(left: list[Message], beyond: Beyond, as_of: Instant) -> tuple[dict[Position, LimitReason], Cuts]:
    """Why messages that no rule of age takes lie beyond the limits."""
    rows = [
        Row(
            partition=message.partition,
            offset=message.offset,
            append_time=message.append_time,
            size_bytes=message.size_bytes,
            key=message.key,
            lapsed=beyond.lapsed is not None and holds(beyond.lapsed, message, as_of),
        )
        for message in left
        if segment_of(message) not in beyond.dead
    ]
    found = cuts(rows, beyond.limits)
    return {(row.partition, row.offset): reason for row in rows if (reason := found.reason(row)) is not None}, found


def _due(file: str, question: RowQuestion, at: int, messages: list[Message], spared: SparedOffsets) -> DueRows:
    """By the reason at this place: those of the question, then the limits."""
    name: RemovalReason
    if at < len(question.reasons):
        reason = question.reasons[at]
        name, bounds = reason.name, reason.below
        begun = {message.offset: begins for message in messages if (begins := holds_from(reason.rule, message)) is not None}
    else:
        assert question.beyond is not None
        # No instant makes a log too long: a message does, and who looks finds it.
        name, bounds, begun = (
            _LIMITS[at - len(question.reasons)],
            question.beyond.below,
            dict.fromkeys((m.offset for m in messages), question.as_of),
        )
    below = bounds.get(messages[0].partition, INT64_MAX)
    taken = [message for message in messages if message.offset < below]
    since = min(begun.values())
    free_since = min((begun[m.offset] for m in taken if not spared.touching(m.partition, m.offset, m.offset)), default=since)
    return DueRows(
        partition=messages[0].partition,
        base_offset=messages[0].segment,
        file=file,
        reason=name,
        taken=ranges_text(message.offset for message in taken),
        rows=len(taken),
        first_offset=messages[0].offset,
        last_offset=messages[-1].offset,
        held=len(messages) - len(taken),
        since=since,
        free_since=None if free_since == since else free_since,
    )


def requested_rows(version: Version, request: Request, as_of: Instant) -> RowAnswer:
    """The messages that a person named and that are there."""
    match request:
        case RemoveMessages(positions=positions):
            wanted = [version.messages[position] for position in sorted(set(positions)) if position in version.messages]
        case PurgeKey(key=key, before=before, keep=keep):
            of_key = [message for message in in_order(version.messages) if message.key == key]
            wanted = [message for message in of_key if before is None or message.offset < before]
            if keep is not None:
                kept = {partition: [m.offset for m in of_key if m.partition == partition][-keep:] for partition in version.end_offsets}
                wanted = [message for message in of_key if message.offset not in kept[message.partition]]
        case TruncateLog(partition=partition) | RemoveNullKeys(partition=partition):
            span = span_of(request)
            there = [m for m in in_order(version.messages) if m.partition == partition and m.offset in span]
            wanted = [message for message in there if isinstance(request, TruncateLog) or message.key is None]
    due, whole = [], {}
    for place, messages in by_segment(wanted):
        due.append(
            DueRows(
                partition=place[0],
                base_offset=place[1],
                file=file_of(place),
                reason="purged" if isinstance(request, PurgeKey) else "removed",
                taken=ranges_text(message.offset for message in messages),
                rows=len(messages),
                first_offset=messages[0].offset,
                last_offset=messages[-1].offset,
                since=as_of,
            )
        )
        if sum(segment_of(message) == place for message in version.messages.values()) == len(messages):
            whole[file_of(place)] = sum(message.size_bytes for message in messages)
    return RowAnswer(due=tuple(due), whole=whole)


def removed_rows(messages: Iterable[Message], reason: RemovalReason) -> tuple[RemoveRows, ...]:
    """Names for the messages, which are in order of (partition, offset)."""
    return tuple(
        RemoveRows(
            partition=place[0],
            base_offset=place[1],
            file=file_of(place),
            offsets=ranges_text(message.offset for message in of_segment),
            rows=len(of_segment),
            reason=reason,
        )
        for place, of_segment in by_segment(messages)
    )


def removed_by(before: Version, after: Version, plan: Plan) -> Gone:
    """What the staged change takes, with the reasons."""
    gone = difference(before.messages, after.messages).gone
    return [(message, action.reason) for position, message in gone.items() if (action := plan.taking(*position)) is not None]


def owed(log: Table[Version], removals: Iterable[int]) -> Gone:
    """What other writers' removals took of keys that it left without a live message (MRK-2)."""
    found: Gone = []
    for snapshot_id in removals:
        became = log.at(snapshot_id).messages
        live = {message.key for message in became.values() if not is_marker(message.headers)}
        gone = difference(log.at(snapshot_id - 1).messages, became).gone
        found += [(message, "removed") for message in gone.values() if message.key not in live]
    return found


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
    """Older markers of the same keys, which go (MRK-5)."""
    keys = {marker.key for marker in made}
    older = [m for at, m in sorted(after.messages.items()) if m.key in keys and is_marker(m.headers) and not plan.spares(*at)]
    return removed_rows(older, "superseded")
