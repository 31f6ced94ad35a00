"""The verbs of scenario steps: `delete`, `run`, `hold` and `release` (PRG-1, DEL-8), and every verb about documents."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from message_lifecycle.app import documents
from message_lifecycle.app.documents import alter_own_settings
from message_lifecycle.app.erasures import ask, settle_latest
from message_lifecycle.app.holds import find_hold_on, place_hold, release_hold
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.scenario.file import (
    ChangeStep,
    DeleteStep,
    DetachStep,
    DocumentChange,
    ErasureRun,
    HoldStep,
    ReadStep,
    RunStep,
    SyncStep,
    UndoRun,
)
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.folds import fold_of
from message_lifecycle.model.document import Change, OwnChanges
from message_lifecycle.model.errors import InvalidScenario
from message_lifecycle.model.hold import HeldRange
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import PlanRecord
from message_lifecycle.model.request import EraseKey, PurgeKey, RemoveMessages, RemoveNullKeys, Request, TruncateLog, UndoPlan

Stored = dict[str, list[int]]
"""server_seqs by document."""
_WORD = {"by": "scenario", "why": "as its file says"}


def request_of(step: DeleteStep) -> Request:
    """Return the request of a `delete` step. Raises InvalidScenario if the step names nothing to remove."""
    if step.offsets is not None:
        return RemoveMessages(positions=tuple(position_of(entry) for entry in step.offsets))
    if step.key is not None:
        return PurgeKey(key=step.key, keep=step.keep, before=step.before)
    if step.null_keys is not None:
        return RemoveNullKeys(partition=step.partition, first=step.null_keys[0], last=step.null_keys[1])
    if step.before is not None:
        return TruncateLog(partition=step.partition, before=step.before)
    raise InvalidScenario("delete", step.model_dump(exclude_none=True), "offsets, a key, null_keys [from, to], or before")


def position_of(entry: int | str) -> tuple[int, int]:
    """`partition:offset`, or an offset of partition 0."""
    partition, colon, offset = str(entry).partition(":")
    return (int(partition), int(offset)) if colon else (0, int(entry))


def work_of(s: Services, name: TopicName, step: RunStep, plans: Mapping[int, str]) -> Work:
    """Return the work of a `run` step: an operation, an erasure of the keys in the file, or an undo of an earlier step's plan.

    Args:
        s: The stores, the ledger and the settings.
        name: The topic.
        step: The step of the scenario.
        plans: The plan that each step made, by the step's index.

    Raises:
        InvalidScenario: The step to undo made no plan.
    """
    if isinstance(step, ErasureRun):
        request = ask(s, step.every_key, topics=[name], forbid=step.forbid, by="scenario", why="scenario")
        return EraseKey(request_id=request.request_id)
    if not isinstance(step, UndoRun):
        return step.operation
    if step.step not in plans:
        made = ", ".join(str(index) for index in sorted(plans)) or "none yet"
        raise InvalidScenario("run.step", step.step, f"the index of a step before that made a plan: {made}")
    return UndoPlan(plan_id=plans[step.step])


def settle_erasure(s: Services, work: Work) -> None:
    """Settle an erasure after its run, because a refused request must forbid no key."""
    if isinstance(work, EraseKey):
        settle_latest(s, s.ledger.erasure(work.request_id))


def hold(s: Services, name: TopicName, step: HoldStep) -> dict[str, object]:
    return {"hold": place_hold(s, name, **_WORD, key=step.key, offsets=_offsets(step)).hold_id}


def release(s: Services, name: TopicName, step: HoldStep) -> dict[str, object]:
    """The hold that was placed in the same words."""
    found = find_hold_on(s, name, key=step.key, offsets=_offsets(step))
    if found is None:
        raise InvalidScenario("release", step.model_dump(exclude_none=True, by_alias=True), "what an earlier `hold` of the topic names")
    return {"hold": release_hold(s, found.hold_id, **_WORD).hold_id}


def _offsets(step: HoldStep) -> HeldRange | None:
    if step.start is None:
        if step.end is not None:
            raise InvalidScenario("hold.to", step.end, "nothing without `from`")
        return None
    return HeldRange(partition=step.partition, first=step.start, last=step.end)


def change(s: Services, name: TopicName, step: ChangeStep) -> dict[str, object]:
    """Check the epochs of all changes, then store all changes of the step in one call."""
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


def sync(s: Services, name: TopicName, step: SyncStep) -> dict[str, object]:
    at = None if step.at is None else Instant(step.at)
    done = documents.sync(s, name, step.document, client=step.client, server_seq=step.server_seq, at=at, epoch=step.epoch)
    return {"server_seq": done.server_seq, "epoch": done.epoch}


def detach(s: Services, name: TopicName, step: DetachStep) -> dict[str, object]:
    return {"detached": documents.detach(s, name, step.document, client=step.client, epoch=step.epoch)}


def read_document(s: Services, name: TopicName, step: ReadStep) -> dict[str, object]:
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
    """Refuse fields without effect on this kind of read, because the author of the scenario expects an effect."""
    kind, idle = ("history", {"client_seq", "at"}) if step.history else ("a pull", {"limit"})
    if step.client is None:
        idle = idle | {"at"}
    for field in sorted(step.model_fields_set & (idle | {"since", "raw", "compacted"})):
        if getattr(step, field) is not None and getattr(step, field) is not False:
            raise InvalidScenario(f"read.{field}", getattr(step, field), f"unset: it has no meaning for {kind} of a document")


def is_of_documents(s: Services, name: TopicName) -> bool:
    return policy_of(s, name).has_documents


def stored_changes(s: Services, name: TopicName) -> Stored:
    """Return the stored changes' numbers by document. Empty for a topic of messages."""
    if not is_of_documents(s, name):
        return {}
    states = s.documents.states(name, s.documents.tables(name))
    return {state.document: [each.server_seq for each in s.documents.changes(name, state.document)] for state in states}


