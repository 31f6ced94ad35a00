"""Documents in memory: the reference, by the folds themselves (SNP-1 to SNP-10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from message_lifecycle.folds import Fold, fold_of
from message_lifecycle.folds.replay import fold_document
from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.model.document import Change, DocumentState, DocumentTables, Snapshot, StagedDocuments
from message_lifecycle.model.errors import PlanConflict, not_a_document_topic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.undo import DocumentsBefore
from message_lifecycle.operations.document_reading import check_next
from message_lifecycle.operations.snapshot_with_purge import needs_more
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NOTHING_GIVEN, ChangeStore, Given
from message_lifecycle.stores.memory import document_undo
from message_lifecycle.stores.memory.document_evidence import documents_evidence
from message_lifecycle.stores.memory.document_log import (
    DocumentCommit,
    DocumentLog,
    SnapshotRow,
    StagedTables,
    epoch_of,
    states_of,
)
from message_lifecycle.stores.memory.store import MemoryStore


class MemoryDocuments:
    """`ports.Documents` beside a `MemoryStore`, which knows the topics."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._logs: dict[TopicName, DocumentLog] = {}

    def log(self, name: TopicName) -> DocumentLog:
        """Raises UnknownTopic, NotADocumentTopic."""
        if "fold" not in self._store.describe(name).settings:
            raise not_a_document_topic(str(name))
        return self._logs.setdefault(name, DocumentLog())

    def put(self, name: TopicName, log: DocumentLog | None) -> None:
        """What the topic's documents are from here on; None: nothing."""
        if log is None:
            self._logs.pop(name, None)
        else:
            self._logs[name] = log

    # Documents

    def tables(self, name: TopicName) -> DocumentTables:
        log = self.log(name)
        there = bool(log.snapshots.commits)
        return DocumentTables(
            topic=name,
            changes_uuid=log.changes.uuid,
            changes_id=log.changes.snapshot_id,
            snapshots_uuid=log.snapshots.uuid if there else None,
            snapshots_id=log.snapshots.snapshot_id,
        )

    def states(
        self,
        name: TopicName,
        tables: DocumentTables,
        *,
        older_than: Instant | None = None,
        own: Mapping[str, Instant | None] | None = None,
        only: Collection[str] | None = None,
    ) -> Sequence[DocumentState]:
        log = self.log(name)
        changes, snapshots = log.changes.rows(tables.changes_id), log.snapshots.rows(tables.snapshots_id)
        return [
            _state(document, changes.get(document, ()), snapshots.get(document, ()), (own or {}).get(document, older_than))
            for document in sorted(changes.keys() | snapshots.keys())
            if only is None or document in only
        ]

    def changes(self, name: TopicName, document: str, *, after: int = 0) -> Iterator[Change]:
        return (change for change in self.log(name).changes.head.get(document, ()) if change.server_seq > after)

    def snapshots(self, name: TopicName, document: str, *, server_seq: int | None = None) -> Sequence[Snapshot]:
        rows = self.log(name).snapshots.head.get(document, ())
        return [
            Snapshot(document=document, server_seq=row.server_seq, epoch=row.epoch, state=row.state)
            for row in sorted(rows, key=lambda row: row.server_seq)
            if row.state is not None and server_seq in (None, row.server_seq)
        ]

    def published(self, name: TopicName, plan_id: str) -> Published | None:
        log = self.log(name)
        first, second = log.snapshots.carrying(plan_id), log.changes.carrying(plan_id)
        if first is None or (first[1].purges and second is None):
            return None
        snapshot_id, commit = first if second is None else second
        return Published(plan_id=plan_id, snapshot_id=snapshot_id, removed=commit.removed)

    def carrying(self, name: TopicName, plan_id: str) -> tuple[Published | None, Published | None]:
        log = self.log(name)
        changes, snapshots = log.changes.carrying(plan_id), log.snapshots.carrying(plan_id)
        return (
            None if changes is None else Published(plan_id=plan_id, snapshot_id=changes[0], removed=(), restored=changes[1].restored),
            None if snapshots is None else Published(plan_id=plan_id, snapshot_id=snapshots[0], removed=()),
        )

    def before(self, plan: Plan, taken: Sequence[SnapshotDocument]) -> DocumentsBefore:
        log, name = self.log(plan.topic), plan.topic
        changes_id = document_undo.source(log.changes, plan.plan_id) if any(action.purged for action in taken) else None
        snapshots_id = document_undo.source(log.snapshots, plan.plan_id) if any(action.dropped for action in taken) else None
        then = replace(self.tables(name), changes_id=changes_id, snapshots_id=snapshots_id)
        states = self.states(name, then, only={action.document for action in taken})
        return DocumentsBefore(changes_id=changes_id, snapshots_id=snapshots_id, states={state.document: state for state in states})

    # Changes of both tables

    def add(self, name: TopicName, changes: Sequence[Change], *, ledger: tuple[str, int]) -> None:
        log = self.log(name)
        rows = dict(log.changes.head)
        for change in changes:
            before = rows.get(change.document, ())
            check_next(change.document, before[-1].server_seq if before else 0, change.server_seq)
            rows[change.document] = (*before, change)
        if changes:
            log.changes.commits.append(DocumentCommit(rows=rows))
            self._store.touch(name, ledger)

    def stage(self, plan: Plan) -> Staged:
        log = self._required(plan)
        if plan.is_empty:
            return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)
        made = log.staged.get(plan.plan_id) or self._stage(plan, log)
        log.staged[plan.plan_id] = made
        if plan.parent is not None:
            return _staged_undo(plan, log)
        blocked = {document for document, _ in made.blocked}
        actions = [action for action in plan.on_snapshots.documents if action.document not in blocked]
        purged = sum(action.purged for action in actions)
        staged = StagedDocuments(
            snapshots_id=len(log.snapshots.commits) if actions else None,
            changes_id=len(log.changes.commits) if purged else None,
            made=sum(action.snapshot is not None for action in actions),
            dropped=sum(len(action.dropped) for action in actions),
            purged=purged,
            blocked=made.blocked,
            state_bytes=sum(len(row.state or b"") for action in actions for row in made.snapshots[action.document][-1:]),
        )
        snapshot_id = staged.snapshots_id if staged.changes_id is None else staged.changes_id
        return Staged(plan_id=plan.plan_id, branch=plan.plan_id, snapshot_id=snapshot_id, documents=staged)

    def _stage(self, plan: Plan, log: DocumentLog) -> StagedTables:
        changes, snapshots = self._before(plan, log)
        if plan.parent is not None:
            back = document_undo.with_changes(log, plan, changes), document_undo.with_snapshots(log, plan, snapshots)
            return StagedTables(changes=back[0], snapshots=back[1], blocked=())
        fold = _fold(plan)
        blocked: list[tuple[str, str]] = []
        left, kept = dict(changes), dict(snapshots)
        for action in plan.on_snapshots.documents:
            mine, rows = changes.get(action.document, ()), snapshots.get(action.document, ())
            stored = states_of(rows)
            newest = action.snapshot if action.snapshot is not None else max(stored, default=0)
            after = (change for change in mine if change.server_seq > action.after)
            folded = fold_document(action, fold, newest=newest, stored=stored, changes=after)
            if folded.blocked is not None:
                blocked.append((action.document, folded.blocked))
                continue
            left[action.document] = tuple(c for c in mine if not action.purge_from <= c.server_seq < action.purge_before)
            kept[action.document] = tuple(_kept(action, rows, newest, folded.state))
        return StagedTables(changes=left, snapshots=kept, blocked=tuple(blocked))

    def evidence(self, plan: Plan, staged: Staged, policy: Policy) -> Mapping[str, object]:  # noqa: ARG002  # the plan has it
        log = self._required(plan)
        changes, snapshots = self._before(plan, log)
        made = log.staged.get(staged.plan_id) or StagedTables(changes=changes, snapshots=snapshots, blocked=())
        if plan.parent is not None:
            return document_undo.evidence(log, plan, (changes, snapshots), made)
        return documents_evidence(plan, _fold(plan), before=(changes, snapshots), after=made)

    def publish_snapshots(self, verdict: Verdict, *, ledger: tuple[str, int]) -> Published:
        plan = verdict.plan
        log = self._required(plan)
        done = log.snapshots.carrying(plan.plan_id)
        if done is not None:
            return Published(plan_id=plan.plan_id, snapshot_id=done[0], removed=())
        made = _staged(plan, log)
        if plan.snapshots is None or plan.snapshots.snapshot_id != log.snapshots.snapshot_id:
            raise PlanConflict(plan.plan_id, "the snapshots have changed since it was planned")
        _check_appended(plan, log)
        purges = verdict.staged.documents is not None and verdict.staged.documents.purged > 0
        log.snapshots.commits.append(DocumentCommit(rows=made.snapshots, plan_id=plan.plan_id, purges=purges))
        self._store.touch(plan.topic, ledger)
        return Published(plan_id=plan.plan_id, snapshot_id=len(log.snapshots.commits) - 1, removed=())

    def purge(self, verdict: Verdict, *, ledger: tuple[str, int], behind: Callable[[], Collection[str]]) -> Published:
        plan = verdict.plan
        log = self._required(plan)
        done = log.changes.carrying(plan.plan_id)
        if done is not None:
            return Published(plan_id=plan.plan_id, snapshot_id=done[0], removed=done[1].removed)
        of_plan = log.snapshots.carrying(plan.plan_id)
        if of_plan is None:
            raise PlanConflict(plan.plan_id, "its snapshots are not published")
        if of_plan[0] != log.snapshots.snapshot_id:
            raise PlanConflict(plan.plan_id, "other snapshots of its documents were published since")
        if found := behind():
            raise PlanConflict(plan.plan_id, needs_more(sorted(found)))
        made = _staged(plan, log)
        _check_appended(plan, log)
        before, rows, removed = log.changes.rows(plan.requirements.snapshot_id), dict(log.changes.head), Counter[str]()
        for action in plan.on_snapshots.documents:
            gone = {change.server_seq for change in before.get(action.document, ())}
            gone -= {change.server_seq for change in made.changes.get(action.document, ())}
            if gone:
                removed[str(action.reason)] += len(gone)
                rows[action.document] = tuple(c for c in rows[action.document] if c.server_seq not in gone)
        counts = tuple(sorted(removed.items()))
        log.changes.commits.append(DocumentCommit(rows=rows, plan_id=plan.plan_id, removed=counts))
        self._store.touch(plan.topic, ledger)
        return Published(plan_id=plan.plan_id, snapshot_id=len(log.changes.commits) - 1, removed=counts)

    def return_changes(self, verdict: Verdict, *, ledger: tuple[str, int]) -> Published:
        plan = verdict.plan
        log = self._required(plan)
        done, _ = self.carrying(plan.topic, plan.plan_id)
        if done is not None:
            return done
        _staged(plan, log)
        _check_appended(plan, log)
        rows = document_undo.with_changes(log, plan, log.changes.head)
        log.changes.commits.append(DocumentCommit(rows=rows, plan_id=plan.plan_id, restored=plan.restored_rows))
        self._store.touch(plan.topic, ledger)
        return Published(plan_id=plan.plan_id, snapshot_id=len(log.changes.commits) - 1, removed=(), restored=plan.restored_rows)

    def discard(self, plan: Plan) -> None:
        self.log(plan.topic).staged.pop(plan.plan_id, None)

    # What a plan is about

    def _required(self, plan: Plan) -> DocumentLog:
        log, wanted = self.log(plan.topic), plan.snapshots
        assert wanted is not None, "a plan of documents says what snapshots it builds on"
        if plan.requirements.table_uuid != log.changes.uuid or wanted.table_uuid not in (None, log.snapshots.uuid):
            raise PlanConflict(plan.plan_id, "the topic is another table now")
        return log

    @staticmethod
    def _before(plan: Plan, log: DocumentLog) -> tuple[Mapping[str, tuple[Change, ...]], Mapping[str, tuple[SnapshotRow, ...]]]:
        assert plan.snapshots is not None
        return log.changes.rows(plan.requirements.snapshot_id), log.snapshots.rows(plan.snapshots.snapshot_id)


