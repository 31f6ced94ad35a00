"""The facts for planning snapshots and purges of documents: their tables, their clients, their settings at every level (SNP-9)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

from message_lifecycle.app.holds import held_documents, holds_of, ids_of
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.sparing import undone_detail
from message_lifecycle.model.document import ACCEPTED_OWN, OwnSettings, Synced
from message_lifecycle.model.errors import not_a_document_topic
from message_lifecycle.model.instants import INT64_MIN, Instant, from_datetime, seconds
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.topic import check_documents
from message_lifecycle.operations.snapshot_with_purge import DocumentFacts, RestoredDocumentRows, join_restored_rows


def document_facts(s: Services, name: TopicName, policy: Policy, *, as_of: Instant) -> DocumentFacts:
    """Read the facts of a topic of documents.

    Raises:
        UnknownTopic, NotADocumentTopic: There is no such topic of documents.
        InvalidSetting: Settings of different levels do not fit together (SNP-5).
    """
    tables, own = s.documents.tables(name), s.ledger.settings_below_topic(name)
    policies = policies_of_documents(own, policy)
    check_documents(policy, where=f"topic {name}")
    for document, narrowed in policies.items():
        check_documents(narrowed, where=f"document {document} of topic {name}")
    accepted, holds = s.ledger.accepted(name), holds_of(s, name)
    return DocumentFacts(
        heeded=ids_of(holds),
        held=held_documents(holds),
        undone=undone_documents(s, name),
        tables=tables,
        states=s.documents.states(
            name,
            tables,
            older_than=purge_before(policy.changes_max_age, as_of),
            own={document: purge_before(narrowed.changes_max_age, as_of) for document, narrowed in policies.items()},
        ),
        synced=clients_by_document(s, name),
        policies=policies,
        accepted=accepted,
        accepted_own=accepted_own_settings(accepted),
        settings_hash=settings_hash(own),
    )


def undone_documents(s: Services, name: TopicName) -> dict[str, RestoredDocumentRows]:
    """Return, by document, what undos brought back and nobody released since. The undos' own plans name it."""
    found: dict[str, RestoredDocumentRows] = {}
    for known in s.ledger.undone(name):
        if known.released_at is None:
            detail = undone_detail(known)
            for action in s.ledger.record(known.undone_by).plan.documents_back:
                found[action.document] = join_restored_rows(action, detail, found.get(action.document))
    return found


def policies_of_documents(own: OwnSettings, policy: Policy) -> dict[str, Policy]:
    """Return the policy of each document that has settings of its own or from its owner. The narrowest level wins (SNP-9)."""
    owned = {document for document, owner in own.owners.items() if owner in own.users}
    return {document: policy.with_narrower(*_levels(own, document)) for document in sorted(owned | own.documents.keys())}


def policy_of_document_topic(s: Services, name: TopicName) -> Policy:
    """The settings of a topic of documents. Raises UnknownTopic, NotADocumentTopic."""
    policy = policy_of(s, name)
    if not policy.has_documents:
        raise not_a_document_topic(str(name))
    return policy


def policy_of_document(own: OwnSettings, policy: Policy, document: str) -> Policy:
    return policy.with_narrower(*_levels(own, document))


def _levels(own: OwnSettings, document: str) -> tuple[Mapping[str, Value], Mapping[str, Value]]:
    return own.users.get(own.owners.get(document, ""), {}), own.documents.get(document, {})


def clients_by_document(s: Services, name: TopicName) -> dict[str, list[Synced]]:
    """Clients of every document as the ledger has them now."""
    found: dict[str, list[Synced]] = {}
    for row in s.ledger.synced(name):
        found.setdefault(row.document, []).append(row)
    return found


def settings_hash(own: OwnSettings) -> str:
    """Return a hash of the settings below the topic, empty if there are none. If the hash changes, the plan is made again."""
    if not (own.users or own.documents or own.owners):
        return ""
    return hashlib.sha256(json.dumps(asdict(own), sort_keys=True).encode()).hexdigest()[:16]


def accepted_values(own: OwnSettings, policy: Mapping[str, Value | None]) -> dict[str, Value | None]:
    """Return the settings that a person accepts with a removal: the topic's and the levels below it (DEL-3)."""
    if not (own.users or own.documents or own.owners):
        return dict(policy)
    return {**policy, ACCEPTED_OWN: json.dumps(asdict(own), sort_keys=True)}


def accepted_own_settings(accepted: Mapping[str, Value | None] | None) -> dict[str, dict[str, Value | None]]:
    """Return the accepted settings by document, with the owners of that time."""
    kept = json.loads(str((accepted or {}).get(ACCEPTED_OWN) or "{}"))
    users, documents, owners = (kept.get(level, {}) for level in ("users", "documents", "owners"))
    return {
        document: {**users.get(owners.get(document, ""), {}), **documents.get(document, {})}
        for document in owners.keys() | documents.keys()
    }


# Spans of history in words: seconds, or calendar units counted back from `as_of` (SNP-9).


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def purge_before(period: int | str | None, as_of: Instant) -> Instant | None:
    """Return the time before which changes may go by age. None if age removes no change (`permanent`) or is not set.

    A month before the 31st of March is the last day of February, as in pendulum. Before the calendar's first year no change can go.
    """
    if period is None or period == "permanent":
        return None
    if isinstance(period, int):
        return Instant(max(as_of - seconds(period), INT64_MIN))
    import pendulum  # import it only for calendar periods, because every command runs this function

    count, unit = period.split(" ")
    units = f"{unit.removesuffix('s')}s"
    try:
        moment = _EPOCH + timedelta(microseconds=as_of)
        back = pendulum.instance(moment).subtract(**{units: int(count)})
    except (ValueError, OverflowError):
        return Instant(INT64_MIN)
    return from_datetime(datetime.combine(back.date(), back.time(), UTC))
