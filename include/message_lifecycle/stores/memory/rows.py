"""Single messages that the rules take, one by one (TTL-7)."""

from __future__ import annotations

from itertools import groupby
from typing import get_args

from message_lifecycle.model.hold import SparedOffsets
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.request import PurgeKey, RemoveMessages, RemoveNullKeys, Request, TruncateLog, span_of
from message_lifecycle.model.rows import Beyond, DueRows, LimitReason, Reason, RemovalReason, RowAnswer, RowQuestion, ranges_text
from message_lifecycle.model.rules import holds, holds_from
from message_lifecycle.operations.retention import Cuts, Row, cuts
from message_lifecycle.stores.memory.log import Position, Version

_LIMITS: tuple[LimitReason, ...] = get_args(LimitReason)


def due_rows(version: Version, question: RowQuestion) -> RowAnswer:
    """See `ports.MessageReader.rows`."""
    ordered = [version.messages[position] for position in sorted(version.messages)]
    looked_at = [message for message in ordered if _place(message) not in question.going]
    reasons: dict[Position, Reason] = {}
    later: list[Instant] = []
    for message in looked_at:
        for reason in question.reasons:
            if reason.segments is not None and _place(message) not in reason.segments:
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
    for place, group in groupby(looked_at, key=_place):
        messages = list(group)
        by_reason: dict[int, list[Message]] = {}
        for message in messages:
            reason_of = reasons.get((message.partition, message.offset)) or beyond.get((message.partition, message.offset))
            if reason_of is not None:
                at = (
                    question.reasons.index(reason_of) if isinstance(reason_of, Reason) else len(question.reasons) + _LIMITS.index(reason_of)
                )
                by_reason.setdefault(at, []).append(message)
        file = f"{place[0]}/{place[1]}"
        of_place = [_due(file, question, at, of_reason, spared) for at, of_reason in sorted(by_reason.items())]
        due += of_place
        if sum(entry.rows for entry in of_place) == len(messages):
            whole[file] = sum(message.size_bytes for message in messages)
    return RowAnswer(
        due=tuple(due),
        whole=whole,
        next_at=min(later, default=None),
        emptied=0 if found is None else found.emptied,
        oversized=0 if found is None else found.oversized,
        unknown_times=sum(message.append_time is None for message in looked_at),
    )


def _place(message: Message) -> Position:
    return message.partition, message.segment


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
        if _place(message) not in beyond.dead
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
            of_key = [message for _, message in sorted(version.messages.items()) if message.key == key]
            wanted = [message for message in of_key if before is None or message.offset < before]
            if keep is not None:
                kept = {partition: [m.offset for m in of_key if m.partition == partition][-keep:] for partition in version.end_offsets}
                wanted = [message for message in of_key if message.offset not in kept[message.partition]]
        case TruncateLog(partition=partition) | RemoveNullKeys(partition=partition):
            span = span_of(request)
            there = [m for _, m in sorted(version.messages.items()) if m.partition == partition and m.offset in span]
            wanted = [message for message in there if isinstance(request, TruncateLog) or message.key is None]
    due, whole = [], {}
    for place, group in groupby(wanted, key=lambda message: (message.partition, message.segment)):
        messages = list(group)
        file = f"{place[0]}/{place[1]}"
        due.append(
            DueRows(
                partition=place[0],
                base_offset=place[1],
                file=file,
                reason="purged" if isinstance(request, PurgeKey) else "removed",
                taken=ranges_text(message.offset for message in messages),
                rows=len(messages),
                first_offset=messages[0].offset,
                last_offset=messages[-1].offset,
                since=as_of,
            )
        )
        stored = [m for m in version.messages.values() if (m.partition, m.segment) == place]
        if len(stored) == len(messages):
            whole[file] = sum(message.size_bytes for message in messages)
    return RowAnswer(due=tuple(due), whole=whole)
