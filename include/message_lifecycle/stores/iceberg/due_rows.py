"""Which single messages rules take: by the bounds of files where they suffice, else by reading the few columns that matter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.rows import DueRows, Place, Reason, RowAnswer, RowQuestion, ranges_text
from message_lifecycle.stores.iceberg import rule_bounds, rule_columns
from message_lifecycle.stores.iceberg.data_rows import FileRows, Vectors, read_rows
from message_lifecycle.stores.iceberg.file_names import absolute, location_prefix
from message_lifecycle.stores.iceberg.segments import FileMetrics, newest_known

if TYPE_CHECKING:
    from pyiceberg.table import Table


def due_rows(table: Table, snapshot_id: int, question: RowQuestion, *, unsealed: frozenset[Place] = frozenset()) -> RowAnswer:
    """See `ports.MessageReader.rows`. `unsealed`: segments that still take messages."""
    from message_lifecycle.stores.iceberg.manifests import files_of

    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise PlanConflict("not yet made", f"its snapshot {snapshot_id} is gone")
    vectors, prefix = Vectors(table, snapshot), location_prefix(table.location())
    # In columns and bounds the end of time stands for never.
    as_of = Instant(min(question.as_of, INT64_MAX - 1))
    due: list[DueRows] = []
    whole: dict[str, int] = {}
    later: list[int] = []
    for place, group in groupby(sorted(files_of(table, snapshot)), key=lambda file: (file.partition, file.segment)):
        if place in question.going:
            continue
        reasons = [reason for reason in question.reasons if reason.segments is None or place in reason.segments]
        files, emptied = list(group), []
        for file in files:
            if file.deleted == file.rows:
                continue  # nothing is left in it; a plan names what it takes, so it names no such file
            certain = _by_bounds(file, reasons, as_of, later)
            if certain is None:
                continue
            if isinstance(certain, DueRows):
                found = [certain]
            else:
                path = absolute(prefix, file.name)
                columns = {name for reason in certain for name in rule_columns.columns_of(reason.rule)}
                found = list(_read(file, read_rows(table.io, path, vectors[path], columns), certain, as_of, later))
            due += found
            if sum(entry.rows for entry in found) == file.rows - file.deleted:
                emptied.append(file)
        if emptied and still_shown(files, emptied, question.as_of, sealed=place not in unsealed):
            whole.update((file.name, file.size_bytes) for file in emptied)
    return RowAnswer(due=tuple(due), whole=whole, next_at=Instant(min(later)) if later else None)


def _by_bounds(file: FileMetrics, reasons: list[Reason], as_of: Instant, later: list[int]) -> DueRows | list[Reason] | None:
    """None: nothing is due; DueRows: all of it is, by one reason; else the reasons for which some may be."""
    possible: list[Reason] = []
    for reason in reasons:
        begins = rule_bounds.begins(reason.rule, file)
        if begins.some > as_of:
            if begins.some < INT64_MAX:
                later.append(begins.some)
            continue
        free = file.last_offset is not None and file.last_offset < reason.below.get(file.partition, INT64_MAX)
        if not possible and begins.all <= as_of and free and _holds_each_offset(file):
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


def _read(file: FileMetrics, rows: FileRows, reasons: Iterable[Reason], as_of: Instant, later: list[int]) -> Iterator[DueRows]:
    open_ = rows.alive.copy()
    taken = np.zeros(len(open_), np.bool_)
    waiting = np.full(len(open_), INT64_MAX)
    for reason in reasons:
        begins = rule_columns.begins(reason.rule, rows.columns, len(open_))
        hit = open_ & (begins <= as_of)
        # Also of what another reason holds: this one may take it sooner than its holder lets it go.
        waiting = np.minimum(waiting, np.where(begins > as_of, begins, INT64_MAX))
        if hit.any():
            yield _due(file, reason, rows.offsets[hit], int(begins[hit].min()))
            taken |= hit & (rows.offsets < reason.below.get(file.partition, INT64_MAX))
            open_ &= ~hit
    left = waiting[rows.alive & ~taken]
    if len(left) and (first := int(left.min())) < INT64_MAX:
        later.append(first)


def _due(file: FileMetrics, reason: Reason, offsets: NDArray[np.int64], since: int) -> DueRows:
    ordered = np.sort(offsets)
    taken = ordered[ordered < reason.below.get(file.partition, INT64_MAX)]
    return DueRows(
        partition=file.partition,
        base_offset=file.segment,
        file=file.name,
        reason=reason.name,
        taken=ranges_text(taken.tolist()),
        rows=len(taken),
        first_offset=int(ordered[0]),
        last_offset=int(ordered[-1]),
        since=Instant(since),
        held=len(ordered) - len(taken),
    )


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
