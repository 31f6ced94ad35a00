"""Our branches on a table: a plan's stage, which no reader of main sees (DEL-1), and undo branches of an erasure (DEL-7).

An erasure ends the table's history at once, and with it the snapshot that an undo reads. Before that, the erasure creates a branch for each
published plan with an open undo window: `undo_<first 16 characters of the plan id>`.

The branch's head is the table just before the plan's commit: the same data files and deletion vectors. Only files that held an erased key
differ. Copies without the key's rows replace these files, under new names and with vectors for the new positions. So:

- An undo finds every row that the plan removed through the head, by (partition, offset). File names in the plan may be outdated.
- An offset that the plan removed and that the head lacks was erased, and never returns.
- The branch has no messages that arrived after the plan's commit. Main has them.

A second erasure rewrites the branch's head like every other ref. The branch ends with the undo, or by itself one whole window after the
plan of the erasure (`max-ref-age-ms`). That age never ends before the undo window of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import CommitUnknown, PlanConflict, TableBusy
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.java import Java, each, java_class, java_message, result_unknown, thrown
from message_lifecycle.stores.iceberg.layout import STAGED_PLAN_ID
from message_lifecycle.stores.iceberg.table_metadata import TableGone, change_metadata, commit_metadata_change

if TYPE_CHECKING:
    from message_lifecycle.model.plan import Plan
    from message_lifecycle.stores.iceberg.catalog import Tables

_STAGE, _UNDO = "lc_", "undo_"
# An unpublished stage ends by itself, some time after its approval can no longer be given.
_GRACE_MS = 86_400_000
_ATTEMPTS = 10


def branch_of(plan_id: str) -> str:
    """Return the name of the branch with the plan's stage."""
    return f"{_STAGE}{plan_id[:16]}"


def undo_ref(plan_id: str) -> str:
    """Return the name of the branch that an erasure keeps for the undo of the plan."""
    return f"{_UNDO}{plan_id[:16]}"


def make_branch(table: Java, plan: Plan, base_id: int) -> str:
    """Create the plan's branch at the snapshot that the plan builds on, and return its name."""
    branch = branch_of(plan.plan_id)
    age_ms = Policy.from_values(plan.policy).approval_ttl_us // 1000 + _GRACE_MS

    def make(refs: Java) -> Java:
        # The branch's own snapshots live as long as the branch, even if another engine expires snapshots.
        return refs.createBranch(branch, base_id).setMaxRefAgeMs(branch, age_ms).setMaxSnapshotAgeMs(branch, age_ms)

    set_refs(table, make, done=lambda: head_of(table, branch) == base_id, what=_stage_name_text(plan.plan_id))
    return branch


def find_staged_snapshot(table: Java, plan_id: str) -> Java | None:
    """Return the staged snapshot of an earlier call, or None. An incomplete stage of a run that died is deleted."""
    found = table.snapshot(branch_of(plan_id))
    if found is None or found.summary().get(STAGED_PLAN_ID) == plan_id:
        return found
    drop_stage(table, plan_id)
    return None


def drop_stage(table: Java, plan_id: str) -> None:
    branch = branch_of(plan_id)
    set_refs(table, lambda refs: refs.removeBranch(branch), done=lambda: head_of(table, branch) is None, what=_stage_name_text(plan_id))


def head_of(table: Java, branch: str) -> int | None:
    """Return the branch's newest snapshot; None without such a branch."""
    found = table.snapshot(branch)
    return None if found is None else int(found.snapshotId())


def _stage_name_text(plan_id: str) -> str:
    return f"staging plan {plan_id}"


def staged_chain(table: Java, staged: Java, base_id: int, plan_id: str) -> list[Java]:
    """Return the snapshots from the staged one back to the plan's own, without the plan's. Raises PlanConflict if one of them is missing."""
    found = []
    while staged.snapshotId() != base_id:
        found.append(staged)
        parent = staged.parentId()
        staged = None if parent is None else table.snapshot(parent)
        if staged is None:
            raise PlanConflict(plan_id, f"of what was staged for it, or was there before, snapshot {parent} is gone")
    return found


