"""Find the messages that a published plan removed and that the table's history still has, without a JVM (DEL-7).

A message is identified by (partition, offset), not by its place in a file: a file of the table may have been rewritten since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from message_lifecycle.model.change import RemoveRows, RestoreRows
from message_lifecycle.model.errors import undo_source_gone
from message_lifecycle.model.message import Place, ranges_text
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.undo import Range, Returning, UndoEffect
from message_lifecycle.stores.iceberg.branches import undo_ref
from message_lifecycle.stores.iceberg.data_files import is_named
from message_lifecycle.stores.iceberg.data_rows import Longs, Vectors, read_rows
from message_lifecycle.stores.iceberg.layout import (
    END_OFFSETS,
    PARENT_PLAN_ID,
    PLAN_ID,
    STAGED_PLAN_ID,
    ancestors,
    of_plan,
    offsets_of,
    summary_of,
)
from message_lifecycle.stores.iceberg.manifests import files_of
from message_lifecycle.stores.iceberg.segments import FileMetrics
from message_lifecycle.stores.iceberg.table_folder import absolute, location_prefix

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_NONE = np.empty(0, np.int64)


def find_returning_messages(
    table: Table, snapshot_id: int | None, plan: Plan, staged: Staged, *, own: Sequence[Range], without: Sequence[Range]
) -> Returning:
    """See `ports.HistoryReader`. `snapshot_id`: the log's own. Raises UndoSourceGone."""
    source = source_of(table, plan)
    now = None if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    if now is None:
        raise undo_source_gone(plan.plan_id, f"the log's snapshot {snapshot_id} is gone")
    taken = _Taken(plan, staged.superseded)
    live = Live(
        table, now, (file for file in files_of(table, now) if taken.may_contain(file) or any(_in_reach(file, span) for span in own))
    )
    was = Live(table, source, (file for file in files_of(table, source) if taken.may_contain(file)))
    names = {file.name for file in live.files}
    rows, present = [], 0
    for file in was.files:
        offsets = taken.of(file, was)
        for partition, first, last in without:
            if partition == file.partition:
                offsets = offsets[(offsets < first) | (offsets > last)]
        if not len(offsets):
            continue
        there = live.alive((file.partition, file.segment), int(offsets[0]), int(offsets[-1]))
        away = offsets[~np.isin(offsets, there)]
        present += len(offsets) - len(away)
        if len(away):
            rows.append(_restore(file, away, standing=file.name in names))
    return Returning(source_id=source.snapshot_id, rows=tuple(rows), markers=tuple(_markers(live, own)), present=present)


def undo_effect(table: Table, plan: Plan) -> UndoEffect:
    """See `ports.LogReturns.effect`."""
    now = table.current_snapshot()
    if now is None:
        return UndoEffect()
    touched: tuple[RestoreRows | RemoveRows, ...] = (*plan.log_return.back, *plan.log_return.mark)
    places = {(action.partition, action.base_offset) for action in touched}
    live = Live(table, now, (file for file in files_of(table, now) if (file.partition, file.segment) in places))
    rows, twice = 0, 0
    for action in plan.log_return.back:
        there = live.alive((action.partition, action.base_offset), action.first_offset, action.last_offset)
        named = there[is_named(there, action.offsets)]
        rows += len(np.unique(named))
        twice += len(named) - len(np.unique(named))
    left = 0
    for mark in plan.log_return.mark:
        there = live.alive((mark.partition, mark.base_offset), mark.first_offset, mark.last_offset)
        left += int(is_named(there, mark.offsets).sum())
    return UndoEffect(rows=rows, twice=twice, markers=left)


def marker_ranges(table: Table, plan_id: str) -> tuple[Range, ...]:
    """Return the offsets of the plan's markers, which are between the ends of its two commits (MRK-4)."""
    for snapshot in ancestors(table):
        if _property(snapshot, PARENT_PLAN_ID) == plan_id:
            parent = None if snapshot.parent_snapshot_id is None else table.snapshot_by_id(snapshot.parent_snapshot_id)
            before = offsets_of((None if parent is None else _property(parent, END_OFFSETS)) or "{}")
            after = offsets_of(_property(snapshot, END_OFFSETS) or "{}")
            spans = ((partition, before.get(partition, 0), end - 1) for partition, end in sorted(after.items()))
            return tuple(span for span in spans if span[1] <= span[2])
    return ()


