"""Topics as Iceberg tables, to plan on, stage and publish: `ports.MessageStore` on a Spark engine.

Importing this starts nothing; the engine is asked for when the first verb needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.errors import LifecycleError, PlanConflict, TableBusy, Unavailable
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.undo import UndoEffect
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NO_CONTEXT, ChangeStore, CommitContext, Prepared
from message_lifecycle.stores.iceberg import fence
from message_lifecycle.stores.iceberg.branches import (
    StagedChange,
    branch_of,
    commit_to,
    drop_stage,
    find_staged_snapshot,
    make_branch,
    remove_branch,
    staged_chain,
)
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.change import forget_source, undo_property
from message_lifecycle.stores.iceberg.data_files import delete_rows, planned_files
from message_lifecycle.stores.iceberg.engine import Engine, engine_at_hand, job_text
from message_lifecycle.stores.iceberg.fence import (
    Make,
    Steps,
    Walk,
    check_only_appends,
    commit_once,
    fenced_commit,
    find,
    main_ancestors,
    properties,
)
from message_lifecycle.stores.iceberg.java import Java, entries
from message_lifecycle.stores.iceberg.layout import CANCELLED_MARKERS, MARKERS, PARENT_PLAN_ID, REMOVED, STAGED_AS, STAGED_PLAN_ID
from message_lifecycle.stores.iceberg.marks import MarkersNow, seal_state
from message_lifecycle.stores.iceberg.read import IcebergReader, published_from_summary, removed_rows
from message_lifecycle.stores.iceberg.table_metadata import commit_metadata_change, set_properties
from message_lifecycle.stores.iceberg.transaction import Ready, commits_at_once
from message_lifecycle.stores.iceberg.witness import next_witness, read_snapshot

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table


class _LogTable(IcebergReader, ChangeStore):
    """Changes of logs.

    PyIceberg reads logs here, too: it is quicker than Spark's metadata tables. Planning uses one library and publishing the other, so each
    checks the other.

    Args:
        server: The settings of the server file. Together with the topic's own settings they must still give the plan's policy.
        steps: Called with the name of each step of publishing (`after_stage`, `before_commit`, `inside_commit`, `after_commit`).
    """

    def __init__(
        self,
        engine: Callable[[], Engine],
        *,
        tables: Tables | None = None,
        server: Mapping[str, Value] | None = None,
        steps: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(tables)
        self._engine = engine
        self._server = server
        self._steps = steps or (lambda _: None)

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        done = publish(self._engine(), self._publishing(verdict.plan), verdict, ledger=given.ledger())
        with suppress(Unavailable):  # discarding the plan later removes the branch as well
            self.discard(verdict.plan)
        return done

    def _publishing(self, plan: Plan) -> Publishing:
        return Publishing(log=partial(self._tables.load, plan.topic), server=self._server, steps=self._steps)

    def discard(self, plan: Plan) -> None:
        remove_branch(self._tables, plan, branch_of(plan.plan_id))


class IcebergStore(_LogTable):
    """Reader and store in one: removes messages from logs."""

    def stage(self, plan: Plan, _given: CommitContext = NO_CONTEXT) -> Staged:
        io = self._tables.load(plan.topic).io
        staged = stage(self._engine(), io, plan, plan.plan_id, self._server)
        self._steps("after_stage")
        return staged

    def mark(self, plan: Plan, staged: Staged, policy: Policy) -> Staged:
        from message_lifecycle.stores.iceberg.marks import mark

        return mark(self._engine(), self._tables.load(plan.topic), plan, staged, policy)

    def evidence(self, plan: Plan, staged: Staged, policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        from message_lifecycle.stores.iceberg.compaction.view_table import state_of
        from message_lifecycle.stores.iceberg.evidence import evidence

        horizons = None
        if "compacted" in plan.reasons:
            view = state_of(self._tables, plan.topic)
            horizons = {} if view is None else view.horizons
        return evidence(self._tables.load(plan.topic), plan, staged, policy, horizons, engine=engine_at_hand)


class IcebergLogReturns(_LogTable):
    """Brings messages back to logs. Only an undo shares its commit with other tables: another step comes between other changes."""

    def stage(self, plan: Plan, _given: CommitContext = NO_CONTEXT) -> Staged:
        from message_lifecycle.stores.iceberg.undo import stage_undo

        io = self._tables.load(plan.topic).io
        staged = stage_undo(self._engine(), io, plan, plan.plan_id, self._server)
        self._steps("after_stage")
        return staged

    def evidence(self, plan: Plan, staged: Staged, _policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        from message_lifecycle.stores.iceberg.undo import undo_evidence

        return undo_evidence(self._tables.load(plan.topic), plan, staged)

    def prepare(self, verdict: Verdict, given: CommitContext) -> Prepared | None:
        engine = self._engine()
        return ready(engine, self._publishing(verdict.plan), verdict, ledger=given.ledger) if commits_at_once(engine) else None

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        done = super().publish(verdict, given)
        forget_source(self._tables, verdict.plan)
        return done

    def _publishing(self, plan: Plan) -> Publishing:
        return replace(super()._publishing(plan), change=StagedChange.restore, extra=undo_property(plan))

    def effect(self, plan: Plan) -> UndoEffect:
        from message_lifecycle.stores.iceberg.undo_sources import undo_effect

        return undo_effect(self._tables.load(plan.topic), plan)


# Staging: a plan's work on a branch made at the plan's snapshot, where no reader of main sees it (DEL-1).
#
# Whole files go by name, in one commit; single messages by their offsets, in a second one.


def stage(engine: Engine, io: FileIO, plan: Plan, plan_id: str, server: Mapping[str, Value] | None) -> Staged:
    """Do the plan's work on its branch, unless an earlier call has done it. `io` reaches the table's files.

    After an error no stage exists.

    Raises:
        PlanConflict: The table or its settings have changed, another run has published the plan, or the work removed another number of
            messages than planned.
    """
    table = engine.table(plan.topic)
    fence.check(plan, plan_id, table, server)
    base_id = plan.requirements.snapshot_id
    assert base_id is not None, "messages that leave are in a snapshot"
    found = find_staged_snapshot(table, plan_id)
    if found is not None:
        return Staged(plan_id=plan_id, branch=branch_of(plan_id), snapshot_id=int(found.snapshotId()))
    if find(table, plan_id, since=base_id) is not None:
        raise PlanConflict(plan_id, "another run has published it", rival=plan_id)
    going = _files(engine, plan, plan_id, table)
    branch = make_branch(table, plan, base_id)
    by_row = removed_by_row(plan)
    if plan.selection.files:
        jvm: Java = engine.jvm
        drop = table.newOverwrite().deleteFiles(going, jvm.org.apache.iceberg.util.DeleteFileSet.create())
        # The last commit of a stage carries the mark that the stage is complete.
        if not by_row:
            drop.set(STAGED_PLAN_ID, plan_id)
        commit_to(table, branch, drop, what=f"staging plan {plan_id}")
    if by_row:
        delete_rows(engine, io, plan.topic, branch, by_row, {STAGED_PLAN_ID: plan_id}, description=partial(job_text, plan))
    table.refresh()
    staged = table.snapshot(branch)
    removed = sum(removed_rows(entries(snapshot.summary())) for snapshot in staged_chain(table, staged, base_id, plan_id))
    if removed != plan.expected.removed_rows:
        drop_stage(table, plan_id)
        raise PlanConflict(plan_id, f"its work removed {removed} messages, the plan names {plan.expected.removed_rows}")
    return Staged(plan_id=plan_id, branch=branch, snapshot_id=int(staged.snapshotId()))


def removed_by_row(plan: Plan) -> list[RemoveRows]:
    """Return the removals by offset in files that stay."""
    whole = set(plan.selection.files)
    return [action for action in plan.log_commit.mark if action.file not in whole]


def _files(engine: Engine, plan: Plan, plan_id: str, table: Java) -> Java:
    """The plan's files in the plan's snapshot: those very names, each of them, and none besides."""
    names = plan.selection.files
    found = planned_files(engine, table, table.snapshot(plan.requirements.snapshot_id), plan)
    # Only named files are found, so equal numbers mean the same files.
    if found.size() != len(set(names)) or len(set(names)) != len(names):
        raise PlanConflict(plan_id, f"it names {len(names)} files, of which its snapshot holds {found.size()}")
    return found


# Publishing, once. Every attempt checks the conditions again (DEL-4, DEL-5).
#
# If no commit came since the plan, the staged snapshot itself becomes main's head (DEL-2). A second snapshot without files follows in
# the same commit, and carries the plan's id and the log's state. No reader ever sees main between the two.
#
# Otherwise publishing applies the change again on main, under the fence. The same holds if the change was staged in two snapshots, because
# the second one does not name the files that the first one removed. Appends of others pass, and any other change raises an error. The
# commit removes the messages that the staged snapshots removed, by identity, so a later message cannot match.


TRIES = 10
"""How often publishing numbers the markers again because another writer appended first."""


class _MovedOn(LifecycleError):
    """The log has grown since the plan or since the markers were numbered, or what was staged for it is not what the branch has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing:
    """How a store publishes its changes of one log.

    Attributes:
        log: Returns the topic's table as PyIceberg reads it now.
        server: As in `_LogTable`.
        steps: As in `_LogTable`.
        change: Makes the staged change on what main is now.
        extra: Properties of the commit's summary in addition to every plan's properties.
    """

    log: Callable[[], Table]
    server: Mapping[str, Value] | None
    steps: Steps
    change: Callable[[StagedChange, Engine, Java, int], Java] = StagedChange.update
    extra: Mapping[str, str] = field(default_factory=dict)


