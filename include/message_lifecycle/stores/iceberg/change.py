"""A plan's change of any one table.

The change is staged where no reader sees it. One commit on main publishes it, under a condition that every attempt checks. The plan's id
finds the commit again (DEL-1, DEL-4, DEL-5).

A store decides the tables, the added and removed rows, the condition, and the extra properties of the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from message_lifecycle.model.errors import LifecycleError, PlanConflict, Unavailable, UnknownTopic
from message_lifecycle.model.outcome import Published
from message_lifecycle.model.plan import Plan, SnapshotRequirements, ViewRequirements
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import ChangeStore, CommitContext, Prepared
from message_lifecycle.stores.iceberg import fence
from message_lifecycle.stores.iceberg.branches import (
    StagedChange,
    branch_of,
    find_staged_snapshot,
    make_branch,
    remove_branch,
    staged_chain,
    undo_ref,
)
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.fence import Judge, Walk
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import AT_ONCE, PLAN_ID, UNDOES, commit_that_says, summary_of
from message_lifecycle.stores.iceberg.named import WithNamedErrors
from message_lifecycle.stores.iceberg.read import published_from_summary
from message_lifecycle.stores.iceberg.transaction import Ready, commits_at_once

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A commit's change of main.

    Attributes:
        update: Makes an update of Iceberg's in each attempt's transaction.
        condition: The condition that every attempt checks.
        removed: Removed rows by reason, if they differ from the counts of the outcome.
        since: The plan's snapshot, if other writers may have appended since.
    """

    update: Callable[[Java], Java]
    condition: Judge
    tells: Mapping[str, str] = field(default_factory=dict)
    """Properties of the summary in addition to every plan's properties."""
    removed: Sequence[tuple[str, int]] | None = None
    since: int | None = None


