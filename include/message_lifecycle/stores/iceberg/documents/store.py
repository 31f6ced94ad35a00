"""Documents on tables: `ports.Documents`, and the changes of both tables, on a Spark session, which is asked for when it is needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING

from message_lifecycle.model.document import Change, StagedDocuments
from message_lifecycle.model.errors import CommitUnknown, LifecycleError, PlanConflict, TableBusy, invalid_server_seq
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.snapshot_with_purge import needs_more
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NOTHING_GIVEN, ChangeStore, Given
from message_lifecycle.stores.iceberg import fence
from message_lifecycle.stores.iceberg.branches import StagedChange, branch_of, chain, remove_branch, undo_ref
from message_lifecycle.stores.iceberg.catalog import Tables, ledger_text
from message_lifecycle.stores.iceberg.compaction.commit import data_file
from message_lifecycle.stores.iceberg.compaction.job import NewFile
from message_lifecycle.stores.iceberg.documents.columns import BUCKET, CHANGES, bucket_of
from message_lifecycle.stores.iceberg.documents.read import IcebergDocumentReader
from message_lifecycle.stores.iceberg.documents.tables import snapshots_base, snapshots_document, tables_of
from message_lifecycle.stores.iceberg.failures import engine_failures
from message_lifecycle.stores.iceberg.fence import (
    Ancestor,
    Judge,
    Steps,
    commit_once,
    fenced_commit,
    find,
    main_ancestors,
    nothing_since,
    only_appends_since,
    properties,
)
from message_lifecycle.stores.iceberg.layout import COUNTS, INGEST_ID, LEDGER, PLAN_ID, SNAPSHOTS, UNDOES, ancestors
from message_lifecycle.stores.iceberg.read import published_by
from message_lifecycle.stores.iceberg.session import Java, engine, forget_cached, java_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyspark.sql import SparkSession


_TABLES = ("", SNAPSHOTS)


class IcebergDocuments(IcebergDocumentReader):
    """`steps` is told the name of each step as it is reached: `numbered` (of an addition), `after_stage`, and `before_`, `inside_` and
    `after_` of `snapshots_commit`, `purge_commit` and `changes_commit` (of an undo)."""

    def __init__(
        self, session: Callable[[], SparkSession], *, tables: Tables | None = None, steps: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(tables)
        self._session = session
        self._steps = steps or (lambda _: None)

    def add(self, name: TopicName, changes: Sequence[Change], *, ledger: tuple[str, int]) -> None:
        with engine_failures():
            add(self._session, self._tables, name, changes, ledger=ledger, steps=self._steps)


class _OfDocuments(ChangeStore):
    """Both tables are staged together, and judged together. `steps` as `IcebergDocuments` has them."""

    def __init__(
        self, session: Callable[[], SparkSession], *, tables: Tables | None = None, steps: Callable[[str], None] | None = None
    ) -> None:
        self._session, self._tables, self._steps = session, tables or Tables(), steps or (lambda _: None)

    def stage(self, plan: Plan, given: Given = NOTHING_GIVEN) -> Staged:
        from message_lifecycle.stores.iceberg.documents.stage import stage, stage_returns

        if plan.is_empty:
            return super().stage(plan, given)
        if given.staged is not None and given.staged.documents is not None:
            return given.staged
        with engine_failures():
            staged = (stage_returns if plan.parent is not None else stage)(engine(self._session, tasks=True), self._tables, plan)
        self._steps("after_stage")
        return staged

    def evidence(self, plan: Plan, staged: Staged, policy: Policy, _given: Given = NOTHING_GIVEN) -> Mapping[str, object]:
        from message_lifecycle.stores.iceberg.documents.evidence import evidence, return_evidence

        if plan.parent is not None:
            return return_evidence(self._tables, plan, staged)
        with engine_failures():
            return evidence(self._session, self._tables, plan, staged, policy)

    def discard(self, plan: Plan) -> None:
        """Needs no JVM."""
        remove_branch(self._tables, plan, branch_of(plan.plan_id), _TABLES)

    def _commit(self, plan: Plan, kind: str) -> tuple[int, Mapping[str, str]] | None:
        """The snapshot that carries the plan, and what it tells."""
        self._tables.of_documents(plan.topic)
        if kind == SNAPSHOTS and snapshots_document(self._tables, plan.topic) is None:
            return None
        for snapshot in ancestors(self._tables.load(plan.topic, kind=kind)):
            told = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if told.get(PLAN_ID) == plan.plan_id:
                return snapshot.snapshot_id, told
        return None

    def _has_committed(self, plan: Plan, kind: str) -> bool:
        from message_lifecycle.stores.iceberg.undo_sources import has_committed

        self._tables.of_documents(plan.topic)
        there = kind != SNAPSHOTS or snapshots_document(self._tables, plan.topic) is not None
        return there and has_committed(self._tables.load(plan.topic, kind=kind), plan.plan_id)

    def _forget_source(self, plan: Plan) -> None:
        """All that the undo takes back is back: what an erasure has left for it is of no use any more."""
        if plan.parent is not None:
            remove_branch(self._tables, plan, undo_ref(plan.parent), _TABLES)


class IcebergSnapshots(_OfDocuments):
    """New snapshots and raised epochs come, old snapshots go; or those come back that had gone. No change goes or comes with them."""

    def publish(self, verdict: Verdict, given: Given) -> Published:
        with engine_failures():
            done = publish_snapshots(engine(self._session), verdict, ledger=given.ledger(), steps=self._steps)
        self._forget_source(verdict.plan)
        return done

    def published(self, plan: Plan) -> Published | None:
        found = self._commit(plan, SNAPSHOTS)
        return None if found is None else Published(plan_id=plan.plan_id, snapshot_id=found[0], removed=())

    def has_begun(self, plan: Plan) -> bool:
        return self._has_committed(plan, SNAPSHOTS)


class IcebergChanges(_OfDocuments):
    """Changes go, only after the snapshots that cover them are published; or come back. A plan that purges nothing is done with its
    snapshots."""

    def publish(self, verdict: Verdict, given: Given) -> Published:
        with engine_failures():
            if verdict.plan.on_snapshots.documents:
                return purge(engine(self._session), verdict, ledger=given.ledger(), steps=self._steps, behind=given.behind)
            done = return_changes(engine(self._session), verdict, ledger=given.ledger(), steps=self._steps)
        if not verdict.plan.restored_snapshots:
            self._forget_source(verdict.plan)
        return done

    def published(self, plan: Plan) -> Published | None:
        if plan.on_snapshots.documents:
            snapshots = self._commit(plan, SNAPSHOTS)
            if snapshots is None:
                return None
            if not sum(json.loads(snapshots[1].get(COUNTS, "{}")).values()):
                return Published(plan_id=plan.plan_id, snapshot_id=snapshots[0], removed=())
        found = self._commit(plan, "")
        return None if found is None else published_by(plan.plan_id, *found)

    def has_begun(self, plan: Plan) -> bool:
        return self._has_committed(plan, "")


# Publishing: first new snapshots and raised epochs, then the purge, each in one fenced commit of its table (SNP-7, DEL-4, DEL-5); of an
# undo first the changes that come back, then the snapshots.
#
# A crash between the two leaves changes that are not needed any more, and never lacks one: readers stand on the new epoch already.


def publish_snapshots(session: SparkSession, verdict: Verdict, *, ledger: tuple[str, int], steps: Steps) -> Published:
    """Raises PlanConflict, TableBusy, CommitUnknown."""
    plan, plan_id = verdict.plan, verdict.plan.plan_id
    table = java_table(session, plan.topic, kind=SNAPSHOTS)
    done = find(table, plan_id)
    if done is not None:
        return _of_snapshots(done)
    if not plan.restored_rows:  # an undo that has brought back changes has looked at it before them, and then nothing stops it
        fence.check(plan, plan_id, java_table(session, plan.topic), None)
    base_id = snapshots_base(table, plan)
    change = _change(session, table, plan_id, _told(verdict).snapshots_id, base_id)
    update = change.with_added(table.newRowDelta(), base_id)

    def judge(walk: Callable[[], Iterator[Ancestor]]) -> None:
        steps("inside_snapshots_commit")
        nothing_since(walk(), plan_id, base_id, table="the documents' snapshots were")

    found = _once(session, table, update, judge, verdict, ledger, steps, "snapshots_commit")
    forget_cached(session, plan.topic, kind=SNAPSHOTS)
    return _of_snapshots(found)


def purge(
    session: SparkSession, verdict: Verdict, *, ledger: tuple[str, int], steps: Steps, behind: Callable[[], Collection[str]]
) -> Published:
    """Raises PlanConflict, also where the plan's snapshots are not the newest ones, TableBusy, CommitUnknown."""
    plan, plan_id = verdict.plan, verdict.plan.plan_id
    snapshots = find(java_table(session, plan.topic, kind=SNAPSHOTS), plan_id)
    if snapshots is None:
        raise PlanConflict(plan_id, "its snapshots are not published: nothing is purged before")
    staged_id = _told(verdict).changes_id
    if staged_id is None:
        return _of_snapshots(snapshots)
    table = java_table(session, plan.topic)
    done = find(table, plan_id)
    if done is not None:
        return published_by(plan_id, done.snapshot_id, done.summary)
    fence.check(plan, plan_id, table, None)
    base_id = plan.requirements.snapshot_id
    if base_id is None:
        raise PlanConflict(plan_id, "it was made of no snapshot, and purges changes")
    change = _change(session, table, plan_id, staged_id, base_id)
    update = change.update(session, table, base_id)

    def judge(walk: Callable[[], Iterator[Ancestor]]) -> None:
        steps("inside_purge_commit")
        only_appends_since(walk(), plan_id, base_id)
        # What was proved rests on these snapshots: a later plan's may rest on others.
        newest = next(main_ancestors(java_table(session, plan.topic, kind=SNAPSHOTS)))
        if newest.get(PLAN_ID) != plan_id:
            raise PlanConflict(plan_id, "other snapshots of its documents were published since", rival=newest.get(PLAN_ID))
        if found := behind():
            raise PlanConflict(plan_id, needs_more(sorted(found)))

    found = _once(session, table, update, judge, verdict, ledger, steps, "purge_commit")
    forget_cached(session, plan.topic)
    return published_by(plan_id, found.snapshot_id, found.summary)


