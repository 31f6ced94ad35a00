"""Snapshots and purges of documents, and the undo of both (SNP-1 to SNP-10, DEL-7).

A run first writes snapshots and epochs, then checks both tables and the clients, and only then purges. A crash in between leaves some
purgeable changes, but never removes a change that is needed. An undo goes the other way: it brings back the changes first, then the
snapshots, because a snapshot only adds a place to start the document's history from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import cast

from message_lifecycle.app import sparing
from message_lifecycle.app.archiving import add_frame
from message_lifecycle.app.document_facts import (
    accepted_own_settings,
    accepted_values,
    clients_by_document,
    document_facts,
    policies_of_documents,
    policy_of_document,
    policy_of_document_topic,
    settings_hash,
)
from message_lifecycle.app.due import Due, DueContext, due_states
from message_lifecycle.app.holds import held_documents, holds_of, ids_of
from message_lifecycle.app.known import holds_documents
from message_lifecycle.app.operations import questions
from message_lifecycle.app.operations.registry import Frames, Operation, Work, is_undone
from message_lifecycle.app.operations.undo import Undo, check, later_plans, record_restored_messages
from message_lifecycle.app.services import Services
from message_lifecycle.gates.documents import document_undo_suite, documents_suite
from message_lifecycle.gates.suite import Suite
from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.model.document import Synced
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.hold import Hold
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.obligation import Look, Owed
from message_lifecycle.model.outcome import Check, DueState, PlanRecord, Published, Staged
from message_lifecycle.model.phrases import amount
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import snapshot_with_purge
from message_lifecycle.operations.snapshot_with_purge import live_clients, lowest_synced, needs_more, tightened_settings
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import ChangeStore, CommitContext

_AGE = "changes_max_age"


class DocumentOperation(Operation):
    """The common part of a purge and its undo."""

    of_documents = True
    judged = "snapshots"

    def count_rows_under_hold(self, s: Services, plan: Plan, staged: Staged, holds: Sequence[Hold]) -> int:
        held = held_documents(holds)
        return sum(action.document in held or snapshot_with_purge.EVERY_DOCUMENT in held for action in plan.snapshots_commit.documents)


class SnapshotWithPurge(DocumentOperation):
    """Makes the snapshots that are due, and purges the changes that all clients have (SNP-1, SNP-4)."""

    name = "snapshot_with_purge"
    command = "run"
    interval = "snapshots_interval"
    undoable = True

    def find_owed(self, s: Services, name: TopicName, policy: Policy, made: Callable[[], Plan], look: Look) -> Sequence[Owed]:
        if not policy.has_documents:
            return ()
        return [Owed(kind="documents", amount=len(made().snapshots_commit.documents), unit="documents", held=made().held)]

    def candidates(self, s: Services, names: Iterable[TopicName], *, named: bool) -> Iterable[TopicName]:
        """Leave out topics of messages, except for topics that a person named."""
        return [name for name in names if named or holds_documents(s, name) is not False]

    def due(self, s: Services, name: TopicName, asked: DueContext) -> Due:
        """Plan a topic that had nothing due again only after a change.

        A change is a new state of its tables, settings or clients, or the time when the next client falls silent.
        """
        policy = policy_of_document_topic(s, name)
        if (waiting := asked.question(name)) is not None:
            return waiting
        s.ledger.check(name, s.topics.describe(name).ledger)
        marker, state = _marker(s, name, policy), asked.cached(due_states).get(name)
        if state is not None and _is_settled(state, marker, policy, asked.as_of):
            return Due(topic=name, due=False, reason="nothing has changed since nothing was due")
        made = self.preview(s, name, self.name, as_of=asked.as_of)
        if not made.is_empty:
            snapshots = sum(action.snapshot is not None for action in made.snapshots_commit.documents)
            reason = f"{snapshots} snapshots are due and {made.expected.removed_rows} changes can go, in {len(made.snapshots_commit.documents)} documents"
            return asked.due_unless_blocked(made, reason)
        next_due_at = asked.as_of if _goes_by_age(s, name, policy) else made.next_due_at
        s.ledger.set_due_state(name, DueState(marker=marker, policy_hash=policy.hash, next_due_at=next_due_at, holders=()))
        return Due(topic=name, due=False, reason="no snapshot is due, and no change can go", waits=bool(made.held))

    def plan(self, s: Services, name: TopicName, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        return snapshot_with_purge.plan(document_facts(s, name, policy, as_of=as_of), policy, as_of=as_of)

    def summary(self, plan: Plan) -> str:
        made = sum(action.snapshot is not None for action in plan.snapshots_commit.documents)
        removed, rows_in = plan.expected.removed_rows, plan.expected.rows_in
        return f"{made} snapshots, {removed} of {rows_in} changes in {len(plan.snapshots_commit.documents)} documents go"

    def evidence(self, s: Services, plan: Plan, staged: Staged, policy: Policy) -> Frames:
        """Return the store's frames, and the number of documents that the ledger forbids to purge (see `unsynced`)."""
        # Clients come and go while a topic is staged. If they now need staged changes, the topic is planned again instead of blocked.
        _check_clients(s, plan, staged)
        frames = super().evidence(s, plan, staged, policy)
        return add_frame(frames, "clients", [{"unsynced": len(unsynced(s, plan, staged))}])

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return documents_suite(plan, staged, policy)

    def question(self, plan: Plan, going: int) -> str:
        return f"remove {going:,} of {plan.expected.rows_in:,} changes of documents?"

    def where(self, plan: Plan) -> str:
        purged = sum(action.purged > 0 for action in plan.snapshots_commit.documents)
        return f"of {amount(purged, 'documents')}, each covered by a checked snapshot"

    def lines(self, plan: Plan, going: questions.Removed, failed: Sequence[Check]) -> list[str]:
        return questions.lines_of_documents(plan, self.where(plan), going, failed)

    def commit_context(self, s: Services, plan: Plan, staged: Staged) -> CommitContext:
        return replace(super().commit_context(s, plan, staged), behind=lambda: unsynced(s, plan, staged))

    def check_before_commit(self, s: Services, verdict: Verdict, store: ChangeStore) -> None:
        """Check before the purge that its snapshots exist, unless they come in the same commit.

        If the check fails, the published snapshots stay. Snapshots remove nothing, and a new plan continues from them. A plan without a
        purge has no second commit, so `verify` reports its errors.
        """
        plan = verdict.plan
        wanted = None if plan.snapshots is None else plan.snapshots.settings_hash
        if settings_hash(s.ledger.settings_below_topic(plan.topic)) != wanted:
            raise PlanConflict(plan.plan_id, "settings of users or documents were changed after it was planned")
        _check_clients(s, plan, verdict.staged)  # a plan that a client blocks must not raise an epoch
        if store is s.stores.changes:
            wrong = _snapshot_differences(s, plan, verdict.staged) if s.stores.snapshots.find_published(plan) is not None else []
            if wrong:
                raise PlanConflict(plan.plan_id, "; ".join(wrong))
            _deactivate(s, plan)

    def combine_published(self, plan: Plan, done: Sequence[Published]) -> Published:
        return done[-1]

    def differences(self, s: Services, record: PlanRecord, published: Published) -> list[str]:
        """Return the differences between the published tables and the state that the gate judged (DEL-6)."""
        plan, staged = record.plan, record.staged
        assert staged is not None, "what is published was staged"
        wrong = _snapshot_differences(s, plan, staged)
        if dict(published.removed) != dict(staged.removed(plan)):
            wrong.append(f"the commit removed {dict(published.removed)}, the gate judged {dict(staged.removed(plan))}")
        keeps = {action.document: action.purge_before for action in documents_to_purge(plan, staged) if action.purged}
        for state in s.documents.states(plan.topic, s.documents.tables(plan.topic), only=keeps.keys()) if keeps else ():
            before = keeps[state.document]
            if state.first is None or state.first < before:
                wrong.append(f"document {state.document}: changes from {state.first} are there, the plan keeps those from {before}")
        return wrong

    def record_effects(self, s: Services, plan: Plan, staged: Staged | None) -> None:
        """Record the plan's settings as accepted if it removed something, or if the settings are not tighter than before (DEL-3)."""
        _deactivate(s, plan)
        accepted = s.ledger.accepted(plan.topic)
        removes = any(action.purged or action.dropped for action in documents_to_purge(plan, staged))
        own, policy = s.ledger.settings_below_topic(plan.topic), Policy.from_values(plan.policy)
        if removes or (
            accepted is not None
            and not tightened_settings(policy, policies_of_documents(own, policy), accepted, accepted_own_settings(accepted))
        ):
            s.ledger.set_accepted(plan.topic, accepted_values(own, dict(plan.policy)))


