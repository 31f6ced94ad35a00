"""Rows that an undo restores, and the record of an undo (DEL-7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from message_lifecycle.model.change import QuarantinedFile, RemoveRows, RestoreRows
from message_lifecycle.model.document import DocumentState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import parse_ranges_text
from message_lifecycle.model.names import TopicName

Range = tuple[int, int, int]
"""(partition, first offset, last offset). The range includes both offsets."""
QUARANTINE = -1
"""Stands in place of a partition for rows of the quarantine. Such rows are known by the time of their refusal, in microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returning:
    """The messages that a plan removed and that the log does not have now.

    Attributes:
        source_id: The snapshot that holds the messages. None: the plan removed nothing from the log.
        markers: Markers of the plan that the log still has.
        present: The number of removed messages that the log has again already.
    """

    source_id: int | None
    rows: tuple[RestoreRows, ...] = ()
    markers: tuple[RemoveRows, ...] = ()
    present: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturningView:
    """The messages that a plan removed from the compacted view and that the view does not have now.

    Attributes:
        source_id: The view's snapshot that holds the messages.
        newest: For each partition and key of these messages, their highest offset.
        gone: The number of removed messages that no file has any more.
    """

    source_id: int | None = None
    rows: tuple[RestoreRows, ...] = ()
    newest: Mapping[tuple[int, bytes], int] = field(default_factory=dict)
    gone: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentsBefore:
    """Documents as they were before a plan's commits, by name.

    Attributes:
        changes_id: The snapshot of the changes' table that shows this. None: the plan removed no change.
        snapshots_id: The snapshot of the snapshots' table that shows this. None: the plan removed no snapshot.
    """

    changes_id: int | None
    snapshots_id: int | None
    states: Mapping[str, DocumentState]


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoEffect:
    """The effect of an undo on the log.

    Attributes:
        rows: The undo's messages that the log has.
        twice: The undo's messages that the log has more than once.
        markers: Markers that the log still has although the undo removes them.
    """

    rows: int = 0
    twice: int = 0
    markers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """A plan that the plan `undone_by` took back.

    `ranges` holds the restored rows. No plan removes them again until a person releases them.
    """

    plan_id: str
    topic: TopicName
    undone_by: str
    undone_at: Instant
    ranges: tuple[Range, ...]
    released_at: Instant | None = None
    released_by: str | None = None
    text: str | None = None


def lies_in(ranges: tuple[Range, ...], partition: int, offset: int) -> bool:
    return any(of == partition and first <= offset <= last for of, first, last in ranges)


def ranges_in(rows: Iterable[RestoreRows], files: Iterable[QuarantinedFile] = ()) -> tuple[Range, ...]:
    """Return the offsets and the times of refusal that come back, as ordered runs.

    Adjacent runs become one run. So do overlapping runs of the log and its view.
    """
    spans = [(one.partition, run.start, run.stop - 1) for one in rows for run in parse_ranges_text(one.offsets)]
    found: list[Range] = []
    for partition, first, last in sorted([*spans, *((QUARANTINE, file.oldest_at, file.newest_at) for file in files)]):
        if found and found[-1][0] == partition and found[-1][2] + 1 >= first:
            found[-1] = partition, found[-1][1], max(found[-1][2], last)
        else:
            found.append((partition, first, last))
    return tuple(found)
