"""The quarantine table, read by its metadata (QUA-1, DEL-7).

A plan drops or restores whole files. The change is staged on a branch and published in one fenced commit.
Every question about a topic uses this store, so functions that read data import their libraries only when they run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING

from message_lifecycle.model.change import QuarantinedFile
from message_lifecycle.model.errors import PlanConflict, UnknownTopic, undo_source_gone
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import QuarantineFile, QuarantineReturning, QuarantineState, RefusedCount, RefusedRow
from message_lifecycle.operations.quarantine import files_before_their_age
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NO_CONTEXT, CommitContext
from message_lifecycle.stores.iceberg import change
from message_lifecycle.stores.iceberg.branches import StagedChange, branch_of, commit_to, undo_ref
from message_lifecycle.stores.iceberg.change import TableStore, Update, appends_pass, forget_source, undo_property
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.fence import main_ancestors
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import PLAN_ID, QUARANTINE, STAGED_PLAN_ID, UNDOES, commit_that_says, summary_of
from message_lifecycle.stores.iceberg.manifests import ManifestContent, listed, manifests_of, picking
from message_lifecycle.stores.iceberg.session import engine_failures
from message_lifecycle.stores.iceberg.table_folder import absolute, is_erased_copy, location_prefix, reading

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


_AT = 1
"""The id of the column `at`, the table's first."""
_PICK = picking("file_path", "record_count", "file_size_in_bytes", "lower_bounds", "upper_bounds", "null_value_counts")


class _QuarantineTable(TableStore):
    """Changes of quarantines."""

    kinds = (QUARANTINE,)

    def _table(self, plan: Plan) -> Table | None:
        return self._of(plan.topic)

    def _of(self, name: TopicName) -> Table | None:
        try:
            return self._tables.load(name, kind=QUARANTINE)
        except UnknownTopic:
            return None

    def stage(self, plan: Plan, _given: CommitContext = NO_CONTEXT) -> Staged:
        base_id = plan.requirements.snapshot_id
        assert base_id is not None, "rows that leave or return have a table"
        with engine_failures():
            engine, table = self._required(plan)

            def work() -> Callable[[str], object]:
                update = self._staging(engine, table, plan, base_id).set(STAGED_PLAN_ID, plan.plan_id)
                return lambda branch: commit_to(table, branch, update, what=f"staging plan {plan.plan_id}")

            staged = change.stage(engine, table, plan, base_id, work, kind=QUARANTINE)
            found = int(staged.snapshotId())
        self._steps("after_stage")
        return Staged(plan_id=plan.plan_id, branch=branch_of(plan.plan_id), snapshot_id=found)

    def _staging(self, engine: Engine, table: Java, plan: Plan, base_id: int, /) -> Java:
        """Return the update that stages the plan."""
        raise NotImplementedError

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        plan, base_id = verdict.plan, verdict.plan.requirements.snapshot_id
        done = self.find_published(plan)
        if done is not None:
            return done
        assert base_id is not None, "rows that leave or return have a table"
        with engine_failures():
            engine, table = self._required(plan)
            return self._commit(engine, table, verdict, given, partial(self._update, engine, table, verdict, base_id), kind=QUARANTINE)

    def _update(self, engine: Engine, table: Java, verdict: Verdict, base_id: int, /) -> Update:
        raise NotImplementedError

    def _required(self, plan: Plan) -> tuple[Engine, Java]:
        """Raises PlanConflict where the quarantine is another table, or its history has lost the plan's snapshot."""
        engine = self._engine()
        table = change.load_side_table(engine, plan, QUARANTINE)
        if str(table.uuid()) != plan.requirements.table_uuid:
            raise PlanConflict(plan.plan_id, "the quarantine is another table now")
        if all(ancestor.snapshot_id != plan.requirements.snapshot_id for ancestor in main_ancestors(table)):
            raise PlanConflict(plan.plan_id, f"snapshot {plan.requirements.snapshot_id} is no longer in the quarantine's history")
        return engine, table

    def _compared(self, plan: Plan, staged: Staged) -> _Compared:
        before_id = plan.requirements.snapshot_id
        if before_id is None:
            return _Compared(None, {}, {})
        table = self._tables.load(plan.topic, kind=QUARANTINE)
        return _Compared(table, _at(table, before_id, plan), _at(table, staged.snapshot_id, plan))