def return_changes(session: SparkSession, verdict: Verdict, *, ledger: tuple[str, int], steps: Steps) -> Published:
    """The first of an undo's commits. Raises PlanConflict, TableBusy, CommitUnknown."""
    plan, plan_id, base_id = verdict.plan, verdict.plan.plan_id, verdict.plan.requirements.snapshot_id
    table = java_table(session, plan.topic)
    done = find(table, plan_id)
    if done is not None:
        return published_by(plan_id, done.snapshot_id, done.summary)
    fence.check(plan, plan_id, table, None)
    if base_id is None:
        raise PlanConflict(plan_id, "it was made of no snapshot, and brings changes back")
    update = _change(session, table, plan_id, _told(verdict).changes_id, base_id).restore(session, table, base_id)

    def judge(walk: Callable[[], Iterator[Ancestor]]) -> None:
        steps("inside_changes_commit")
        only_appends_since(walk(), plan_id, base_id)

    found = _once(session, table, update, judge, verdict, ledger, steps, "changes_commit")
    forget_cached(session, plan.topic)
    return published_by(plan_id, found.snapshot_id, found.summary)


def _once(
    session: SparkSession, table: Java, update: Java, judge: Judge, verdict: Verdict, ledger: tuple[str, int], steps: Steps, of: str
) -> Ancestor:
    plan = verdict.plan
    for key, value in {**properties(verdict, ledger), **({UNDOES: plan.parent} if plan.parent is not None else {})}.items():
        update.set(key, value)
    what = f"publishing plan {plan.plan_id}"
    return commit_once(table, plan.plan_id, lambda: fenced_commit(session, [(update, judge)], what=what), steps=steps, of=of)


