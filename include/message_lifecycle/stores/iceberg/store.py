"""Topics as Iceberg tables, to plan on, stage and publish: `ports.MessageStore` on a Spark session.

Importing this starts nothing; the session is asked for when the first verb needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy, Value
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NOTHING_GIVEN, ChangeStore, Given
from message_lifecycle.stores.iceberg.branches import branch_of, remove_branch, undo_ref
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.failures import engine_failures
from message_lifecycle.stores.iceberg.read import IcebergReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class IcebergStore(IcebergReader, ChangeStore):
    """Reader and store in one. Logs are read by PyIceberg here, too: it is quicker at it than Spark's metadata tables, and whoever
    plans by the one and publishes by the other has two implementations that must agree.

    `server`: the settings of the server file; with the topic's own they must still give the plan's policy. `steps` is told the
    name of each step of publishing as it is reached (`after_stage`, `before_commit`, `inside_commit`, `after_commit`).
    """

    def __init__(
        self,
        session: Callable[[], SparkSession],
        *,
        tables: Tables | None = None,
        server: Mapping[str, Value] | None = None,
        steps: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(tables)
        self._session = session
        self._server = server
        self._steps = steps or (lambda _: None)
        # What the last stage took out, by its snapshot and its JVM: a publish in the same process need not read it back.
        self._dropped: dict[tuple[int | None, SparkSession], object] = {}

    def stage(self, plan: Plan, _given: Given = NOTHING_GIVEN) -> Staged:
        from message_lifecycle.stores.iceberg.stage import stage
        from message_lifecycle.stores.iceberg.undo import stage_undo

        if plan.is_empty:  # no JVM for nothing
            return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)
        io = self._tables.load(plan.topic).io
        with engine_failures():
            session = self._engine(plan)
            if plan.parent is not None:
                staged, dropped = stage_undo(session, io, plan, plan.plan_id, self._server), None
            else:
                staged, dropped = stage(session, io, plan, plan.plan_id, self._server)
        self._dropped = {} if dropped is None else {(staged.snapshot_id, session): dropped}
        self._steps("after_stage")
        return staged

    def _engine(self, plan: Plan) -> SparkSession:
        """Spark is needed for rows alone: what only drops whole files is done by Iceberg's library."""
        from message_lifecycle.stores.iceberg.session import engine
        from message_lifecycle.stores.iceberg.stage import removed_by_row

        return self._session() if plan.parent is not None or removed_by_row(plan) else engine(self._session)

    def mark(self, plan: Plan, staged: Staged, policy: Policy) -> Staged:
        from message_lifecycle.stores.iceberg.marks import mark

        self._dropped = {}
        with engine_failures():
            return mark(self._session(), self._tables.load(plan.topic), plan, staged, policy)

    def evidence(self, plan: Plan, staged: Staged, policy: Policy, _given: Given = NOTHING_GIVEN) -> Mapping[str, object]:
        from message_lifecycle.stores.iceberg.compaction.view_table import state_of
        from message_lifecycle.stores.iceberg.evidence import evidence
        from message_lifecycle.stores.iceberg.undo_evidence import undo_evidence

        if plan.parent is not None:
            return undo_evidence(self._tables.load(plan.topic), plan, staged)
        horizons = None
        if "compacted" in plan.reasons:
            view = state_of(self._tables, plan.topic)
            horizons = {} if view is None else view.horizons
        with engine_failures():
            return evidence(self._tables.load(plan.topic), plan, staged, policy, horizons)

    def publish(self, verdict: Verdict, given: Given) -> Published:
        from message_lifecycle.stores.iceberg.publish import publish

        marks = verdict.staged.markers is not None and verdict.staged.markers.count > 0
        with engine_failures():
            session = self._session() if marks else self._engine(verdict.plan)
            dropped = self._dropped.get((verdict.staged.snapshot_id, session))
            log = partial(self._tables.load, verdict.plan.topic)
            done = publish(session, log, verdict, self._server, ledger=given.ledger(), steps=self._steps, dropped=dropped)
        if verdict.plan.parent is not None:
            remove_branch(self._tables, verdict.plan, undo_ref(verdict.plan.parent))
        return done

    def discard(self, plan: Plan) -> None:
        """Needs no JVM."""
        remove_branch(self._tables, plan, branch_of(plan.plan_id))
