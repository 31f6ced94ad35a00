"""Branches that we make on a table: a plan's stage, which no reader of main sees (DEL-1), and what an erasure leaves for an undo (DEL-7).

An erasure ends the table's history at once, and with it the snapshot that undo takes rows from. So before it does, it makes the branch
`undo_<first 16 characters of the plan id>` for each published plan whose undo window is still open. The branch's head is what the table
was just before the plan's commit: the same data files and deletion vectors, but for the files that held an erased key. Those are there as
copies without the rows of that key, under new names and with vectors for the new positions. So:

- whatever the plan took is reached through the head, by (partition, offset); names of files in the plan may not be found there;
- an offset that the plan took and that the head does not have was erased, and never comes back;
- what came after the plan's commit is not in it; what main has beside it stands on main.

A second erasure writes the branch's head again like every other ref. The branch ends with the undo, and by itself when a whole window has
passed since the erasure was planned (`max-ref-age-ms`), which is not before the plan's own window ends.
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
from message_lifecycle.stores.iceberg.table_metadata import TableGone, change_metadata, commit_metadata

if TYPE_CHECKING:
    from message_lifecycle.model.plan import Plan
    from message_lifecycle.stores.iceberg.catalog import Tables

_STAGE, _UNDO = "lc_", "undo_"
# A stage that nobody publishes ends by itself, some time after its approval can no longer be given.
_GRACE_MS = 86_400_000
_ATTEMPTS = 10


def branch_of(plan_id: str) -> str:
    """Where the plan's work is staged."""
    return f"{_STAGE}{plan_id[:16]}"


def undo_ref(plan_id: str) -> str:
    """What an erasure has left for the undo of the plan."""
    return f"{_UNDO}{plan_id[:16]}"


def make_branch(table: Java, plan: Plan, base_id: int) -> str:
    """The plan's branch, at the snapshot that it builds on."""
    branch = branch_of(plan.plan_id)
    age_ms = Policy.of_values(plan.policy).approval_ttl_us // 1000 + _GRACE_MS

    def make(refs: Java) -> Java:
        # Its own snapshots stay as long as it does, whatever another engine expires.
        return refs.createBranch(branch, base_id).setMaxRefAgeMs(branch, age_ms).setMaxSnapshotAgeMs(branch, age_ms)

    set_refs(table, make, done=lambda: head_of(table, branch) == base_id, what=_what(plan.plan_id))
    return branch


def staged_on(table: Java, plan_id: str) -> Java | None:
    """The snapshot on the plan's branch by which an earlier call has staged it. A stage that is not known to be whole, because its run died
    on the way, is taken away."""
    found = table.snapshot(branch_of(plan_id))
    if found is None or found.summary().get(STAGED_PLAN_ID) == plan_id:
        return found
    drop_stage(table, plan_id)
    return None


def drop_stage(table: Java, plan_id: str) -> None:
    branch = branch_of(plan_id)
    set_refs(table, lambda refs: refs.removeBranch(branch), done=lambda: head_of(table, branch) is None, what=_what(plan_id))


def head_of(table: Java, branch: str) -> int | None:
    """The branch's newest snapshot; None: there is no such branch."""
    found = table.snapshot(branch)
    return None if found is None else int(found.snapshotId())


def _what(plan_id: str) -> str:
    return f"staging plan {plan_id}"


def chain(table: Java, staged: Java, base_id: int, plan_id: str) -> list[Java]:
    """The snapshots from the staged one back to the plan's, that one not included. Raises PlanConflict where one between is gone."""
    found = []
    while staged.snapshotId() != base_id:
        found.append(staged)
        parent = staged.parentId()
        staged = None if parent is None else table.snapshot(parent)
        if staged is None:
            raise PlanConflict(plan_id, f"of what was staged for it, or was there before, snapshot {parent} is gone")
    return found


def remove_branch(tables: Tables, plan: Plan, branch: str, kinds: Sequence[str] = ("",)) -> None:
    """Forget a branch of the topic's tables of these kinds; a table that is not there has none. Needs a JVM only where there is the branch: a
    publish takes its own away, so that verify needs none."""
    for kind in kinds:
        place = plan.topic.namespace, plan.topic.table(kind)
        found = tables.found(place)
        if found is not None and branch in found.content.get("refs", {}):
            with suppress(TableGone):  # with the table the branch went
                change_metadata(place, lambda _, builder: builder.removeRef(branch), what=f"ending the branch {branch}")


def set_refs(table: Java, change: Callable[[Java], Java], *, done: Callable[[], bool], what: str) -> None:
    """Commit a change of branches. `what` names the deed in errors. Raises TableBusy, CommitUnknown.

    Iceberg takes a commit of data up again when another one came first, but not such a change: it only says that a refresh is required. So
    `change` is given Iceberg's ManageSnapshots anew for each attempt, and finds `table` at the state that the attempt builds on. `done` tells
    there whether the attempt before was made: a refusal may be of what a catalog was asked again whose first answer was lost.
    """
    for _ in range(_ATTEMPTS):
        try:
            change(table.manageSnapshots()).commit()
        except thrown() as error:
            unknown = result_unknown(error)
            if not unknown and java_class(error) != "CommitFailedException":
                raise
            if _after(table, done, error if unknown else None, what):
                return
            if unknown:
                raise CommitUnknown(what) from error
        else:
            return
    raise TableBusy(what, _ATTEMPTS)


