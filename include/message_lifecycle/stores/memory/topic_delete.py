"""Deletion and return of whole topics in memory: the reference. Their tables lose their names, or get them back (DEL-7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import (
    BegunReclaim,
    DeletedTopic,
    Deletion,
    LogSize,
    LooseFiles,
    LooseQuestion,
    Remnant,
    TableFiles,
    TableHistory,
    TopicTable,
)
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NO_CONTEXT, ChangeStore, CommitContext
from message_lifecycle.stores.memory import MemoryStore
from message_lifecycle.stores.memory.tables import State, Table, TopicTables


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deleted:
    topic: DeletedTopic
    tables: TopicTables


class MemoryDeleter(ChangeStore):
    """`ports.TopicDeleter` for a `MemoryStore`. `steps` receives the name of each step, as in `IcebergDeleter`."""

    def __init__(self, store: MemoryStore, *, steps: Callable[[str], None] | None = None) -> None:
        self._store, self._steps = store, steps or (lambda _: None)
        self._deleted: dict[str, _Deleted] = {}

    def tables_of(self, name: TopicName) -> Sequence[TopicTable]:
        return _told(self._store.of(name))

    def record_ledger(self, plan_id: str, ledger: tuple[str, int]) -> None:
        found = self._deleted.get(plan_id)
        if found is not None:
            found.tables.touch(ledger)
            self._deleted[plan_id] = replace(found, topic=replace(found.topic, ledger=ledger))

    def deletions(self) -> Sequence[Deletion]:
        return [entry.topic for entry in reversed(self._deleted.values())]

    def remnants(self) -> Sequence[Remnant]:
        return ()  # a topic is always complete here

    def deleted(self, plan_id: str) -> DeletedTopic | None:
        found = self._deleted.get(plan_id)
        return None if found is None else found.topic

    def evidence(self, plan: Plan, _staged: Staged, _policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        return _frames(plan, self._store.of(plan.topic), taken=False)

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        plan = verdict.plan
        done = self.find_published(plan)
        if done is not None:
            return done
        self._delete(plan, given.now())
        self._steps("after_commit")
        return _published(plan)

    def find_published(self, plan: Plan) -> Published | None:
        return _published(plan) if plan.plan_id in self._deleted else None

    def tables(self, plan_id: str) -> TopicTables | None:
        """Return the tables that the plan deleted. None if they are restored or dropped."""
        found = self._deleted.get(plan_id)
        return None if found is None else found.tables

    def drop(self, plan_id: str) -> TopicTables:
        """Forget the topic that the plan deleted, and return its tables."""
        return self._deleted.pop(plan_id).tables

    def _delete(self, plan: Plan, at: Instant) -> None:
        if plan.topic not in self._store.tables:
            raise PlanConflict(plan.plan_id, "the topic is not there any more")
        tables = self._store.of(plan.topic)
        _require(plan, tables)
        self._steps("before_commit")
        deleted = DeletedTopic(
            plan_id=plan.plan_id,
            topic=plan.topic,
            table_uuid=tables.topic.uuid,
            deleted_at=at,
            settings=dict(tables.topic.settings),
            ledger=tables.topic.ledger,
            tables=tuple(_told(tables)),
        )
        self._deleted[plan.plan_id] = _Deleted(topic=deleted, tables=self._store.tables.pop(plan.topic))


class MemoryRestorer(ChangeStore):
    """Restores a topic that a `MemoryDeleter` deleted. `steps` receives the name of each step, as in `IcebergRestorer`."""

    def __init__(self, store: MemoryStore, deleter: MemoryDeleter, *, steps: Callable[[str], None] | None = None) -> None:
        self._store, self._deleter, self._steps = store, deleter, steps or (lambda _: None)
        self._restored: set[str] = set()

    def evidence(self, plan: Plan, _staged: Staged, _policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        return _frames(plan, self._deleter.tables(plan.parent or ""), taken=not plan.is_empty and plan.topic in self._store.tables)

    def publish(self, verdict: Verdict, _given: CommitContext) -> Published:
        plan = verdict.plan
        if self.find_published(plan) is None:
            tables = self._deleter.tables(plan.parent or "")
            if tables is None:
                raise PlanConflict(plan.plan_id, "the deleted topic is not there any more")
            if plan.topic in self._store.tables:
                raise PlanConflict(plan.plan_id, "another topic has the name now")
            _require(plan, tables)
            self._steps("before_commit")
            self._store.tables[plan.topic] = self._deleter.drop(plan.parent or "")
            self._restored.add(plan.plan_id)
            self._steps("after_commit")
        return _published(plan)

    def find_published(self, plan: Plan) -> Published | None:
        return _published(plan) if plan.plan_id in self._restored else None


def _frames(plan: Plan, found: TopicTables | None, *, taken: bool) -> Mapping[str, object]:
    planned = {a.table: (a.table_uuid, a.snapshot_id, a.rows) for a in plan.moved_tables}
    tables = () if found is None else _told(found)
    return {
        "tables": [{"same": planned.get(t.table) == (t.table_uuid, t.snapshot_id, t.rows), "rows": t.rows} for t in tables],
        "taken": [{"table": ""}] if taken else [],
    }


def _published(plan: Plan) -> Published:
    return Published(
        plan_id=plan.plan_id,
        snapshot_id=plan.requirements.snapshot_id or 0,
        removed=plan.expected.removed,
        restored=plan.restored_rows,
    )


def _require(plan: Plan, tables: TopicTables) -> None:
    planned = {a.table: (a.table_uuid, a.snapshot_id) for a in plan.moved_tables}
    if planned != {table.table: (table.table_uuid, table.snapshot_id) for table in _told(tables)}:
        raise PlanConflict(plan.plan_id, "the topic's tables have changed since it was planned")


def _told(tables: TopicTables) -> list[TopicTable]:
    """Return the log or the changes first, and then the second table if it was ever written."""
    if tables.topic.has_documents:
        changes, snapshots = tables.changes, tables.snapshots
        found = [_table("", changes, sum(map(len, changes.head.values())), 0)]
        beside = [_table("snapshots", snapshots, sum(map(len, snapshots.head.values())), 0)] if snapshots.commits else []
        return found + beside
    messages = tables.log.head.messages.values()
    rows = [row.message for row in tables.view.head.rows]
    log = _table("", tables.log, len(messages), sum(message.size_bytes for message in messages))
    view = _table("compacted", tables.view, len(rows), sum(message.size_bytes for message in rows))
    return [log, view] if tables.view.commits else [log]


def _table(kind: str, table: Table[State], rows: int, size_bytes: int) -> TopicTable:
    return TopicTable(table=kind, table_uuid=table.uuid, snapshot_id=table.snapshot_id, rows=rows, size_bytes=size_bytes)


# Final removal of deleted topics in memory: the reference. There are no files, so only the topic itself leaves (DEL-7).


class MemoryDeletedReclaimer(ChangeStore):
    """`ports.DeletedReclaimer` for a `MemoryDeleter`. `steps` receives the name of each step, as in `IcebergDeletedReclaimer`."""

    def __init__(self, deleter: MemoryDeleter, *, steps: Callable[[str], None] | None = None) -> None:
        self._deleter, self._steps = deleter, steps or (lambda _: None)
        self._begun: dict[str, Plan] = {}
        self._finished: set[str] = set()

    def files_of(self, topic: DeletedTopic, *, orphans_before: Instant) -> Sequence[TableFiles]:  # noqa: ARG002  # there are no files
        return [TableFiles(table=table) for table in topic.tables]

    def evidence(self, plan: Plan, _staged: Staged, _policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        there = self._tables(plan)
        return {
            "tables": [{"same": there.get(a.table) == (a.table_uuid, a.snapshot_id)} for a in plan.dropped_tables],
            **{frame: [] for frame in ("outside", "unlisted", "fresh")},
            "figures": [{"files": 0, "bytes": 0, "asks": len(plan.asks)}],
        }

    def publish(self, verdict: Verdict, _given: CommitContext) -> Published:
        plan = verdict.plan
        if not self.has_begun(plan):
            if self._tables(plan) != {a.table: (a.table_uuid, a.snapshot_id) for a in plan.dropped_tables}:
                raise PlanConflict(plan.plan_id, "the deleted topic is not as it was planned for")
            self._steps("before_commit")
            self._deleter.drop(plan.parent or "")
            self._begun[plan.plan_id] = plan
            self._steps("after_commit")
        return self.finish(plan)

    def has_begun(self, plan: Plan) -> bool:
        return plan.plan_id in self._begun

    def finish(self, plan: Plan) -> Published:
        self._finished.add(plan.plan_id)
        return _reclaimed(plan)

    def find_published(self, plan: Plan) -> Published | None:
        return _reclaimed(plan) if plan.plan_id in self._finished else None

    def find_unapplied(self, plan: Plan) -> Sequence[str]:
        return [f"the table {table or 'log'} is still there" for table in self._tables(plan)]

    def discard(self, plan: Plan) -> None:
        if plan.plan_id in self._finished:
            self.forget(plan.plan_id)

    def unfinished(self) -> Mapping[str, BegunReclaim]:
        return {plan_id: BegunReclaim(topic=plan.topic, removed=plan_id in self._finished) for plan_id, plan in self._begun.items()}

    def remaining_files(self, plan_id: str) -> Sequence[str]:  # noqa: ARG002  # there are no files
        return []

    def forget(self, plan_id: str) -> None:
        self._finished.discard(plan_id)
        self._begun.pop(plan_id, None)

    def _tables(self, plan: Plan) -> dict[str, tuple[str, int | None]]:
        found = self._deleter.deleted(plan.parent or "")
        return {} if found is None else {table.table: (table.table_uuid, table.snapshot_id) for table in found.tables}


def _reclaimed(plan: Plan) -> Published:
    return Published(plan_id=plan.plan_id, snapshot_id=plan.requirements.snapshot_id or 0, removed=(), reclaimed_files=0, reclaimed_bytes=0)


# Reclaim in memory. The store keeps no removed data, so every plan is empty, but takes the same steps (DEL-7).


_WRONG = ("needed", "missing", "young", "pointed", "progress", "outside", "fresh")


class MemoryReclaimer(ChangeStore):
    """`ports.Reclaimer` of a store without a past."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def histories(self, name: TopicName) -> Sequence[TableHistory]:
        self._store.describe(name)
        return ()

    def loose(self, name: TopicName, question: LooseQuestion) -> LooseFiles:  # noqa: ARG002  # no table is ever asked about
        return LooseFiles(table=question.table, files=(), total_files=0, total_bytes=0)

    def find_published(self, _plan: Plan) -> Published | None:
        return None  # no plan of it changes anything

    def publish(self, verdict: Verdict, _given: CommitContext) -> Published:
        raise AssertionError(f"plan {verdict.plan.plan_id} of a store without a past is empty")

    def size_history(self, name: TopicName) -> Sequence[LogSize]:  # noqa: ARG002  # a store without a past
        return ()

    def hidden_bytes(self, name: TopicName) -> int | None:  # noqa: ARG002  # nothing is hidden
        return None

    def evidence(self, plan: Plan, _staged: Staged, _policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        figures = {"snapshots": 0, "files": 0, "bytes": 0, "fraction_bytes": 0.0, "asks": len(plan.asks)}
        return {**{frame: [] for frame in _WRONG}, "tables": [], "figures": [figures]}
