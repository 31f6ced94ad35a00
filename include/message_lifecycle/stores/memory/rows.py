"""Single messages that the rules take, one by one (TTL-7)."""

from __future__ import annotations

from itertools import groupby

from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.request import PurgeKey, RemoveMessages, Request
from message_lifecycle.model.rows import DueRows, Reason, RowAnswer, RowQuestion, ranges_text
from message_lifecycle.model.rules import holds_from
from message_lifecycle.stores.memory.log import Version


def due_rows(version: Version, question: RowQuestion) -> RowAnswer:
    due, whole, later = [], {}, []
    ordered = [version.messages[position] for position in sorted(version.messages)]
    for place, group in groupby(ordered, key=lambda message: (message.partition, message.segment)):
        if place in question.going:
            continue
        messages = list(group)
        by_reason: dict[int, list[Message]] = {}
        for message in messages:
            for at, reason in enumerate(question.reasons):
                if reason.segments is not None and place not in reason.segments:
                    continue
                begins = holds_from(reason.rule, message)
                if begins is not None and begins <= question.as_of:
                    by_reason.setdefault(at, []).append(message)
                    break
                if begins is not None:
                    later.append(begins)
        file = f"{place[0]}/{place[1]}"
        found = [_due(file, question.reasons[at], of_reason) for at, of_reason in sorted(by_reason.items())]
        due += found
        if sum(entry.rows for entry in found) == len(messages):
            whole[file] = sum(message.size_bytes for message in messages)
    return RowAnswer(due=tuple(due), whole=whole, next_at=min(later, default=None))


def _due(file: str, reason: Reason, messages: list[Message]) -> DueRows:
    below = reason.below.get(messages[0].partition, INT64_MAX)
    taken = [message for message in messages if message.offset < below]
    since = [begins for message in messages if (begins := holds_from(reason.rule, message)) is not None]
    return DueRows(
        partition=messages[0].partition,
        base_offset=messages[0].segment,
        file=file,
        reason=reason.name,
        taken=ranges_text(message.offset for message in taken),
        rows=len(taken),
        first_offset=messages[0].offset,
        last_offset=messages[-1].offset,
        held=len(messages) - len(taken),
        since=min(since),
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
