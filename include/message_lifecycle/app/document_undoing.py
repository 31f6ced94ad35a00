"""Taking back a purge of documents: what is looked at before it is planned, its two commits, and what is compared afterwards (DEL-7).

The changes come first, then the snapshots. A run that dies in between leaves a document that is whole: the snapshots of before are more
places to begin its history from.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from message_lifecycle.app import document_deeds, sparing, undoing
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import document_undo
from message_lifecycle.operations.verdict import Verdict

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services


def plan_undo_of_documents(s: Services, name: TopicName, policy: Policy, work: UndoPlan, *, as_of: Instant) -> Plan:
    """As `undoing.plan_undo`, of a topic of documents."""
    record = s.ledger.record(work.plan_id)
    undone, taken, tables = record.plan, None, s.documents.tables(name)
    if not undoing.is_undone(s, undone):
        staged = None if record.staged is None else record.staged.documents
        purged = staged is not None and bool(staged.purged)
        has_committed = partial(s.documents.documents_have_committed, name, undone.plan_id, purged=purged)
        undoing.check(s, record, policy, tables.changes_uuid, has_committed)
        actions = [action for action in document_deeds.going(undone, record.staged) if action.purged or action.dropped]
        later = undoing.later(s, undone, "snapshot_with_purge")
        taken = document_undo.Taken(actions=actions, before=s.documents.before(undone, actions), later=later)
    heeded = sparing.ids_of(sparing.holds_of(s, name))
    return document_undo.plan(tables, s.documents.states(name, tables), policy, undone, taken, as_of=as_of, heeded=heeded)


def commits(s: Services, plan: Plan) -> tuple[Published | None, ...]:
    """The undo's commits in their order, as far as they are there: one for each table that it changes."""
    changes, snapshots = s.documents.carrying(plan.topic, plan.plan_id)
    return (*((changes,) if plan.restored_rows else ()), *((snapshots,) if plan.restored_snapshots else ()))


def published(s: Services, plan: Plan) -> Published | None:
    """What came of it, if all of it is there."""
    found = [commit for commit in commits(s, plan) if commit is not None]
    whole = found and len(found) == bool(plan.restored_rows) + bool(plan.restored_snapshots)
    return _told(plan, found[0]) if whole else None


def publish(s: Services, verdict: Verdict) -> Published:
    """Raises PlanConflict."""
    plan, done = verdict.plan, []
    if plan.restored_rows:
        done.append(s.document_store.return_changes(verdict, ledger=s.ledger.next_identity(plan.topic)))
    if plan.restored_snapshots:
        done.append(s.document_store.publish_snapshots(verdict, ledger=s.ledger.next_identity(plan.topic)))
    return _told(plan, done[0])


def _told(plan: Plan, first: Published) -> Published:
    """Snapshots are no changes: an outcome counts these alone."""
    return first if plan.restored_rows else replace(first, restored=0)


def differences(s: Services, plan: Plan, found: Published) -> list[str]:
    """What of a published undo is not in the tables as it was judged (DEL-6). What came back is remembered first, whatever else is
    found: the next run must not take it again."""
    undoing.remember(s, plan)
    wrong = []
    if found.restored != plan.restored_rows:
        wrong.append(f"{plan.restored_rows} changes should be back, the commit says {found.restored}")
    named = {action.document: action for action in plan.document_returns}
    states = {state.document: state for state in s.documents.states(plan.topic, s.documents.tables(plan.topic), only=named.keys())}
    for document, action in named.items():
        state = states.get(document)
        if state is None:
            wrong.append(f"document {document} is not there")
            continue
        if action.changes and (state.first is None or state.first > action.changes_from):
            wrong.append(f"document {document}: changes from {action.changes_from} should be back, the first is {state.first}")
        if not set(action.snapshots) <= set(state.snapshots):
            wrong.append(f"document {document}: snapshots are not there that should be back")
    return wrong
