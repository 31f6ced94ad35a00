"""Whole topics deleted and brought back in memory: the reference (DEL-7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from message_lifecycle.model.errors import PlanConflict, UnknownTopic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import DeletedTopic, Deletion, Remnant, TopicTable
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NOTHING_GIVEN, ChangeStore, Given
from message_lifecycle.stores.memory.document_log import DocumentLog, DocumentTable
from message_lifecycle.stores.memory.documents import MemoryDocuments
from message_lifecycle.stores.memory.store import MemoryStore
from message_lifecycle.stores.memory.table import Table
from message_lifecycle.stores.memory.view_log import View


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole:
    """All that there is of a topic."""

    table: Table
    view: View | None
    documents: DocumentLog | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deleted:
    told: DeletedTopic
    whole: _Whole


class MemoryDeleter(ChangeStore):
    """`ports.TopicDeleter` beside a `MemoryStore` and its documents. `steps` is told each step, as `IcebergDeleter` does."""

    def __init__(self, store: MemoryStore, documents: MemoryDocuments, *, steps: Callable[[str], None] | None = None) -> None:
        self._store, self._documents, self._steps = store, documents, steps or (lambda _: None)
        self._deleted: dict[str, _Deleted] = {}
        self._returned: dict[str, TopicName] = {}

    def tables_of(self, name: TopicName) -> Sequence[TopicTable]:
        return _tables(self._whole(name))

    def deletions(self) -> Sequence[Deletion]:
        return [entry.told for entry in reversed(self._deleted.values())]

    def remnants(self) -> Sequence[Remnant]:
        return ()  # a topic is one whole here

    def deleted(self, plan_id: str) -> DeletedTopic | None:
        found = self._deleted.get(plan_id)
        return None if found is None else found.told

    def evidence(self, plan: Plan, _staged: Staged, _policy: Policy, _given: Given = NOTHING_GIVEN) -> Mapping[str, object]:
        planned = {a.table: (a.table_uuid, a.snapshot_id, a.rows) for a in plan.moved()}
        there = self._store.list()
        if plan.moved("back"):
            found = self._deleted.get(plan.parent or "")
            tables = () if found is None else _tables(found.whole)
        else:
            tables = _tables(self._whole(plan.topic)) if plan.changes else ()
        return {
            "tables": [{"same": planned.get(t.table) == (t.table_uuid, t.snapshot_id, t.rows), "rows": t.rows} for t in tables],
            "taken": [{"table": ""}] if plan.moved("back") and plan.topic in there else [],
        }

    def publish(self, verdict: Verdict, given: Given) -> Published:
        plan = verdict.plan
        done = self.published(plan)
        if done is not None:
            return done
        if plan.moved("back"):
            self._return(plan)
        else:
            self._delete(plan, given.now())
        self._steps("after_commit")
        return self._published(plan)

    def published(self, plan: Plan) -> Published | None:
        if plan.moved("back"):
            return self._published(plan) if plan.plan_id in self._returned else None
        return self._published(plan) if plan.plan_id in self._deleted else None

    def drop(self, plan_id: str) -> None:
        """Forget the topic that the plan deleted."""
        del self._deleted[plan_id]

    def _delete(self, plan: Plan, at: Instant) -> None:
        try:
            whole = self._whole(plan.topic)
        except UnknownTopic:
            raise PlanConflict(plan.plan_id, "the topic is not there any more") from None
        _require(plan, whole)
        self._steps("before_commit")
        topic = whole.table.topic
        told = DeletedTopic(
            plan_id=plan.plan_id,
            topic=plan.topic,
            table_uuid=topic.uuid,
            deleted_at=at,
            settings=dict(topic.settings),
            ledger=topic.ledger,
            tables=tuple(_tables(whole)),
        )
        self._deleted[plan.plan_id] = _Deleted(told=told, whole=whole)
        self._store.take_out(plan.topic)
        self._documents.put(plan.topic, None)

    def _return(self, plan: Plan) -> None:
        found = self._deleted.get(plan.parent or "")
        if found is None:
            raise PlanConflict(plan.plan_id, "the deleted topic is not there any more")
        if plan.topic in self._store.list():
            raise PlanConflict(plan.plan_id, "another topic has the name now")
        _require(plan, found.whole)
        self._steps("before_commit")
        self._store.put_back(plan.topic, found.whole.table, found.whole.view)
        self._documents.put(plan.topic, found.whole.documents)
        self._returned[plan.plan_id] = plan.topic
        del self._deleted[plan.parent or ""]

    def _whole(self, name: TopicName) -> _Whole:
        """Raises UnknownTopic."""
        table = self._store.whole(name)
        documents = self._documents.log(name) if "fold" in table.topic.settings else None
        return _Whole(table=table, view=self._store.views.get(name), documents=documents)

    @staticmethod
    def _published(plan: Plan) -> Published:
        return Published(
            plan_id=plan.plan_id,
            snapshot_id=plan.requirements.snapshot_id or 0,
            removed=plan.expected.removed,
            restored=plan.restored_rows,
        )


def _require(plan: Plan, whole: _Whole) -> None:
    planned = {a.table: (a.table_uuid, a.snapshot_id) for a in plan.moved()}
    if planned != {table.table: (table.table_uuid, table.snapshot_id) for table in _tables(whole)}:
        raise PlanConflict(plan.plan_id, "the topic's tables have changed since it was planned")


def _tables(whole: _Whole) -> list[TopicTable]:
    table = whole.table
    if whole.documents is not None:
        changes = _of_documents("", table.topic.uuid, whole.documents.changes)
        made = whole.documents.snapshots
        return [changes, _of_documents("snapshots", made.uuid, made)] if made.commits else [changes]
    messages = table.head.messages.values()
    log = TopicTable(
        table="",
        table_uuid=table.topic.uuid,
        snapshot_id=table.snapshot_id,
        rows=len(messages),
        size_bytes=sum(message.size_bytes for message in messages),
    )
    if whole.view is None or not whole.view.commits:
        return [log]
    rows = [row.message for row in whole.view.commits[-1].rows.values()]
    view = TopicTable(
        table="compacted",
        table_uuid=whole.view.uuid,
        snapshot_id=len(whole.view.commits) - 1,
        rows=len(rows),
        size_bytes=sum(message.size_bytes for message in rows),
    )
    return [log, view]


def _of_documents(kind: str, table_uuid: str, table: DocumentTable[Any]) -> TopicTable:
    return TopicTable(
        table=kind, table_uuid=table_uuid, snapshot_id=table.snapshot_id, rows=sum(map(len, table.head.values())), size_bytes=0
    )
