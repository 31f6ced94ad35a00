"""A plan's change of one table, whatever the table: staged where no reader sees it, committed on main once under a condition that is asked
inside each attempt, and found again by the plan's id (DEL-1, DEL-4, DEL-5).

A store says which tables, what comes and goes, which condition, and what the commit tells beside.
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
from message_lifecycle.ports import ChangeStore, Given, Prepared
from message_lifecycle.stores.iceberg import fence
from message_lifecycle.stores.iceberg.branches import StagedChange, branch_of, chain, make_branch, remove_branch, staged_on, undo_ref
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.fence import Judge, Walk
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import AT_ONCE, PLAN_ID, UNDOES, commit_that_says, summary_of
from message_lifecycle.stores.iceberg.named import NamesFailures
from message_lifecycle.stores.iceberg.read import published_by
from message_lifecycle.stores.iceberg.transaction import Ready, commits_at_once

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What a commit does to main: an update of Iceberg's, made anew in each attempt's transaction, and the condition that each attempt asks.
    `tells`: what the summary says beside what every plan's does; `removed`: by reason, where it is not what the outcome counts. `since`: the
    snapshot that the plan was made of, where others may append."""

    update: Callable[[Java], Java]
    condition: Judge
    tells: Mapping[str, str] = field(default_factory=dict)
    removed: Sequence[tuple[str, int]] | None = None
    since: int | None = None


class TableStore(NamesFailures, ChangeStore):
    """What is the same of every table. `steps` is told the name of each step as it is reached: `after_stage`, and `before_`, `inside_` and
    `after_` of a commit."""

    kinds: ClassVar[tuple[str, ...]]
    """Of the tables that get a branch of the plan."""

    def __init__(self, engine: Callable[[], Engine], *, tables: Tables | None = None, steps: Callable[[str], None] | None = None) -> None:
        self._engine, self._tables, self._steps = engine, tables or Tables(), steps or (lambda _: None)

    def _table(self, plan: Plan, /) -> Table | None:
        """The table whose commit carries the plan, read without a JVM; None: it is not there."""
        raise NotImplementedError

    def _tells(self, plan_id: str, snapshot_id: int, summary: Mapping[str, str], /) -> Published:
        """What a commit says of itself."""
        return published_by(plan_id, snapshot_id, summary)

    def published(self, plan: Plan) -> Published | None:
        table = self._table(plan)
        found = None if table is None else commit_that_says(table, PLAN_ID, plan.plan_id)
        if found is None:
            return None
        told = summary_of(found)
        return replace(self._tells(plan.plan_id, found.snapshot_id, told), at_once=AT_ONCE in told)

    def has_begun(self, plan: Plan) -> bool:
        from message_lifecycle.stores.iceberg.undo_sources import has_committed

        table = self._table(plan)
        return table is not None and has_committed(table, plan.plan_id)

    def is_lost(self, plan: Plan) -> bool:
        from message_lifecycle.stores.iceberg.undo_sources import has_lost

        table = self._table(plan)
        return table is not None and has_lost(table, plan, self._base_id(plan))

    def _base_id(self, plan: Plan, /) -> int | None:
        """The table's snapshot that the plan was made from."""
        return plan.requirements.snapshot_id

    def discard(self, plan: Plan) -> None:
        remove_branch(self._tables, plan, branch_of(plan.plan_id), self.kinds)

    def prepare(self, verdict: Verdict, given: Given) -> Prepared | None:
        engine = self._engine()
        return self._prepared(engine, verdict, given) if commits_at_once(engine) else None

    def _prepared(self, _engine: Engine, _verdict: Verdict, _given: Given, /) -> Ready | None:
        """As `prepare`, where the catalog commits several tables at once."""
        return None

    def _ready(
        self,
        engine: Engine,
        table: Java,
        verdict: Verdict,
        given: Given,
        make: Callable[[], Update],
        *,
        kind: str = "",
        of: str = "commit",
    ) -> Ready | None:
        """The plan's one commit on main, which `make` gives after its own checks; None: it is there. `kind`: of the table; `of`: what the
        steps are called. Raises PlanConflict."""
        plan = verdict.plan
        if fence.find(table, plan.plan_id) is not None:
            return None
        made = make()
        told = {**fence.properties(verdict, given.ledger(), made.removed), **made.tells}

        def judge(walk: Walk) -> None:
            self._steps(f"inside_{of}")
            made.condition(walk)

        def update(on: Java, _walk: Walk) -> Iterator[Java]:
            one = made.update(on)
            for key, value in told.items():
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
        given: Given,
        make: Callable[[], Update],
        *,
        kind: str = "",
        of: str = "commit",
    ) -> Published:
        """The plan's one commit on main, the one that is there or the one that is ready, as `_ready` has it. Raises PlanConflict, TableBusy,
        CommitUnknown."""
        plan_id, ready = verdict.plan.plan_id, self._ready(engine, table, verdict, given, make, kind=kind, of=of)
        if ready is None:
            found = fence.find(table, plan_id)
            assert found is not None, "it is ready, or it is there"
        else:
            try:
                found = ready.commit()
            except LifecycleError:
                with suppress(Exception):  # of a catalog that has gone: how the commit ended is what counts
                    engine.forget(verdict.plan.topic, kind=kind)
                raise
            engine.forget(verdict.plan.topic, kind=kind)
        with suppress(Unavailable):  # whoever discards the plan takes it away as well
            remove_branch(self._tables, verdict.plan, branch_of(plan_id), (kind,))
        return self._tells(plan_id, found.snapshot_id, found.summary)