def remove_branch(tables: Tables, plan: Plan, branch: str, kinds: Sequence[str] = ("",)) -> None:
    """Remove a branch from the topic's tables of these kinds. A missing table has no branch.

    Only the removal of an existing branch needs a JVM. A publish removes its own branch, so a verify needs no JVM.
    """
    for kind in kinds:
        place = plan.topic.namespace, plan.topic.table(kind)
        found = tables.find(place)
        if found is not None and branch in found.content.get("refs", {}):
            with suppress(TableGone):  # the branch is gone with its table
                change_metadata(place, lambda _, builder: builder.removeRef(branch), what=f"ending the branch {branch}")


def set_refs(table: Java, change: Callable[[Java], Java], *, done: Callable[[], bool], what: str) -> None:
    """Commit a change of branches.

    Iceberg repeats a data commit when another commit came first. For a change of branches it only reports that a refresh is required, so
    this function repeats the change itself.

    Args:
        table: The table of the branches; loaded again after a refusal.
        change: Makes the change. Every attempt passes a new ManageSnapshots of Iceberg; `table` then has the state that the attempt builds
            on.
        done: Returns whether the previous attempt succeeded. A refusal may answer a repeated request whose first answer was lost.
        what: The action, for errors.

    Raises:
        TableBusy: Other commits kept coming first.
        CommitUnknown: The catalog's answer is missing.
    """
    for _ in range(_ATTEMPTS):
        try:
            change(table.manageSnapshots()).commit()
        except thrown() as error:
            unknown = result_unknown(error)
            if not unknown and java_class(error) != "CommitFailedException":
                raise
            if _check_done(table, done, error if unknown else None, what):
                return
            if unknown:
                raise CommitUnknown(what) from error
        else:
            return
    raise TableBusy(what, _ATTEMPTS)


def _check_done(table: Java, done: Callable[[], bool], unknown: Exception | None, what: str) -> bool:
    try:
        table.refresh()
        return done()
    except thrown() as error:
        if unknown is None:
            raise
        raise CommitUnknown(what) from error


def commit_to(table: Java, branch: str, update: Java, *, what: str) -> None:
    """Commit an update of Iceberg's to one of our own branches.

    Never call the update's own `commit()` here; `fence` gives the reason. If the answer to an attempt was lost, the branch itself shows the
    result. Spark's own writes to a branch (a compaction in SQL, ingests, copies) are committed by Spark.

    Args:
        table: The table of the branch.
        branch: The branch's name.
        update: A pending update of the table, which this function sends to the branch.
        what: The action, for errors.

    Raises:
        PlanConflict: Iceberg's own checks see a conflict, or the branch is missing.
        TableBusy: Other commits kept coming first.
        CommitUnknown: The catalog's answer is missing.
    """
    update.toBranch(branch)
    made: int | None = None
    plan_id = branch.removeprefix(_STAGE)

    def change(base: Java, builder: Java) -> None:
        nonlocal made
        ref = base.ref(branch)
        if ref is None:  # this update would recreate the branch, from main and without an end
            raise PlanConflict(plan_id, f"the branch {branch} of its stage is gone")
        if int(ref.snapshotId()) != made:  # else an attempt whose answer was lost has committed it
            snapshot = update.apply()
            made = int(snapshot.snapshotId())
            builder.setBranchSnapshot(snapshot, branch)

    try:
        commit_metadata_change(table.operations(), change, what=what)
    except thrown() as error:
        if java_class(error) == "ValidationException":
            raise PlanConflict(plan_id, java_message(error)) from error
        raise


