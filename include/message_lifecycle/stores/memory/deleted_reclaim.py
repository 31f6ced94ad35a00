"""Deleted topics that go for good, in memory: the reference. There are no files, so nothing but the topic itself goes (DEL-7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import BegunReclaim, DeletedTopic, TableFiles
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NOTHING_GIVEN, ChangeStore, Given
from message_lifecycle.stores.memory.topic_delete import MemoryDeleter


class MemoryDeletedReclaimer(ChangeStore):
    """`ports.DeletedReclaimer` beside a `MemoryDeleter`. `steps` is told each step, as `IcebergDeletedReclaimer` does."""

    def __init__(self, deleter: MemoryDeleter, *, steps: Callable[[str], None] | None = None) -> None:
        self._deleter, self._steps = deleter, steps or (lambda _: None)
        self._begun: dict[str, Plan] = {}
        self._finished: set[str] = set()

    def files_of(self, topic: DeletedTopic, *, orphans_before: Instant) -> Sequence[TableFiles]:  # noqa: ARG002  # there are no files
        return [TableFiles(table=table) for table in topic.tables]

    def evidence(self, plan: Plan, _staged: Staged, _policy: Policy, _given: Given = NOTHING_GIVEN) -> Mapping[str, object]:
        there = self._tables(plan)
        return {
            "tables": [{"same": there.get(a.table) == (a.table_uuid, a.snapshot_id)} for a in plan.moved("gone")],
            **{frame: [] for frame in ("outside", "unlisted", "fresh")},
            "figures": [{"files": 0, "bytes": 0, "asks": len(plan.asks)}],
        }

    def publish(self, verdict: Verdict, _given: Given) -> Published:
        plan = verdict.plan
        if not self.has_begun(plan):
            if self._tables(plan) != {a.table: (a.table_uuid, a.snapshot_id) for a in plan.moved("gone")}:
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
        return _published(plan)

    def published(self, plan: Plan) -> Published | None:
        return _published(plan) if plan.plan_id in self._finished else None

    def left(self, plan: Plan) -> Sequence[str]:
        return [f"the table {table or 'log'} is still there" for table in self._tables(plan)]

    def discard(self, plan: Plan) -> None:
        if plan.plan_id in self._finished:
            self.forget(plan.plan_id)

    def unfinished(self) -> Mapping[str, BegunReclaim]:
        return {plan_id: BegunReclaim(topic=plan.topic, removed=plan_id in self._finished) for plan_id, plan in self._begun.items()}

    def left_by(self, plan_id: str) -> Sequence[str]:  # noqa: ARG002  # there are no files
        return []

    def forget(self, plan_id: str) -> None:
        self._finished.discard(plan_id)
        self._begun.pop(plan_id, None)

    def _tables(self, plan: Plan) -> dict[str, tuple[str, int | None]]:
        found = self._deleter.deleted(plan.parent or "")
        return {} if found is None else {table.table: (table.table_uuid, table.snapshot_id) for table in found.tables}


def _published(plan: Plan) -> Published:
    return Published(plan_id=plan.plan_id, snapshot_id=plan.requirements.snapshot_id or 0, removed=(), reclaimed_files=0, reclaimed_bytes=0)