class TableStore(WithNamedErrors, ChangeStore):
    """The shared part of all stores of tables.

    Args:
        steps: Called with the name of each step: `after_stage`, and `before_`, `inside_` and `after_` of a commit.
    """

    kinds: ClassVar[tuple[str, ...]]
    """The kinds of tables that get a branch of the plan."""

    def __init__(self, engine: Callable[[], Engine], *, tables: Tables | None = None, steps: Callable[[str], None] | None = None) -> None:
        self._engine, self._tables, self._steps = engine, tables or Tables(), steps or (lambda _: None)

    def _table(self, plan: Plan, /) -> Table | None:
        """Return the table whose commit carries the plan, read without a JVM; None: the table does not exist."""
        raise NotImplementedError

    def _describe_commit(self, plan_id: str, snapshot_id: int, summary: Mapping[str, str], /) -> Published:
        """Return the description of a commit, from its summary."""
        return published_from_summary(plan_id, snapshot_id, summary)

    def find_published(self, plan: Plan) -> Published | None:
        table = self._table(plan)
        found = None if table is None else commit_that_says(table, PLAN_ID, plan.plan_id)
        if found is None:
            return None
        summary = summary_of(found)
        return replace(self._describe_commit(plan.plan_id, found.snapshot_id, summary), at_once=AT_ONCE in summary)

    def has_begun(self, plan: Plan) -> bool:
        from message_lifecycle.stores.iceberg.undo_sources import has_committed

        table = self._table(plan)
        return table is not None and has_committed(table, plan.plan_id)

    def is_lost(self, plan: Plan) -> bool:
        from message_lifecycle.stores.iceberg.undo_sources import has_lost

        table = self._table(plan)
        return table is not None and has_lost(table, plan, self._base_id(plan))

    def _base_id(self, plan: Plan, /) -> int | None:
        """Return the table's snapshot that the plan was made from."""
        return plan.requirements.snapshot_id

    def discard(self, plan: Plan) -> None:
        remove_branch(self._tables, plan, branch_of(plan.plan_id), self.kinds)

    def prepare(self, verdict: Verdict, given: CommitContext) -> Prepared | None:
        engine = self._engine()
        return self._prepared(engine, verdict, given) if commits_at_once(engine) else None

    def _prepared(self, _engine: Engine, _verdict: Verdict, _given: CommitContext, /) -> Ready | None:
        """Prepare a commit like `prepare`, for a catalog that commits several tables at once."""
        return None

    def _ready(
        self,
        engine: Engine,
        table: Java,
        verdict: Verdict,
        given: CommitContext,
        make: Callable[[], Update],
        *,
        kind: str = "",
        of: str = "commit",
    ) -> Ready | None:
        """Prepare the plan's one commit on main; return None if it is already there.

        Args:
            engine: Runs the work in the JVM.
            table: The table to commit to, as Java has loaded it.
            verdict: The gate's permission to publish.
            given: Values of this call; the ledger's pair goes into the commit's summary.
            make: Makes the update after its own checks.
            kind: The kind of the table.
            of: The commit's name in the names of the steps.

        Raises:
            PlanConflict: The table has changed since the plan.
        """
        plan = verdict.plan
        if fence.find(table, plan.plan_id) is not None:
            return None
        made = make()
        properties = {**fence.properties(verdict, given.ledger(), made.removed), **made.tells}

        def judge(walk: Walk) -> None:
            self._steps(f"inside_{of}")
            made.condition(walk)

        def update(on: Java, _walk: Walk) -> Iterator[Java]:
            one = made.update(on)
            for key, value in properties.items():
                one.set(key, value)
            yield one

        return Ready(
            jvm=engine,
            topic=plan.topic,
            kind=kind,
            table=table,
            plan_id=plan.plan_id,
            judge=judge,
            make=update,
            steps=self._steps,
            of=of,
            since=made.since,
        )

    def _commit(
        self,
        engine: Engine,
        table: Java,
        verdict: Verdict,
        given: CommitContext,
        make: Callable[[], Update],
        *,
        kind: str = "",
        of: str = "commit",
    ) -> Published:
        """Make the plan's one commit on main, or find it there; see `_ready` for the arguments.

        Raises:
            PlanConflict: The table has changed since the plan.
            TableBusy: Other commits kept coming first.
            CommitUnknown: The catalog's answer is missing.
        """
        plan_id, ready = verdict.plan.plan_id, self._ready(engine, table, verdict, given, make, kind=kind, of=of)
        if ready is None:
            found = fence.find(table, plan_id)
            assert found is not None, "it is ready, or it is there"
        else:
            try:
                found = ready.commit()
            except LifecycleError:
                with suppress(Exception):  # a missing catalog must not hide the error of the commit
                    engine.forget(verdict.plan.topic, kind=kind)
                raise
            engine.forget(verdict.plan.topic, kind=kind)
        with suppress(Unavailable):  # discarding the plan removes the branch, too
            remove_branch(self._tables, verdict.plan, branch_of(plan_id), (kind,))
        return self._describe_commit(plan_id, found.snapshot_id, found.summary)


# Staging


def snapshot_at(table: Table, snapshot_id: int | None, plan_id: str) -> Snapshot | None:
    """Return a snapshot that the plan names; None for no snapshot. Raises PlanConflict if it is missing."""
    snapshot = None if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    if snapshot_id is not None and snapshot is None:
        raise PlanConflict(plan_id, f"snapshot {snapshot_id} of {'.'.join(table.name())} is gone")
    return snapshot


def table_to_build_on(
    engine: Engine, plan: Plan, kind: str, base: ViewRequirements | SnapshotRequirements | None, create: Callable[[], None]
) -> Java:
    """Return the table next to the log that the plan is staged on.

    A table that the plan builds on is never created again: it may have been renamed, and could then not return under its name (OBL-1).

    Args:
        engine: Runs the work in the JVM.
        plan: The plan; its topic and the kind name the table.
        kind: The kind of the table.
        base: The snapshots that the plan builds on.
        create: Creates the table if the plan builds on none.

    Raises:
        PlanConflict: The table that the plan builds on is missing.
    """
    if base is None or base.snapshot_id is None:
        create()
    return load_side_table(engine, plan, kind)


