"""Deleting a whole topic and bringing it back (DEL-3, DEL-7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import cast

from message_lifecycle.app.archiving import add_frame
from message_lifecycle.app.holds import holds_of, ids_of
from message_lifecycle.app.operations.erasure import lock_out_writers
from message_lifecycle.app.operations.registry import Frames, Operation, Work, operation_of_plan
from message_lifecycle.app.operations.undo import Undo, record_restored_messages
from message_lifecycle.app.services import Services, find_topic
from message_lifecycle.app.topics import update_views
from message_lifecycle.gates.suite import Suite
from message_lifecycle.gates.tables import topic_suite
from message_lifecycle.model.errors import (
    ForeignTable,
    HeldByLegalHold,
    UnknownTopic,
    later_plan,
    name_taken,
    not_deletable,
    undo_source_gone,
)
from message_lifecycle.model.hold import Hold
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import PlanRecord, Published, Staged
from message_lifecycle.model.phrases import amount
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import DeleteTopic, UndoPlan
from message_lifecycle.model.settings import Policy, resolve
from message_lifecycle.model.tables import DeletedTopic, Deletion, TopicTable
from message_lifecycle.operations import topic_delete, undo
from message_lifecycle.ports import Topic, TopicDeleter


class WholeTopicOperation(Operation):
    """The common part of deleting a topic and bringing it back."""

    judged = "delete_tables"
    moves_tables = True

    def evidence(self, s: Services, plan: Plan, staged: Staged, policy: Policy) -> Frames:
        """Return the store's frames, with the number of current holds."""
        figures = {"asks": len(plan.asks), "holds": len(holds_of(s, plan.topic))}
        return _with_figures(super().evidence(s, plan, staged, policy), figures)

    def writer_lock(self, s: Services, plan: Plan) -> AbstractContextManager[None]:
        """Keep writers away meanwhile: a running write ends before the move, and a later one finds no topic."""
        return lock_out_writers(s, plan.topic)


