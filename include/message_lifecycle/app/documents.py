"""The client's side of documents: clients send changes, pull, attach, synchronise and detach, and read the history.

A client never gets a sequence with a hole: each answer is checked whole before it is returned, and read again if a purge interfered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from message_lifecycle.app.document_facts import policy_of_document, policy_of_document_topic
from message_lifecycle.app.erasure_secret import forbidden_keys
from message_lifecycle.app.reading import check_limit
from message_lifecycle.app.services import Services
from message_lifecycle.folds import Fold, Replay, fold_of
from message_lifecycle.model.document import Change, DocumentState, OwnChanges, OwnSettings, Snapshot, Synced
from message_lifecycle.model.errors import InvalidChange, InvalidSetting, TableBusy, unknown_document
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName, normalise_name, spellings
from message_lifecycle.model.setting_list import OWN_SETTINGS, Value
from message_lifecycle.model.settings import Policy, topic_changes
from message_lifecycle.model.topic import check_documents
from message_lifecycle.operations import document_reading
from message_lifecycle.operations.document_reading import Answer, check_epoch

_TRIES = 5
_WAIT_SECONDS = 60.0
"""For others who add changes to the topic, or the end of an erasure."""
Asked = Callable[[DocumentState], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullResult:
    """The answer to a client: the snapshot with its state, then `changes` up to `seq`, without a hole. A client may need no snapshot."""

    document: str
    seq: int
    epoch: int
    snapshot: Snapshot | None
    state: object
    """The state in `snapshot`, as a JSON value; None without a snapshot."""
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The client's position in the ledger now. `epoch` is the document's; the client sends it from now on."""

    document: str
    client: str
    server_seq: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentDescription:
    """A document with its owner, its clients' positions, and its effective settings."""

    state: DocumentState
    owner: str | None
    clients: tuple[Synced, ...]
    policy: Policy


def add_changes(s: Services, name: TopicName, changes: Sequence[Change], *, epoch: int | None = None) -> dict[str, int]:
    """Store all changes or none.

    Changes of an erased document with a forbidden name (`erase --forbid`) are left out, and so is the document from the result.

    Args:
        s: The stores, the ledger and the settings.
        name: The topic.
        changes: The changes to store. A change must be its document's next one.
        epoch: The epoch that the clients know.

    Returns:
        The newest server_seq by document.

    Raises:
        InvalidServerSeq, EpochMismatch, InvalidName, NotADocumentTopic, TopicBusy: Nothing was stored (SNP-7).
    """
    s.ledger.check(name, s.topics.describe(name).ledger)
    named = _normalise_names(changes)
    with s.ledger.lock(name, wait_seconds=_WAIT_SECONDS, purpose="ingest"):
        # Read the forbidden keys under the lock: an erasure that forbids a key waits for this lock (see `erasures`).
        forbidden = forbidden_keys(s.ledger, s.key_secret, name)
        # An erased document has left no spelling, so try every spelling of the name.
        taken = [
            change
            for change in named
            if forbidden is None or not any(forbidden(spelled.encode()) for spelled in spellings(change.document))
        ]
        if epoch is not None:
            _check_epochs(s, name, [(change, epoch) for change in taken])
        s.documents.add(name, taken, ledger=s.ledger.next_identity(name))
    return {change.document: change.server_seq for change in taken}


def check_epochs(s: Services, name: TopicName, brought: Sequence[tuple[Change, int]]) -> None:
    """Check that clients may send these changes, each with the epoch that the client knows (SNP-7). Reads tables and ledger once.

    Only the first change of each document, client and epoch is checked, because the others follow it.

    Raises:
        EpochMismatch, InvalidName: A change is refused.
    """
    changes, epochs = zip(*brought, strict=True) if brought else ((), ())
    _check_epochs(s, name, list(zip(_normalise_names(changes), epochs, strict=True)))


def _normalise_names(changes: Sequence[Change]) -> list[Change]:
    """Return the changes with the stored names of their documents and clients (NAME-1). Raises InvalidName."""
    return [replace(change, document=normalise_name(change.document), client=normalise_name(change.client)) for change in changes]


def _check_epochs(s: Services, name: TopicName, brought: Sequence[tuple[Change, int]]) -> None:
    firsts: dict[tuple[str, str, int], Change] = {}
    for change, epoch in brought:
        firsts.setdefault((change.document, change.client, epoch), change)
    if not firsts:
        return
    only = {document for document, _, _ in firsts}
    states = {state.document: state for state in s.documents.states(name, s.documents.tables(name), only=only)}
    rows = {(row.document, row.client) for row in s.ledger.synced(name, next(iter(only)) if len(only) == 1 else None)}
    for (document, client, epoch), change in firsts.items():
        state = states.get(document) or _empty_document(document)
        check_epoch(state, client, change.server_seq - 1, epoch, has_row=(document, client) in rows)