class Live:
    """Some of a snapshot's data files, by the segment they belong to, and what no vector marks in them."""

    def __init__(self, table: Table, snapshot: Snapshot, files: Iterable[FileMetrics]) -> None:
        self._io, self._prefix, self._vectors = table.io, location_prefix(table.location()), Vectors(table, snapshot)
        self.files: Sequence[FileMetrics] = sorted(
            files, key=lambda file: (file.partition, file.segment, file.first_offset or 0, file.name)
        )
        self._at: dict[Place, list[FileMetrics]] = {}
        for file in self.files:
            self._at.setdefault((file.partition, file.segment), []).append(file)

    def offsets(self, file: FileMetrics) -> Longs:
        """In ascending order; of a file without gaps and vectors by its bounds alone."""
        first, last = file.first_offset, file.last_offset
        if first is not None and last is not None and not file.deleted and last - first + 1 == file.rows:
            return np.arange(first, last + 1, dtype=np.int64)
        path = absolute(self._prefix, file.name)
        rows = read_rows(self._io, path, self._vectors[path] if file.deleted else _NONE, ())
        return np.sort(rows.offsets[rows.alive])

    def alive(self, place: Place, first: int, last: int, *, but: str | None = None) -> Longs:
        """Return the live offsets from `first` to `last`. An offset in several files appears several times. `but`: a file to skip."""
        found = [self.offsets(file) for file in self._at.get(place, ()) if _overlaps(file, first, last) and file.name != but]
        offsets = np.concatenate(found) if found else _NONE
        return offsets[(offsets >= first) & (offsets <= last)]


class _Taken:
    """The messages that a plan removed, by segment."""

    def __init__(self, plan: Plan, superseded: Sequence[RemoveRows]) -> None:
        self._plan = plan
        self._rows: dict[Place, list[RemoveRows]] = {}
        for action in (*plan.log_commit.mark, *superseded):
            self._rows.setdefault((action.partition, action.base_offset), []).append(action)

    def may_contain(self, file: FileMetrics) -> bool:
        place = file.partition, file.segment
        return self._plan.drops(*place) or any(_overlaps(file, a.first_offset, a.last_offset) for a in self._rows.get(place, ()))

    def of(self, file: FileMetrics, was: Live) -> Longs:
        """The file's messages that the plan removed."""
        offsets = was.offsets(file)
        if self._plan.drops(file.partition, file.segment):
            return offsets
        named = np.zeros(len(offsets), np.bool_)
        for action in self._rows.get((file.partition, file.segment), ()):
            named |= is_named(offsets, action.offsets)
        return offsets[named]


def source_of(table: Table, plan: Plan) -> Snapshot:
    """Return the snapshot with the messages that the plan removed.

    That is the snapshot just before the plan, or the head of the branch that an erasure has made from it.
    """
    commit = _commit_of(table, plan.plan_id)
    ref = table.refs().get(undo_ref(plan.plan_id))
    found_id = None if ref is None else ref.snapshot_id
    if ref is None and commit is not None:
        found_id, _ = of_plan(commit.snapshot_id, commit.parent_snapshot_id, summary_of(commit))
    source = None if found_id is None else table.snapshot_by_id(found_id)
    if source is None:
        raise undo_source_gone(plan.plan_id, "the snapshot that holds what it removed has been expired")
    return source


def has_committed(table: Table, plan_id: str) -> bool:
    """True if the plan has committed on this table. After an erasure has ended it, only the branch for its undo shows the commit."""
    return undo_ref(plan_id) in table.refs() or _commit_of(table, plan_id) is not None


def has_lost(table: Table, plan: Plan, base_id: int | None) -> bool:
    """True if main comes from the snapshot before the plan, or from the commit that the plan undoes, and has no commit of the plan.

    A restored older catalog and another engine's rollback both have this effect.
    """
    goes_back = any(one.snapshot_id == base_id or _property(one, PLAN_ID) == (plan.parent or plan.plan_id) for one in ancestors(table))
    return goes_back and not has_committed(table, plan.plan_id)


def _commit_of(table: Table, plan_id: str) -> Snapshot | None:
    """Return the plan's newest snapshot on main.

    If another engine has rolled main back to a time between stage and publish, that is the staged snapshot, without the commit's
    properties.
    """
    return next((one for one in ancestors(table) if plan_id in (_property(one, PLAN_ID), _property(one, STAGED_PLAN_ID))), None)


def _markers(live: Live, own: Sequence[Range]) -> Iterator[RemoveRows]:
    for file, offsets in marked_offsets(live, own):
        if len(offsets):
            yield RemoveRows(
                partition=file.partition,
                base_offset=file.segment,
                file=file.name,
                offsets=ranges_text(offsets.tolist()),
                rows=len(offsets),
                reason="undone",
            )


def marked_offsets(live: Live, own: Sequence[Range]) -> Iterator[tuple[FileMetrics, Longs]]:
    """The files that hold any of these offsets, and which."""
    for file in live.files:
        for span in own:
            if _in_reach(file, span):
                offsets = live.offsets(file)
                yield file, offsets[(offsets >= span[1]) & (offsets <= span[2])]


def _restore(file: FileMetrics, offsets: Longs, *, standing: bool) -> RestoreRows:
    return RestoreRows(
        partition=file.partition,
        base_offset=file.segment,
        file=file.name,
        offsets=ranges_text(offsets.tolist()),
        rows=len(offsets),
        size_bytes=file.size_bytes,
        standing=standing,
    )


def _overlaps(file: FileMetrics, first: int, last: int) -> bool:
    # A file without metadata about its offsets may overlap.
    return (file.first_offset is None or file.first_offset <= last) and (file.last_offset is None or file.last_offset >= first)


def _in_reach(file: FileMetrics, span: Range) -> bool:
    partition, first, last = span
    return file.partition == partition and _overlaps(file, first, last)


def _property(snapshot: Snapshot, key: str) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(key)
