"""Stage an undo: bring back the messages that a plan removed, on a branch made at the head of main (DEL-7).

A file that the table has dropped comes back as a copy. If the table still has the file, the undo removes marks from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from message_lifecycle.model.change import RemoveRows, RestoreRows
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.message import Place
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.stores.iceberg import change, fence
from message_lifecycle.stores.iceberg import evidence_files as frames
from message_lifecycle.stores.iceberg.branches import branch_of, commit_to, drop_stage
from message_lifecycle.stores.iceberg.data_files import copied_from, copies, digest_of, is_named, originals, vectors_of, write_vector_files
from message_lifecycle.stores.iceberg.data_rows import Longs, Positions, VectorFiles, Vectors, read_rows
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.evidence_files import both_snapshots, files_of_both
from message_lifecycle.stores.iceberg.java import Java, entries
from message_lifecycle.stores.iceberg.layout import STAGED_PLAN_ID
from message_lifecycle.stores.iceberg.manifests import files_of
from message_lifecycle.stores.iceberg.read import removed_rows
from message_lifecycle.stores.iceberg.table_folder import absolute, location_prefix
from message_lifecycle.stores.iceberg.undo_sources import Live, marked_offsets, marker_ranges

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


_NONE = np.empty(0, np.int64)


def stage_undo(engine: Engine, io: FileIO, plan: Plan, plan_id: str, server: Mapping[str, Value] | None) -> Staged:
    """Restore the plan's messages in one commit on its branch, unless an earlier call has done that.

    After an error no stage exists.

    Raises:
        UndoSourceGone: The snapshot with the removed messages, or one of its files, is missing.
        PlanConflict: The table or its settings have changed, or the work restored another number of messages than planned.
    """
    table = engine.table(plan.topic)
    fence.check(plan, plan_id, table, server)
    base_id = plan.requirements.snapshot_id
    assert base_id is not None, "an undo was planned on a snapshot"
    prefix, undone = location_prefix(str(table.location())), plan.parent_id
    wanted = {absolute(prefix, action.file): at for at, action in enumerate(plan.log_return.back) if not action.standing}

    def work() -> Callable[[str], object]:
        lost = originals(engine, io, table, plan.log_return.source_id, wanted, undone=undone)
        update = table.newRowDelta().validateFromSnapshot(base_id)
        back = dict(copies(engine, io, table, lost, undone=undone))
        for _, file in back.values():
            update.addRows(file)
        # A file that comes back whole needs no vector: only the gate reads its copy.
        in_part = {at: path for at, (path, file) in back.items() if int(file.recordCount()) != plan.log_return.back[at].rows}
        for vector in _vectors(engine, io, table, plan, in_part, update):
            update.addDeletes(vector)
        return lambda branch: commit_to(table, branch, update.set(STAGED_PLAN_ID, plan_id), what=f"staging plan {plan_id}")

    staged = change.stage(engine, table, plan, base_id, work)
    come_back = plan.expected.removed_rows - removed_rows(entries(staged.summary()))
    if come_back != plan.restored_rows:
        drop_stage(table, plan_id)
        raise PlanConflict(plan_id, f"its work brought back {come_back} messages, the plan names {plan.restored_rows}")
    return Staged(plan_id=plan_id, branch=branch_of(plan_id), snapshot_id=int(staged.snapshotId()))


def _vectors(engine: Engine, io: FileIO, table: Java, plan: Plan, copies: Mapping[int, str], update: Java) -> Iterator[Java]:
    """Write the deletion vectors of an undo.

    A vector of a copied file marks every row except the returning ones. A vector of a file in the table keeps its earlier marks without the
    returning rows, and adds the plan's own markers. The `update` removes the earlier vectors. `copies`: the files that return in part.
    """
    prefix = location_prefix(str(table.location()))
    unmarked = {absolute(prefix, action.file): action for action in plan.log_return.back if action.standing}
    marked = {absolute(prefix, action.file): action for action in plan.log_return.mark}
    head = table.snapshot(plan.requirements.snapshot_id)
    standing: dict[str, RestoreRows | RemoveRows] = {**unmarked, **marked}
    before = {str(vector.referencedDataFile()): vector for vector in vectors_of(engine, table, head, standing)} if standing else {}
    vectors = VectorFiles(io)
    places: dict[str, Place] = {path: (action.partition, action.base_offset) for path, action in standing.items()}
    new: list[tuple[str, Positions]] = []
    for path in standing:
        offsets = read_rows(io, path, _NONE, ()).offsets
        gone = np.zeros(len(offsets), np.bool_)
        if path in before:
            gone[vectors.vector(str(before[path].location()), path)] = True
            update.removeDeletes(before[path])
        if path in unmarked:
            gone &= ~is_named(offsets, unmarked[path].offsets)
        if path in marked:
            gone |= is_named(offsets, marked[path].offsets)
        new.append((path, np.flatnonzero(gone)))
    for at, path in copies.items():
        action = plan.log_return.back[at]
        places[path] = action.partition, action.base_offset
        new.append((path, np.flatnonzero(~is_named(read_rows(io, path, _NONE, ()).offsets, action.offsets))))
    for _, vector in write_vector_files(engine, table, io, ((path, gone) for path, gone in new if len(gone)), places):
        yield vector


# The evidence for the gate of a staged undo: the frames of `undo_suite`, read without a JVM.
#
# The identity of their files proves that the existing messages are unchanged. For returning messages, the evidence compares each offset,
# and the content by the bytes of the file that they were copied from.


def undo_evidence(table: Table, plan: Plan, staged: Staged) -> Mapping[str, pa.Table]:
    """Raises PlanConflict where the plan's or the staged snapshot is gone."""
    import pyarrow as pa
    import pyarrow.compute as pc

    was, now = both_snapshots(table, plan, staged)
    prefix = location_prefix(table.location())
    before, after = files_of_both(table, was, now)
    copies = {at: name for name in frames.gone(frames.live(after), before)["name"].to_pylist() if (at := copied_from(name)) is not None}
    changes = _Changes(table, was, now)
    restored: list[dict[str, object]] = []
    come = dead = 0
    for at, action in enumerate(plan.log_return.back):
        path = absolute(prefix, action.file) if action.standing else copies.get(at)
        new = np.empty(0, np.int64) if path is None else changes.come(path, copied=not action.standing)
        named = is_named(new, action.offsets)
        same = path is not None and (action.standing or digest_of(table.io, path) == digest_of(table.io, absolute(prefix, action.file)))
        come += len(new)
        restored.append({"rows": int(named.sum()), "missing": action.rows - int(named.sum()), "unnamed": int((~named).sum()), "same": same})
    rows: list[dict[str, int]] = []
    marks = {absolute(prefix, action.file): action for action in plan.log_return.mark}
    for path, mark in marks.items():
        gone = changes.gone(path)
        dead += len(gone)
        rows.append({"rows": len(gone), "unnamed": int((~is_named(gone, mark.offsets)).sum())})
    # A copy that is not the plan's is a file that was not there.
    ours = {path for at, path in copies.items() if at < len(plan.log_return.back) and not plan.log_return.back[at].standing}
    others = after.filter(pc.invert(pc.is_in(after["name"], value_set=pa.array(sorted(ours), pa.string()))))
    touched = {absolute(prefix, action.file) for action in plan.log_return.back if action.standing} | marks.keys() | ours
    live_before, live_after = frames.live(before), frames.live(after)
    spans = marker_ranges(table, plan.parent_id)
    live = Live(table, now, files_of(table, now))
    twice = [offset for at, action in enumerate(plan.log_return.back) for offset in _twice(live, prefix, plan, at, copies)]
    left = [int(offset) for _, offsets in marked_offsets(live, spans) for offset in offsets]
    return {
        "restored": pa.Table.from_pylist(restored, schema=frames.schema("rows", "missing", "unnamed", same=pa.bool_())),
        "rows": frames.longs(rows, ("rows", "unnamed")),
        "twice": pa.table({"offset": pa.array(twice, pa.int64())}),
        "markers_left": pa.table({"offset": pa.array(left, pa.int64())}),
        "difference": frames.difference(before, others, set(), touched),
        "figures": frames.longs(
            [
                {
                    "rows_in": pc.sum(live_before["rows"]).as_py() or 0,
                    "rows_restored": come,
                    "rows_removed": dead,
                    "rows_kept": pc.sum(live_after["rows"]).as_py() or 0,
                    "asks": len(plan.asks),
                }
            ]
        ),
    }


