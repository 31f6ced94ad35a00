"""What a plan is made for, and the plan as it would be: facts gathered, and the operation's own rules asked."""

from __future__ import annotations

from functools import partial
from typing import Literal, cast

from message_lifecycle.app import deleted_reclaiming
from message_lifecycle.app.cleaning import plan_cleaning
from message_lifecycle.app.compaction_facts import compaction_facts
from message_lifecycle.app.document_facts import document_facts
from message_lifecycle.app.document_undoing import plan_undo_of_documents
from message_lifecycle.app.erasing import plan_erasure
from message_lifecycle.app.horizons import horizons_of, readers_of
from message_lifecycle.app.quarantine import plan_quarantine
from message_lifecycle.app.quarantine_undoing import plan_undo_of_quarantine, takes_back_quarantine
from message_lifecycle.app.reclaiming import plan_reclaim
from message_lifecycle.app.requesting import rows_of_view
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.sparing import facts_with_spared
from message_lifecycle.app.topic_deleting import plan_deletion, plan_return, takes_back_topic
from message_lifecycle.app.undoing import plan_undo
from message_lifecycle.model.errors import IsADocumentTopic
from message_lifecycle.model.facts import Facts
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import BY_REQUEST, Operation, Plan
from message_lifecycle.model.request import DeleteTopic, EraseKey, ReclaimDeleted, Request, UndoPlan
from message_lifecycle.operations import compaction, compaction_purge, marker_sweep, requests, retention_run, snapshot_with_purge

Scheduled = Literal[
    "message_cleaner", "retention", "marker_generation", "compaction", "purge_compacted", "snapshot_with_purge", "reclaim", "quarantine"
]
Work = Request | UndoPlan | EraseKey | DeleteTopic | ReclaimDeleted | Scheduled
"""What a plan is made for: what a person asks to have removed or brought back, or a scheduled operation."""


def scheduled(plan: Plan) -> Scheduled | ReclaimDeleted:
    """What to plan again for where a plan no longer fits; a person's request is not made again by itself."""
    assert plan.operation not in BY_REQUEST, "requests are carried out where they are asked"
    if plan.operation == "reclaim" and plan.parent is not None:
        return ReclaimDeleted(plan_id=plan.parent)
    return cast(Scheduled, plan.operation)


def is_of(plan: Plan, work: Work) -> bool:
    """Whether the plan was made for this; a person's request of messages is planned anew each time."""
    if isinstance(work, EraseKey):
        return plan.erasure is not None and plan.erasure.request_id == work.request_id
    if isinstance(work, UndoPlan):
        return plan.operation == "undo" and plan.parent == work.plan_id
    if isinstance(work, DeleteTopic):
        return plan.operation == "topic_delete"
    if isinstance(work, ReclaimDeleted):
        return plan.operation == "reclaim" and plan.parent == work.plan_id
    return plan.operation == work and plan.parent is None


def operation_of(work: Work) -> Operation:
    """By what name the ledger keeps it."""
    if isinstance(work, UndoPlan):
        return "undo"
    if isinstance(work, EraseKey):
        return "erasure"
    if isinstance(work, DeleteTopic):
        return "topic_delete"
    if isinstance(work, ReclaimDeleted):
        return "reclaim"
    return "message_request" if isinstance(work, Request) else work


def asked_by(s: Services, work: Work) -> str | None:
    """Who asked for it, where the ledger keeps that beside the plan."""
    return s.ledger.erasure(work.request_id).requested_by if isinstance(work, EraseKey) else None


def preview(s: Services, name: TopicName, *, as_of: Instant, work: Work = "message_cleaner") -> Plan:
    """The plan as it would be, recorded nowhere."""
    if isinstance(work, UndoPlan) and takes_back_topic(s, work.plan_id):
        return plan_return(s, work, as_of=as_of)
    if isinstance(work, ReclaimDeleted):
        return deleted_reclaiming.plan_reclaim(s, work, as_of=as_of)
    policy = policy_of(s, name)
    s.ledger.check_as_of(as_of, policy.clock_skew_us)
    if isinstance(work, DeleteTopic):
        return plan_deletion(s, name, policy, as_of=as_of)
    if isinstance(work, UndoPlan):
        if takes_back_quarantine(s, work):
            return plan_undo_of_quarantine(s, name, policy, work, as_of=as_of)
        by_kind = plan_undo if policy.fold is None else plan_undo_of_documents
        return by_kind(s, name, policy, work, as_of=as_of)
    if work == "reclaim":
        return plan_reclaim(s, name, policy, as_of=as_of)
    if work == "snapshot_with_purge":
        return snapshot_with_purge.plan(document_facts(s, name, policy, as_of=as_of), policy, as_of=as_of)
    if work == "quarantine":
        return plan_quarantine(s, name, policy, as_of=as_of)
    if isinstance(work, EraseKey):
        return plan_erasure(s, name, policy, work, as_of=as_of)
    if policy.fold is not None:
        raise IsADocumentTopic(str(name))
    if work == "compaction":
        return compaction.plan(compaction_facts(s, name, policy, as_of=as_of), policy, as_of=as_of)
    log = s.reader.log(name, late_after=Instant(as_of + policy.clock_skew_us))
    view = s.views.view(name) if isinstance(work, Request) else None
    facts = facts_with_spared(s, Facts(log=log, consumers=tuple(readers_of(s, name)), accepted=s.ledger.accepted(name)), view)
    if work == "purge_compacted":
        return compaction_purge.plan(facts, policy, horizons_of(s, name), as_of=as_of)
    if work == "marker_generation":
        since = s.ledger.swept(name)
        # Before the first sweep nobody has looked, and nothing is owed for what nobody can tell.
        removals = () if since is None or log.snapshot_id is None else s.reader.removed_by_others(log, since)
        return marker_sweep.plan(facts, policy, removals, as_of=as_of)
    if work == "retention":
        return retention_run.plan(facts, policy, as_of=as_of, ask=partial(s.reader.rows, log))
    if work != "message_cleaner":
        requests.check(log, work)
        found = s.reader.requested(log, work, as_of=as_of)
        of_view = {} if view is None else rows_of_view(s, log, view, work, found, as_of=as_of)
        return requests.plan(facts, policy, work, found, as_of=as_of, view=view, of_view=of_view)
    return plan_cleaning(s, facts, policy, as_of=as_of)
