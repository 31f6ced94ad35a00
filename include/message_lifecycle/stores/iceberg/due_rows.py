"""Which single messages rules take: by the bounds of files where they suffice, else by reading the few columns that matter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.hold import SparedOffsets
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.rows import DueRows, Kept, Place, Reason, RemovalReason, RowAnswer, RowQuestion, ranges_text
from message_lifecycle.stores.iceberg import rule_bounds, rule_columns
from message_lifecycle.stores.iceberg.data_rows import FileRows, Vectors, read_rows
from message_lifecycle.stores.iceberg.file_names import absolute, location_prefix
from message_lifecycle.stores.iceberg.limited import Found, Going, Limited
from message_lifecycle.stores.iceberg.row_deletes import within
from message_lifecycle.stores.iceberg.segments import FileMetrics, newest_known

if TYPE_CHECKING:
    from pyiceberg.table import Table


def due_rows(
    table: Table,
    snapshot_id: int,
    question: RowQuestion,
    *,
    unsealed: frozenset[Place] = frozenset(),
    ends: Mapping[int, int] | None = None,
) -> RowAnswer:
    """See `ports.MessageReader.rows`. `unsealed`: segments that still take messages. `ends`: by partition, where files begin that are not
    looked at, such as those of markers that a staged change has added."""
    from message_lifecycle.stores.iceberg.manifests import files_of

    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise PlanConflict("not yet made", f"its snapshot {snapshot_id} is gone")
    vectors, prefix = Vectors(table, snapshot), location_prefix(table.location())
    # In columns and bounds the end of time stands for never.
    as_of = Instant(min(question.as_of, INT64_MAX - 1))
    beyond = None if question.beyond is None else Limited(table, vectors, prefix, as_of, question.beyond)
    spared = SparedOffsets(question.spared)
    due: dict[FileMetrics, list[DueRows]] = {}
    of_place: dict[Place, list[FileMetrics]] = {}
    later: list[int] = []
    found = (
        file
        for file in files_of(table, snapshot)
        if ends is None or file.first_offset is None or file.first_offset < ends.get(file.partition, INT64_MAX)
    )
    for place, group in groupby(sorted(found), key=lambda file: (file.partition, file.segment)):
        if place in question.going:
            continue
        reasons = tuple(reason for reason in question.reasons if reason.segments is None or place in reason.segments)
        of_place[place] = list(group)
        for file in of_place[place]:
            if file.deleted == file.rows:
                continue  # nothing is left in it; a plan names what it takes, so it names no such file
            certain = _by_bounds(file, reasons, as_of, later, spared)
            counted = None if beyond is None or place in beyond.dead else beyond
            if certain is None:
                if counted is not None:
                    counted.leave(file)
                continue
            if isinstance(certain, DueRows):
                due[file] = [certain]
                continue
            path = absolute(prefix, file.name)
            columns = {name for reason in certain for name in rule_columns.columns_of(reason.rule)}
            rows = read_rows(table.io, path, vectors[path], columns | (set() if counted is None else counted.files.lapsed_columns))
            due[file], open_ = _read(file, rows, certain, as_of, later, spared)
            if counted is not None:
                counted.leave_some(file, rows, open_, tuple(certain))
    limits = Found() if beyond is None else beyond.found()
    for entry in limits.gone:
        due.setdefault(entry.file, []).append(_beyond(entry, question))
    whole: dict[str, int] = {}
    for place, files in of_place.items():
        emptied = [file for file in files if file in due and sum(entry.rows for entry in due[file]) == file.rows - file.deleted]
        if emptied and still_shown(files, emptied, question.as_of, sealed=place not in unsealed):
            whole.update((file.name, file.size_bytes) for file in emptied)
    return RowAnswer(
        due=tuple(entry for files in of_place.values() for file in files for entry in due.get(file, ())),
        whole=whole,
        next_at=Instant(min(later)) if later else None,
        emptied=limits.emptied,
        oversized=limits.oversized,
        unknown_times=sum(min(file.unknown_times or 0, file.rows - file.deleted) for files in of_place.values() for file in files),
        limited=Kept(left=limits.left, most_records=limits.most_records, most_bytes=limits.most_bytes),
    )


def _by_bounds(
    file: FileMetrics, reasons: Sequence[Reason], as_of: Instant, later: list[int], spared: SparedOffsets
) -> DueRows | list[Reason] | None:
    """None: nothing is due; DueRows: all of it is, by one reason; else the reasons for which some may be."""
    possible: list[Reason] = []
    for reason in reasons:
        begins = rule_bounds.begins(reason.rule, file)
        if begins.some > as_of:
            if begins.some < INT64_MAX:
                later.append(begins.some)
            continue
        free = file.last_offset is not None and file.last_offset < reason.below.get(file.partition, INT64_MAX)
        if not possible and begins.all <= as_of and free and _holds_each_offset(file) and not _partly(file, spared):
            assert file.first_offset is not None
            assert file.last_offset is not None
            return DueRows(
                partition=file.partition,
                base_offset=file.segment,
                file=file.name,
                reason=reason.name,
                taken=ranges_text(range(file.first_offset, file.last_offset + 1)),
                rows=file.rows - file.deleted,
                first_offset=file.first_offset,
                last_offset=file.last_offset,
                since=Instant(begins.some),
            )
        possible.append(reason)
    return possible or None


def _holds_each_offset(file: FileMetrics) -> bool:
    """Whether its bounds name exactly its messages: no gap among them, and none removed before."""
    return (
        file.first_offset is not None
        and file.last_offset is not None
        and file.deleted == 0
        and file.last_offset - file.first_offset + 1 == file.rows
    )


def _partly(file: FileMetrics, spared: SparedOffsets) -> bool:
    """Whether some of a file's offsets are spared, and some are not: bounds tell nothing of the one without the other."""
    assert file.first_offset is not None
    assert file.last_offset is not None
    left, kept = spared.split(file.partition, f"{file.first_offset}-{file.last_offset}")
    return bool(left and kept)