# Staging


def snapshot_at(table: Table, snapshot_id: int | None, plan_id: str) -> Snapshot | None:
    """A snapshot that the plan names; None: of none. Raises PlanConflict where it is gone."""
    snapshot = None if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    if snapshot_id is not None and snapshot is None:
        raise PlanConflict(plan_id, f"snapshot {snapshot_id} of {'.'.join(table.name())} is gone")
    return snapshot


def table_to_build_on(
    engine: Engine, plan: Plan, kind: str, base: ViewRequirements | SnapshotRequirements | None, create: Callable[[], None]
) -> Java:
    """The table beside the log on which the plan is staged. `create` makes it where the plan builds on none.

    A table that the plan builds on is never made again: it may have been renamed, and could then not come back under its name (OBL-1).

    Raises:
        PlanConflict: The table that the plan builds on is not there.
    """
    if base is None or base.snapshot_id is None:
        create()
    return table_beside(engine, plan, kind)


def table_beside(engine: Engine, plan: Plan, kind: str) -> Java:
    """The table beside the log that the plan changes. Raises PlanConflict where it is not there: somebody has dropped it, or a catalog from
    before has lost it, and what was staged there with it."""
    try:
        return engine.table(plan.topic, kind=kind)
    except UnknownTopic as error:
        raise PlanConflict(
            plan.plan_id, f"the table {plan.topic.namespace}.{plan.topic.table(kind)} is not in the catalog any more"
        ) from error


def required_head(table: Java, plan_id: str, base: ViewRequirements | SnapshotRequirements | None, *, made: str, changed: str) -> int:
    """The snapshot of a table beside the log that the plan builds on, which must be the newest one. `made` and `changed`: what has come to
    pass where it is not, in words. Raises PlanConflict."""
    assert base is not None, "the plan names what it builds on"
    head, before = table.currentSnapshot(), base.snapshot_id
    if head is None:
        raise PlanConflict(plan_id, f"{changed} since it was planned: another engine made the table again, and it is empty")
    if before is None:
        # Made by staging, and never published: the table's first snapshot holds nothing.
        if head.parentId() is not None:
            raise PlanConflict(plan_id, f"{made} since it was planned")
    elif str(table.uuid()) != base.table_uuid or int(head.snapshotId()) != before:
        raise PlanConflict(plan_id, f"{changed} since it was planned")
    return int(head.snapshotId())


def stage(engine: Engine, table: Java, plan: Plan, base_id: int, make: Callable[[], Callable[[str], object]], *, kind: str = "") -> Java:
    """The snapshot that stands for the plan's work: an earlier call's, or what `make` gives, put on the plan's branch by its name. `make`
    comes before there is a branch: where it raises, nothing is staged. `kind`: of the table."""
    found = staged_on(table, plan.plan_id)
    if found is not None:
        return found
    put = make()
    branch = make_branch(table, plan, base_id)
    put(branch)
    engine.forget(plan.topic, kind=kind)
    table.refresh()
    return table.snapshot(branch)


def staged_change(engine: Engine, table: Java, plan_id: str, staged_id: int | None, base_id: int) -> StagedChange:
    """What the plan's branch differs in from the plan's snapshot. Raises PlanConflict where there is no such branch."""
    staged = None if staged_id is None else table.snapshot(staged_id)
    if staged is None or staged_id == base_id:
        raise PlanConflict(plan_id, f"nothing is staged for it (snapshot {staged_id})")
    return StagedChange.of(engine, table, chain(table, staged, base_id, plan_id))


def undoing(plan: Plan) -> dict[str, str]:
    """What an undo's commit says of the plan that it takes back."""
    return {} if plan.takes_back is None else {UNDOES: plan.takes_back}


def forget_source(tables: Tables, plan: Plan, kinds: Sequence[str] = ("",)) -> None:
    """What an erasure has left for an undo in tables of these kinds, once that is done."""
    for taken_back in undoing(plan).values():
        remove_branch(tables, plan, undo_ref(taken_back), kinds)


# Conditions


def appends_pass(plan_id: str, base_id: int) -> Judge:
    """Only appends have come since the plan's snapshot."""
    return lambda walk: fence.only_appends_since(walk(), plan_id, base_id)


def head_is(plan_id: str, base_id: int, *, table: str) -> Judge:
    """Nothing has come since the plan's snapshot. `table`: its name in words."""
    return lambda walk: fence.nothing_since(walk(), plan_id, base_id, table=table)
