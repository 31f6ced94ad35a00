"""Documents in memory: the reference, by the folds themselves (SNP-1 to SNP-10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from message_lifecycle.folds import Fold, find_fold_difference, fold_document, fold_of
from message_lifecycle.model.change import CommitSnapshots, ReturnChanges, ReturnSnapshots, SnapshotDocument
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
from message_lifecycle.ports import NO_CONTEXT, ChangeStore, CommitContext
from message_lifecycle.stores.memory import MemoryStore, rows
from message_lifecycle.stores.memory.tables import Changes, SnapshotRow, Snapshots, StagedVersion, TopicTables, epoch_of, states_of

# The gate's evidence about documents in memory: a proof of each document from stored and staged rows, independent of the staging (SNP-6).


def documents_evidence(
    plan: Plan, fold: Fold, *, before: tuple[Changes, Snapshots], after: tuple[Changes, Snapshots], blocked: Collection[str]
) -> Mapping[str, object]:
    """Return the frames of `gates.documents`, except `clients`. `blocked`: documents that the plan leaves unchanged."""
    (changes, snapshots), (left, kept) = before, after
    actions = {action.document: action for action in plan.snapshots_commit.documents if action.document not in blocked}
    looks = [
        _Look(
            actions.get(document),
            (changes.get(document, ()), left.get(document, ())),
            (snapshots.get(document, ()), kept.get(document, ())),
        )
        for document in sorted(changes.keys() | left.keys() | snapshots.keys() | kept.keys() | actions.keys())
    ]
    reasons = {document: why for document, action in actions.items() if (why := _reason(action, fold, before, after))}
    rows_in, rows_kept = (sum(len(rows) for rows in tables.values()) for tables in (changes, left))
    return {
        "documents": [
            {
                "planned": len(actions),
                "snapshots_made": sum(look.made for look in looks),
                "snapshots_dropped": sum(look.dropped for look in looks),
                "purged": sum(len(look.gone) for look in looks),
                "unnamed": sum(look.unnamed for look in looks),
                "holes": sum(look.has_hole for look in looks),
                "ahead": sum(look.is_ahead for look in looks),
                "epochs_wrong": sum(look.epoch_is_wrong for look in looks),
                "uncovered": sum(look.is_uncovered for look in looks),
                "snapshots_unnamed": sum(look.snapshots_unnamed for look in looks),
            }
        ],
        "unproved": [{"document": document, "reason": reason} for document, reason in sorted(reasons.items())],
        "figures": [{"rows_in": rows_in, "rows_kept": rows_kept, "rows_removed": rows_in - rows_kept, "asks": len(plan.asks)}],
    }


def _reason(action: SnapshotDocument, fold: Fold, before: tuple[Changes, Snapshots], after: tuple[Changes, Snapshots]) -> str | None:
    staged = states_of(after[1].get(action.document, ()))
    newest = max(staged, default=0)
    return find_fold_difference(
        action,
        fold,
        newest=newest,
        base=states_of(before[1].get(action.document, ())).get(action.after),
        snapshot=staged.get(newest),
        changes=(change for change in before[0].get(action.document, ()) if change.server_seq > action.after),
        left=(change for change in after[0].get(action.document, ()) if change.server_seq > newest),
    )


class _Look:
    """One document before and after the stage. `action` None: the plan does not name the document, or the document is blocked."""

    def __init__(
        self,
        action: SnapshotDocument | None,
        changes: tuple[tuple[Change, ...], tuple[Change, ...]],
        snapshots: tuple[tuple[SnapshotRow, ...], tuple[SnapshotRow, ...]],
    ) -> None:
        self._action, self._snapshots = action, snapshots
        before, after = ({change.server_seq: change for change in rows} for rows in changes)
        self._seq, self._left = max(before, default=0), sorted(after)
        self.gone = before.keys() - after.keys()
        named = set() if action is None else set(range(action.purge_from, action.purge_before))
        changed = {seq for seq in before.keys() & after.keys() if before[seq] != after[seq]}
        self.unnamed = len(self.gone - named) + len(after.keys() - before.keys()) + len(changed)

    @property
    def made(self) -> int:
        return len(states_of(self._snapshots[1]).keys() - states_of(self._snapshots[0]).keys())

    @property
    def dropped(self) -> int:
        return len(states_of(self._snapshots[0]).keys() - states_of(self._snapshots[1]).keys())

    @property
    def has_hole(self) -> bool:
        """True if the remaining changes have a gap, or end before the document's newest change."""
        return self._left != list(range(self._left[0] if self._left else self._seq, self._seq + 1 if self._seq else 0))

    @property
    def is_ahead(self) -> bool:
        return any(row.server_seq > self._seq for row in self._snapshots[1] if row not in self._snapshots[0])

    @property
    def epoch_is_wrong(self) -> bool:
        return epoch_of(self._snapshots[1]) - epoch_of(self._snapshots[0]) != bool(self.gone)

    @property
    def is_uncovered(self) -> bool:
        return any(seq > max(states_of(self._snapshots[1]), default=0) for seq in self.gone)

    @property
    def snapshots_unnamed(self) -> int:
        """Rows that came or left and that the action neither makes nor drops. Two rows at one server_seq count once."""
        before, after = self._snapshots
        action = self._action
        made, dropped = (None, ()) if action is None else (action.snapshot, action.dropped)
        came, gone = [row for row in after if row not in before], [row for row in before if row not in after]
        # Without a new snapshot, a raised epoch is a row next to the newest one, as planned.
        raised = [row for row in came if row.state is None and action is not None and row.epoch == action.epoch and action.purged]
        wrong = sum(row.server_seq != made for row in came if row not in raised) + sum(row.server_seq not in dropped for row in gone)
        stored = [row.server_seq for row in after if row.state is not None]
        return wrong + max(0, len(raised) - 1) + len(stored) - len(set(stored))