def _change(session: SparkSession, table: Java, plan_id: str, staged_id: int | None, base_id: int) -> StagedChange:
    """What the plan's branch differs in. Raises PlanConflict."""
    staged = None if staged_id is None else table.snapshot(staged_id)
    if staged is None:
        raise PlanConflict(plan_id, f"nothing is staged for it (snapshot {staged_id})")
    return StagedChange.of(session, table, chain(table, staged, base_id))


def _told(verdict: Verdict) -> StagedDocuments:
    told = verdict.staged.documents
    if told is None:
        raise PlanConflict(verdict.plan.plan_id, "nothing of documents is staged for it")
    return told


def _of_snapshots(commit: Ancestor) -> Published:
    """No change has gone yet."""
    return Published(plan_id=str(commit.get(PLAN_ID)), snapshot_id=commit.snapshot_id, removed=())


# Changes coming in: each the next one of its document, whoever else writes at the same time (SNP-1).
#
# They are numbered by their writers, so a commit holds only if no other changes came since the numbers were looked at; else they are
# looked at again. What a purge takes meanwhile changes no number.


TRIES = 20


class _MovedOn(LifecycleError):
    """Other changes came first: look again. Never leaves this module."""


def add(
    session: Callable[[], SparkSession],
    tables: Tables,
    name: TopicName,
    changes: Sequence[Change],
    *,
    ledger: tuple[str, int],
    steps: Callable[[str], None] = lambda _: None,
) -> None:
    """Store the changes, all or none; what is refused for its number needs no session. Raises InvalidServerSeq, NotADocumentTopic, TableBusy, CommitUnknown."""
    if not changes:
        tables.of_documents(name)
        return
    batch_id = token_hex(8)
    for _ in range(TRIES):
        base = tables_of(tables, name)
        reader = IcebergDocumentReader(tables)
        ends = {state.document: state.seq for state in reader.states(name, base, only={change.document for change in changes})}
        check_next(changes, ends)
        steps("numbered")
        table = tables.load(name)
        written = list(_written(table.io, f"{table.location()}/data", batch_id, changes))
        try:
            _commit(session(), name, written, batch_id=batch_id, base_id=base.changes_id, ledger=ledger)
        except _MovedOn:
            for _, file in written:
                table.io.delete(file.path)
            continue
        return
    raise TableBusy(f"adding {len(changes)} changes to topic {name}", TRIES)


