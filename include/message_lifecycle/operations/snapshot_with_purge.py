"""Snapshots of documents, and the purge of changes that every client has and a snapshot covers (SNP-1, SNP-4, SNP-7 to SNP-9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from message_lifecycle.model.change import (
    CommitSnapshots,
    RestoreDocument,
    ReturnChanges,
    ReturnSnapshots,
    SnapshotDocument,
    non_empty_commits,
)
from message_lifecycle.model.document import DocumentState, DocumentTables, Synced
from message_lifecycle.model.errors import later_plan, undo_source_gone
from message_lifecycle.model.instants import Instant, deadline, is_dead
from message_lifecycle.model.phrases import amount, short
from message_lifecycle.model.plan import Held, Operation, Plan, SnapshotRequirements
from message_lifecycle.model.reasons import PurgeReason
from message_lifecycle.model.setting_list import OWN_SETTINGS, Value
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.undo import DocumentsBefore
from message_lifecycle.operations.planning import empty_plan, required_of_documents, tightened_text

_REASONS: tuple[PurgeReason, ...] = ("purged_synced", "purged_age", "purged_count")
_REASON_OF: Mapping[str, PurgeReason] = {
    # A change without a covering snapshot waits for one. It leaves then, because every client has it.
    "synced": "purged_synced",
    "snapshot": "purged_synced",
    "changes_max_age": "purged_age",
    "changes_keep_last": "purged_count",
}
# A longer list of warnings ends with the number of the others.
_TOLD = 20
EVERY_DOCUMENT = ""
"""No document can have this name (NAME-1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredDocumentRows:
    """Changes and snapshots of a document that undos restored and nobody has released: changes from `first` on (None: none) (DEL-7)."""

    first: int | None
    snapshots: frozenset[int]
    detail: str


def join_restored_rows(action: RestoreDocument, detail: str, before: RestoredDocumentRows | None) -> RestoredDocumentRows:
    """Return the restored rows of the document, those of `before` included."""
    firsts = [action.changes_from] if action.changes else []
    if before is not None and before.first is not None:
        firsts.append(before.first)
    return RestoredDocumentRows(
        first=min(firsts, default=None),
        snapshots=frozenset(action.snapshots) | (before.snapshots if before is not None else frozenset()),
        detail=detail if before is None or before.detail == detail else f"{before.detail.removesuffix(f'; {detail}')}; {detail}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFacts:
    """The facts of a plan.

    Args:
        states: Every document at the snapshots of `tables`, by name.
        policies: Settings of documents that have their own, or their owner's. All others have the topic's.
        accepted: The topic's settings at the last accepted removal. None: unknown.
        accepted_own: `policies` at the last accepted removal.
        settings_hash: A hash of all settings below the topic's.
    """

    tables: DocumentTables
    states: Sequence[DocumentState]
    synced: Mapping[str, Sequence[Synced]]
    policies: Mapping[str, Policy] = field(default_factory=dict)
    accepted: Mapping[str, Value | None] | None = None
    accepted_own: Mapping[str, Mapping[str, Value | None]] = field(default_factory=dict)
    settings_hash: str = ""
    heeded: tuple[str, ...] = ()
    held: Mapping[str, str] = field(default_factory=dict)
    """Documents under a legal hold, each with its holder and reason. `EVERY_DOCUMENT`: all documents of the topic (DEL-8)."""
    undone: Mapping[str, RestoredDocumentRows] = field(default_factory=dict)

    def held_by(self, document: str) -> str | None:
        return self.held.get(document) or self.held.get(EVERY_DOCUMENT)


def plan(facts: DocumentFacts, policy: Policy, *, as_of: Instant) -> Plan:
    """Plan snapshots and purges. Pure: equal facts, policy and `as_of` give an equal plan."""
    actions: list[SnapshotDocument] = []
    warnings: list[str] = []
    next_due: list[Instant] = []
    removed = Counter[str]()
    held: list[Held] = []
    for state in facts.states:
        own, rows = facts.policies.get(state.document, policy), facts.synced.get(state.document, ())
        live = live_clients(rows, own, as_of=as_of)
        if len(live) < len(rows):
            warnings.append(_deactivated(state.document, rows, live))
        if own.purges_changes:
            next_due += [silent_at for row in live if (silent_at := silent_since(row, own)) is not None]
        kept = facts.undone.get(state.document)
        action = _action(state, own, live, kept)
        if kept is not None and (stays := _undone(_action(state, own, live), action, kept)) is not None:
            held.append(stays)
        if action is None:
            continue
        if not _has_base(state, action):
            warnings.append(f"document {state.document}: changes before {state.first} are missing, and no stored snapshot stands for them")
            continue
        if (holder := facts.held_by(state.document)) is not None:
            # The document stays as it is, because a new snapshot would replace an older one.
            held.append(_held(action, holder))
            continue
        actions.append(action)
        if action.reason is not None:
            removed[action.reason] += action.purged
    made = _empty_plan("snapshot_with_purge", facts.tables, facts.states, policy, facts.heeded, as_of=as_of)
    return replace(
        made,
        changes=non_empty_commits(CommitSnapshots(documents=tuple(actions))),
        expected=replace(made.expected, removed=tuple((reason, removed[reason]) for reason in _REASONS if removed[reason])),
        held=tuple(held),
        warnings=tuple(_shorten_warnings(warnings)),
        asks=tuple(_tightened(facts, policy, [action for action in actions if action.purged or action.dropped])),
        next_due_at=min(next_due, default=None),
        snapshots=SnapshotRequirements(
            table_uuid=facts.tables.snapshots_uuid, snapshot_id=facts.tables.snapshots_id, settings_hash=facts.settings_hash
        ),
    )


def _empty_plan(
    operation: Operation,
    tables: DocumentTables,
    states: Iterable[DocumentState],
    policy: Policy,
    heeded: tuple[str, ...],
    *,
    as_of: Instant,
) -> Plan:
    """Return an empty plan of changes of documents. Their bytes are not counted."""
    rows = sum(state.seq - state.first + 1 for state in states if state.first is not None)
    made = empty_plan(operation, tables.topic, policy, required_of_documents(tables, policy, heeded), as_of=as_of)
    return replace(made, expected=replace(made.expected, rows_in=rows, removed_bytes=None, bytes_in=None))


def _held(action: SnapshotDocument, holder: str) -> Held:
    """Return the changes that the hold keeps. None are counted if only snapshots would leave."""
    return Held(
        partition=0,
        first_base=action.purge_from,
        last_offset=max(action.purge_from, action.purge_before - 1),
        rows=action.purged,
        overdue_since=None,
        holder="hold",
        detail=f"document {action.document}: {holder}",
    )


def _undone(free: SnapshotDocument | None, action: SnapshotDocument | None, kept: RestoredDocumentRows) -> Held | None:
    """Return the rows that only an undo keeps. None: no such rows.

    Args:
        free: The action without the undo.
        action: The action with the undo.
        kept: The rows that the undo restored.
    """
    first = max(0 if action is None else action.purge_before, 0 if free is None else free.purge_from)
    if free is None or (first >= free.purge_before and set(free.dropped) <= set(() if action is None else action.dropped)):
        return None
    return Held(
        partition=0,
        first_base=first,
        last_offset=max(first, free.purge_before - 1),
        rows=max(0, free.purge_before - first),
        overdue_since=None,
        holder="undone_plan",
        detail=f"document {free.document}: {kept.detail}",
    )


def live_clients(rows: Iterable[Synced], policy: Policy, *, as_of: Instant) -> list[Synced]:
    """Return the clients that pin changes: those not silent for longer than `client_deactivate_after` (SNP-3).

    A client with an unknown time never falls silent.
    """
    return [row for row in rows if (silent_at := silent_since(row, policy)) is None or not is_dead(silent_at, as_of)]


def silent_since(row: Synced, policy: Policy) -> Instant | None:
    """Return the first instant when the client has been silent for too long. None: never."""
    return None if row.at is None else deadline(row.at, policy.client_deactivate_after_us + 1)


def needs_more(documents: Sequence[str]) -> str:
    """Return the reason why a plan that purges these documents no longer fits (SNP-9)."""
    others = f" and {len(documents) - 1} more documents" if len(documents) > 1 else ""
    return f"clients of {documents[0]}{others} need more than when it was planned, or have left"


def lowest_synced(rows: Iterable[Synced], policy: Policy, *, as_of: Instant) -> int | None:
    """Return the lowest server_seq that clients still need. None: no client pins, and then no change is purged (SNP-4)."""
    return min((row.server_seq for row in live_clients(rows, policy, as_of=as_of)), default=None)


def _action(
    state: DocumentState, policy: Policy, live: Sequence[Synced], kept: RestoredDocumentRows | None = None
) -> SnapshotDocument | None:
    """Return the action on one document. None: no action.

    Args:
        state: The document's state.
        policy: The topic's policy.
        live: The clients that are not silent.
        kept: Rows that stay because an undo restored them.
    """
    snapshot = state.seq if state.seq - state.last_snapshot >= policy.snapshot_interval else None
    newest = state.last_snapshot if snapshot is None else snapshot
    rules = tuple(_bounds(state, policy, newest, live)) if newest and live and policy.purges_changes else ()
    # Changes below it leave by the rule with the lowest bound.
    bounds = (*rules, ("undone_plan", kept.first)) if rules and kept is not None and kept.first is not None else rules
    name, _ = min(rules, key=_stops_at, default=("", 0))
    _, before = min(bounds, key=_stops_at, default=("", 0))
    purges = state.first is not None and before > state.first
    # Snapshots leave before changes, and the changes may then stay: the history must be complete in both cases.
    firsts = (state.first, before if purges else state.first)
    stored = (*state.snapshots, *(() if snapshot is None else (snapshot,)))
    dropped = _dropped(stored, firsts, policy.snapshots_keep, frozenset() if kept is None else kept.snapshots)
    # A snapshot that one run keeps for a history, which another run then shortens, leaves with the next snapshot.
    few = len(state.snapshots) <= policy.snapshots_keep + len(firsts)
    if snapshot is None and not purges and (few or not dropped):
        return None
    return SnapshotDocument(
        document=state.document,
        seq=state.seq,
        after=_proof_base(state, newest),
        snapshot=snapshot,
        epoch=state.epoch + 1 if purges else state.epoch,
        dropped=dropped,
        purge_from=state.first if purges and state.first is not None else 0,
        purge_before=before if purges else 0,
        reason=_REASON_OF[name] if purges else None,
        bounds=bounds,
    )


def _stops_at(bound: tuple[str, int]) -> int:
    return bound[1]


def _bounds(state: DocumentState, policy: Policy, newest: int, live: Sequence[Synced]) -> Iterator[tuple[str, int]]:
    """Return bounds as (name, lowest server_seq that stays).

    The lowest bound limits the purge; of equal bounds, the first (SNP-4, SNP-9, CNT-1).
    """
    yield "synced", min(row.server_seq for row in live)
    yield "snapshot", newest + 1
    if policy.changes_max_age is not None:
        # `younger` None: the age lets all of them go.
        yield "changes_max_age", state.seq + 1 if state.younger is None else state.younger
    if policy.changes_keep_last is not None:
        yield "changes_keep_last", max(1, state.seq - policy.changes_keep_last + 1)


def _dropped(snapshots: tuple[int, ...], firsts: Iterable[int | None], keep: int, undone: frozenset[int]) -> tuple[int, ...]:
    """Return the snapshots that leave.

    These stay: the newest `keep` (at least the newest one, which is proved); the smallest one from which the history is complete after a
    purge, whichever of `firsts` the first stored change will be (SNP-8); and snapshots that an undo restored.
    """
    kept = {*snapshots[-keep:], *undone}
    for first in firsts:
        if first is not None and first > 1:
            kept |= set([snapshot for snapshot in snapshots if snapshot >= first - 1][:1])
    return tuple(snapshot for snapshot in snapshots if snapshot not in kept)


def _proof_base(state: DocumentState, newest: int) -> int:
    """Return the snapshot from which the proof folds.

    It is the highest stored snapshot below the newest one with every later change stored. It is 0 while the first change is stored, and the
    newest snapshot itself if no other fits.
    """
    if state.first is None:
        return newest
    whole = [snapshot for snapshot in state.snapshots if state.first - 1 <= snapshot < newest]
    return whole[-1] if whole else 0 if state.first == 1 else newest


def _has_base(state: DocumentState, action: SnapshotDocument) -> bool:
    """Return True if every change after `after` is stored and `after` is not a snapshot that this plan makes."""
    whole = state.first is not None and state.first - 1 <= action.after
    return action.after in (0, *state.snapshots) and (whole or action.after == state.seq)


def _deactivated(document: str, rows: Iterable[Synced], live: Iterable[Synced]) -> str:
    names = ", ".join(sorted({row.client for row in rows} - {row.client for row in live}))
    return f"document {document}: these clients are silent for longer than client_deactivate_after, and keep nothing: {names}"


def _shorten_warnings(warnings: Sequence[str]) -> list[str]:
    if len(warnings) <= _TOLD:
        return list(warnings)
    return [*warnings[:_TOLD], f"and {len(warnings) - _TOLD} more documents with such warnings"]


def _tightened(facts: DocumentFacts, policy: Policy, losing: Sequence[SnapshotDocument]) -> Iterator[str]:
    """Return the reasons that require approval: each tighter setting, because a removal accepts all settings of the topic (DEL-3)."""
    if not losing:
        return
    if facts.accepted is None:
        yield "no earlier run of this topic is recorded"
        return
    for _, documents in sorted(tightened_settings(policy, facts.policies, facts.accepted, facts.accepted_own).items()):
        where, reason = documents[0]
        others = f" and {len(documents) - 1} more" if len(documents) > 1 else ""
        yield f"{reason} ({where}{others})"


def tightened_settings(
    policy: Policy,
    policies: Mapping[str, Policy],
    accepted: Mapping[str, Value | None],
    accepted_own: Mapping[str, Mapping[str, Value | None]],
) -> dict[str, list[tuple[str, str]]]:
    """Return for each tightened setting the places and the change in words. A place is the topic, or a document with own settings."""
    found = {name: [("topic", tightened_text(name, accepted, policy))] for name in policy.tightened_since(accepted) if name in OWN_SETTINGS}
    for document in sorted(policies.keys() | accepted_own.keys()):
        earlier, own = {**accepted, **accepted_own.get(document, {})}, policies.get(document, policy)
        for name in own.tightened_since(earlier):
            if name in OWN_SETTINGS:
                found.setdefault(name, []).append((f"document {document}", tightened_text(name, earlier, own)))
    return found


# The undo of a purge restores the removed changes and the dropped snapshots (DEL-7, SNP-7, SNP-8).
#
# The snapshot that the plan made stays, because it is a fold of the same changes. The epoch stays, too, because it never decreases: clients
# continue with their state.


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedDocumentRows:
    """The rows that a plan removed from documents.

    Args:
        actions: The plan's actions that removed rows.
        before: The documents of these actions as they were before the plan.
        later: Purges published since and not undone, oldest first.
    """

    actions: Sequence[SnapshotDocument]
    before: DocumentsBefore
    later: Sequence[Plan]


def plan_undo(
    tables: DocumentTables,
    states: Sequence[DocumentState],
    policy: Policy,
    undone: Plan,
    taken: RemovedDocumentRows | None,
    *,
    as_of: Instant,
    heeded: tuple[str, ...] = (),
) -> Plan:
    """Plan the undo of `undone`.

    Args:
        tables: The two tables of the topic.
        states: All documents as they are now.
        policy: The topic's policy.
        undone: The plan to undo.
        taken: None: the plan was undone before, and the new plan is empty.
        as_of: The instant of the undo.
        heeded: The legal holds that the plan respects.

    Raises:
        LaterPlan: A later purge depends on the plan.
        UndoSourceGone: The removed rows are no longer in the history.
    """
    now = {state.document: state for state in states}
    back = () if taken is None else tuple(_returning(undone, taken, now))
    changes, snapshots = sum(one.changes for one in back), sum(len(one.snapshots) for one in back)
    sources = (None, None) if taken is None else (taken.before.changes_id, taken.before.snapshots_id)
    gone = 0 if taken is None else sum(action.document not in now for action in taken.actions)
    return replace(
        _empty_plan("undo", tables, states, policy, heeded, as_of=as_of),
        changes=non_empty_commits(
            ReturnChanges(documents=tuple(replace(one, snapshots=()) for one in back if one.changes), source_id=sources[0]),
            ReturnSnapshots(
                documents=tuple(replace(one, changes_from=0, changes_before=0) for one in back if one.snapshots), source_id=sources[1]
            ),
        ),
        # An erasure has replaced the names of documents, so no document is named here.
        warnings=(f"{amount(gone, 'documents')} of the plan no longer exist and cannot come back",) if gone else (),
        asks=(
            f"undoes plan {short(undone.plan_id)} ({undone.operation}): brings back {amount(changes, 'changes')} and "
            f"{amount(snapshots, 'snapshots')} of {amount(len(back), 'documents')}",
        )
        if back
        else (),
        parent=undone.plan_id,
        parent_operation=undone.operation,
        snapshots=SnapshotRequirements(table_uuid=tables.snapshots_uuid, snapshot_id=tables.snapshots_id),
    )


def _returning(undone: Plan, taken: RemovedDocumentRows, now: Mapping[str, DocumentState]) -> Iterator[RestoreDocument]:
    for action in taken.actions:
        state = now.get(action.document)
        if state is None:
            continue  # erased since
        _check_kept(undone, action, taken.before.states.get(action.document))
        away = action.purged > 0 and _are_missing(undone, action, state, taken.later)
        snapshots = tuple(seq for seq in action.dropped if seq not in state.snapshots)
        if away or snapshots:
            yield RestoreDocument(
                document=action.document,
                changes_from=action.purge_from if away else 0,
                changes_before=action.purge_before if away else 0,
                snapshots=snapshots,
            )


def _check_kept(undone: Plan, action: SnapshotDocument, then: DocumentState | None) -> None:
    """Raise UndoSourceGone if some removed changes are lost: the rest would leave a hole in the sequence."""
    changes = action.purged == 0 or (
        then is not None and then.first is not None and then.first <= action.purge_from and then.seq >= action.purge_before - 1
    )
    if not changes or not set(action.dropped) <= set(() if then is None else then.snapshots):
        raise undo_source_gone(undone.plan_id, f"not all that it took of document {action.document} is in the tables' history any more")


def _are_missing(undone: Plan, action: SnapshotDocument, state: DocumentState, later: Sequence[Plan]) -> bool:
    """Return True if exactly these changes are missing before the stored ones.

    Raises:
        LaterPlan: A later purge removed the changes behind them.
        UndoSourceGone: Restoring them would leave a hole.
    """
    if state.first is not None and state.first <= action.purge_from:
        return False  # an undo that died between its commits has brought them back
    if state.first == action.purge_before:
        return True
    for other in later:
        if any(one.document == action.document and one.purged for one in other.snapshots_commit.documents):
            raise later_plan(undone.plan_id, other.plan_id, f"purged document {action.document} further: take that one back first")
    first = "no change is" if state.first is None else f"change {state.first} is the first that is"
    raise undo_source_gone(
        undone.plan_id,
        f"of document {action.document} {first} there, where the plan left those from {action.purge_before} on: another writer took the rest",
    )
