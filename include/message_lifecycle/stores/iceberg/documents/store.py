"""Documents on tables: `ports.Documents`, and the changes of both tables, on a Spark session, which is asked for when it is needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from message_lifecycle.model.document import Change
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NOTHING_GIVEN, ChangeStore, Given
from message_lifecycle.stores.iceberg.branches import branch_of, remove_branch, undo_ref
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.documents.read import IcebergDocumentReader
from message_lifecycle.stores.iceberg.documents.tables import snapshots_document
from message_lifecycle.stores.iceberg.failures import engine_failures
from message_lifecycle.stores.iceberg.layout import COUNTS, PLAN_ID, SNAPSHOTS, ancestors
from message_lifecycle.stores.iceberg.read import published_by

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


class _OfDocuments(ChangeStore):
    """Both tables are staged together, and judged together. `steps` as `IcebergDocuments` has them."""

    def __init__(
        self, session: Callable[[], SparkSession], *, tables: Tables | None = None, steps: Callable[[str], None] | None = None
    ) -> None:
        self._session, self._tables, self._steps = session, tables or Tables(), steps or (lambda _: None)

    def stage(self, plan: Plan, given: Given = NOTHING_GIVEN) -> Staged:
        from message_lifecycle.stores.iceberg.documents.returns import stage_returns
        from message_lifecycle.stores.iceberg.documents.stage import stage

        if plan.is_empty:
            return super().stage(plan, given)
        if given.staged is not None and given.staged.documents is not None:
            return given.staged
        with engine_failures():
            staged = (stage_returns if plan.parent is not None else stage)(self._session(), self._tables, plan)
        self._steps("after_stage")
        return staged

    def evidence(self, plan: Plan, staged: Staged, policy: Policy, _given: Given = NOTHING_GIVEN) -> Mapping[str, object]:
        from message_lifecycle.stores.iceberg.documents.evidence import evidence
        from message_lifecycle.stores.iceberg.documents.return_evidence import return_evidence

        if plan.parent is not None:
            return return_evidence(self._tables, plan, staged)
        with engine_failures():
            return evidence(self._session, self._tables, plan, staged, policy)

    def discard(self, plan: Plan) -> None:
        """Needs no JVM."""
        remove_branch(self._tables, plan, branch_of(plan.plan_id), _TABLES)

    def _commit(self, plan: Plan, kind: str) -> tuple[int, Mapping[str, str]] | None:
        """The snapshot that carries the plan, and what it tells."""
        self._tables.of_documents(plan.topic)
        if kind == SNAPSHOTS and snapshots_document(self._tables, plan.topic) is None:
            return None
        for snapshot in ancestors(self._tables.load(plan.topic, kind=kind)):
            told = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if told.get(PLAN_ID) == plan.plan_id:
                return snapshot.snapshot_id, told
        return None

    def _has_committed(self, plan: Plan, kind: str) -> bool:
        from message_lifecycle.stores.iceberg.undo_sources import has_committed

        self._tables.of_documents(plan.topic)
        there = kind != SNAPSHOTS or snapshots_document(self._tables, plan.topic) is not None
        return there and has_committed(self._tables.load(plan.topic, kind=kind), plan.plan_id)

    def _forget_source(self, plan: Plan) -> None:
        """All that the undo takes back is back: what an erasure has left for it is of no use any more."""
        if plan.parent is not None:
            remove_branch(self._tables, plan, undo_ref(plan.parent), _TABLES)


class IcebergSnapshots(_OfDocuments):
    """New snapshots and raised epochs come, old snapshots go; or those come back that had gone. No change goes or comes with them."""

    def publish(self, verdict: Verdict, given: Given) -> Published:
        from message_lifecycle.stores.iceberg.documents.publish import publish_snapshots

        with engine_failures():
            done = publish_snapshots(self._session(), verdict, ledger=given.ledger(), steps=self._steps)
        self._forget_source(verdict.plan)
        return done

    def published(self, plan: Plan) -> Published | None:
        found = self._commit(plan, SNAPSHOTS)
        return None if found is None else Published(plan_id=plan.plan_id, snapshot_id=found[0], removed=())

    def has_begun(self, plan: Plan) -> bool:
        return self._has_committed(plan, SNAPSHOTS)


class IcebergChanges(_OfDocuments):
    """Changes go, only after the snapshots that cover them are published; or come back. A plan that purges nothing is done with its
    snapshots."""

    def publish(self, verdict: Verdict, given: Given) -> Published:
        from message_lifecycle.stores.iceberg.documents.publish import purge, return_changes

        with engine_failures():
            if verdict.plan.on_snapshots.documents:
                return purge(self._session(), verdict, ledger=given.ledger(), steps=self._steps, behind=given.behind)
            done = return_changes(self._session(), verdict, ledger=given.ledger(), steps=self._steps)
        if not verdict.plan.restored_snapshots:
            self._forget_source(verdict.plan)
        return done

    def published(self, plan: Plan) -> Published | None:
        if plan.on_snapshots.documents:
            snapshots = self._commit(plan, SNAPSHOTS)
            if snapshots is None:
                return None
            if not sum(json.loads(snapshots[1].get(COUNTS, "{}")).values()):
                return Published(plan_id=plan.plan_id, snapshot_id=snapshots[0], removed=())
        found = self._commit(plan, "")
        return None if found is None else published_by(plan.plan_id, *found)

    def has_begun(self, plan: Plan) -> bool:
        return self._has_committed(plan, "")