def check_next(changes: Sequence[Change], ends: Mapping[str, int]) -> None:
    """Each is its document's next one, in the order given. `ends`: server_seqs reached. Raises InvalidServerSeq."""
    reached = dict(ends)
    for change in changes:
        due = reached.get(change.document, 0) + 1
        if change.server_seq != due:
            raise invalid_server_seq(change.document, change.server_seq, f"{due}, the next one")
        reached[change.document] = due


def _commit(
    session: SparkSession,
    name: TopicName,
    written: Sequence[tuple[int, NewFile]],
    *,
    batch_id: str,
    base_id: int | None,
    ledger: tuple[str, int],
) -> None:
    table = java_table(session, name)
    update = table.newAppend()
    for bucket, file in written:
        update.appendFile(data_file(session, table, f"{BUCKET}={bucket}", file))
    for key, value in {INGEST_ID: batch_id, LEDGER: ledger_text(ledger)}.items():
        update.set(key, value)

    def judge(walk: Callable[[], Iterator[Ancestor]]) -> None:
        for ancestor in walk():
            if ancestor.snapshot_id == base_id:
                return
            if ancestor.get(PLAN_ID) is None:
                raise _MovedOn
        raise _MovedOn

    try:
        fenced_commit(session, [(update, judge)], what=f"adding changes to topic {name}")
    except CommitUnknown:
        table.refresh()
        if all(ancestor.get(INGEST_ID) != batch_id for ancestor in main_ancestors(table)):
            raise
    forget_cached(session, name)


def _written(io: FileIO, folder: str, batch_id: str, changes: Sequence[Change]) -> Iterator[tuple[int, NewFile]]:
    """One file for each bucket, in the table's order."""
    buckets: dict[str, int] = {document: bucket_of(document) for document in {change.document for change in changes}}
    mine: dict[int, list[Change]] = {}
    for change in sorted(changes, key=lambda change: (change.document, change.server_seq)):
        mine.setdefault(buckets[change.document], []).append(change)
    for bucket, group in mine.items():
        path = f"{folder}/{BUCKET}={bucket}/{batch_id}-{token_hex(4)}.parquet"
        yield bucket, write_changes(io, path, group)


def write_changes(io: FileIO, path: str, changes: Sequence[Change]) -> NewFile:
    """A data file of these changes, which are in order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema: pa.Schema = CHANGES.schema.as_arrow()
    columns = {
        "document": [change.document for change in changes],
        "server_seq": [change.server_seq for change in changes],
        "at": [None if change.at is None else int(change.at) for change in changes],
        "client": [change.client for change in changes],
        "payload": [change.payload for change in changes],
    }
    arrays = [
        pa.array(columns[field.name], pa.int64()).cast(field.type) if field.name == "at" else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    with io.new_output(path).create() as stream:
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), pa.PythonFile(stream, mode="w"), compression="zstd")
    return NewFile(path=path, rows=len(changes), bytes=len(io.new_input(path)))