def removed_changes(before: Stored, after: Stored, record: PlanRecord | None) -> dict[str, str]:
    """server_seq -> reason; of several documents `document:server_seq`."""
    actions = {} if record is None else {action.document: action for action in record.plan.snapshots_commit.documents}
    otherwise = "not planned" if record is None or record.plan.erasure is None else "erased"
    found = {}
    for document, seqs in before.items():
        for seq in sorted(set(seqs) - set(after.get(document, ()))):
            action = actions.get(document)
            named = action is not None and action.purge_from <= seq < action.purge_before
            found[f"{document}:{seq}" if len(before) > 1 else str(seq)] = str(action.reason) if action is not None and named else otherwise
    return found


def look_at_documents(s: Services, name: TopicName, what: str, expected: object) -> object:
    """Return the stored snapshots or changes, in the form of the expectation.

    With several documents, the result is a mapping by document. Changes may also be a list of `document:server_seq`.
    """
    there = stored_changes(s, name)
    if what == "snapshot":
        snapshots = {document: _newest(s, name, document) for document in there}
        return next(iter(snapshots.values()), None) if len(snapshots) <= 1 else snapshots
    if isinstance(expected, dict):
        return there
    if len(there) <= 1:
        return next(iter(there.values()), [])
    return [f"{document}:{seq}" for document, seqs in there.items() for seq in seqs]


def _newest(s: Services, name: TopicName, document: str) -> dict[str, object] | None:
    snapshots = s.documents.snapshots(name, document)
    policy = policy_of(s, name)
    if not snapshots or policy.fold is None:
        return None
    folding = fold_of(policy.fold, yjs_roots=policy.yjs_roots).start(snapshots[-1].state)
    return {"server_seq": snapshots[-1].server_seq, "state": folding.shown()}


def configure(s: Services, name: TopicName, given: dict[str, Any]) -> dict[str, object]:
    """Apply the settings of users, documents and owners in `given` (SNP-9), and return the topic's settings."""
    of_topic = dict(given)
    own = {level: of_topic.pop(level) for level in ("users", "documents", "owners") if level in of_topic}
    if own:
        alter_own_settings(s, name, OwnChanges(**own))
    return of_topic
