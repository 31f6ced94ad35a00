"""Documents on tables: `ports.Documents`, and the commits on both tables. Spark starts only for its SQL or its executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
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
from message_lifecycle.ports import NO_CONTEXT, CommitContext
from message_lifecycle.stores.iceberg import fence, parsed
from message_lifecycle.stores.iceberg.append import AlreadyThere
from message_lifecycle.stores.iceberg.catalog import Tables, ledger_text
from message_lifecycle.stores.iceberg.change import (
    TableStore,
    Update,
    appends_pass,
    forget_source,
    head_is,
    load_side_table,
    staged_change,
    undo_property,
)
from message_lifecycle.stores.iceberg.columns import BUCKET
from message_lifecycle.stores.iceberg.data_files import data_file
from message_lifecycle.stores.iceberg.documents.tables import IcebergDocumentReader, snapshots_base, snapshots_document, tables_of
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.fence import Walk, check_only_appends, fenced_commit, find, main_ancestors
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import COUNTS, INGEST_ID, LEDGER, PLAN_ID, SNAPSHOTS, commit_that_says, summary_of
from message_lifecycle.stores.iceberg.shapes import CHANGES_SHAPE, bucket_of
from message_lifecycle.stores.iceberg.tasks import NewFile
from message_lifecycle.stores.iceberg.transaction import Ready

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

    from message_lifecycle.stores.iceberg.documents.stage import Work


class IcebergDocuments(IcebergDocumentReader):
    """Reads documents and adds changes.

    Args:
        steps: Called with the name of each step: `numbered` (of an addition), `after_stage`, and `before_`, `inside_` and `after_` of
            `snapshots_commit`, `purge_commit` and `changes_commit` (of an undo).
    """

    def __init__(self, engine: Callable[[], Engine], *, tables: Tables | None = None, steps: Callable[[str], None] | None = None) -> None:
        super().__init__(tables)
        self._engine = engine
        self._steps = steps or (lambda _: None)

    def add(self, name: TopicName, changes: Sequence[Change], *, ledger: tuple[str, int]) -> None:
        add_changes(self._engine, self._tables, name, changes, ledger=ledger, steps=self._steps)


class _DocumentStore(TableStore):
    """Stages both tables together. See `IcebergDocuments` for `steps`."""

    kinds = ("", SNAPSHOTS)

    def _of_snapshots(self, plan: Plan) -> Table | None:
        there = snapshots_document(self._tables, plan.topic) is not None
        return self._tables.load(plan.topic, kind=SNAPSHOTS) if there else None

    def _stage(self, plan: Plan, given: CommitContext, work: Work) -> Staged:
        from message_lifecycle.stores.iceberg.documents.stage import stage

        if given.staged is not None and given.staged.documents is not None:
            return given.staged
        staged = stage(self._engine(), self._tables, plan, work)
        self._steps("after_stage")
        return staged

    def _stage_return(self, plan: Plan, given: CommitContext) -> Staged:
        from message_lifecycle.stores.iceberg.documents.stage import stage_returned_rows

        return self._stage(plan, given, stage_returned_rows)


class _SnapshotsTable(_DocumentStore):
    """Commits to the table of snapshots. Changes are a separate commit. The evidence is of both tables."""

    def _table(self, plan: Plan) -> Table | None:
        return self._of_snapshots(plan)

    def _base_id(self, plan: Plan) -> int | None:
        return None if plan.snapshots is None else plan.snapshots.snapshot_id

    def _describe_commit(self, plan_id: str, snapshot_id: int, _summary: Mapping[str, str]) -> Published:
        return Published(plan_id=plan_id, snapshot_id=snapshot_id, removed=())

    def _prepared(self, engine: Engine, verdict: Verdict, given: CommitContext) -> Ready | None:
        table = load_side_table(engine, verdict.plan, SNAPSHOTS)
        make = partial(self._update, engine, table, verdict)
        return self._ready(engine, table, verdict, given, make, kind=SNAPSHOTS, of="snapshots_commit")

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        engine = self._engine()
        table = load_side_table(engine, verdict.plan, SNAPSHOTS)
        make = partial(self._update, engine, table, verdict)
        return self._commit(engine, table, verdict, given, make, kind=SNAPSHOTS, of="snapshots_commit")

    def _update(self, engine: Engine, table: Java, verdict: Verdict) -> Update:
        """Describe the commit of the snapshots. Raises PlanConflict."""
        plan_id, base_id = verdict.plan.plan_id, snapshots_base(table, verdict.plan)
        change = staged_change(engine, table, plan_id, _staged_documents(verdict).snapshots_id, base_id)
        return Update(
            update=lambda on: change.add_to_update(on.newRowDelta(), base_id),
            condition=head_is(plan_id, base_id, table="the documents' snapshots were"),
        )


class IcebergSnapshots(_SnapshotsTable):
    """Adds snapshots, raises epochs, and removes old snapshots."""

    def stage(self, plan: Plan, given: CommitContext = NO_CONTEXT) -> Staged:
        from message_lifecycle.stores.iceberg.documents.stage import fold_documents

        return self._stage(plan, given, partial(fold_documents, self._engine()))

    def evidence(self, plan: Plan, staged: Staged, policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        from message_lifecycle.stores.iceberg.documents.evidence import evidence

        return evidence(self._engine(), self._tables, plan, staged, policy)

    def _update(self, engine: Engine, table: Java, verdict: Verdict) -> Update:
        fence.check(verdict.plan, verdict.plan.plan_id, engine.table(verdict.plan.topic), None)
        return super()._update(engine, table, verdict)


class IcebergSnapshotReturns(_SnapshotsTable):
    """Restores old snapshots."""

    def stage(self, plan: Plan, given: CommitContext = NO_CONTEXT) -> Staged:
        return self._stage_return(plan, given)

    def evidence(self, plan: Plan, staged: Staged, _policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        from message_lifecycle.stores.iceberg.documents.evidence import return_evidence

        return return_evidence(self._tables, plan, staged)

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        done = super().publish(verdict, given)
        forget_source(self._tables, verdict.plan, self.kinds)
        return done

    def _update(self, engine: Engine, table: Java, verdict: Verdict) -> Update:
        plan = verdict.plan
        if not plan.restored_rows:  # otherwise the undo has checked this before it restored changes, and now nothing may stop it
            fence.check(plan, plan.plan_id, engine.table(plan.topic), None)
        return replace(super()._update(engine, table, verdict), tells=undo_property(plan))


class _ChangesTable(_DocumentStore):
    """Commits to the table of changes."""

    def _table(self, plan: Plan) -> Table | None:
        self._tables.document_topic(plan.topic)
        return self._tables.load(plan.topic)


class IcebergChanges(_ChangesTable):
    """Purges changes, only after the snapshots that cover them are published. A plan that purges nothing ends with its snapshots."""

    def stage(self, _plan: Plan, given: CommitContext = NO_CONTEXT) -> Staged:
        assert given.staged is not None, "the snapshots are staged first, and the purge with them"
        return given.staged

    def _prepared(self, engine: Engine, verdict: Verdict, given: CommitContext) -> Ready | None:
        """Prepare the purge. The commit of the snapshots is ready too: the caller prepares it first and stops if it is not."""
        if _staged_documents(verdict).changes_id is None:
            return None
        table = engine.table(verdict.plan.topic)
        make = partial(_purge, engine, table, verdict, given, with_snapshots=True)
        return self._ready(engine, table, verdict, given, make, of="purge_commit")

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        plan, engine = verdict.plan, self._engine()
        snapshots = find(load_side_table(engine, plan, SNAPSHOTS), plan.plan_id)
        if snapshots is None:
            raise PlanConflict(plan.plan_id, "its snapshots are not published: nothing is purged before")
        if _staged_documents(verdict).changes_id is None:
            return Published(plan_id=plan.plan_id, snapshot_id=snapshots.snapshot_id, removed=())
        table = engine.table(plan.topic)
        return self._commit(engine, table, verdict, given, partial(_purge, engine, table, verdict, given), of="purge_commit")

    def find_published(self, plan: Plan) -> Published | None:
        table = self._of_snapshots(plan)
        snapshots = None if table is None else commit_that_says(table, PLAN_ID, plan.plan_id)
        if snapshots is None:
            return None
        if not sum(parsed.counts(summary_of(snapshots), COUNTS).values()):
            return Published(plan_id=plan.plan_id, snapshot_id=snapshots.snapshot_id, removed=())
        return super().find_published(plan)


class IcebergChangeReturns(_ChangesTable):
    """Restores changes."""

    def stage(self, plan: Plan, given: CommitContext = NO_CONTEXT) -> Staged:
        return self._stage_return(plan, given)

    def _prepared(self, engine: Engine, verdict: Verdict, given: CommitContext) -> Ready | None:
        table = engine.table(verdict.plan.topic)
        return self._ready(engine, table, verdict, given, partial(_describe_return_commit, engine, table, verdict), of="changes_commit")

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        plan, engine = verdict.plan, self._engine()
        table = engine.table(plan.topic)
        done = self._commit(engine, table, verdict, given, partial(_describe_return_commit, engine, table, verdict), of="changes_commit")
        if not plan.restored_snapshots:  # otherwise their return needs the source
            forget_source(self._tables, plan, self.kinds)
        return done


# Publish new snapshots and raised epochs first, then the purge, each in one fenced commit of its table (SNP-7, DEL-4, DEL-5). An undo
# publishes restored changes first, then the snapshots.
#
# A crash between the two commits leaves unneeded changes, and never lacks a change: readers already use the new epoch.


def _purge(engine: Engine, table: Java, verdict: Verdict, given: CommitContext, *, with_snapshots: bool = False) -> Update:
    """Describe the commit of a purge.

    Args:
        engine: Runs the work in the JVM.
        table: The table of changes.
        verdict: The gate's permission to publish.
        given: Values of this call: which documents have clients that need more changes now.
        with_snapshots: The snapshots are part of the same commit. The check of their head then belongs to the other part of that commit.

    Raises:
        PlanConflict: The table has changed, other snapshots were published since, or a client needs more changes now (SNP-9). Every attempt
            checks this again.
    """
    plan, plan_id = verdict.plan, verdict.plan.plan_id
    base_id = _changes_base(table, plan, "purges changes")
    change = staged_change(engine, table, plan_id, _staged_documents(verdict).changes_id, base_id)

    def condition(walk: Walk) -> None:
        check_only_appends(walk(), plan_id, base_id)
        # The proof used these snapshots. Snapshots of a later plan may not cover the purge.
        newest = None if with_snapshots else next(main_ancestors(load_side_table(engine, plan, SNAPSHOTS)))
        if newest is not None and newest.get(PLAN_ID) != plan_id:
            raise PlanConflict(plan_id, "other snapshots of its documents were published since", rival=newest.get(PLAN_ID))
        if found := given.behind():
            raise PlanConflict(plan_id, needs_more(sorted(found)))

    return Update(update=lambda on: change.update(engine, on, base_id), condition=condition)


def _describe_return_commit(engine: Engine, table: Java, verdict: Verdict) -> Update:
    """Describe the commit of restored changes, the first commit of an undo. Raises PlanConflict."""
    plan, plan_id = verdict.plan, verdict.plan.plan_id
    base_id = _changes_base(table, plan, "brings changes back")
    change = staged_change(engine, table, plan_id, _staged_documents(verdict).changes_id, base_id)
    return Update(
        update=lambda on: change.restore(engine, on, base_id), condition=appends_pass(plan_id, base_id), tells=undo_property(plan)
    )


def _changes_base(table: Java, plan: Plan, what: str) -> int:
    """Return the snapshot of the changes that the plan builds on. Raises PlanConflict.

    Args:
        table: The table of changes.
        plan: The plan, whose requirements are checked again.
        what: The plan's action, in words.
    """
    fence.check(plan, plan.plan_id, table, None)
    if plan.requirements.snapshot_id is None:
        raise PlanConflict(plan.plan_id, f"it was made of no snapshot, and {what}")
    return plan.requirements.snapshot_id


def _staged_documents(verdict: Verdict) -> StagedDocuments:
    staged_documents = verdict.staged.documents
    if staged_documents is None:
        raise PlanConflict(verdict.plan.plan_id, "nothing of documents is staged for it")
    return staged_documents


# Add changes. A change always gets the next server_seq of its document, even if others write at the same time (SNP-1).
#
# Writers number the changes. A commit succeeds only if no other changes arrived since the writer checked the numbers. Otherwise the writer
# checks them again. A purge does not affect the numbers.


TRIES = 20


class _MovedOn(LifecycleError):
    """Other changes came first, so check the numbers again. Never leaves this module."""


def add_changes(
    engine: Callable[[], Engine],
    tables: Tables,
    name: TopicName,
    changes: Sequence[Change],
    *,
    ledger: tuple[str, int],
    steps: Callable[[str], None] = lambda _: None,
) -> None:
    """Store the changes, all or none. A change with a wrong number fails before the engine starts.

    Raises:
        InvalidServerSeq: A change does not have the next number of its document.
        NotADocumentTopic: The topic holds messages, not documents.
        TableBusy: Other changes kept coming first.
        CommitUnknown: The catalog's answer is missing.
    """
    if not changes:
        tables.document_topic(name)
        return
    batch_id = token_hex(8)
    for _ in range(TRIES):
        base = tables_of(tables, name)
        reader = IcebergDocumentReader(tables)
        ends = {state.document: state.seq for state in reader.states(name, base, only={change.document for change in changes})}
        check_next(changes, ends)
        steps("numbered")
        table = tables.load(name)
        written = list(_write_files(table.io, f"{table.location()}/data", batch_id, changes))
        try:
            _commit(engine(), name, written, batch_id=batch_id, base_id=base.changes_id, ledger=ledger)
        except _MovedOn:
            for _, file in written:
                table.io.delete(file.path)
            continue
        return
    raise TableBusy(f"adding {len(changes)} changes to topic {name}", TRIES)


def check_next(changes: Sequence[Change], ends: Mapping[str, int]) -> None:
    """Check that each change has the next server_seq of its document, in the given order. Raises InvalidServerSeq.

    Args:
        changes: The changes to add.
        ends: The server_seqs that the documents have reached.
    """
    reached = dict(ends)
    for change in changes:
        due = reached.get(change.document, 0) + 1
        if change.server_seq != due:
            raise invalid_server_seq(change.document, change.server_seq, f"{due}, the next one")
        reached[change.document] = due


def _commit(
    engine: Engine,
    name: TopicName,
    written: Sequence[tuple[int, NewFile]],
    *,
    batch_id: str,
    base_id: int | None,
    ledger: tuple[str, int],
) -> None:
    table = engine.table(name)
    files = [data_file(engine, table, f"{BUCKET}={bucket}", file) for bucket, file in written]

    def judge(walk: Walk) -> None:
        others = False
        for ancestor in walk():
            if ancestor.snapshot_id == base_id:
                break
            if ancestor.get(INGEST_ID) == batch_id:
                raise AlreadyThere  # by an attempt whose answer was lost; other commits may follow it
            others = others or ancestor.get(PLAN_ID) is None
        else:
            others = True
        if others:
            raise _MovedOn

    def make(on: Java, _walk: Walk) -> Iterator[Java]:
        update = on.newAppend()
        for file in files:
            update.appendFile(file)
        for key, value in {INGEST_ID: batch_id, LEDGER: ledger_text(ledger)}.items():
            update.set(key, value)
        yield update

    try:
        with suppress(AlreadyThere):
            fenced_commit(table, judge, make, what=f"adding changes to topic {name}")
    except CommitUnknown:
        table.refresh()
        if all(ancestor.get(INGEST_ID) != batch_id for ancestor in main_ancestors(table)):
            raise
    engine.forget(name)


def _write_files(io: FileIO, folder: str, batch_id: str, changes: Sequence[Change]) -> Iterator[tuple[int, NewFile]]:
    """Write one file for each bucket, in the table's order."""
    buckets: dict[str, int] = {document: bucket_of(document) for document in {change.document for change in changes}}
    mine: dict[int, list[Change]] = {}
    for change in sorted(changes, key=lambda change: (change.document, change.server_seq)):
        mine.setdefault(buckets[change.document], []).append(change)
    for bucket, group in mine.items():
        path = f"{folder}/{BUCKET}={bucket}/{batch_id}-{token_hex(4)}.parquet"
        yield bucket, write_changes(io, path, group)


def write_changes(io: FileIO, path: str, changes: Sequence[Change]) -> NewFile:
    """Write a data file of changes. The caller sorts the changes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema: pa.Schema = CHANGES_SHAPE.schema.as_arrow()
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