def pull(
    s: Services,
    name: TopicName,
    document: str,
    *,
    client_seq: int,
    client: str | None = None,
    epoch: int | None = None,
    at: Instant | None = None,
) -> PullResult:
    """Return the snapshot and changes that a client at `client_seq` is missing (SNP-2).

    A client that asks is not silent (SNP-3). Its proven position in the document does not change.

    Args:
        s: The stores, the ledger and the settings.
        name: The topic.
        document: The document's name.
        client_seq: The newest server_seq that the client has.
        client: The client's name. None: the request counts as no sign of life.
        epoch: The epoch that the client knows. None: the current epoch.
        at: The time of the request, if `client` is named.

    Raises:
        UnknownDocument, InvalidServerSeq, EpochMismatch: The request does not count as a sign of life.
    """
    wanted = normalise_name(document)
    who = None if client is None else normalise_name(client)
    policy = _policy(s, name, wanted)

    def answer(state: DocumentState) -> Answer:
        if epoch is not None:
            has_row = any(row.client == who for row in s.ledger.synced(name, wanted))
            check_epoch(state, who, client_seq, epoch, has_row=has_row)
        return document_reading.pull(state, who, client_seq, policy)

    pulled = _answer_pull(s, name, wanted, answer, policy)
    if who is not None and at is not None:
        s.ledger.record_client_seen(name, wanted, who, at)
    return pulled


def attach(s: Services, name: TopicName, document: str, *, client: str) -> PullResult:
    """Start again as a client, from the newest snapshot.

    The ledger forgets the client's old position, so it keeps no changes any more (SNP-3, SNP-5). After an error the old position stays.
    """
    wanted = normalise_name(document)
    who = normalise_name(client)
    policy = _policy(s, name, wanted)
    if _find(s, name, wanted) is None:
        pulled = PullResult(document=wanted, seq=0, epoch=0, snapshot=None, state=None, changes=())
    else:
        pulled = _answer_pull(s, name, wanted, document_reading.attach, policy)
    s.ledger.detach(name, wanted, who)
    return pulled


def sync(
    s: Services,
    name: TopicName,
    document: str,
    *,
    client: str,
    server_seq: int,
    at: Instant | None,
    epoch: int | None = None,
) -> SyncResult:
    """Record that the client has everything up to `server_seq`. Its request from there proves that (SNP-3).

    Args:
        s: The stores, the ledger and the settings.
        name: The topic.
        document: The document's name.
        client: The name of the client that has synchronised.
        server_seq: The newest server_seq that the client has.
        at: The time of the request. None: unknown.
        epoch: The epoch that the client knows. None: the current epoch.

    Raises:
        UnknownDocument, InvalidServerSeq, EpochMismatch: Nothing was recorded.
    """
    wanted = normalise_name(document)
    who = normalise_name(client)
    policy = _policy(s, name, wanted)

    def may_sync(*, has_row: bool) -> DocumentState:
        state = _state(s, name, wanted)
        check_epoch(state, who, server_seq, state.epoch if epoch is None else epoch, has_row=has_row)
        document_reading.check_client_seq(state, who, server_seq, policy)
        return state

    for _ in range(_TRIES):
        before = next((row for row in s.ledger.synced(name, wanted) if row.client == who), None)
        # A client that may not synchronise must pin nothing: a parallel request, or the next one after a crash, would take the pin for the
        # client's row.
        may_sync(has_row=before is not None)
        latest = at if before is None or before.at is None or at is None else Instant(max(before.at, at))
        # A client at 0 has no row (SNP-5).
        after = Synced(document=wanted, client=who, server_seq=server_seq, at=latest) if server_seq else None
        # Pin first, and check only then. A purge that does not see the pin has raised the epoch before, and the check sees the new epoch.
        pinned = (
            before if after is None else replace(after, server_seq=min(server_seq, server_seq if before is None else before.server_seq))
        )
        # Replace only the row that this request has seen, because a parallel request of the same client counts as much.
        if not s.ledger.replace_synced(name, wanted, who, seen=before, to=pinned):
            continue
        try:
            state = may_sync(has_row=before is not None)
        except Exception:  # after any error, restore the row and raise the error again
            s.ledger.replace_synced(name, wanted, who, seen=pinned, to=before)
            raise
        if s.ledger.replace_synced(name, wanted, who, seen=pinned, to=after):
            return SyncResult(document=wanted, client=who, server_seq=server_seq, epoch=state.epoch)
    raise TableBusy(f"client {who} of document {wanted} of {name}", _TRIES)