class _Changes:
    """The offsets of a file that only one of two snapshots has."""

    def __init__(self, table: Table, was: Snapshot, now: Snapshot) -> None:
        self._io, self._was, self._now = table.io, Vectors(table, was), Vectors(table, now)

    def come(self, path: str, *, copied: bool) -> Longs:
        return self._alive_in_one(path, self._now, None if copied else self._was)

    def gone(self, path: str) -> Longs:
        return self._alive_in_one(path, self._was, self._now)

    def _alive_in_one(self, path: str, there: Vectors, away: Vectors | None) -> Longs:
        """Offsets of the rows that are alive in the one snapshot and marked in the other. The file is read once.

        Args:
            path: The path of the file.
            there: The deletion vectors of the snapshot with the living rows.
            away: None if the other snapshot does not have the file.
        """
        rows = read_rows(self._io, path, there[path], ())
        marked = np.full(len(rows.offsets), away is None)
        if away is not None:
            marked[away[path]] = True
        return np.sort(rows.offsets[rows.alive & marked])


def _twice(live: Live, prefix: str, plan: Plan, at: int, copies: Mapping[int, str]) -> list[int]:
    action = plan.log_return.back[at]
    own = action.file if action.standing else copies.get(at, "").removeprefix(prefix)
    there = live.alive((action.partition, action.base_offset), action.first_offset, action.last_offset, but=own)
    return [int(offset) for offset in there[is_named(there, action.offsets)]]
