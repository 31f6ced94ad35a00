"""What comes back when a plan is taken back, and what is remembered of it (DEL-7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from message_lifecycle.model.change import QuarantinedFile, RemoveRows, RestoreRows
from message_lifecycle.model.document import DocumentState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.rows import ranges_of

Range = tuple[int, int, int]
"""(partition, first offset, last offset), both included."""
QUARANTINE = -1
"""In place of a partition: not of the log, but of the quarantine, whose rows are known by when they were refused (microseconds)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returning:
    """Where the messages lie that a plan took and that are not in the log now. `source_id`: the snapshot that holds them; None: the plan
    took nothing from the log.

    `markers`: the plan's own that are still there. `present`: messages that it took and that are there again already."""

    source_id: int | None
    rows: tuple[RestoreRows, ...] = ()
    markers: tuple[RemoveRows, ...] = ()
    present: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturningView:
    """What a plan took from the compacted view and that is not in it now. `source_id`: the view's snapshot that holds it. `newest`: of each of their keys, by partition, the highest
    offset of them. `gone`: messages that it took and that no file has any more."""

    source_id: int | None = None
    rows: tuple[RestoreRows, ...] = ()
    newest: Mapping[tuple[int, bytes], int] = field(default_factory=dict)
    gone: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentsBefore:
    """Documents as they were before a plan's commits, by name, and the snapshots of both tables that show it; None: the plan took nothing
    from that table."""

    changes_id: int | None
    snapshots_id: int | None
    states: Mapping[str, DocumentState]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a plan has done to the log, by the table itself. `files`: names of the data files that its commit took out. Of an undo what is
    there when the table is read again: `rows` of its messages, `twice` those that are there more than once, `markers` of those that it
    takes away."""

    files: tuple[str, ...] = ()
    rows: int = 0
    twice: int = 0
    markers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """A plan that was taken back by the plan `undone_by`. What came back lies in `ranges`, and nothing takes it again until a person
    releases it."""

    plan_id: str
    topic: TopicName
    undone_by: str
    undone_at: Instant
    ranges: tuple[Range, ...]
    released_at: Instant | None = None
    released_by: str | None = None
    text: str | None = None

    def covers(self, partition: int, offset: int) -> bool:
        return lies_in(self.ranges, partition, offset)


def lies_in(ranges: tuple[Range, ...], partition: int, offset: int) -> bool:
    return any(of == partition and first <= offset <= last for of, first, last in ranges)


def ranges_in(rows: Iterable[RestoreRows], files: Iterable[QuarantinedFile] = ()) -> tuple[Range, ...]:
    """The runs of offsets that come back, and times of refusal, in order; runs that meet, or of the log and its view lie on each other, are
    one."""
    spans = [(one.partition, run.start, run.stop - 1) for one in rows for run in ranges_of(one.offsets)]
    found: list[Range] = []
    for partition, first, last in sorted([*spans, *((QUARANTINE, file.oldest_at, file.newest_at) for file in files)]):
        if found and found[-1][0] == partition and found[-1][2] + 1 >= first:
            found[-1] = partition, found[-1][1], max(found[-1][2], last)
        else:
            found.append((partition, first, last))
    return tuple(found)
