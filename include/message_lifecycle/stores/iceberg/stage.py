"""Staging: a plan's work on a branch made at the plan's snapshot, where no reader of main sees it (DEL-1).

Whole files go by name, in one commit; single messages by their offsets, in a second one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Value
from message_lifecycle.stores.iceberg import requirements
from message_lifecycle.stores.iceberg.branches import branch_of, chain, drop_stage, make_branch, staged_on
from message_lifecycle.stores.iceberg.data_files import planned_files
from message_lifecycle.stores.iceberg.layout import STAGED_PLAN_ID
from message_lifecycle.stores.iceberg.read import removed_rows
from message_lifecycle.stores.iceberg.row_deletes import delete_rows
from message_lifecycle.stores.iceberg.session import Java, java_table

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyspark.sql import SparkSession


def stage(session: SparkSession, io: FileIO, plan: Plan, plan_id: str, server: Mapping[str, Value] | None) -> tuple[Staged, Java | None]:
    """Do the plan's work on its branch; done before, it is found. Raises PlanConflict, and then nothing is staged. `io` reaches the
    table's files.

    With it comes the DataFileSet that this call has dropped, where that is all it has done.
    """
    table = java_table(session, plan.topic)
    requirements.check(plan, plan_id, table, server)
    base_id = plan.requirements.snapshot_id
    if plan.is_empty or base_id is None:
        return Staged(plan_id=plan_id, branch=None, snapshot_id=base_id), None
    found = staged_on(table, plan_id)
    if found is not None:
        return Staged(plan_id=plan_id, branch=branch_of(plan_id), snapshot_id=int(found.snapshotId())), None
    going = _files(session, plan, plan_id, table)
    branch = make_branch(table, plan, base_id)
    by_row = removed_by_row(plan)
    if plan.selection.files:
        jvm: Java = session._jvm
        drop = table.newOverwrite().deleteFiles(going, jvm.org.apache.iceberg.util.DeleteFileSet.create())
        # The mark of a stage that is whole stands on its last commit.
        if not by_row:
            drop.set(STAGED_PLAN_ID, plan_id)
        drop.toBranch(branch).commit()
    if by_row:
        delete_rows(session, io, plan.topic, branch, by_row, {STAGED_PLAN_ID: plan_id})
    table.refresh()
    staged = table.snapshot(branch)
    removed = sum(removed_rows(dict(snapshot.summary())) for snapshot in chain(table, staged, base_id))
    if removed != plan.expected.removed_rows:
        drop_stage(table, plan_id)
        raise PlanConflict(plan_id, f"its work removed {removed} messages, the plan names {plan.expected.removed_rows}")
    return Staged(plan_id=plan_id, branch=branch, snapshot_id=int(staged.snapshotId())), None if by_row else going


def removed_by_row(plan: Plan) -> list[RemoveRows]:
    """What goes by offsets: of files that do not go whole."""
    whole = set(plan.selection.files)
    return [action for action in plan.on_log.mark if action.file not in whole]


def _files(session: SparkSession, plan: Plan, plan_id: str, table: Java) -> Java:
    """The plan's files in the plan's snapshot: those very names, each of them, and none besides."""
    names = plan.selection.files
    found = planned_files(session, table, table.snapshot(plan.requirements.snapshot_id), plan)
    # Only named files are found, so equal numbers mean the same files.
    if found.size() != len(set(names)) or len(set(names)) != len(names):
        raise PlanConflict(plan_id, f"it names {len(names)} files, of which its snapshot holds {found.size()}")
    return found
