"""The verbs of scenarios that are about documents, and what is looked at after them."""

from __future__ import annotations

import base64
import json
from typing import Any

from message_lifecycle.app import documents
from message_lifecycle.app.scenario_file import ChangeStep, DetachStep, DocumentChange, ReadStep, SyncStep
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.folds import fold_of
from message_lifecycle.model.document import Change, OwnChanges
from message_lifecycle.model.errors import InvalidScenario
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.ports import PlanRecord

Stored = dict[str, list[int]]
"""server_seqs by document."""


def change(s: Services, name: TopicName, step: ChangeStep) -> dict[str, Any]:
    """All in one call, whatever epochs they bring: every one is looked at before any change is stored."""
    fold = policy_of(s, name).fold
    changes = [
        Change(
            document=given.document,
            server_seq=given.server_seq,
            client=given.client,
            at=None if given.at is None else Instant(given.at),
            payload=_payload(given, fold),
        )
        for given in step
    ]
    documents.check_epochs(s, name, [(each, given.epoch) for each, given in zip(changes, step, strict=True) if given.epoch is not None])
    return {"server_seqs": documents.add_changes(s, name, changes)}


def _payload(given: DocumentChange, fold: str | None) -> bytes:
    if fold != "yjs":
        return json.dumps(given.payload).encode()
    try:
        return base64.b64decode(given.payload["base64"], validate=True)
    except (TypeError, KeyError, ValueError):
        raise InvalidScenario("change.payload", given.payload, '{"base64": "..."} of the update, as the fold is yjs') from None


def sync(s: Services, name: TopicName, step: SyncStep) -> dict[str, Any]:
    at = None if step.at is None else Instant(step.at)
    done = documents.sync(s, name, step.document, client=step.client, server_seq=step.server_seq, at=at, epoch=step.epoch)
    return {"server_seq": done.server_seq, "epoch": done.epoch}


def detach(s: Services, name: TopicName, step: DetachStep) -> dict[str, Any]:
    return {"detached": documents.detach(s, name, step.document, client=step.client, epoch=step.epoch)}


def read(s: Services, name: TopicName, step: ReadStep) -> dict[str, Any]:
    assert step.document is not None
    _check_read(step)
    if step.history:
        found = list(documents.history(s, name, step.document, start=step.start, limit=step.limit))
        return {"history": [[seq, state] for seq, state in found], "changes": [seq for seq, _ in found]}
    if step.client_seq is None:
        raise InvalidScenario("read", step.document, "client_seq (a pull), or history")
    at = None if step.at is None else Instant(step.at)
    pulled = documents.pull(s, name, step.document, client_seq=step.client_seq, client=step.client, epoch=step.epoch, at=at)
    snapshot = None if pulled.snapshot is None else {"server_seq": pulled.snapshot.server_seq, "state": pulled.state}
    return {"changes": [each.server_seq for each in pulled.changes], "snapshot": snapshot, "epoch": pulled.epoch}


def _check_read(step: ReadStep) -> None:
    """What would do nothing is an error: whoever wrote it expects something of it."""
    kind, idle = ("history", {"client_seq", "at"}) if step.history else ("a pull", {"limit"})
    if step.client is None:
        idle = idle | {"at"}
    for field in sorted(step.model_fields_set & (idle | {"since", "raw", "compacted"})):
        if getattr(step, field) is not None and getattr(step, field) is not False:
            raise InvalidScenario(f"read.{field}", getattr(step, field), f"unset: it has no meaning for {kind} of a document")


def is_of_documents(s: Services, name: TopicName) -> bool:
    return policy_of(s, name).fold is not None


def stored(s: Services, name: TopicName) -> Stored:
    """What is there of every document."""
    states = s.documents.states(name, s.documents.tables(name))
    return {state.document: [each.server_seq for each in s.documents.changes(name, state.document)] for state in states}


def removed(before: Stored, after: Stored, record: PlanRecord | None) -> dict[str, str]:
    """server_seq -> reason; of several documents `document:server_seq`."""
    actions = {} if record is None else {action.document: action for action in record.plan.documents}
    otherwise = "not planned" if record is None or record.plan.erasure is None else "erased"
    found = {}
    for document, seqs in before.items():
        for seq in sorted(set(seqs) - set(after.get(document, ()))):
            action = actions.get(document)
            named = action is not None and action.purge_from <= seq < action.purge_before
            found[shown(document, seq, before)] = str(action.reason) if action is not None and named else otherwise
    return found


def shown(document: str, seq: int, among: Stored) -> str:
    return f"{document}:{seq}" if len(among) > 1 else str(seq)


def look(s: Services, name: TopicName, what: str, expected: object) -> Any:
    """What is stored now. Of several documents by document, changes also as `document:server_seq` where that is what is expected."""
    there = stored(s, name)
    if what == "snapshot":
        snapshots = {document: _newest(s, name, document) for document in there}
        return next(iter(snapshots.values()), None) if len(snapshots) <= 1 else snapshots
    if isinstance(expected, dict):
        return there
    if len(there) <= 1:
        return next(iter(there.values()), [])
    return [f"{document}:{seq}" for document, seqs in there.items() for seq in seqs]


def _newest(s: Services, name: TopicName, document: str) -> dict[str, Any] | None:
    snapshots = s.documents.snapshots(name, document)
    policy = policy_of(s, name)
    if not snapshots or policy.fold is None:
        return None
    folding = fold_of(policy.fold, yjs_roots=policy.yjs_roots).start(snapshots[-1].state)
    return {"server_seq": snapshots[-1].server_seq, "state": folding.shown()}


def configure(s: Services, name: TopicName, given: dict[str, Any]) -> dict[str, Any]:
    """Take out of `given` what is about users, documents and owners (SNP-9); the rest is the topic's."""
    from message_lifecycle.app.document_settings import alter_own_settings

    of_topic = dict(given)
    own = {level: of_topic.pop(level) for level in ("users", "documents", "owners") if level in of_topic}
    if own:
        alter_own_settings(s, name, OwnChanges(**own))
    return of_topic