def publish(engine: Engine, way: Publishing, verdict: Verdict, *, ledger: tuple[str, int]) -> Published:
    """Make the plan's one commit on main, or report its existing commit. Raises PlanConflict, TableBusy, CommitUnknown."""
    plan, plan_id = verdict.plan, verdict.plan.plan_id
    table = engine.table(plan.topic)
    done = find(table, plan_id, since=plan.requirements.snapshot_id)
    if done is not None:
        return published_from_summary(plan_id, done.snapshot_id, done.summary)
    commit, staged = _begun(engine, table, way, verdict, ledger=ledger)

    def attempt() -> None:
        if verdict.staged.markers is not None and verdict.staged.markers.count:
            commit.removal_and_markers(StagedChange.of(engine, table, staged))
            return
        if len(staged) == 1:
            with suppress(_MovedOn):
                commit.commit_staged(staged[0])
                return
        commit.commit_rebased(StagedChange.of(engine, table, staged))

    try:
        found = commit_once(table, plan_id, attempt, steps=way.steps, since=commit.base_id)
    finally:
        engine.forget(plan.topic)  # also if the result of the commit is unknown
    return published_from_summary(plan_id, found.snapshot_id, found.summary)


def ready(engine: Engine, way: Publishing, verdict: Verdict, *, ledger: Callable[[], tuple[str, int]]) -> Ready | None:
    """Prepare the commit of a plan without markers on the newest main. None: the commit already exists. Raises PlanConflict."""
    plan, table = verdict.plan, engine.table(verdict.plan.topic)
    if find(table, plan.plan_id, since=plan.requirements.snapshot_id) is not None:
        return None
    commit, staged = _begun(engine, table, way, verdict, ledger=ledger())
    return commit.ready(StagedChange.of(engine, table, staged))


