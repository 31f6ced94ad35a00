"""What an erasure finds, shows to the gate and takes where messages are looked at one by one: in memory, and in logs of records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from message_lifecycle.model.change import EraseRows
from message_lifecycle.model.erasure import HeldFile, Matches, TableKind
from message_lifecycle.model.message import Message
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import offsets_of, ranges_text
from message_lifecycle.stores.memory.log import Position, by_segment, file_of, segment_of

Messages = Mapping[Position, Message]
Frame = list[dict[str, int]]


def of_key(messages: Messages, matches: Matches) -> dict[Position, Message]:
    """A null key is no key."""
    return {position: message for position, message in messages.items() if message.key is not None and matches(message.key)}


def held_files(found: Messages, live: Messages) -> tuple[HeldFile, ...]:
    """By segment, which stands for a file here. `live`: those of them that readers see."""
    return tuple(
        HeldFile(
            name=file_of((partition, base)),
            partition=partition,
            base_offset=base,
            offsets=ranges_text(message.offset for message in messages),
            rows=len(messages),
            live=sum((partition, message.offset) in live for message in messages),
            size_bytes=sum(message.size_bytes for message in messages),
            needed=True,
        )
        for (partition, base), messages in by_segment(found[position] for position in sorted(found))
    )


def named(plan: Plan, table: TableKind) -> set[Position]:
    """Positions that the plan erases from this table."""
    return {(rows.partition, offset) for rows in plan.erased_of(table) for offset in offsets_of(rows.offsets)}


def rewritten(action: EraseRows, messages: Messages, matches: Matches) -> dict[str, int]:
    """One row of the frame of that name, by a second look at the segment. `messages`: all that there ever are of the table."""
    gone = {(action.partition, offset) for offset in offsets_of(action.offsets)}
    there = {position for position, message in messages.items() if segment_of(message) == (action.partition, action.base_offset)}
    sought = {position for position in there if position in of_key({position: messages[position]}, matches)}
    return {"rows": len(gone & there), "unnamed": len((gone & there) - sought), "left": len(sought - gone), "changed": 0, "found": 0}


def beside(rows: int) -> dict[str, int]:
    """One row of the frame `rewritten` about a file beside the log: what tells the key goes by the search that finds it."""
    return {"rows": rows, "unnamed": 0, "left": 0, "changed": 0, "found": 0}


def table_row(found: int, searched: int) -> dict[str, int]:
    """One row of the frame `tables`. `found`: messages of the key that would stay."""
    return {"found": found, "files_differ": 0, "marks_differ": 0, "refs_differ": 0, "history": 0, "searched": searched}


def figures(plan: Plan, before: Iterable[Message], gone: int) -> Frame:
    """Of the log: `before`, its messages when it was planned, of which so many go."""
    sizes = [message.size_bytes for message in before]
    return [{"rows_in": len(sizes), "rows_removed": gone, "rows_kept": len(sizes) - gone, "bytes_in": sum(sizes), "asks": len(plan.asks)}]