class TopicDelete(WholeTopicOperation):
    """Deletes a topic. The tables contain every held message, so any hold on the topic refuses its deletion (DEL-8)."""

    name = "topic_delete"
    by_request, undoable = True, True

    def is_plan_for(self, plan: Plan, work: Work) -> bool:
        return isinstance(work, DeleteTopic) and plan.operation == self.name

    def plan(self, s: Services, name: TopicName, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        """Raises NotDeletable, HeldByLegalHold."""
        tables = deleter_of(s, name).tables_of(name)
        holds = holds_of(s, name)
        if holds:
            raise HeldByLegalHold(str(name), None, [hold.description for hold in holds])
        readers = s.ledger.consumers(name)
        return topic_delete.plan(
            name,
            policy,
            tables,
            end_offsets={} if policy.has_documents else s.reader.end_offsets(name),
            consumers=sorted({reader.consumer for reader in readers if reader.kind == "consumer"}),
            replicas=sorted({reader.consumer for reader in readers if reader.kind == "replica"}),
            undone=[known.plan_id for known in s.ledger.undone(name) if known.released_at is None],
            as_of=as_of,
        )

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return topic_suite(plan, policy)

    def question(self, plan: Plan, going: int) -> str:
        return f"delete the whole topic, with {going:,} of {plan.expected.rows_in:,} {plan.things}?"

    def where(self, plan: Plan) -> str:
        return f"the whole topic with {amount(len(plan.moved_tables), 'tables')}"

    def success_text(self, rows: int, restored: int, things: str) -> str:
        return f"deleted, with {amount(rows, things)}"

    def differences(self, s: Services, record: PlanRecord, published: Published) -> list[str]:
        plan, deleted = record.plan, deleted_by(s, record.plan)
        wrong = [f"topic {plan.topic} is still there"] if uuid_of(s, plan.topic) == plan.requirements.table_uuid else []
        return wrong + _describe_misplaced_tables(plan, () if deleted is None else deleted.tables)


class UndoOfTopicDelete(Undo, WholeTopicOperation):
    """Brings a deleted topic back, with the settings and all else that it had."""

    judged = "restore_tables"

    def topic(self, s: Services, name: TopicName) -> Topic | None:
        return find_topic(s, name)

    def prepare(self, s: Services, name: TopicName) -> None:
        if self.topic(s, name) is not None:
            super().prepare(s, name)

    def preview(self, s: Services, name: TopicName, work: Work, *, as_of: Instant) -> Plan:
        """Return the plan, empty if the topic came back before. Raises LedgerMismatch, or the reason why no undo is possible."""
        return _plan_return(s, cast(UndoPlan, work), as_of=as_of)

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return topic_suite(plan, policy)

    def settings_now(self, s: Services, plan: Plan) -> Policy:
        """Return the plan's own settings, because the topic gets back its settings from before the deletion."""
        return Policy.from_values(plan.policy)

    def count_rows_under_hold(self, s: Services, plan: Plan, staged: Staged, holds: Sequence[Hold]) -> int:
        return 0  # a hold never prevents a topic from coming back

    def differences(self, s: Services, record: PlanRecord, published: Published) -> list[str]:
        """Record first that the topic is back, even if a check fails. Then return the differences."""
        plan = record.plan
        record_restored_messages(s, plan)
        return _describe_misplaced_tables(plan, deleter_of(s, plan.topic).tables_of(plan.topic))

    def record_effects(self, s: Services, plan: Plan, staged: Staged | None) -> None:
        """Create the topic's SQL views again, because the deletion removed them."""
        if plan.restored_tables:
            s.ledger.note_topic(plan.topic, anew=False)
            update_views(s, plan.topic)


def _describe_misplaced_tables(plan: Plan, found: Sequence[TopicTable]) -> list[str]:
    """Describe tables that are not at the plan's place, or lack rows (DEL-6)."""
    there = {table.table: (table.table_uuid, table.rows) for table in found}
    planned = {table.table: (table.table_uuid, table.rows) for table in plan.moved_tables}
    return [
        f"table {kind or 'log'}: the plan says {planned.get(kind)}, {there.get(kind)} is there"
        for kind in sorted(planned.keys() | there.keys())
        if planned.get(kind) != there.get(kind)
    ]


def deleter_of(s: Services, name: TopicName) -> TopicDeleter:
    """Raises NotDeletable."""
    if s.stores.delete_tables is None or name in s.backends:
        raise not_deletable(str(name))
    return s.stores.delete_tables


def _plan_return(s: Services, work: UndoPlan, *, as_of: Instant) -> Plan:
    record = s.ledger.record(work.plan_id)
    deletion, name = record.plan, record.plan.topic
    heeded = ids_of(holds_of(s, name))
    there = uuid_of(s, name)
    before = s.ledger.undone_by(deletion.plan_id)
    if before is not None and there == deletion.requirements.table_uuid:
        policy = resolve(topic=s.topics.describe(name).settings, server=s.server)
        return topic_delete.plan_return(deletion, policy, None, heeded=heeded, as_of=as_of)
    # If the topic came back before, but its tables are where the deletion moved them, then the catalog was restored from a time between.
    found = deleted_by(s, deletion)
    if before is not None and found is None and (again := s.ledger.published_after(name, deletion.plan_id, "topic_delete")):
        raise later_plan(deletion.plan_id, again[-1].plan.plan_id, "deleted the topic that had come back")
    policy = Policy.from_values(deletion.policy) if found is None else policy_of_deleted(s, found)
    s.ledger.check_as_of(as_of, policy.clock_skew_us)
    undo.check(
        deletion,
        why_not=operation_of_plan(deletion).why_not_undone(),
        outcome=None if record.outcome is None else record.outcome.name,
        published_at=s.ledger.published_at(deletion.plan_id),
        now=s.ledger.now(),
        undo_window_us=policy.undo_window_us,
        table_uuid=deletion.requirements.table_uuid,
    )
    if there is not None:
        raise name_taken(deletion.plan_id, str(name))
    if found is None:
        raise undo_source_gone(deletion.plan_id, "the tables of the topic are not there any more")
    s.ledger.check(name, found.ledger)
    later = s.ledger.published_after(name, deletion.plan_id, "topic_delete")
    topic_delete.check_return(deletion, (other.plan for other in later))
    return topic_delete.plan_return(deletion, policy, found, heeded=heeded, erasures=_open_erasures(s, found), as_of=as_of)


def policy_of_deleted(s: Services, found: Deletion) -> Policy:
    """Its settings are kept with its tables; the server's count as they are now."""
    return resolve(topic=found.settings, server=s.server)


def undo_until(s: Services, topic: Deletion) -> Instant:
    """Return the end of the topic's undo window. No undo is possible from then on."""
    published_at = s.ledger.published_at(topic.plan_id) or topic.deleted_at
    return Instant(published_at + policy_of_deleted(s, topic).undo_window_us)


def deleted_by(s: Services, deletion: Plan) -> DeletedTopic | None:
    return deleter_of(s, deletion.topic).deleted(deletion.plan_id)


def _open_erasures(s: Services, found: DeletedTopic) -> list[str]:
    """Return the open erasures that the deleted topic keeps open: no erasure searches its tables (see `erasures.describe_unsearched_places`)."""
    return [
        request.request_id
        for request in s.ledger.erasures()
        if request.state == "requested" and (not request.topics or found.topic in request.topics)
    ]


def uuid_of(s: Services, name: TopicName) -> str | None:
    """Return the topic's uuid. None if no topic has the name, even if another engine's table has it."""
    try:
        return s.topics.describe(name).uuid
    except (UnknownTopic, ForeignTable):
        return None


def _with_figures(frames: Mapping[str, object], figures: Mapping[str, int]) -> Mapping[str, object]:
    """Return the frames with `figures`, as a list if the store's frames are lists."""
    if isinstance(frames["tables"], list):
        return {**frames, "figures": [dict(figures)]}
    return add_frame(frames, "figures", [figures])