class _Compared:
    """The files of a quarantine before and after a stage. Names prove that other files are unchanged: no writer ever changes a file."""

    def __init__(self, table: Table | None, before: Mapping[str, int], after: Mapping[str, int]) -> None:
        self._table, self._prefix = table, "" if table is None else location_prefix(table.location())
        self.gone, self.new = before.keys() - after.keys(), after.keys() - before.keys()
        self.changed = {name for name in before.keys() & after.keys() if before[name] != after[name]}
        self.figures = {"rows_in": sum(before.values()), "rows_kept": sum(after.values())}

    def read(self, names: Iterable[str]) -> Iterator[tuple[Table, str, str]]:
        """Yield the table, and the name and path of each file, in order."""
        for name in sorted(names):
            assert self._table is not None, "a quarantine with files has a table"
            yield self._table, name, absolute(self._prefix, name)


def _frames(compared: _Compared, plan: Plan, others: Set[str], figures: Mapping[str, int]) -> Mapping[str, object]:
    import pyarrow as pa

    from message_lifecycle.stores.iceberg.evidence_files import longs

    return {
        "difference": pa.table({"name": pa.array(sorted(others | compared.changed), pa.string())}),
        "figures": longs([{**compared.figures, "asks": len(plan.asks), **figures}]),
    }