def _after(table: Java, done: Callable[[], bool], unknown: Exception | None, what: str) -> bool:
    try:
        table.refresh()
        return done()
    except thrown() as error:
        if unknown is None:
            raise
        raise CommitUnknown(what) from error


def commit_to(table: Java, branch: str, update: Java, *, what: str) -> None:
    """Commit an update of Iceberg's to a branch that is ours alone. `what` names the deed in errors.

    Never by its own `commit()`, for the reason that `fence` gives: where the answer to an attempt was lost, the branch itself tells.
    What Spark writes to a branch by itself (a compaction in SQL, ingests, copies) is committed by Spark, as Iceberg does.

    Raises PlanConflict where Iceberg's own checks see a conflict, or the branch is gone; TableBusy; CommitUnknown.
    """
    update.toBranch(branch)
    made: int | None = None
    plan_id = branch.removeprefix(_STAGE)

    def change(base: Java, builder: Java) -> None:
        nonlocal made
        ref = base.ref(branch)
        if ref is None:  # made anew by this update, it would begin at main, and never end
            raise PlanConflict(plan_id, f"the branch {branch} of its stage is gone")
        if int(ref.snapshotId()) != made:  # else it is there already: an attempt whose answer was lost has made it
            snapshot = update.apply()
            made = int(snapshot.snapshotId())
            builder.setBranchSnapshot(snapshot, branch)

    try:
        commit_metadata(table.operations(), change, what=what)
    except thrown() as error:
        if java_class(error) == "ValidationException":
            raise PlanConflict(plan_id, java_message(error)) from error
        raise


# What a plan's branch differs in from the plan's snapshot, as one update of main.


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedChange:
    """`dropped`: the DataFileSet of files that go. `vectors`: deletion vectors that come, `replaced`: those that go, with their
    files or for others.
    `added`: data files that come (markers; of a compaction, the view's)."""

    dropped: Java
    vectors: Sequence[Java]
    replaced: Sequence[Java]
    added: Sequence[Java]

    @property
    def removes(self) -> bool:
        return bool(self.vectors) or not self.dropped.isEmpty()

    @classmethod
    def of(cls, engine: Engine, table: Java, staged: list[Java]) -> StagedChange:
        """`staged`: the branch's snapshots, newest first. What one adds and a later one takes away cancels out."""
        jvm: Java = engine.jvm
        dropped = jvm.org.apache.iceberg.util.DataFileSet.create()
        vectors: dict[tuple[str, int], Java] = {}
        replaced: list[Java] = []
        added: list[Java] = []
        for snapshot in reversed(staged):
            changes = jvm.org.apache.iceberg.SnapshotChanges.builderFor(table).snapshot(snapshot).build()
            dropped.addAll(jvm.org.apache.iceberg.util.DataFileSet.of(changes.removedDataFiles()))
            for vector in each(changes.removedDeleteFiles()):
                # Also those of files that go: Iceberg looks for them where it has other vectors to replace, and nowhere else.
                if vectors.pop(_place(vector), None) is None:
                    replaced.append(vector)
            for vector in each(changes.addedDeleteFiles()):
                vectors[_place(vector)] = vector
            added += each(changes.addedDataFiles())
        return cls(dropped=dropped, vectors=tuple(vectors.values()), replaced=tuple(replaced), added=tuple(added))

    def update(self, engine: Engine, on: Java, base_id: int) -> Java:
        """The removals as one update of `on`, a table or a transaction; appends since the plan's snapshot pass, any other change of
        what goes refuses."""
        jvm: Java = engine.jvm
        if not self.vectors:
            drop = on.newOverwrite().deleteFiles(self.dropped, jvm.org.apache.iceberg.util.DeleteFileSet.create())
            # A second guard beside the fence: each file must still be there, with the same deletion vector.
            return drop.validateFromSnapshot(base_id).validateNoConflictingDeletes()
        referenced = jvm.java.util.ArrayList()
        for vector in self.vectors:
            referenced.add(vector.referencedDataFile())
        update = self._removals(on.newRowDelta().validateFromSnapshot(base_id))
        return update.validateDataFilesExist(referenced).validateDeletedFiles().validateNoConflictingDeleteFiles()

    def restore(self, engine: Engine, on: Java, base_id: int) -> Java:
        """All of an undo as one update of `on`; appends since the plan's snapshot pass, any other change of a file that it touches
        refuses."""
        jvm: Java = engine.jvm
        referenced = jvm.java.util.ArrayList()
        for vector in (*self.vectors, *self.replaced):
            referenced.add(vector.referencedDataFile())
        update = self.with_added(on.newRowDelta(), base_id)
        return update.validateDataFilesExist(referenced).validateDeletedFiles().validateNoConflictingDeleteFiles()

    def with_added(self, update: Java, base_id: int) -> Java:
        """All of it as one RowDelta; whether the table may have moved on is for the caller's fence."""
        update = self._removals(update.validateFromSnapshot(base_id))
        for file in self.added:
            update.addRows(file)
        return update

    def _removals(self, update: Java) -> Java:
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
