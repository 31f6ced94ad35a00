"""A topic of documents: its documents, what is stored of them, who has synchronised how far, and what a client gets (SNP-1 to SNP-9)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from message_lifecycle.app.documents import Described, Pulled, describe
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.views.values import View, when
from message_lifecycle.model.document import Change, DocumentState, Synced
from message_lifecycle.model.instants import Instant, is_dead
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.settings import OWN_SETTINGS, Policy
from message_lifecycle.operations.snapshot_with_purge import silent_from


def holds_documents(s: Services, name: TopicName) -> bool:
    """Raises UnknownTopic."""
    return policy_of(s, name).fold is not None


def documents_view(s: Services, name: TopicName) -> View:
    """The topic in figures, and each document, by name. Raises UnknownTopic, NotADocumentTopic."""
    own, now, tables = s.ledger.own_settings(name), s.ledger.now(), s.documents.tables(name)
    found = describe(s, name)
    return {
        "fold": policy_of(s, name).fold,
        "changes_uuid": tables.changes_uuid,
        "changes_id": tables.changes_id,
        "snapshots_uuid": tables.snapshots_uuid,
        "snapshots_id": tables.snapshots_id,
        "changes": sum(_stored(document.state) for document in found),
        "snapshots": sum(len(document.state.snapshots) for document in found),
        "clients": sum(len(document.clients) for document in found),
        "purged": sum(document.state.epoch > 0 for document in found),
        "documents": [document_view(document, now) for document in found],
        "own_settings": [*_own("user", own.users), *_own("document", own.documents)],
    }


def document_view(found: Described, now: Instant, *, settings: bool = False) -> View:
    """`first`: the first change that is there; `lowest_synced`: of the clients that keep changes, null where none does."""
    state = found.state
    clients = [_client(row, state.seq, found.policy, now) for row in found.clients]
    return {
        "document": state.document,
        "owner": found.owner,
        "seq": state.seq,
        "first": state.first,
        "changes": _stored(state),
        "snapshots": list(state.snapshots),
        "epoch": state.epoch,
        "lowest_synced": min((client["server_seq"] for client in clients if client["keeps"]), default=None),
        "clients": clients,
        **({"settings": {setting: found.policy[setting] for setting in OWN_SETTINGS}} if settings else {}),
    }


def pulled_view(pulled: Pulled, fold: str | None) -> View:
    return {
        "document": pulled.document,
        "seq": pulled.seq,
        "epoch": pulled.epoch,
        "snapshot": None if pulled.snapshot is None else {"server_seq": pulled.snapshot.server_seq, "state": pulled.state},
        "changes": [_change(change, fold) for change in pulled.changes],
    }


def history_entry_view(entry: tuple[int, object]) -> View:
    """One of `documents.history`."""
    seq, state = entry
    return {"server_seq": seq, "state": state}


def _change(change: Change, fold: str | None) -> View:
    return {"server_seq": change.server_seq, "client": change.client, "at": when(change.at), "payload": _payload(change.payload, fold)}


def _payload(payload: bytes, fold: str | None) -> object:
    """As `lifecycle document add` takes it; what is stored and is no JSON is shown as its bytes, not hidden."""
    try:
        if fold != "yjs":
            return json.loads(payload)
    except ValueError:
        pass
    return {"base64": base64.b64encode(payload).decode()}


def _stored(state: DocumentState) -> int:
    return 0 if state.first is None else state.seq - state.first + 1


def _client(row: Synced, seq: int, policy: Policy, now: Instant) -> View:
    silent_at = silent_from(row, policy)
    return {
        "client": row.client,
        "server_seq": row.server_seq,
        "lag": seq - row.server_seq,
        "at": when(row.at),
        "falls_silent_at": when(silent_at),
        "keeps": silent_at is None or not is_dead(silent_at, now),
    }


def _own(level: str, of: Mapping[str, Mapping[str, object]]) -> list[View]:
    return [
        {"level": level, "name": name, "setting": setting, "value": value}
        for name, settings in sorted(of.items())
        for setting, value in sorted(settings.items())
    ]
