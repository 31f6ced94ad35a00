"""Publishing a plan of documents: snapshots and epochs, a look at both tables and at the clients, and only then the purge (SNP-7, SNP-9).

A crash between any two of these leaves changes that could have gone, and never takes one that is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from message_lifecycle.app.document_facts import accepted_own, accepted_values, by_document, own_policies, policy_of_document, settings_hash
from message_lifecycle.app.frames import with_frame
from message_lifecycle.model.actions import SnapshotDocument
from message_lifecycle.model.document import Synced
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.snapshot_with_purge import live_clients, lowest_synced, needs_more, tightened
from message_lifecycle.operations.verdict import Verdict

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services


def evidence(s: Services, plan: Plan, staged: Staged, policy: Policy) -> Mapping[str, object]:
    """The store's frames, and of a purge the ledger's word on the clients, of the kind that the store's are."""
    if plan.operation == "undo":
        return s.document_store.documents_evidence(plan, staged, policy)
    # Clients come and go while a topic is staged: what is judged is what may still go, so it is planned anew and not blocked.
    _check_clients(s, plan, staged)
    frames = s.document_store.documents_evidence(plan, staged, policy)
    clients = [{"unsynced": len(unsynced(s, plan, staged))}]
    return with_frame(frames, "clients", clients)


def publish(s: Services, verdict: Verdict) -> Published:
    """Raises PlanConflict: what was published of it by then takes nothing away, and a new plan goes on from it; of one that purges nothing
    that was all, and `verify` says what of it is wrong."""
    plan, staged = verdict.plan, verdict.staged
    assert staged.documents is not None, "a plan that changes something has staged it"
    _check_settings(s, plan)
    if s.documents.documents_published(plan.topic, plan.plan_id) is None:
        _check_clients(s, plan, staged)  # what is known to be in the way raises no epoch
    first = s.document_store.publish_snapshots(verdict, ledger=s.ledger.next_identity(plan.topic))
    wrong = snapshot_differences(s, plan, staged)
    if wrong:
        raise PlanConflict(plan.plan_id, "; ".join(wrong))
    deactivate(s, plan)
    if not staged.documents.purged:
        return first
    return s.document_store.purge(verdict, ledger=s.ledger.next_identity(plan.topic), behind=lambda: unsynced(s, plan, staged))


def going(plan: Plan, staged: Staged | None) -> list[SnapshotDocument]:
    """What the plan names, but for the documents whose fold failed (SNP-10)."""
    blocked = {document for document, _ in staged.documents.blocked} if staged is not None and staged.documents is not None else set()
    return [action for action in plan.documents if action.document not in blocked]


def unsynced(s: Services, plan: Plan, staged: Staged) -> list[str]:
    """Documents that would lose a change which the ledger now says a client may need, or that no client has any more (SNP-9)."""
    purged = [action for action in going(plan, staged) if action.purged]
    if not purged:
        return []
    rows, own = by_document(s, plan.topic), s.ledger.own_settings(plan.topic)
    policy, found = Policy.of_values(plan.policy), []
    for action in purged:
        mine = policy_of_document(own, policy, action.document)
        lowest = lowest_synced(rows.get(action.document, ()), mine, as_of=plan.as_of)
        if lowest is None or lowest < action.purge_before:
            found.append(action.document)
    return found


def deactivate(s: Services, plan: Plan) -> None:
    """Clients that were silent for too long keep nothing any more, and attach again by the snapshot (SNP-3)."""
    own, policy = s.ledger.own_settings(plan.topic), Policy.of_values(plan.policy)
    silent: list[Synced] = []
    for document, rows in by_document(s, plan.topic).items():
        live = {row.client for row in live_clients(rows, policy_of_document(own, policy, document), as_of=plan.as_of)}
        silent += [row for row in rows if row.client not in live]
    if silent:
        s.ledger.detach_silent(plan.topic, silent)


def snapshot_differences(s: Services, plan: Plan, staged: Staged) -> list[str]:
    """What the snapshots' table does not have as it was staged."""
    actions = going(plan, staged)
    states = {state.document: state for state in s.documents.states(plan.topic, s.documents.tables(plan.topic), only=_names(actions))}
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


def differences(s: Services, plan: Plan, staged: Staged, published: Published) -> list[str]:
    """What the published tables do not have as the gate has judged it (DEL-6)."""
    wrong = snapshot_differences(s, plan, staged)
    if dict(published.removed) != dict(staged.removed(plan)):
        wrong.append(f"the commit removed {dict(published.removed)}, the gate judged {dict(staged.removed(plan))}")
    keeps = {action.document: action.purge_before for action in going(plan, staged) if action.purged}
    for state in s.documents.states(plan.topic, s.documents.tables(plan.topic), only=keeps.keys()) if keeps else ():
        before = keeps[state.document]
        if state.first is None or state.first < before:
            wrong.append(f"document {state.document}: changes from {state.first} are there, the plan keeps those from {before}")
    return wrong


def accept(s: Services, plan: Plan, staged: Staged | None) -> None:
    """What was removed under these settings was accepted with them; with nothing removed, only a loosening needs no word (DEL-3)."""
    deactivate(s, plan)
    accepted = s.ledger.accepted(plan.topic)
    removes = any(action.purged or action.dropped for action in going(plan, staged))
    own = s.ledger.own_settings(plan.topic)
    policy = Policy.of_values(plan.policy)
    if removes or (accepted is not None and not tightened(policy, own_policies(own, policy), accepted, accepted_own(accepted))):
        s.ledger.set_accepted(plan.topic, accepted_values(own, dict(plan.policy)))


def _check_clients(s: Services, plan: Plan, staged: Staged) -> None:
    behind = unsynced(s, plan, staged)
    if behind:
        raise PlanConflict(plan.plan_id, needs_more(behind))


def _check_settings(s: Services, plan: Plan) -> None:
    wanted = None if plan.snapshots is None else plan.snapshots.settings_hash
    if s.documents.documents_published(plan.topic, plan.plan_id) is None and settings_hash(s.ledger.own_settings(plan.topic)) != wanted:
        raise PlanConflict(plan.plan_id, "settings of users or documents were changed after it was planned")


def _names(actions: list[SnapshotDocument]) -> set[str]:
    return {action.document for action in actions}
