"""Staging: a plan's work on a branch made at the plan's snapshot, where no reader of main sees it (DEL-1).

Whole files go by name, in one commit; single messages by their offsets, in a second one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy, Value
from message_lifecycle.stores.iceberg import requirements
from message_lifecycle.stores.iceberg.data_files import planned_files
from message_lifecycle.stores.iceberg.layout import STAGED_PLAN_ID
from message_lifecycle.stores.iceberg.read import removed_rows
from message_lifecycle.stores.iceberg.refs import set_refs
from message_lifecycle.stores.iceberg.row_deletes import delete_rows
from message_lifecycle.stores.iceberg.session import Java, java_table

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyspark.sql import SparkSession

# A stage that nobody publishes ends by itself, some time after its approval can no longer be given.
GRACE_MS = 86_400_000


def branch_of(plan_id: str) -> str:
    return f"lc_{plan_id[:16]}"


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
    found = staged_before(table, plan_id)
    if found is not None:
        return found, None
    going = _files(session, plan, plan_id, table)
    branch = make_branch(table, plan, plan_id, base_id)
    whole = set(plan.selection.files)
    by_row = [action for action in plan.row_removals if action.file not in whole]
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
        set_refs(table, lambda refs: refs.removeBranch(branch), what=_what(plan_id))
        raise PlanConflict(plan_id, f"its work removed {removed} messages, the plan names {plan.expected.removed_rows}")
    return Staged(plan_id=plan_id, branch=branch, snapshot_id=int(staged.snapshotId())), None if by_row else going


def staged_before(table: Java, plan_id: str) -> Staged | None:
    """What an earlier call has staged. A stage that is not known to be whole, because its run died on the way, is taken away."""
    branch = branch_of(plan_id)
    found = table.snapshot(branch)
    if found is None:
        return None
    if found.summary().get(STAGED_PLAN_ID) == plan_id:
        return Staged(plan_id=plan_id, branch=branch, snapshot_id=int(found.snapshotId()))
    set_refs(table, lambda refs: refs.removeBranch(branch), what=_what(plan_id))
    return None


def make_branch(table: Java, plan: Plan, plan_id: str, base_id: int) -> str:
    """The plan's branch, at the plan's snapshot."""
    branch = branch_of(plan_id)
    age_ms = Policy.of_values(plan.policy).approval_ttl_us // 1000 + GRACE_MS
    set_refs(table, lambda refs: refs.createBranch(branch, base_id).setMaxRefAgeMs(branch, age_ms), what=_what(plan_id))
    return branch


def _what(plan_id: str) -> str:
    return f"staging plan {plan_id}"


def chain(table: Java, staged: Java, base_id: int) -> list[Java]:
    """The snapshots from the staged one back to the plan's, that one not included."""
    found = []
    while staged is not None and staged.snapshotId() != base_id:
        found.append(staged)
        parent = staged.parentId()
        staged = None if parent is None else table.snapshot(parent)
    return found


def _files(session: SparkSession, plan: Plan, plan_id: str, table: Java) -> Java:
    """The plan's files in the plan's snapshot: those very names, each of them, and none besides."""
    names = plan.selection.files
    found = planned_files(session, table, table.snapshot(plan.requirements.snapshot_id), plan)
    # Only named files are found, so equal numbers mean the same files.
    if found.size() != len(set(names)) or len(set(names)) != len(names):
        raise PlanConflict(plan_id, f"it names {len(names)} files, of which its snapshot holds {found.size()}")
    return found