class _OfDocuments(ChangeStore):
    """Both tables are staged together, and judged together."""

    def __init__(self, documents: MemoryDocuments) -> None:
        self._documents = documents

    def stage(self, plan: Plan, _given: Given = NOTHING_GIVEN) -> Staged:
        return self._documents.stage(plan)

    def evidence(self, plan: Plan, staged: Staged, policy: Policy, _given: Given = NOTHING_GIVEN) -> Mapping[str, object]:
        return self._documents.evidence(plan, staged, policy)

    def discard(self, plan: Plan) -> None:
        self._documents.discard(plan)


class MemorySnapshots(_OfDocuments):
    """New snapshots and raised epochs come, old snapshots go; or those come back that had gone."""

    def publish(self, verdict: Verdict, given: Given) -> Published:
        return self._documents.publish_snapshots(verdict, ledger=given.ledger())

    def published(self, plan: Plan) -> Published | None:
        return self._documents.carrying(plan.topic, plan.plan_id)[1]


class MemoryChanges(_OfDocuments):
    """Changes go, only after the snapshots that cover them are published; or come back."""

    def publish(self, verdict: Verdict, given: Given) -> Published:
        if verdict.plan.on_snapshots.documents:
            return self._documents.purge(verdict, ledger=given.ledger(), behind=given.behind)
        return self._documents.return_changes(verdict, ledger=given.ledger())

    def published(self, plan: Plan) -> Published | None:
        if plan.on_snapshots.documents:
            return self._documents.published(plan.topic, plan.plan_id)
        return self._documents.carrying(plan.topic, plan.plan_id)[0]


