"""Which topics of documents have a snapshot to make or changes to purge: without a JVM (SNP-1, SNP-4).

A topic that had nothing is looked at closely again only when one of its tables, its settings, who has what, or the time at which a
client falls silent has come to be another. It is due iff a plan made now would do something."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from message_lifecycle.app.due import Due, Questions, due_unless_hindered, judge_each
from message_lifecycle.app.previews import preview
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.sparing import spared_state
from message_lifecycle.model.errors import LifecycleError, NotADocumentTopic, Unavailable
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.ports import DueState

_AGE = "changes_max_age"


def due_documents(s: Services, names: Iterable[TopicName], *, as_of: Instant, run: str | None = None, named: bool = False) -> list[Due]:
    """Judge every topic of documents. Topics of messages are left out, but for those that a person named."""
    states, questions = s.ledger.due_states(), Questions(s)
    asked = [name for name in names if named or _may_hold_documents(s, name)]
    return judge_each(asked, lambda name: _one(s, name, states.get(name), questions, as_of, run))


def _may_hold_documents(s: Services, name: TopicName) -> bool:
    try:
        return policy_of(s, name).fold is not None
    except Unavailable:
        raise
    except LifecycleError:  # judged with the others, so that its error is told
        return True


def _one(s: Services, name: TopicName, state: DueState | None, questions: Questions, as_of: Instant, run: str | None) -> Due:
    policy = policy_of(s, name)
    if policy.fold is None:
        raise NotADocumentTopic(str(name))
    question = questions.about(name)
    if question is not None:
        return Due(topic=name, due=False, reason=question)
    s.ledger.check(name, s.topics.describe(name).ledger)
    marker = _marker(s, name, policy)
    if state is not None and _is_settled(state, marker, policy, as_of):
        return Due(topic=name, due=False, reason="nothing has changed since nothing was due")
    made = preview(s, name, as_of=as_of, work="snapshot_with_purge")
    if not made.is_empty:
        return due_unless_hindered(s, made, _in_words(made), as_of=as_of, run=run)
    s.ledger.set_due_state(
        name,
        DueState(
            marker=marker, policy_hash=policy.hash, next_due_at=as_of if _goes_by_age(s, name, policy) else made.next_due_at, holders=()
        ),
    )
    return Due(topic=name, due=False, reason="no snapshot is due, and no change can go")


def _is_settled(state: DueState, marker: str, policy: Policy, as_of: Instant) -> bool:
    reached = state.next_due_at is not None and as_of >= state.next_due_at
    return state.marker == marker and state.policy_hash == policy.hash and not reached


def _goes_by_age(s: Services, name: TopicName, policy: Policy) -> bool:
    """Whether changes can go because time has passed, somewhere in the topic: when, only a look at them tells."""
    own = s.ledger.own_settings(name)
    ages = [policy.changes_max_age, *(levels.get(_AGE) for level in (own.users, own.documents) for levels in level.values())]
    return any(age not in (None, "permanent") for age in ages)


def _marker(s: Services, name: TopicName, policy: Policy) -> str:
    """Another one wherever what a plan is made of is another: both tables, settings below the topic's, who has what, and what stays by a
    legal hold or because it came back with an undo."""
    tables = s.documents.tables(name)
    seen = hashlib.sha256(f"{tables.changes_uuid} {tables.changes_id} {tables.snapshots_uuid} {tables.snapshots_id}".encode())
    seen.update(f"{spared_state(s, name)}".encode())
    own = s.ledger.own_settings(name)
    for level in (own.users, own.documents, own.owners):
        seen.update(
            f"{sorted((key, sorted(value.items()) if not isinstance(value, str) else value) for key, value in level.items())}".encode()
        )
    if policy.purges_changes or any(levels.values() for levels in (own.users, own.documents)):
        for row in s.ledger.synced(name):
            seen.update(f"{row.document}\0{row.client}\0{row.server_seq}\0{row.at}\n".encode())
    return seen.hexdigest()


def _in_words(made: Plan) -> str:
    snapshots = sum(action.snapshot is not None for action in made.documents)
    return f"{snapshots} snapshots are due and {made.expected.removed_rows} changes can go, in {len(made.documents)} documents"