# The differences between a plan's branch and the plan's snapshot, as one update of main.


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedChange:
    """The differences between a plan's branch and the plan's snapshot.

    Attributes:
        dropped: The DataFileSet of removed files.
        vectors: New deletion vectors.
        replaced: Removed deletion vectors: their files are removed, or new vectors replace them.
        added: New data files: markers or, for a compaction, the view's files.
    """

    dropped: Java
    vectors: Sequence[Java]
    replaced: Sequence[Java]
    added: Sequence[Java]

    @property
    def removes(self) -> bool:
        return bool(self.vectors) or not self.dropped.isEmpty()

    @classmethod
    def of(cls, engine: Engine, table: Java, staged: list[Java]) -> StagedChange:
        """Return the differences that the snapshots add up to. A file that one snapshot adds and a later one removes cancels out.

        Args:
            engine: Runs the work in the JVM.
            table: The table that the snapshots belong to.
            staged: The branch's snapshots, newest first.
        """
        jvm: Java = engine.jvm
        dropped = jvm.org.apache.iceberg.util.DataFileSet.create()
        vectors: dict[tuple[str, int], Java] = {}
        replaced: list[Java] = []
        added: list[Java] = []
        for snapshot in reversed(staged):
            changes = jvm.org.apache.iceberg.SnapshotChanges.builderFor(table).snapshot(snapshot).build()
            dropped.addAll(jvm.org.apache.iceberg.util.DataFileSet.of(changes.removedDataFiles()))
            for vector in each(changes.removedDeleteFiles()):
                # Include vectors of removed files: Iceberg searches for them only if it has other vectors to replace.
                if vectors.pop(_place(vector), None) is None:
                    replaced.append(vector)
            for vector in each(changes.addedDeleteFiles()):
                vectors[_place(vector)] = vector
            added += each(changes.addedDataFiles())
        return cls(dropped=dropped, vectors=tuple(vectors.values()), replaced=tuple(replaced), added=tuple(added))

    def update(self, engine: Engine, on: Java, base_id: int) -> Java:
        """Return the removals as one update of `on`, a table or a transaction.

        Appends since the plan's snapshot are allowed. Any other change of the removed rows or files makes the commit fail.
        """
        jvm: Java = engine.jvm
        if not self.vectors:
            drop = on.newOverwrite().deleteFiles(self.dropped, jvm.org.apache.iceberg.util.DeleteFileSet.create())
            # A second guard next to the fence: each file must still exist, with the same deletion vector.
            return drop.validateFromSnapshot(base_id).validateNoConflictingDeletes()
        referenced = jvm.java.util.ArrayList()
        for vector in self.vectors:
            referenced.add(vector.referencedDataFile())
        update = self._add_removals(on.newRowDelta().validateFromSnapshot(base_id))
        return update.validateDataFilesExist(referenced).validateDeletedFiles().validateNoConflictingDeleteFiles()

    def restore(self, engine: Engine, on: Java, base_id: int) -> Java:
        """Return an undo as one update of `on`.

        Appends since the plan's snapshot are allowed. Any other change of a file that the undo touches makes the commit fail.
        """
        jvm: Java = engine.jvm
        referenced = jvm.java.util.ArrayList()
        for vector in (*self.vectors, *self.replaced):
            referenced.add(vector.referencedDataFile())
        update = self.add_to_update(on.newRowDelta(), base_id)
        return update.validateDataFilesExist(referenced).validateDeletedFiles().validateNoConflictingDeleteFiles()

    def add_to_update(self, update: Java, base_id: int) -> Java:
        """Return all differences as one RowDelta. The caller's fence decides whether the table may have moved on."""
        update = self._add_removals(update.validateFromSnapshot(base_id))
        for file in self.added:
            update.addRows(file)
        return update

    def _add_removals(self, update: Java) -> Java:
        for file in each(self.dropped):
            update.removeRows(file)
        for vector in self.vectors:
            update.addDeletes(vector)
        for vector in self.replaced:
            update.removeDeletes(vector)
        return update


def _place(vector: Java) -> tuple[str, int]:
    # A Puffin file holds many vectors.
    return str(vector.location()), int(vector.contentOffset())