def _fold(plan: Plan) -> Fold:
    policy = Policy.of_values(plan.policy)
    assert policy.fold is not None, "a document topic has a fold"
    return fold_of(policy.fold, yjs_roots=policy.yjs_roots)


def _staged_undo(plan: Plan, log: DocumentLog) -> Staged:
    changes_id = len(log.changes.commits) if plan.restored_rows else None
    snapshots_id = len(log.snapshots.commits) if plan.restored_snapshots else None
    staged = StagedDocuments(snapshots_id=snapshots_id, changes_id=changes_id, made=plan.restored_snapshots, dropped=0, purged=0)
    snapshot_id = snapshots_id if changes_id is None else changes_id
    return Staged(plan_id=plan.plan_id, branch=plan.plan_id, snapshot_id=snapshot_id, documents=staged)


def _staged(plan: Plan, log: DocumentLog) -> StagedTables:
    if plan.plan_id not in log.staged:
        raise PlanConflict(plan.plan_id, "nothing is staged for it")
    return log.staged[plan.plan_id]


def _check_appended(plan: Plan, log: DocumentLog) -> None:
    """Changes that came since pass, and what of the plan is there; anything else refuses (DEL-4)."""
    since = 0 if plan.requirements.snapshot_id is None else plan.requirements.snapshot_id + 1
    for commit in log.changes.commits[since:]:
        if commit.plan_id not in (None, plan.plan_id):
            raise PlanConflict(plan.plan_id, "changes were purged since it was planned", rival=commit.plan_id)


def _kept(action: SnapshotDocument, rows: Sequence[SnapshotRow], newest: int, state: bytes | None) -> Iterator[SnapshotRow]:
    """The document's rows with what the action makes, and without what it drops; a raised epoch without a snapshot is a row as well."""
    yield from (row for row in rows if row.server_seq not in action.dropped)
    if action.snapshot is not None:
        yield SnapshotRow(server_seq=action.snapshot, epoch=action.epoch, state=state)
    elif action.epoch > epoch_of(tuple(rows)):
        yield SnapshotRow(server_seq=newest, epoch=action.epoch, state=None)


def _state(document: str, changes: Sequence[Change], rows: tuple[SnapshotRow, ...], older_than: Instant | None) -> DocumentState:
    stored = tuple(states_of(rows))
    stay = (c.server_seq for c in changes if older_than is None or c.at is None or c.at >= older_than)
    return DocumentState(
        document=document,
        seq=changes[-1].server_seq if changes else max(stored, default=0),
        first=changes[0].server_seq if changes else None,
        snapshots=stored,
        epoch=epoch_of(rows),
        younger=next(stay, None),
    )