def detach(s: Services, name: TopicName, document: str, *, client: str, epoch: int | None = None) -> bool:
    """Forget the client's position, so that it keeps no changes any more (SNP-3).

    Args:
        s: The stores, the ledger and the settings.
        name: The topic.
        document: The document's name.
        client: The name of the client to forget.
        epoch: The epoch that the client knows. None: the current epoch.

    Returns:
        True if the client had a position.

    Raises:
        UnknownDocument: No document has this name.
        EpochMismatch: The document has not reached `epoch`, so the client knows another document.
    """
    wanted = normalise_name(document)
    who = normalise_name(client)
    _policy(s, name, wanted)
    state = _state(s, name, wanted)
    if epoch is not None:
        # A client with an earlier epoch may always leave: a row moves with the document, and a client without a row keeps nothing.
        check_epoch(state, who, 0, epoch, has_row=True)
    return s.ledger.detach(name, wanted, who)


def history(s: Services, name: TopicName, document: str, *, start: int = 0, limit: int | None = None) -> Iterator[tuple[int, object]]:
    """Return (server_seq, state after it) from change `start` on, ascending, as far back as the changes can be replayed (SNP-8).

    Only one state is in memory at a time, so an error in a later change is raised only when the iterator reaches it.

    Args:
        s: The stores, the ledger and the settings.
        name: The topic.
        document: The document's name.
        start: The server_seq of the first change.
        limit: Return at most so many states, and read no change after them.

    Raises:
        InvalidSetting: The limit is below 1.
        UnknownDocument, InvalidChange, TableBusy: The history cannot be read.
    """
    check_limit(name, limit)
    wanted = normalise_name(document)
    fold = _fold(_policy(s, name, wanted))
    for _ in range(_TRIES):
        found = document_reading.history(_state(s, name, wanted), start)
        last = found.last if limit is None else min(found.last, found.first + limit - 1)
        if found.first > last:
            return iter(())
        base = _snapshot(s, name, wanted, found.base) if found.base else None
        changes = islice(s.documents.changes(name, wanted, after=found.base), last - found.base)
        # The store fixes the tables' state when it reads the first change, so a later purge makes no hole in this iteration.
        first = list(islice(changes, 1))
        if [change.server_seq for change in first] != list(range(found.base + 1, min(last, found.base + 1) + 1)):
            continue
        if base is None and found.base:
            continue
        replay = Replay(fold, wanted, after=found.base, stored=None if base is None else base.state)
        return _replay_range(replay, chain(first, changes), wanted, first=found.first, last=last)
    raise TableBusy(f"document {wanted} of {name}", _TRIES)


def _replay_range(replay: Replay, changes: Iterable[Change], document: str, *, first: int, last: int) -> Iterator[tuple[int, object]]:
    if replay.seq == first:
        yield replay.seq, replay.folding.shown()
    for change in changes:
        replay.apply_change(change.server_seq, change.payload)
        if replay.seq >= first:
            yield replay.seq, replay.folding.shown()
    if replay.seq != last:
        raise InvalidChange(document, replay.seq + 1, "it is not stored")


def describe(s: Services, name: TopicName, document: str | None = None) -> list[DocumentDescription]:
    """One document, or all by name. Raises UnknownDocument, NotADocumentTopic."""
    policy, own = policy_of_document_topic(s, name), s.ledger.settings_below_topic(name)
    wanted = None if document is None else normalise_name(document)
    states = s.documents.states(name, s.documents.tables(name), only=None if wanted is None else (wanted,))
    if wanted is not None and not states:
        raise unknown_document(str(name), wanted)
    clients: dict[str, list[Synced]] = {}
    for row in s.ledger.synced(name, wanted):
        clients.setdefault(row.document, []).append(row)
    return [
        DocumentDescription(
            state=state,
            owner=own.owners.get(state.document),
            clients=tuple(clients.get(state.document, ())),
            policy=policy_of_document(own, policy, state.document),
        )
        for state in states
    ]


def _answer_pull(s: Services, name: TopicName, document: str, answer_to: Asked, policy: Policy) -> PullResult:
    for _ in range(_TRIES):
        state = _state(s, name, document)
        answer = answer_to(state)
        snapshot = None if answer.snapshot is None else _snapshot(s, name, document, answer.snapshot)
        changes = _changes(s, name, document, after=answer.after, through=state.seq)
        if changes is None or (snapshot is None and answer.snapshot is not None):
            continue
        shown = None if snapshot is None else Replay(_fold(policy), document, after=0, stored=snapshot.state).folding.shown()
        return PullResult(document=document, seq=state.seq, epoch=state.epoch, snapshot=snapshot, state=shown, changes=changes)
    raise TableBusy(f"document {document} of {name}", _TRIES)


def _changes(s: Services, name: TopicName, document: str, *, after: int, through: int) -> tuple[Change, ...] | None:
    """Return the changes, or None if some of them are gone."""
    found = tuple(islice(s.documents.changes(name, document, after=after), through - after))
    return found if [change.server_seq for change in found] == list(range(after + 1, through + 1)) else None