class UndoOfDocuments(Undo, DocumentOperation):
    """Brings back changes and snapshots of documents that a purge removed."""

    judged = "snapshots_return"

    def plan(self, s: Services, name: TopicName, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        record = s.ledger.record(cast(UndoPlan, work).plan_id)
        undone, taken, tables = record.plan, None, s.documents.tables(name)
        if not is_undone(s, undone):
            staged = None if record.staged is None else record.staged.documents
            purged = staged is not None and bool(staged.purged)
            committed = (s.stores.snapshots, s.stores.changes) if purged else (s.stores.snapshots,)
            check(s, record, policy, tables.changes_uuid, lambda: all(store.has_begun(undone) for store in committed))
            actions = [action for action in documents_to_purge(undone, record.staged) if action.purged or action.dropped]
            purges = later_plans(s, undone, "snapshot_with_purge")
            taken = snapshot_with_purge.RemovedDocumentRows(actions=actions, before=s.documents.before(undone, actions), later=purges)
        heeded = ids_of(holds_of(s, name))
        return snapshot_with_purge.plan_undo(tables, s.documents.states(name, tables), policy, undone, taken, as_of=as_of, heeded=heeded)

    def where(self, plan: Plan) -> str:
        return f"{super().where(plan)}, with {amount(plan.restored_snapshots, 'snapshots')}"

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return document_undo_suite(plan, policy)

    def differences(self, s: Services, record: PlanRecord, published: Published) -> list[str]:
        plan, wrong = record.plan, []
        # Record first that the changes came back, even if a check fails later: the next run must not remove them again.
        record_restored_messages(s, plan)
        if published.restored != plan.restored_rows:
            wrong.append(f"{plan.restored_rows} changes should be back, the commit says {published.restored}")
        named = {back.document for back in plan.documents_back}
        states = {state.document: state for state in s.documents.states(plan.topic, s.documents.tables(plan.topic), only=named)}
        wrong += [f"document {document} is not there" for document in sorted(named - states.keys())]
        for back in plan.changes_return.documents:
            state = states.get(back.document)
            if state is not None and (state.first is None or state.first > back.changes_from):
                wrong.append(f"document {back.document}: changes from {back.changes_from} should be back, the first is {state.first}")
        for back in plan.snapshots_return.documents:
            state = states.get(back.document)
            if state is not None and not set(back.snapshots) <= set(state.snapshots):
                wrong.append(f"document {back.document}: snapshots are not there that should be back")
        return wrong

    def detail_text(self, plan: Plan) -> str:
        return f"brought back {amount(plan.restored_rows, 'changes')} and {amount(plan.restored_snapshots, 'snapshots')}"


def documents_to_purge(plan: Plan, staged: Staged | None) -> list[SnapshotDocument]:
    """As `Staged.documents_of`; of a plan that was not staged, all."""
    return list(plan.snapshots_commit.documents) if staged is None else staged.documents_of(plan)


def unsynced(s: Services, plan: Plan, staged: Staged) -> list[str]:
    """Return the documents that must not be purged: by the ledger, a client may need a purged change, or no client is left (SNP-9)."""
    purged = [action for action in staged.documents_of(plan) if action.purged]
    if not purged:
        return []
    rows, own = clients_by_document(s, plan.topic), s.ledger.settings_below_topic(plan.topic)
    policy, found = Policy.from_values(plan.policy), []
    for action in purged:
        mine = policy_of_document(own, policy, action.document)
        lowest = lowest_synced(rows.get(action.document, ()), mine, as_of=plan.as_of)
        if lowest is None or lowest < action.purge_before:
            found.append(action.document)
    return found


def _check_clients(s: Services, plan: Plan, staged: Staged) -> None:
    behind = unsynced(s, plan, staged)
    if behind:
        raise PlanConflict(plan.plan_id, needs_more(behind))


def _deactivate(s: Services, plan: Plan) -> None:
    """Deactivate clients that were silent for too long. Such a client keeps no changes, and attaches again from the snapshot (SNP-3)."""
    own, policy = s.ledger.settings_below_topic(plan.topic), Policy.from_values(plan.policy)
    silent: list[Synced] = []
    for document, rows in clients_by_document(s, plan.topic).items():
        live = {row.client for row in live_clients(rows, policy_of_document(own, policy, document), as_of=plan.as_of)}
        silent += [row for row in rows if row.client not in live]
    if silent:
        s.ledger.detach_silent(plan.topic, silent)


def _snapshot_differences(s: Services, plan: Plan, staged: Staged) -> list[str]:
    """Return the differences between the snapshots' table and the stage."""
    actions = staged.documents_of(plan)
    names = {action.document for action in actions}
    states = {state.document: state for state in s.documents.states(plan.topic, s.documents.tables(plan.topic), only=names)}
    wrong = []
    for action in actions:
        state = states.get(action.document)
        if state is None:
            wrong.append(f"document {action.document} is not there")
            continue
        if action.snapshot is not None and action.snapshot not in state.snapshots:
            wrong.append(f"document {action.document}: there is no snapshot at server_seq {action.snapshot}")
        if state.epoch < action.epoch:
            wrong.append(f"document {action.document}: the epoch is {state.epoch}, the plan says {action.epoch}")
        if set(state.snapshots) & set(action.dropped):
            wrong.append(f"document {action.document}: snapshots are still there that should have gone")
    return wrong


# Does a topic need a new plan?


def _is_settled(state: DueState, marker: str, policy: Policy, as_of: Instant) -> bool:
    reached = state.next_due_at is not None and as_of >= state.next_due_at
    return state.marker == marker and state.policy_hash == policy.hash and not reached


def _goes_by_age(s: Services, name: TopicName, policy: Policy) -> bool:
    """Return whether any level of settings removes changes by age. Only a scan of the changes shows when the next one is due."""
    own = s.ledger.settings_below_topic(name)
    ages = [policy.changes_max_age, *(levels.get(_AGE) for level in (own.users, own.documents) for levels in level.values())]
    return any(age not in (None, "permanent") for age in ages)


def _marker(s: Services, name: TopicName, policy: Policy) -> str:
    """Return a hash of a plan's inputs, so that a changed hash shows that a new plan may differ.

    The inputs are both tables, the settings below the topic's, the clients' positions, and the changes that holds and undos keep.
    """
    tables = s.documents.tables(name)
    seen = hashlib.sha256(f"{tables.changes_uuid} {tables.changes_id} {tables.snapshots_uuid} {tables.snapshots_id}".encode())
    seen.update(f"{sparing.spared_state(s, name)}".encode())
    own = s.ledger.settings_below_topic(name)
    for level in (own.users, own.documents, own.owners):
        seen.update(
            f"{sorted((key, sorted(value.items()) if not isinstance(value, str) else value) for key, value in level.items())}".encode()
        )
    if policy.purges_changes or any(levels.values() for levels in (own.users, own.documents)):
        for row in s.ledger.synced(name):
            seen.update(f"{row.document}\0{row.client}\0{row.server_seq}\0{row.at}\n".encode())
    return seen.hexdigest()
