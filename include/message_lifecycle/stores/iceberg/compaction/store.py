"""Compacted views on tables: `ports.ViewReader` and `ports.ViewStore` on a Spark session, which is asked for when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NOTHING_GIVEN, ChangeStore, Given
from message_lifecycle.stores.iceberg.branches import branch_of, remove_branch, undo_ref
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.compaction.read import IcebergViewReader
from message_lifecycle.stores.iceberg.layout import COMPACTED, SCRATCH_PROPERTY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class IcebergViews(IcebergViewReader, ChangeStore):
    """`steps` is told the name of each step as it is reached (`after_stage`, `before_commit`, `inside_commit`, `after_commit`)."""

    def __init__(
        self, session: Callable[[], SparkSession], *, tables: Tables | None = None, steps: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(tables)
        self._session = session
        self._steps = steps or (lambda _: None)

    def stage(self, plan: Plan, _given: Given = NOTHING_GIVEN) -> Staged:
        from message_lifecycle.stores.iceberg.compaction.stage import stage

        nothing = Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)
        if plan.is_empty:
            return nothing
        staged = stage(self._session(), self._tables, plan)
        self._steps("after_stage")
        return staged if plan.on_view.compact else replace(nothing, view=staged.view)

    def evidence(self, plan: Plan, staged: Staged, policy: Policy, _given: Given = NOTHING_GIVEN) -> Mapping[str, object]:
        from message_lifecycle.stores.iceberg.compaction.evidence import evidence
        from message_lifecycle.stores.iceberg.compaction.past_horizon import outlived_evidence
        from message_lifecycle.stores.iceberg.compaction.removals import removal_evidence
        from message_lifecycle.stores.iceberg.compaction.returns import return_evidence

        if plan.on_view.compact or plan.is_empty:
            return evidence(self._tables, plan, staged, policy)
        assert plan.view is not None
        assert plan.view.snapshot_id is not None
        after_id = plan.view.snapshot_id
        frames: dict[str, object] = {}
        if plan.on_view.mark:
            assert staged.view is not None
            assert staged.view.snapshot_id is not None
            after_id = staged.view.snapshot_id
            frames["view"] = removal_evidence(self._tables, plan, plan.view.snapshot_id, after_id)
        if plan.on_view.back:
            assert staged.view is not None
            frames["view_returns"] = return_evidence(self._tables, plan, plan.view.snapshot_id, staged.view.snapshot_id)
        if plan.past_horizon:
            frames["outlived"] = outlived_evidence(self._tables, plan, after_id)
        return frames

    def publish(self, verdict: Verdict, given: Given) -> Published:
        from message_lifecycle.stores.iceberg.compaction.publish import publish

        done = publish(self._session(), self._tables, verdict, ledger=given.ledger(), steps=self._steps)
        if verdict.plan.on_view.back and verdict.plan.parent is not None:
            remove_branch(self._tables, verdict.plan, undo_ref(verdict.plan.parent), (COMPACTED,))
        return done

    def keep_sql_view(self, name: TopicName, policy: Policy) -> str | None:
        """Needs no JVM. A scenario's topic has none."""
        from message_lifecycle.stores.iceberg.compaction.sql_view import keep_sql_view

        if SCRATCH_PROPERTY in self._tables.document(name).properties:
            return None
        return keep_sql_view(self._tables, name, policy)

    def discard(self, plan: Plan) -> None:
        """Needs no JVM."""
        remove_branch(self._tables, plan, branch_of(plan.plan_id), (COMPACTED,))