def purge(changes: Changes, change: CommitSnapshots) -> Changes:
    """Return the changes after a purge, without the covered changes."""
    after = dict(changes)
    for action in change.documents:
        gone = range(action.purge_from, action.purge_before)
        if gone:
            after[action.document] = tuple(change for change in after.get(action.document, ()) if change.server_seq not in gone)
    return after


def bring_changes_back(changes: Changes, change: ReturnChanges, source: Changes) -> Changes:
    """Return the changes after an undo. `source`: holds the returning changes."""
    after = dict(changes)
    for one in change.documents:
        came = range(one.changes_from, one.changes_before)
        again = (change for change in source.get(one.document, ()) if change.server_seq in came)
        after[one.document] = (*again, *after.get(one.document, ()))
    return after


def add_snapshots(snapshots: Snapshots, change: CommitSnapshots, states: Mapping[str, bytes | None]) -> Snapshots:
    """Return the snapshots after a plan's change. `states`: the folds, by document."""
    after = dict(snapshots)
    for action in change.documents:
        rows = after.get(action.document, ())
        kept = tuple(row for row in rows if row.server_seq not in action.dropped)
        if action.snapshot is not None:
            kept += (SnapshotRow(server_seq=action.snapshot, epoch=action.epoch, state=states[action.document]),)
        elif action.epoch > epoch_of(rows):
            # A raised epoch without a snapshot is a row, too.
            kept += (SnapshotRow(server_seq=max(states_of(rows), default=0), epoch=action.epoch, state=None),)
        after[action.document] = kept
    return after


def bring_snapshots_back(snapshots: Snapshots, change: ReturnSnapshots, source: Snapshots) -> Snapshots:
    """Return the snapshots after an undo. `source`: holds the returning snapshots."""
    after = dict(snapshots)
    for one in change.documents:
        again = (row for row in source.get(one.document, ()) if row.server_seq in one.snapshots and row.state is not None)
        after[one.document] = (*again, *after.get(one.document, ()))
    return after