def _snapshot(s: Services, name: TopicName, document: str, server_seq: int) -> Snapshot | None:
    return next(iter(s.documents.snapshots(name, document, server_seq=server_seq)), None)


def _find(s: Services, name: TopicName, document: str) -> DocumentState | None:
    return next(iter(s.documents.states(name, s.documents.tables(name), only=(document,))), None)


def _empty_document(document: str) -> DocumentState:
    """A document before its first change."""
    return DocumentState(document=document, seq=0, first=None, snapshots=(), epoch=0, younger=None)


def _state(s: Services, name: TopicName, document: str) -> DocumentState:
    found = _find(s, name, document)
    if found is None:
        raise unknown_document(str(name), document)
    return found


def _policy(s: Services, name: TopicName, document: str) -> Policy:
    return policy_of_document(s.ledger.settings_below_topic(name), policy_of_document_topic(s, name), document)


def _fold(policy: Policy) -> Fold:
    assert policy.fold is not None, "a document topic has a fold"
    return fold_of(policy.fold, yjs_roots=policy.yjs_roots)


# Settings of users and of single documents, below the topic's, and the documents' owners (SNP-9). A change is stored only after a check
# against every level.


def alter_user(s: Services, name: TopicName, user: str, changes: Mapping[str, Value | None]) -> str:
    """Change settings of all documents that the user owns, all or none of them. The value None unsets a setting.

    Returns:
        The user's name as it is stored.

    Raises:
        InvalidSetting, InvalidName, NotADocumentTopic: Nothing was changed.
    """
    (kept,) = alter_own_settings(s, name, OwnChanges(users={user: changes})).users
    return kept


def alter_document(
    s: Services, name: TopicName, document: str, changes: Mapping[str, Value | None], *, owner: str | None = None, disown: bool = False
) -> str:
    """Settings of one document, and whose it is. As `alter_user`; the document need not have a change yet."""
    owners = {document: owner} if owner is not None or disown else {}
    (kept,) = alter_own_settings(s, name, OwnChanges(documents={document: changes}, owners=owners)).documents
    return kept


def alter_own_settings(s: Services, name: TopicName, given: OwnChanges) -> OwnChanges:
    """Change settings of several users and documents at once, all or none of them. Raises the errors of `alter_user`.

    Returns:
        The changes, under the names as they are stored.
    """
    policy = policy_of_document_topic(s, name)
    changes = _normalise_own_changes(given)
    s.ledger.alter_own_settings(
        name,
        OwnChanges(
            users={user: _check_changes(settings, f"user {user} of {name}") for user, settings in changes.users.items()},
            documents={
                document: _check_changes(settings, f"document {document} of {name}") for document, settings in changes.documents.items()
            },
            owners=changes.owners,
        ),
        check=lambda after: check_levels(policy, after, where=str(name)),
    )
    return changes


def _normalise_own_changes(given: OwnChanges) -> OwnChanges:
    """Return the changes with the stored names of users and documents (NAME-1). Raises InvalidName."""
    return OwnChanges(
        users=_merge_spellings((normalise_name(user), settings) for user, settings in given.users.items()),
        documents=_merge_spellings((normalise_name(document), settings) for document, settings in given.documents.items()),
        owners={normalise_name(document): None if owner is None else normalise_name(owner) for document, owner in given.owners.items()},
    )


def _merge_spellings(settings: Iterable[tuple[str, Mapping[str, Value | None]]]) -> dict[str, dict[str, Value | None]]:
    """One name may have been given in two spellings."""
    found: dict[str, dict[str, Value | None]] = {}
    for name, changes in settings:
        found.setdefault(name, {}).update(changes)
    return found


def check_levels(policy: Policy, own: OwnSettings, *, where: str) -> None:
    """Check at every level that the settings fit together, whichever level was changed (SNP-5). Raises InvalidSetting."""
    for place, narrowed in _levels(policy, own):
        check_documents(narrowed, where=f"{place} of {where}")


def _levels(policy: Policy, own: OwnSettings) -> Iterator[tuple[str, Policy]]:
    for user, settings in own.users.items():
        yield f"user {user}", policy.with_narrower(settings)
    for document, settings in own.documents.items():
        yield f"document {document}", policy.with_narrower(own.users.get(own.owners.get(document, ""), {}), settings)


def _check_changes(changes: Mapping[str, Value | None], where: str) -> dict[str, Value | None]:
    """Check every change, before the ledger stores any of them."""
    for setting, value in changes.items():
        if setting not in OWN_SETTINGS:
            raise InvalidSetting(where=where, key=setting, value=value, allowed=f"one of {', '.join(OWN_SETTINGS)} (SNP-9)")
    return topic_changes(changes, where=where)
