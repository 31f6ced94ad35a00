"""Staging an undo: what a plan took, back on a branch made at the head of main (DEL-7).

A file that the table let go comes back as a copy. Where the table has the file still, marks are taken off it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from message_lifecycle.model.change import RemoveRows, RestoreRows
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import Place
from message_lifecycle.model.settings import Value
from message_lifecycle.stores.iceberg import requirements
from message_lifecycle.stores.iceberg.branches import branch_of, drop_stage, make_branch, staged_on
from message_lifecycle.stores.iceberg.copies_back import copies, originals
from message_lifecycle.stores.iceberg.data_files import vectors_of
from message_lifecycle.stores.iceberg.data_rows import Positions, read_rows, vectors_in
from message_lifecycle.stores.iceberg.file_names import absolute, location_prefix
from message_lifecycle.stores.iceberg.layout import STAGED_PLAN_ID
from message_lifecycle.stores.iceberg.read import removed_rows
from message_lifecycle.stores.iceberg.row_deletes import within, write_vectors
from message_lifecycle.stores.iceberg.session import Java, forget_cached, java_table

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyspark.sql import SparkSession

_NONE = np.empty(0, np.int64)


def stage_undo(session: SparkSession, io: FileIO, plan: Plan, plan_id: str, server: Mapping[str, Value] | None) -> Staged:
    """Bring back what the plan names, in one commit on its branch; done before, it is found. Raises UndoSourceGone where a file is not
    there any more, PlanConflict; then nothing is staged."""
    table = java_table(session, plan.topic)
    requirements.check(plan, plan_id, table, server)
    base_id = plan.requirements.snapshot_id
    if plan.is_empty or base_id is None or plan.on_log.source_id is None:
        return Staged(plan_id=plan_id, branch=None, snapshot_id=base_id)
    found = staged_on(table, plan_id)
    if found is not None:
        return Staged(plan_id=plan_id, branch=branch_of(plan_id), snapshot_id=int(found.snapshotId()))
    prefix, undone = location_prefix(str(table.location())), plan.parent or plan_id
    wanted = {absolute(prefix, action.file): at for at, action in enumerate(plan.on_log.back) if not action.standing}
    lost = originals(session, io, table, plan.on_log.source_id, wanted, undone=undone)
    branch = make_branch(table, plan, base_id)
    update = table.newRowDelta().validateFromSnapshot(base_id)
    back = dict(copies(session, io, table, lost, undone=undone))
    for _, file in back.values():
        update.addRows(file)
    for vector in _vectors(session, io, table, plan, {at: path for at, (path, _) in back.items()}, update):
        update.addDeletes(vector)
    update.set(STAGED_PLAN_ID, plan_id).toBranch(branch).commit()
    forget_cached(session, plan.topic)
    table.refresh()
    staged = table.snapshot(branch)
    come_back = plan.expected.removed_rows - removed_rows(dict(staged.summary()))
    if come_back != plan.restored_rows:
        drop_stage(table, plan_id)
        raise PlanConflict(plan_id, f"its work brought back {come_back} messages, the plan names {plan.restored_rows}")
    return Staged(plan_id=plan_id, branch=branch, snapshot_id=int(staged.snapshotId()))


def _vectors(session: SparkSession, io: FileIO, table: Java, plan: Plan, copies: Mapping[int, str], update: Java) -> Iterator[Java]:
    """What stays marked: in a copy all but what comes back, in a file that stands what was marked before but for that, and the plan's
    own markers. Vectors of before are taken out of the `update`."""
    prefix = location_prefix(str(table.location()))
    unmarked = {absolute(prefix, action.file): action for action in plan.on_log.back if action.standing}
    marked = {absolute(prefix, action.file): action for action in plan.on_log.mark}
    head = table.snapshot(plan.requirements.snapshot_id)
    standing: dict[str, RestoreRows | RemoveRows] = {**unmarked, **marked}
    before = {str(vector.referencedDataFile()): vector for vector in vectors_of(session, table, head, standing)} if standing else {}
    read: dict[str, Mapping[str, Positions]] = {}
    places: dict[str, Place] = {path: (action.partition, action.base_offset) for path, action in standing.items()}
    new: list[tuple[str, Positions]] = []
    for path in standing:
        offsets = read_rows(io, path, _NONE, ()).offsets
        gone = np.zeros(len(offsets), np.bool_)
        if path in before:
            puffin = str(before[path].location())
            if puffin not in read:
                read[puffin] = vectors_in(io, puffin)
            gone[read[puffin][path]] = True
            update.removeDeletes(before[path])
        if path in unmarked:
            gone &= ~within(offsets, unmarked[path].offsets)
        if path in marked:
            gone |= within(offsets, marked[path].offsets)
        new.append((path, np.flatnonzero(gone)))
    for at, path in copies.items():
        action = plan.on_log.back[at]
        places[path] = action.partition, action.base_offset
        new.append((path, np.flatnonzero(~within(read_rows(io, path, _NONE, ()).offsets, action.offsets))))
    for _, vector in write_vectors(session, table, io, ((path, gone) for path, gone in new if len(gone)), places):
        yield vector