def _read(
    file: FileMetrics, rows: FileRows, reasons: Iterable[Reason], as_of: Instant, later: list[int], spared: SparedOffsets
) -> tuple[list[DueRows], NDArray[np.bool_]]:
    """What each reason has, and which rows none has."""
    open_, found = rows.alive.copy(), []
    taken = np.zeros(len(open_), np.bool_)
    waiting = np.full(len(open_), INT64_MAX)
    for reason in reasons:
        begins = rule_columns.begins(reason.rule, rows.columns, len(open_))
        hit = open_ & (begins <= as_of)
        # Also of what another reason holds: this one may take it sooner than its holder lets it go.
        waiting = np.minimum(waiting, np.where(begins > as_of, begins, INT64_MAX))
        if hit.any():
            may_go = hit & (rows.offsets < reason.below.get(file.partition, INT64_MAX))
            entry = _due(file, reason.name, reason.below, np.sort(rows.offsets[hit]), int(begins[hit].min()))
            found.append(_with_free(entry, rows.offsets[may_go], begins[may_go], spared))
            taken |= may_go
            open_ &= ~hit
    left = waiting[rows.alive & ~taken]
    if len(left) and (first := int(left.min())) < INT64_MAX:
        later.append(first)
    return found, open_


def _with_free(entry: DueRows, offsets: NDArray[np.int64], begins: NDArray[np.int64], spared: SparedOffsets) -> DueRows:
    kept = [text for _, text in spared.split(entry.partition, entry.taken)[1]]
    for text in kept:
        free = ~within(offsets, text)
        offsets, begins = offsets[free], begins[free]
    if not len(begins) or begins.min() == entry.since:
        return entry
    return replace(entry, free_since=Instant(int(begins.min())))


def _beyond(gone: Going, question: RowQuestion) -> DueRows:
    """No instant makes a log too long: a message does, and who looks finds it."""
    assert question.beyond is not None
    below = question.beyond.below
    if isinstance(gone.offsets, range):
        file, free = gone.file, range(gone.offsets.start, min(gone.offsets.stop, below.get(gone.file.partition, INT64_MAX)))
        return DueRows(
            partition=file.partition,
            base_offset=file.segment,
            file=file.name,
            reason=gone.reason,
            taken=ranges_text(free[:1]) if len(free) < 2 else f"{free[0]}-{free[-1]}",
            rows=len(free),
            first_offset=gone.offsets[0],
            last_offset=gone.offsets[-1],
            since=question.as_of,
            held=len(gone.offsets) - len(free),
        )
    return _due(gone.file, gone.reason, below, gone.offsets, question.as_of)


def _due(file: FileMetrics, reason: RemovalReason, below: Mapping[int, int], ordered: NDArray[np.int64], since: int) -> DueRows:
    taken = ordered[ordered < below.get(file.partition, INT64_MAX)]
    return DueRows(
        partition=file.partition,
        base_offset=file.segment,
        file=file.name,
        reason=reason,
        taken=runs_text(taken),
        rows=len(taken),
        first_offset=int(ordered[0]),
        last_offset=int(ordered[-1]),
        since=Instant(since),
        held=len(ordered) - len(taken),
    )


def runs_text(ordered: NDArray[np.int64]) -> str:
    """As `ranges_text`, for very many."""
    if not len(ordered):
        return ""
    ends = np.flatnonzero(np.diff(ordered) != 1)
    firsts, lasts = ordered[np.concatenate([[0], ends + 1])], ordered[np.concatenate([ends, [len(ordered) - 1]])]
    return ",".join(str(f) if f == last else f"{f}-{last}" for f, last in zip(firsts.tolist(), lasts.tolist(), strict=True))


def still_shown(files: list[FileMetrics], emptied: list[FileMetrics], as_of: Instant, *, sealed: bool) -> bool:
    """Whether the segment shows its newest time and last offset without the emptied files, or is gone for good (EXP-4).

    Where its newest time lies after `as_of`, another one may count (CLK-4), and the emptied files may be those that show it.
    """
    left = [file for file in files if file not in emptied]
    if not left:
        return sealed  # one that still takes messages will be there again, and must be as old as it is
    last = max((file.last_offset or 0 for file in files), default=0)
    newest = newest_known(files)
    if newest is not None and newest > as_of:
        return False
    return newest_known(left) == newest and max(file.last_offset or 0 for file in left) == last
