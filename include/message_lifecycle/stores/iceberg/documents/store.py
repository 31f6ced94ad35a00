"""Documents on tables: `ports.DocumentReader` and `ports.DocumentStore` on a Spark session, which is asked for when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from message_lifecycle.model.document import Change
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.stores.iceberg.branches import branch_of, remove_branch, undo_ref
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.documents.read import IcebergDocumentReader
from message_lifecycle.stores.iceberg.failures import engine_failures
from message_lifecycle.stores.iceberg.layout import SNAPSHOTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TABLES = ("", SNAPSHOTS)


class IcebergDocuments(IcebergDocumentReader):
    """`steps` is told the name of each step as it is reached: `numbered` (of an addition), `after_stage`, and `before_`, `inside_` and
    `after_` of `snapshots_commit`, `purge_commit` and `changes_commit` (of an undo)."""

    def __init__(
        self, session: Callable[[], SparkSession], *, tables: Tables | None = None, steps: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(tables)
        self._session = session
        self._steps = steps or (lambda _: None)

    def add(self, name: TopicName, changes: Sequence[Change], *, ledger: tuple[str, int]) -> None:
        from message_lifecycle.stores.iceberg.documents.add import add

        with engine_failures():
            add(self._session, self._tables, name, changes, ledger=ledger, steps=self._steps)

    def stage(self, plan: Plan) -> Staged:
        from message_lifecycle.stores.iceberg.documents.returns import stage_returns
        from message_lifecycle.stores.iceberg.documents.stage import stage

        if plan.is_empty:
            return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)
        with engine_failures():
            staged = (stage_returns if plan.parent is not None else stage)(self._session(), self._tables, plan)
        self._steps("after_stage")
        return staged

    def evidence(self, plan: Plan, staged: Staged, policy: Policy) -> Mapping[str, object]:
        from message_lifecycle.stores.iceberg.documents.evidence import evidence
        from message_lifecycle.stores.iceberg.documents.return_evidence import return_evidence

        if plan.parent is not None:
            return return_evidence(self._tables, plan, staged)
        with engine_failures():
            return evidence(self._session, self._tables, plan, staged, policy)

    def publish_snapshots(self, verdict: Verdict, *, ledger: tuple[str, int]) -> Published:
        from message_lifecycle.stores.iceberg.documents.publish import publish_snapshots

        with engine_failures():
            done = publish_snapshots(self._session(), verdict, ledger=ledger, steps=self._steps)
        self._forget_source(verdict.plan)
        return done

    def purge(self, verdict: Verdict, *, ledger: tuple[str, int], behind: Callable[[], Collection[str]]) -> Published:
        from message_lifecycle.stores.iceberg.documents.publish import purge

        with engine_failures():
            return purge(self._session(), verdict, ledger=ledger, steps=self._steps, behind=behind)

    def return_changes(self, verdict: Verdict, *, ledger: tuple[str, int]) -> Published:
        from message_lifecycle.stores.iceberg.documents.publish import return_changes

        with engine_failures():
            done = return_changes(self._session(), verdict, ledger=ledger, steps=self._steps)
        if not verdict.plan.restored_snapshots:
            self._forget_source(verdict.plan)
        return done

    def discard(self, plan: Plan) -> None:
        """Needs no JVM."""
        remove_branch(self._tables, plan, branch_of(plan.plan_id), _TABLES)

    def _forget_source(self, plan: Plan) -> None:
        """All that the undo takes back is back: what an erasure has left for it is of no use any more."""
        if plan.parent is not None:
            remove_branch(self._tables, plan, undo_ref(plan.parent), _TABLES)