class IcebergQuarantine(_QuarantineTable):
    """`ports.QuarantineStore`: reads quarantines and removes files."""

    def quarantine(self, name: TopicName) -> QuarantineState | None:
        table = self._of(name)
        if table is None:
            return None
        snapshot = table.current_snapshot()
        return QuarantineState(
            table_uuid=str(table.metadata.table_uuid),
            snapshot_id=None if snapshot is None else snapshot.snapshot_id,
            files=() if snapshot is None else tuple(sorted(_files(table, snapshot), key=lambda file: file.name)),
        )

    def refused_counts(self, name: TopicName) -> Sequence[RefusedCount]:
        from message_lifecycle.stores.iceberg.refused_rows import counts_of

        table = self._of(name)
        return () if table is None else counts_of(table)

    def refused_rows(self, name: TopicName, *, batch: str | None, file: str | None, code: str | None, limit: int) -> Sequence[RefusedRow]:
        from message_lifecycle.stores.iceberg.refused_rows import rows_of

        table = self._of(name)
        return () if table is None else rows_of(table, {"batch": batch, "file": file, "code": code}, limit=limit)

    def find_returning(self, plan: Plan) -> QuarantineReturning:
        from message_lifecycle.stores.iceberg.undo_sources import source_of

        table = self._tables.load(plan.topic, kind=QUARANTINE)
        taken_back = commit_that_says(table, UNDOES, plan.plan_id)
        if taken_back is not None:
            raise undo_source_gone(plan.plan_id, f"plan {summary_of(taken_back).get(PLAN_ID)} has brought back what it removed")
        source, now = source_of(table, plan), table.current_snapshot()
        try:
            there = () if now is None else tuple(_files(table, now))
            rewritten = undo_ref(plan.plan_id) in table.refs()
            return find_returning_files(plan, source_id=source.snapshot_id, rewritten=rewritten, source=_files(table, source), now=there)
        except FileNotFoundError as lost:
            raise undo_source_gone(
                plan.plan_id, f"a file of the quarantine's history is not there any more: {lost.filename or lost}"
            ) from lost

    def find_unapplied(self, plan: Plan) -> Sequence[str]:
        state, named = self.quarantine(plan.topic), set(plan.selection.files)
        there = set() if state is None else named & {file.name for file in state.files}
        return [f"the quarantine still has {len(there)} of the {len(named)} files that went"] if there else []

    def _staging(self, engine: Engine, table: Java, plan: Plan, base_id: int) -> Java:
        return _going(engine, table, plan, base_id)(table)

    def _update(self, engine: Engine, table: Java, verdict: Verdict, base_id: int) -> Update:
        going = _going(engine, table, verdict.plan, base_id)
        return Update(
            update=lambda on: going(on).validateFromSnapshot(base_id).validateNoConflictingDeletes(),
            condition=appends_pass(verdict.plan.plan_id, base_id),
            since=base_id,
        )

    def evidence(self, plan: Plan, staged: Staged, policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        """Read with PyIceberg what Java staged: the times of removed files, not their bounds."""
        import pyarrow as pa

        from message_lifecycle.stores.iceberg.evidence_files import schema

        compared, named = self._compared(plan, staged), set(plan.selection.files)
        early, going, replayed, removed = {file.file for file in files_before_their_age(plan, policy)}, [], [], 0
        for table, name, path in compared.read(compared.gone):
            count, newest = _times(table, path)
            removed += count
            if name in early:
                replayed.append({"rows": count, "planned": name in named, "batch": _batch(table, path)})
            else:
                going.append({"rows": count, "newest_at": newest, "planned": name in named})
        frames = {
            "going": pa.Table.from_pylist(going, schema=schema("rows", "newest_at", planned=pa.bool_())),
            **_frames(compared, plan, compared.new, {"rows_removed": removed}),
        }
        if early:
            frames["replayed"] = pa.Table.from_pylist(replayed, schema=schema("rows", planned=pa.bool_(), batch=pa.string()))
        return frames


class IcebergQuarantineReturns(_QuarantineTable):
    """Brings files back to quarantines."""

    def _returned(self, plan: Plan) -> int:
        table, done = self._tables.load(plan.topic, kind=QUARANTINE), self.find_published(plan)
        after = None if done is None else table.snapshot_by_id(done.snapshot_id)
        if after is None:
            return 0
        before = None if after.parent_snapshot_id is None else table.snapshot_by_id(after.parent_snapshot_id)
        # No writer has yet marked a row that this very commit has brought.
        return returned(plan, () if before is None else _files(table, before), _files(table, after, heeding_marks=False))

    def find_unapplied(self, plan: Plan) -> Sequence[str]:
        found, wanted = self._returned(plan), plan.restored_rows
        return [] if found == wanted else [f"the quarantine has {found} of the {wanted} rows that came back"]

    def publish(self, verdict: Verdict, given: CommitContext) -> Published:
        done = super().publish(verdict, given)
        forget_source(self._tables, verdict.plan, self.kinds)
        return done

    def _staging(self, engine: Engine, table: Java, plan: Plan, _base_id: int) -> Java:
        return bringing_back(engine, self._tables.load(plan.topic, kind=QUARANTINE).io, table, plan)

    def _update(self, engine: Engine, table: Java, verdict: Verdict, base_id: int) -> Update:
        """Raises PlanConflict if the staged files are gone."""
        plan, staged_id = verdict.plan, verdict.staged.snapshot_id
        staged = None if staged_id is None else table.snapshot(staged_id)
        if staged is None:
            raise PlanConflict(plan.plan_id, f"what was staged for it (snapshot {staged_id}) is gone")
        files = StagedChange.of(engine, table, [staged]).added

        def update(on: Java) -> Java:
            append = on.newAppend()
            for file in files:
                append.appendFile(file)
            return append

        return Update(update=update, condition=appends_pass(plan.plan_id, base_id), tells=undo_property(plan), since=base_id)

    def evidence(self, plan: Plan, staged: Staged, _policy: Policy, _given: CommitContext = NO_CONTEXT) -> Mapping[str, object]:
        """Read with PyIceberg what Java staged: every byte of returned files."""
        import pyarrow as pa

        from message_lifecycle.stores.iceberg.data_files import copied_from, digest_of
        from message_lifecycle.stores.iceberg.evidence_files import schema

        compared, named, back = self._compared(plan, staged), dict(enumerate(plan.quarantine_return.files)), []
        for table, name, path in compared.read(compared.new):
            at = copied_from(name)
            action = None if at is None else named.pop(at, None)  # each of them once
            prefix = location_prefix(table.location())
            same = action is not None and digest_of(table.io, path) == digest_of(table.io, absolute(prefix, action.file))
            back.append({"rows": _times(table, path)[0], "planned": action is not None, "same": same})
        figures = {"rows_restored": compared.figures["rows_kept"] - compared.figures["rows_in"]}
        return {
            "back": pa.Table.from_pylist(back, schema=schema("rows", planned=pa.bool_(), same=pa.bool_())),
            **_frames(compared, plan, compared.gone, figures),
        }


def _files(table: Table, snapshot: Snapshot, *, heeding_marks: bool = True) -> Iterator[QuarantineFile]:
    # Another writer has marked rows: how many a file still has is not for this metadata to say, so all of it stays.
    marked = heeding_marks and any(manifest.content == ManifestContent.DELETES for manifest in manifests_of(table, snapshot))
    prefix = location_prefix(table.location())
    for path, rows, size, lower, upper, nulls in listed(table, snapshot, _PICK):
        known = not marked and not (nulls or {}).get(_AT)
        yield QuarantineFile(
            name=path.removeprefix(prefix),
            rows=rows,
            size_bytes=size,
            oldest_at=_instant((lower or {}).get(_AT)) if known else None,
            newest_at=_instant((upper or {}).get(_AT)) if known else None,
        )


def _instant(bound: bytes | None) -> Instant | None:
    return None if bound is None else Instant(int.from_bytes(bound, "little", signed=True))


def _at(table: Table, snapshot_id: int | None, plan: Plan) -> dict[str, int]:
    """Rows by file."""
    snapshot = None if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise PlanConflict(plan.plan_id, f"snapshot {snapshot_id} of the quarantine is gone")
    return {file.name: file.rows for file in _files(table, snapshot)}


def _times(table: Table, path: str) -> tuple[int, int | None]:
    """Rows of the file, and the newest time among them in microseconds; None where one has none."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with reading(path), table.io.new_input(path).open() as stream:
        times = pq.ParquetFile(pa.PythonFile(stream, mode="r")).read(columns=["at"])["at"]
    newest = pc.max(times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()), skip_nulls=False).as_py()
    return len(times), newest


def _batch(table: Table, path: str) -> str | None:
    """The batch that all rows of the file are of; None: they are of several."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with reading(path), table.io.new_input(path).open() as stream:
        batches = pq.ParquetFile(pa.PythonFile(stream, mode="r")).read(columns=["batch"])["batch"].unique().to_pylist()
    return batches[0] if len(batches) == 1 else None


def _going(engine: Engine, table: Java, plan: Plan, base_id: int) -> Callable[[Java], Java]:
    """Makes, of a table or a transaction, the update that takes the plan's files out: those very names in its snapshot, each of them."""
    from message_lifecycle.stores.iceberg.data_files import files_named

    prefix = location_prefix(str(table.location()))
    found = files_named(engine, table, table.snapshot(base_id), [absolute(prefix, name) for name in plan.selection.files])
    if len(found) != len(plan.selection.files):
        raise PlanConflict(plan.plan_id, f"it names {len(plan.selection.files)} files, of which its snapshot holds {len(found)}")
    jvm: Java = engine.jvm
    going = jvm.org.apache.iceberg.util.DataFileSet.create()
    for file in found:
        going.add(file)
    return lambda on: on.newOverwrite().deleteFiles(going, jvm.org.apache.iceberg.util.DeleteFileSet.create())


# Finding and bringing back the files that a plan dropped from the quarantine (DEL-7, QUA-1).
#
# Refused rows have no offsets. An erasure gives a file another name and keeps the times of the rows that stay. So three rules identify a
# file: its name; for a copy that an erasure made, times within the times of a dropped file; for any other copy, its times and row count.


def find_returning_files(
    plan: Plan, *, source_id: int, rewritten: bool, source: Iterable[QuarantineFile], now: Iterable[QuarantineFile]
) -> QuarantineReturning:
    """Return the files that the plan dropped and that are missing `now`. `rewritten`: an erasure has made `source` since the plan."""
    dropped = plan.quarantine_commit.files
    names, there = {action.file for action in dropped}, {file.name: _known_by(file) for file in now}
    copies_there = set(there.values())
    files, present = [], 0
    for file in source:
        if file.oldest_at is None or file.newest_at is None or file.name in there:
            continue
        if file.name not in names and not (rewritten and is_erased_copy(file.name) and _within(file, dropped)):
            continue
        if _known_by(file) in copies_there:
            present += file.rows
        else:
            files.append((file, (file.oldest_at, file.newest_at)))
    return QuarantineReturning(source_id=source_id, files=tuple(files), present=present)


def returned(plan: Plan, before: Iterable[QuarantineFile], after: Iterable[QuarantineFile]) -> int:
    """Count the rows of an undo that its commit has brought. Times and row count identify a file."""
    old = {file.name for file in before}
    new = Counter(_known_by(file) for file in after if file.name not in old)
    named = Counter((action.oldest_at, action.newest_at, action.rows) for action in plan.quarantine_return.files)
    return sum(min(many, new[oldest, newest, rows]) * rows for (oldest, newest, rows), many in named.items())


def bringing_back(engine: Engine, io: FileIO, table: Java, plan: Plan) -> Java:
    """The update that adds a copy of each of the plan's files. Raises UndoSourceGone."""
    from message_lifecycle.stores.iceberg.data_files import copies, originals

    prefix, undone = location_prefix(str(table.location())), plan.parent_id
    wanted = {absolute(prefix, action.file): at for at, action in enumerate(plan.quarantine_return.files)}
    update = table.newAppend()
    found = originals(engine, io, table, plan.quarantine_return.source_id, wanted, undone=undone)
    for _, (_, file) in copies(engine, io, table, found, undone=undone):
        update.appendFile(file)
    return update


def _known_by(file: QuarantineFile) -> tuple[int | None, int | None, int]:
    return file.oldest_at, file.newest_at, file.rows


def _within(file: QuarantineFile, dropped: Iterable[QuarantinedFile]) -> bool:
    oldest, newest = file.oldest_at, file.newest_at
    assert oldest is not None and newest is not None, "asked of known times alone"
    return any(action.oldest_at <= oldest and newest <= action.newest_at for action in dropped)