class MemoryDocuments:
    """`ports.Documents` for a `MemoryStore`, which has the tables."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def of(self, name: TopicName) -> TopicTables:
        """Raises UnknownTopic, NotADocumentTopic."""
        tables = self._store.of(name)
        if not tables.topic.has_documents:
            raise not_a_document_topic(str(name))
        return tables

    # Documents

    def tables(self, name: TopicName) -> DocumentTables:
        tables = self.of(name)
        return DocumentTables(
            topic=name,
            changes_uuid=tables.changes.uuid,
            changes_id=tables.changes.snapshot_id,
            snapshots_uuid=tables.snapshots.uuid if tables.snapshots.commits else None,
            snapshots_id=tables.snapshots.snapshot_id,
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
        of = self.of(name)
        changes, snapshots = of.changes.at(tables.changes_id), of.snapshots.at(tables.snapshots_id)
        return [
            _state(document, changes.get(document, ()), snapshots.get(document, ()), (own or {}).get(document, older_than))
            for document in sorted(changes.keys() | snapshots.keys())
            if only is None or document in only
        ]

    def changes(self, name: TopicName, document: str, *, after: int = 0) -> Iterator[Change]:
        return (change for change in self.of(name).changes.head.get(document, ()) if change.server_seq > after)

    def snapshots(self, name: TopicName, document: str, *, server_seq: int | None = None) -> Sequence[Snapshot]:
        rows = self.of(name).snapshots.head.get(document, ())
        return [
            Snapshot(document=document, server_seq=row.server_seq, epoch=row.epoch, state=row.state)
            for row in sorted(rows, key=lambda row: row.server_seq)
            if row.state is not None and server_seq in (None, row.server_seq)
        ]

    def find_published(self, name: TopicName, plan_id: str) -> Published | None:
        tables = self.of(name)
        first, second = tables.snapshots.commit_of(plan_id), tables.changes.find_published(plan_id)
        if first is None or (first.half and second is None):
            return None
        return first.done if second is None else second

    def before(self, plan: Plan, taken: Sequence[SnapshotDocument]) -> DocumentsBefore:
        tables, name = self.of(plan.topic), plan.topic
        changes_id = tables.changes.source_of(plan.plan_id) if any(action.purged for action in taken) else None
        snapshots_id = tables.snapshots.source_of(plan.plan_id) if any(action.dropped for action in taken) else None
        then = replace(self.tables(name), changes_id=changes_id, snapshots_id=snapshots_id)
        states = self.states(name, then, only={action.document for action in taken})
        return DocumentsBefore(changes_id=changes_id, snapshots_id=snapshots_id, states={state.document: state for state in states})

    # Changes of both tables

    def add(self, name: TopicName, changes: Sequence[Change], *, ledger: tuple[str, int]) -> None:
        tables = self.of(name)
        rows = dict(tables.changes.head)
        for change in changes:
            before = rows.get(change.document, ())
            check_next(change.document, before[-1].server_seq if before else 0, change.server_seq)
            rows[change.document] = (*before, change)
        if changes:
            tables.changes.write(rows)
            tables.touch(ledger)

    def stage(self, plan: Plan) -> Staged:
        tables = self.required(plan)
        if plan.plan_id not in tables.changes.staged:
            _stage(plan, tables)
        made = tables.snapshots.staged[plan.plan_id]
        actions = _unblocked(plan, made.blocked).documents
        purged = sum(action.purged for action in actions)
        staged = StagedDocuments(
            snapshots_id=tables.snapshots.next_id if actions else None,
            changes_id=tables.changes.next_id if purged else None,
            made=sum(action.snapshot is not None for action in actions),
            dropped=sum(len(action.dropped) for action in actions),
            purged=purged,
            blocked=made.blocked,
            state_bytes=sum(len(row.state or b"") for action in actions for row in made.version[action.document][-1:]),
        )
        snapshot_id = staged.snapshots_id if staged.changes_id is None else staged.changes_id
        return Staged(plan_id=plan.plan_id, branch=plan.plan_id, snapshot_id=snapshot_id, documents=staged)

    def evidence(self, plan: Plan) -> Mapping[str, object]:
        tables = self.required(plan)
        made = tables.snapshots.staged.get(plan.plan_id)
        blocked = set[str]() if made is None else {document for document, _ in made.blocked}
        return documents_evidence(plan, _fold(plan), before=_before(plan, tables), after=_after(plan, tables), blocked=blocked)

    def publish_snapshots(self, verdict: Verdict, *, ledger: tuple[str, int]) -> Published:
        plan, tables = verdict.plan, self.required(verdict.plan)
        done = tables.snapshots.find_published(plan.plan_id)
        if done is not None:
            return done
        made = tables.snapshots.staged_by(plan)
        # The stage is the newest version with the change, so no other version may have come since.
        if plan.snapshots is None or plan.snapshots.snapshot_id != tables.snapshots.snapshot_id:
            raise PlanConflict(plan.plan_id, "the snapshots have changed since it was planned")
        tables.changes.refuse_removals(plan)
        purges = verdict.staged.documents is not None and verdict.staged.documents.purged > 0
        tables.touch(ledger)
        done = Published(plan_id=plan.plan_id, snapshot_id=tables.snapshots.next_id, removed=())
        return tables.snapshots.publish(made.version, done, half=purges)

    def purge(self, verdict: Verdict, *, ledger: tuple[str, int], behind: Callable[[], Collection[str]]) -> Published:
        plan, tables = verdict.plan, self.required(verdict.plan)
        done = self.find_published(plan.topic, plan.plan_id)  # even if nothing is purged
        if done is not None:
            return done
        of_plan = tables.snapshots.find_published(plan.plan_id)
        if of_plan is None:
            raise PlanConflict(plan.plan_id, "its snapshots are not published")
        if of_plan.snapshot_id != tables.snapshots.snapshot_id:
            raise PlanConflict(plan.plan_id, "other snapshots of its documents were published since")
        if found := behind():
            raise PlanConflict(plan.plan_id, needs_more(sorted(found)))
        # Later changes are in the newest version and stay (DEL-4).
        table, change = tables.changes, _unblocked(plan, tables.snapshots.staged_by(plan).blocked)
        table.refuse_removals(plan)
        after = purge(table.head, change)
        removed = Counter[str]()
        for action in change.documents:
            removed[str(action.reason)] += len(table.head.get(action.document, ())) - len(after.get(action.document, ()))
        tables.touch(ledger)
        counts = tuple(sorted((reason, rows) for reason, rows in removed.items() if rows))
        return table.publish(after, Published(plan_id=plan.plan_id, snapshot_id=table.next_id, removed=counts))

    def discard(self, plan: Plan) -> None:
        if plan.topic not in self._store.tables:
            return
        tables = self.of(plan.topic)
        tables.changes.staged.pop(plan.plan_id, None)
        tables.snapshots.staged.pop(plan.plan_id, None)

    def required(self, plan: Plan) -> TopicTables:
        """Raises PlanConflict."""
        tables, wanted = self.of(plan.topic), plan.snapshots
        assert wanted is not None, "a plan of documents says what snapshots it builds on"
        if plan.requirements.table_uuid != tables.changes.uuid or wanted.table_uuid not in (None, tables.snapshots.uuid):
            raise PlanConflict(plan.plan_id, "the topic is another table now")
        return tables


class _OfDocuments(ChangeStore):
    """The common part of the stores."""

    def __init__(self, documents: MemoryDocuments) -> None:
        self._documents = documents

    def stage(self, plan: Plan, _given: CommitContext = NO_CONTEXT) -> Staged:
        return self._documents.stage(plan)

    def discard(self, plan: Plan) -> None:
        self._documents.discard(plan)


class _OfSnapshots(_OfDocuments):
    """Commits to the table of snapshots."""

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        return self._documents.publish_snapshots(verdict, ledger=given.ledger())

    def find_published(self, plan: Plan) -> Published | None:
        return self._documents.of(plan.topic).snapshots.find_published(plan.plan_id)

    def is_lost(self, plan: Plan) -> bool:
        return plan.snapshots is not None and self._documents.of(plan.topic).snapshots.has_lost(plan, plan.snapshots.snapshot_id)


class MemorySnapshots(_OfSnapshots):
    """New snapshots and raised epochs come and old snapshots leave. The evidence is of both tables."""

    def evidence(self, plan: Plan, _staged: Staged, _policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        return self._documents.evidence(plan)


class MemorySnapshotReturns(_OfSnapshots):
    """Snapshots return. The evidence is of both tables."""

    def stage(self, plan: Plan, given: CommitContext = NO_CONTEXT) -> Staged:
        table, change = self._documents.required(plan).snapshots, plan.snapshots_return
        assert plan.snapshots is not None
        version = bring_snapshots_back(table.at(plan.snapshots.snapshot_id), change, table.at(change.source_id))
        table.staged.setdefault(plan.plan_id, StagedVersion(version=version))
        documents = replace(given.staged_documents, snapshots_id=table.next_id, made=plan.restored_snapshots)
        return Staged(plan_id=plan.plan_id, branch=plan.plan_id, snapshot_id=table.next_id, documents=documents)

    def evidence(self, plan: Plan, _staged: Staged, _policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        tables = self._documents.required(plan)
        (changes, snapshots), (left, kept) = _before(plan, tables), _after(plan, tables)
        then = tables.changes.at(plan.changes_return.source_id), tables.snapshots.at(plan.snapshots_return.source_id)
        return rows.documents_evidence(plan, (changes, left, then[0]), (snapshots, kept, then[1]))


class _OfChanges(_OfDocuments):
    """Commits to the table of changes."""

    def find_published(self, plan: Plan) -> Published | None:
        return self._documents.of(plan.topic).changes.find_published(plan.plan_id)

    def is_lost(self, plan: Plan) -> bool:
        return self._documents.of(plan.topic).changes.has_lost(plan, plan.requirements.snapshot_id)


class MemoryChanges(_OfChanges):
    """Changes leave after the snapshots that cover them are published."""

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        return self._documents.purge(verdict, ledger=given.ledger(), behind=given.behind)

    def find_published(self, plan: Plan) -> Published | None:
        return self._documents.find_published(plan.topic, plan.plan_id)


class MemoryChangeReturns(_OfChanges):
    """Changes return."""

    def stage(self, plan: Plan, given: CommitContext = NO_CONTEXT) -> Staged:
        table, change = self._documents.required(plan).changes, plan.changes_return
        version = bring_changes_back(table.at(plan.requirements.snapshot_id), change, table.at(change.source_id))
        table.staged.setdefault(plan.plan_id, StagedVersion(version=version))
        documents = replace(given.staged_documents, changes_id=table.next_id)
        return Staged(plan_id=plan.plan_id, branch=plan.plan_id, snapshot_id=table.next_id, documents=documents)

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        plan, tables = verdict.plan, self._documents.required(verdict.plan)
        table = tables.changes
        done = table.find_published(plan.plan_id)
        if done is not None:
            return done
        table.staged_by(plan)
        table.refuse_removals(plan)
        tables.touch(given.ledger())
        done = Published(plan_id=plan.plan_id, snapshot_id=table.next_id, removed=(), restored=plan.restored_rows)
        return table.publish(bring_changes_back(table.head, plan.changes_return, table.at(plan.changes_return.source_id)), done)


def _before(plan: Plan, tables: TopicTables) -> tuple[Changes, Snapshots]:
    assert plan.snapshots is not None
    return tables.changes.at(plan.requirements.snapshot_id), tables.snapshots.at(plan.snapshots.snapshot_id)


def _after(plan: Plan, tables: TopicTables) -> tuple[Changes, Snapshots]:
    """Return the staged tables. A table without a stage stays as it was."""
    changes, snapshots = _before(plan, tables)
    left, kept = tables.changes.staged.get(plan.plan_id), tables.snapshots.staged.get(plan.plan_id)
    return changes if left is None else left.version, snapshots if kept is None else kept.version


def _stage(plan: Plan, tables: TopicTables) -> None:
    """Fold each document. A document that cannot be folded stays unchanged in both tables (SNP-6)."""
    changes, snapshots = _before(plan, tables)
    states: dict[str, bytes | None] = {}
    blocked: list[tuple[str, str]] = []
    for action in plan.snapshots_commit.documents:
        stored = states_of(snapshots.get(action.document, ()))
        newest = action.snapshot if action.snapshot is not None else max(stored, default=0)
        after = (change for change in changes.get(action.document, ()) if change.server_seq > action.after)
        folded = fold_document(action, _fold(plan), newest=newest, stored=stored, changes=after)
        if folded.blocked is not None:
            blocked.append((action.document, folded.blocked))
        states[action.document] = folded.state
    change = _unblocked(plan, blocked)
    tables.changes.staged[plan.plan_id] = StagedVersion(version=purge(changes, change))
    tables.snapshots.staged[plan.plan_id] = StagedVersion(version=add_snapshots(snapshots, change, states), blocked=tuple(blocked))


def _unblocked(plan: Plan, blocked: Sequence[tuple[str, str]]) -> CommitSnapshots:
    left = {document for document, _ in blocked}
    change = plan.snapshots_commit
    return replace(change, documents=tuple(action for action in change.documents if action.document not in left))


def _fold(plan: Plan) -> Fold:
    policy = Policy.from_values(plan.policy)
    assert policy.fold is not None, "a document topic has a fold"
    return fold_of(policy.fold, yjs_roots=policy.yjs_roots)


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
