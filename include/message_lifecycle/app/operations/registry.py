"""The operations by name, and what a plan is made for. A new operation is a module beside this one and one line here.

Each module is loaded when its operation is first met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, cast

from message_lifecycle.app.operations.base import Operation, Scheduled, Work
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.sparing import is_undone
from message_lifecycle.gates.suite import Suite, holds_suite
from message_lifecycle.model import plan as plans
from message_lifecycle.model.backends import check_operation
from message_lifecycle.model.change import Commit
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import DeleteTopic, EraseKey, ReclaimDeleted, Request, UndoPlan
from message_lifecycle.model.settings import Policy
from message_lifecycle.ports import ChangeStore

OPERATIONS = {
    "message_cleaner": "cleaner.MessageCleaner",
    "retention": "cleaner.Retention",
    "message_request": "requests.MessageRequest",
    "marker_generation": "markers.MarkerGeneration",
    "compaction": "compaction.Compaction",
    "purge_compacted": "compaction.PurgeCompacted",
    "snapshot_with_purge": "documents.SnapshotWithPurge",
    "erasure": "erasure.Erasure",
    "reclaim": "reclaim.Reclaim",
    "quarantine": "quarantine.Quarantine",
    "topic_delete": "topics.TopicDelete",
    "reclaim of a deleted topic": "deleted_reclaim.DeletedReclaim",
    "undo": "undo.UndoOfMessages",
    "undo of snapshot_with_purge": "documents.UndoOfDocuments",
    "undo of quarantine": "quarantine.UndoOfQuarantine",
    "undo of topic_delete": "topics.UndoOfTopicDelete",
}


@cache
def named(name: str) -> Operation:
    """The operation of this name; see `OPERATIONS`."""
    return cast(Operation, _loaded(OPERATIONS[name])())


def stores(s: Services, plan: Plan) -> list[ChangeStore]:
    """Those that carry out its changes, in their order. Tables that are written again, or whose past is forgotten, go
    together; the changes of documents that new snapshots cover go in a commit behind theirs."""
    names: list[str] = []
    for change in plan.changes:
        if isinstance(change, Commit):
            names += (change.table, "changes") if change.documents else (change.table,)
        else:
            names.append("gone" if plan.moved("gone") else change.kind)
    return [s.stores.of(name) for name in dict.fromkeys(names)]


def _loaded(place: str) -> Any:
    module, name = place.split(".")
    return getattr(import_module(f"message_lifecycle.app.operations.{module}"), name)


def names_of(so: Callable[[Operation], bool]) -> tuple[plans.Operation, ...]:
    """The operations of which it is so, as plans and outcomes name them."""
    return tuple(dict.fromkeys(operation.name for operation in map(named, OPERATIONS) if so(operation)))


def undoable() -> tuple[plans.Operation, ...]:
    """Those whose plans can be taken back (DEL-7)."""
    return names_of(lambda one: one.undoable)


def on_records() -> tuple[plans.Operation, ...]:
    """Those that logs of single records can do (RET-5)."""
    return names_of(lambda one: one.on_records)


def looked_at(s: Services, work: Scheduled, given: Sequence[TopicName]) -> Sequence[TopicName]:
    """Where a schedule looks; see `Operation.looked_at`. Raises UnsupportedLimit where it cannot work on a topic that a person named."""
    for name in given:
        if name in s.backends:
            check_operation(s.backends[name], work, on_records(), where=f"topic {name}")
    return named(work).looked_at(s, given)


def of_plan(s: Services, plan: Plan) -> Operation:
    """The operation that has made the plan. An undo with nothing left to do is told by its parent."""
    of_nothing = plan.operation == "undo" and plan.is_empty and plan.parent is not None
    if of_nothing and s.ledger.record(str(plan.parent)).plan.operation == "topic_delete":
        return named("undo of topic_delete")
    return kind_of(plan)


def kind_of(plan: Plan) -> Operation:
    """By the plan alone. What an undo gives back says which undo it is; an empty one counts as one of messages."""
    if plan.operation == "reclaim" and plan.parent is not None:
        return named("reclaim of a deleted topic")
    if plan.operation != "undo" or plan.parent is None:
        return named(plan.operation)
    if plan.on_quarantine.files_back:
        return named("undo of quarantine")
    if plan.of_documents:
        return named("undo of snapshot_with_purge")
    return named("undo of topic_delete" if plan.moved("back") else "undo")


def suite_of(plan: Plan, staged: Staged, policy: Policy) -> Suite:
    """What the plan's staged changes are held to: by its operation, and by the legal holds that it heeds."""
    return (*kind_of(plan).checks(plan, staged, policy), *holds_suite(plan))


def of_work(s: Services, name: TopicName, work: Work) -> Operation:
    """The operation that plans for this. Raises UnknownPlan, UnknownTopic."""
    if isinstance(work, UndoPlan):
        return _undo_of(s, name, work)
    if isinstance(work, EraseKey):
        return named("erasure")
    if isinstance(work, DeleteTopic):
        return named("topic_delete")
    if isinstance(work, ReclaimDeleted):
        return named("reclaim of a deleted topic")
    return named("message_request" if isinstance(work, Request) else work)


def work_on(s: Services, name: TopicName, work: Scheduled, *, as_of: Instant) -> Work:
    """What a scheduled run plans for the topic. Where space is given back the name may stand for a topic that was deleted."""
    return cast(Work, _loaded("reclaim.work_on")(s, name, as_of=as_of)) if work == "reclaim" else work


def _undo_of(s: Services, name: TopicName, work: UndoPlan) -> Operation:
    undone = s.ledger.record(work.plan_id).plan
    if undone.operation == "topic_delete":
        return named("undo of topic_delete")
    if undone.operation == "quarantine" and not is_undone(s, undone):
        return named("undo of quarantine")
    return named("undo" if policy_of(s, name).fold is None else "undo of snapshot_with_purge")


def preview(s: Services, name: TopicName, *, as_of: Instant, work: Work = "message_cleaner") -> Plan:
    """The plan as it would be, recorded nowhere."""
    return of_work(s, name, work).preview(s, name, work, as_of=as_of)


def again(s: Services, plan: Plan) -> Work:
    """What to plan again for where a plan no longer fits; a person's request is not made again by itself."""
    return of_plan(s, plan).again(plan)


__all__ = [
    "Operation",
    "Scheduled",
    "Work",
    "again",
    "kind_of",
    "looked_at",
    "named",
    "names_of",
    "of_plan",
    "of_work",
    "on_records",
    "preview",
    "stores",
    "suite_of",
    "undoable",
    "work_on",
]