def load_side_table(engine: Engine, plan: Plan, kind: str) -> Java:
    """Return the table next to the log that the plan changes.

    Raises:
        PlanConflict: The table is missing: another user dropped it, or the catalog was restored from an older copy. The stage is lost with
            it.
    """
    try:
        return engine.table(plan.topic, kind=kind)
    except UnknownTopic as error:
        raise PlanConflict(
            plan.plan_id, f"the table {plan.topic.namespace}.{plan.topic.table(kind)} is not in the catalog any more"
        ) from error


def required_head(table: Java, plan_id: str, base: ViewRequirements | SnapshotRequirements | None, *, made: str, changed: str) -> int:
    """Return the snapshot that the plan builds on, of a table next to the log.

    Args:
        table: The table next to the log.
        plan_id: The plan's id.
        base: The snapshot that the plan expects. None: a new table.
        made: The reason, in words, if the plan expects a new table and another commit came first.
        changed: The reason, in words, if the table has another newest snapshot.

    Raises:
        PlanConflict: The snapshot is not the table's newest one.
    """
    assert base is not None, "the plan names what it builds on"
    head, before = table.currentSnapshot(), base.snapshot_id
    if head is None:
        raise PlanConflict(plan_id, f"{changed} since it was planned: another engine made the table again, and it is empty")
    if before is None:
        # Staging created the table, and no plan was published: the first snapshot is empty.
        if head.parentId() is not None:
            raise PlanConflict(plan_id, f"{made} since it was planned")
    elif str(table.uuid()) != base.table_uuid or int(head.snapshotId()) != before:
        raise PlanConflict(plan_id, f"{changed} since it was planned")
    return int(head.snapshotId())


def stage(engine: Engine, table: Java, plan: Plan, base_id: int, make: Callable[[], Callable[[str], object]], *, kind: str = "") -> Java:
    """Return the snapshot with the plan's work: of an earlier call, or made now on the plan's branch.

    Args:
        engine: Runs the work in the JVM.
        table: The table that gets the plan's branch.
        plan: The plan to stage.
        base_id: The snapshot that the plan builds on.
        make: Returns the work, a function of the branch's name. The call comes before there is a branch, so nothing is staged if it raises.
        kind: The kind of the table.
    """
    found = find_staged_snapshot(table, plan.plan_id)
    if found is not None:
        return found
    put = make()
    branch = make_branch(table, plan, base_id)
    put(branch)
    engine.forget(plan.topic, kind=kind)
    table.refresh()
    return table.snapshot(branch)


def staged_change(engine: Engine, table: Java, plan_id: str, staged_id: int | None, base_id: int) -> StagedChange:
    """Return the differences between the plan's branch and the plan's snapshot. Raises PlanConflict without such a branch."""
    staged = None if staged_id is None else table.snapshot(staged_id)
    if staged is None or staged_id == base_id:
        raise PlanConflict(plan_id, f"nothing is staged for it (snapshot {staged_id})")
    return StagedChange.of(engine, table, staged_chain(table, staged, base_id, plan_id))


def undo_property(plan: Plan) -> dict[str, str]:
    """Return the property of an undo's commit that names the undone plan."""
    return {UNDOES: plan.parent_id}


def forget_source(tables: Tables, plan: Plan, kinds: Sequence[str] = ("",)) -> None:
    """Remove the undo branches of an erasure in tables of these kinds, after the undo."""
    remove_branch(tables, plan, undo_ref(plan.parent_id), kinds)


# Conditions


def appends_pass(plan_id: str, base_id: int) -> Judge:
    """Return the condition that main got only appends since the plan's snapshot."""
    return lambda walk: fence.check_only_appends(walk(), plan_id, base_id)


def head_is(plan_id: str, base_id: int, *, table: str) -> Judge:
    """Return the condition that main is still at the plan's snapshot.

    Args:
        plan_id: The plan's id.
        base_id: The plan's snapshot.
        table: The table's name in words.
    """
    return lambda walk: fence.check_head_unchanged(walk(), plan_id, base_id, table=table)