def _begun(engine: Engine, table: Java, way: Publishing, verdict: Verdict, *, ledger: tuple[str, int]) -> tuple[_Commit, list[Java]]:
    """Return the parts that all attempts share, and the staged snapshots, newest first. Raises PlanConflict."""
    plan, staged_id, base_id = verdict.plan, verdict.staged.snapshot_id, verdict.plan.requirements.snapshot_id
    fence.check(plan, plan.plan_id, table, way.server)
    staged = None if staged_id is None else table.snapshot(staged_id)
    if staged is None or base_id is None or staged_id == base_id:
        raise PlanConflict(plan.plan_id, f"nothing is staged for it (snapshot {staged_id})")
    summary = {**properties(verdict, ledger), **way.extra}
    commit = _Commit(engine=engine, table=table, way=way, verdict=verdict, base_id=base_id, properties=summary)
    return commit, staged_chain(table, staged, base_id, plan.plan_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit:
    """One plan's commit on main."""

    engine: Engine
    table: Java
    way: Publishing
    verdict: Verdict
    base_id: int
    properties: Mapping[str, str]

    @property
    def _what(self) -> str:
        return f"publishing plan {self.verdict.staged.plan_id}"

    def commit_staged(self, staged: Java) -> None:
        """Publish the staged snapshot itself, and the snapshot that carries the plan.

        Raises:
            PlanConflict: The fence refuses the commit.
            _MovedOn: Main is no longer at the plan's snapshot, perhaps by this very plan, or the branch is not at the staged snapshot.
        """
        plan, plan_id, staged_id = self.verdict.plan, self.verdict.staged.plan_id, int(staged.snapshotId())
        summary = {STAGED_AS: f"{self.base_id} {staged_id}", REMOVED: str(removed_rows(entries(staged.summary())))}

        def change(base: Java, builder: Java) -> None:
            fence.check(plan, plan_id, base, self.way.server)
            if int(base.currentSnapshot().snapshotId()) != self.base_id:
                raise _MovedOn
            state = seal_state(Walk(self.table, base).log_state(), plan)
            # If another commit wins, this attempt leaves its list of manifests behind; reclaiming finds it.
            head = self._with(self.table.newFastAppend().toBranch(branch_of(plan_id)), {**summary, **state.to_properties()}).apply()
            if head.parentId() != staged_id:
                raise _MovedOn  # another engine has ended the branch, or added to it
            builder.setBranchSnapshot(head, "main").removeRef(branch_of(plan_id))
            set_properties(base, builder, next_witness(read_snapshot(head), entries(base.properties())))
            self.way.steps("inside_commit")

        commit_metadata_change(self.table.operations(), change, what=self._what)

    def commit_rebased(self, change: StagedChange) -> None:
        """The staged change alone, on what main is now."""
        fenced_commit(self.table, self._judge, self._made_again(change), what=self._what)

    def ready(self, change: StagedChange) -> Ready:
        """As `commit_rebased`, to be made with others."""
        return Ready(
            jvm=self.engine,
            topic=self.verdict.plan.topic,
            kind="",
            table=self.table,
            plan_id=self.verdict.plan.plan_id,
            judge=self._judge,
            make=self._made_again(change),
            steps=self.way.steps,
            of="commit",
            since=self.base_id,
        )

    def _made_again(self, change: StagedChange) -> Make:
        def make(on: Java, walk: Walk) -> Iterator[Java]:
            yield self._with(self.way.change(change, self.engine, on, self.base_id), self._state(walk))

        return make

    def removal_and_markers(self, change: StagedChange) -> None:
        """The removal and an append of the markers, numbered on from the log as it is now: both or neither (MRK-4).

        Two snapshots, because readers of a stream pass over a snapshot that removes, and must meet the markers.
        """
        for _ in range(TRIES):
            with suppress(_MovedOn):
                return self._attempt(change)
        raise TableBusy(self._what, TRIES)

    def _attempt(self, change: StagedChange) -> None:
        self.table.refresh()
        check_only_appends(main_ancestors(self.table), self.verdict.staged.plan_id, self.base_id)
        head_id = int(self.table.currentSnapshot().snapshotId())
        markers = MarkersNow.read(self.engine, self.table, self.way.log(), self.verdict, change, base_id=self.base_id, head_id=head_id)

        def judge(walk: Walk) -> None:
            self._judge(walk)
            # The markers' numbers were computed for one head and fit no other.
            if next(walk()).snapshot_id != head_id:
                raise _MovedOn

        def make(on: Java, walk: Walk) -> Iterator[Java]:
            counts = {MARKERS: str(markers.count), CANCELLED_MARKERS: str(markers.cancelled)}
            if change.removes:
                yield self._with(change.update(self.engine, on, self.base_id), {**counts, **self._state(walk)})
            if not markers.count:
                return
            append = on.newAppend()
            for file in markers.files:
                append = append.appendFile(file)
            # A sweep's markers stand for the plan by themselves.
            summary = {PARENT_PLAN_ID: self.verdict.staged.plan_id} if change.removes else {**self.properties, **counts}
            for key, value in {**summary, **markers.state.to_properties()}.items():
                append.set(key, value)
            yield append

        fenced_commit(self.table, judge, make, what=self._what)

    def _with(self, update: Java, more: Mapping[str, str]) -> Java:
        for key, value in {**self.properties, **more}.items():
            update.set(key, value)
        return update

    def _judge(self, walk: Walk) -> None:
        self.way.steps("inside_commit")
        check_only_appends(walk(), self.verdict.staged.plan_id, self.base_id)

    def _state(self, walk: Walk) -> dict[str, str]:
        """That of the log which the attempt builds on, however late an append came (MSG-4)."""
        return seal_state(walk.log_state(), self.verdict.plan).to_properties()
