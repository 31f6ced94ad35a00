"""The quarantine table read by its metadata, and rid of whole files, or given them back: staged on a branch, published in one fenced commit
(QUA-1, DEL-7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.manifest import ManifestContent

from message_lifecycle.model.change import QuarantinedFile
from message_lifecycle.model.errors import PlanConflict, UnknownTopic, undo_source_gone
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import QuarantineFile, QuarantineReturning, QuarantineState
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import NOTHING_GIVEN, ChangeStore, Given
from message_lifecycle.stores.iceberg.branches import branch_of, make_branch, remove_branch, staged_on, undo_ref
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.data_files import copied_from, copies, digest_of, originals
from message_lifecycle.stores.iceberg.failures import engine_failures
from message_lifecycle.stores.iceberg.fence import Ancestor, fenced_commit, main_ancestors
from message_lifecycle.stores.iceberg.layout import PLAN_ID, STAGED_PLAN_ID, UNDOES
from message_lifecycle.stores.iceberg.manifests import DELETED, entries, picking
from message_lifecycle.stores.iceberg.quarantine import KIND
from message_lifecycle.stores.iceberg.session import Java, forget_cached, java_table
from message_lifecycle.stores.iceberg.table_folder import absolute, is_erased_copy, location_prefix

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import SparkSession


_AT = 1
"""The id of the column `at`, the table's first."""
_PICK = picking("file_path", "record_count", "file_size_in_bytes", "lower_bounds", "upper_bounds", "null_value_counts")


class IcebergQuarantine(ChangeStore):
    """`ports.QuarantineStore`. `steps` as `IcebergStore` has them."""

    def __init__(
        self, session: Callable[[], SparkSession], *, tables: Tables | None = None, steps: Callable[[str], None] | None = None
    ) -> None:
        self._session, self._tables, self._steps = session, tables or Tables(), steps or (lambda _: None)

    def quarantine(self, name: TopicName) -> QuarantineState | None:
        try:
            table = self._tables.load(name, kind=KIND)
        except UnknownTopic:
            return None
        snapshot = table.current_snapshot()
        return QuarantineState(
            table_uuid=str(table.metadata.table_uuid),
            snapshot_id=None if snapshot is None else snapshot.snapshot_id,
            files=() if snapshot is None else tuple(sorted(_files(table, snapshot), key=lambda file: file.name)),
        )

    def published(self, plan: Plan) -> Published | None:
        from message_lifecycle.stores.iceberg.layout import ancestors
        from message_lifecycle.stores.iceberg.read import published_by

        try:
            table = self._tables.load(plan.topic, kind=KIND)
        except UnknownTopic:
            return None
        for snapshot in ancestors(table):
            summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if summary.get(PLAN_ID) == plan.plan_id:
                return published_by(plan.plan_id, snapshot.snapshot_id, summary)
        return None

    def has_begun(self, plan: Plan) -> bool:
        from message_lifecycle.stores.iceberg.undo_sources import has_committed

        try:
            return has_committed(self._tables.load(plan.topic, kind=KIND), plan.plan_id)
        except UnknownTopic:
            return False

    def returning(self, plan: Plan) -> QuarantineReturning:
        from message_lifecycle.stores.iceberg.layout import ancestors
        from message_lifecycle.stores.iceberg.undo_sources import source_of

        table = self._tables.load(plan.topic, kind=KIND)
        for snapshot in ancestors(table):
            summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if summary.get(UNDOES) == plan.plan_id:
                raise undo_source_gone(plan.plan_id, f"plan {summary.get(PLAN_ID)} has brought back what it removed")
        source, now = source_of(table, plan), table.current_snapshot()
        try:
            there = () if now is None else tuple(_files(table, now))
            rewritten = undo_ref(plan.plan_id) in table.refs()
            return returning(plan, source_id=source.snapshot_id, rewritten=rewritten, source=_files(table, source), now=there)
        except FileNotFoundError as lost:
            raise undo_source_gone(
                plan.plan_id, f"a file of the quarantine's history is not there any more: {lost.filename or lost}"
            ) from lost

    def _returned(self, plan: Plan) -> int:
        table, done = self._tables.load(plan.topic, kind=KIND), self.published(plan)
        after = None if done is None else table.snapshot_by_id(done.snapshot_id)
        if after is None:
            return 0
        before = None if after.parent_snapshot_id is None else table.snapshot_by_id(after.parent_snapshot_id)
        # Nobody has marked a row of what this very commit has brought.
        return returned(plan, () if before is None else _files(table, before), _files(table, after, heeding_marks=False))

    def left(self, plan: Plan) -> Sequence[str]:
        if plan.on_quarantine.files_back:
            found, wanted = self._returned(plan), plan.restored_rows
            return [] if found == wanted else [f"the quarantine has {found} of the {wanted} rows that came back"]
        state, named = self.quarantine(plan.topic), set(plan.selection.files)
        there = set() if state is None else named & {file.name for file in state.files}
        return [f"the quarantine still has {len(there)} of the {len(named)} files that went"] if there else []

    def stage(self, plan: Plan, _given: Given = NOTHING_GIVEN) -> Staged:
        base_id = plan.requirements.snapshot_id
        if plan.is_empty or base_id is None:
            return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=base_id)
        with engine_failures():
            session, table = self._required(plan)
            branch = branch_of(plan.plan_id)
            if staged_on(table, plan.plan_id) is None:
                update = self._coming(session, table, plan) if plan.on_quarantine.files_back else _going(session, table, plan, base_id)
                make_branch(table, plan, base_id)
                update.set(STAGED_PLAN_ID, plan.plan_id).toBranch(branch).commit()
                table.refresh()
            found = int(table.snapshot(branch).snapshotId())
        self._steps("after_stage")
        return Staged(plan_id=plan.plan_id, branch=branch, snapshot_id=found)

    def evidence(self, plan: Plan, staged: Staged, _policy: Policy, _given: Given = NOTHING_GIVEN) -> Mapping[str, object]:
        """Read by PyIceberg from what Java staged; of the files that go the times are read, not their bounds."""
        if plan.on_quarantine.files_back:
            return self._evidence_of_undo(plan, staged)
        before, after, rows = dict[str, int](), dict[str, int](), dict[str, tuple[int, int | None]]()
        if plan.requirements.snapshot_id is not None:
            table = self._tables.load(plan.topic, kind=KIND)
            before, after = _at(table, plan.requirements.snapshot_id, plan), _at(table, staged.snapshot_id, plan)
            prefix = location_prefix(table.location())
            rows = {name: _times(table, absolute(prefix, name)) for name in sorted(before.keys() - after.keys())}
        named = set(plan.selection.files)
        others = sorted((after.keys() - before.keys()) | {name for name in after if after[name] != before.get(name)})
        rows_in, removed = sum(before.values()), sum(count for count, _ in rows.values())
        figures = {"rows_in": rows_in, "rows_removed": removed, "rows_kept": sum(after.values()), "asks": len(plan.asks)}
        return {
            "going": pa.table(
                {
                    "rows": pa.array([count for count, _ in rows.values()], pa.int64()),
                    "newest_at": pa.array([newest for _, newest in rows.values()], pa.int64()),
                    "planned": pa.array([name in named for name in rows], pa.bool_()),
                }
            ),
            "difference": pa.table({"name": pa.array(others, pa.string())}),
            "figures": pa.table({name: pa.array([value], pa.int64()) for name, value in figures.items()}),
        }

    def publish(self, verdict: Verdict, given: Given) -> Published:
        from message_lifecycle.stores.iceberg.fence import commit_once, only_appends_since, properties
        from message_lifecycle.stores.iceberg.read import published_by

        plan, base_id = verdict.plan, verdict.plan.requirements.snapshot_id
        done = self.published(plan)
        if done is not None:
            self._forget_source(plan)
            return done
        if base_id is None or plan.is_empty:
            raise PlanConflict(plan.plan_id, "nothing is staged for it")
        with engine_failures():
            session, table = self._required(plan)
            if plan.on_quarantine.files_back:
                update = _returned(session, table, verdict)
            else:
                update = _going(session, table, plan, base_id).validateFromSnapshot(base_id).validateNoConflictingDeletes()
            undoes = {UNDOES: plan.parent} if plan.parent is not None else {}
            for key, value in {**properties(verdict, given.ledger()), **undoes}.items():
                update.set(key, value)

            def judge(walk: Callable[[], Iterator[Ancestor]]) -> None:
                self._steps("inside_commit")
                only_appends_since(walk(), plan.plan_id, base_id)

            def attempt() -> None:
                fenced_commit(session, [(update, judge)], what=f"publishing plan {plan.plan_id}")

            found = commit_once(table, plan.plan_id, attempt, steps=self._steps, since=base_id)
            forget_cached(session, plan.topic, kind=KIND)
        self._forget_source(plan)
        return published_by(plan.plan_id, found.snapshot_id, found.summary)

    def discard(self, plan: Plan) -> None:
        """Needs no JVM."""
        remove_branch(self._tables, plan, branch_of(plan.plan_id), (KIND,))

    def _forget_source(self, plan: Plan) -> None:
        """What an erasure has left for an undo, once that is done."""
        if plan.parent is not None:
            remove_branch(self._tables, plan, undo_ref(plan.parent), (KIND,))

    def _coming(self, session: SparkSession, table: Java, plan: Plan) -> Java:
        return bringing_back(session, self._tables.load(plan.topic, kind=KIND).io, table, plan)

    def _evidence_of_undo(self, plan: Plan, staged: Staged) -> Mapping[str, object]:
        """What comes back is read, row by row and byte by byte; that the rest is as it was its names tell, for no file is ever changed."""
        table = self._tables.load(plan.topic, kind=KIND)
        before, after = _at(table, plan.requirements.snapshot_id, plan), _at(table, staged.snapshot_id, plan)
        prefix = location_prefix(table.location())
        rows = [(name, _times(table, absolute(prefix, name))[0]) for name in sorted(after.keys() - before.keys())]
        others = sorted((before.keys() - after.keys()) | {name for name in before.keys() & after.keys() if before[name] != after[name]})
        back = list(looked_at(table.io, prefix, plan, rows))
        figures = {"rows_in": sum(before.values()), "rows_kept": sum(after.values()), "asks": len(plan.asks)}
        figures["rows_restored"] = figures["rows_kept"] - figures["rows_in"]
        columns = {"rows": pa.int64(), "planned": pa.bool_(), "same": pa.bool_()}
        return {
            "back": pa.Table.from_pylist(back, schema=pa.schema(columns)),
            "difference": pa.table({"name": pa.array(others, pa.string())}),
            "figures": pa.table({name: pa.array([value], pa.int64()) for name, value in figures.items()}),
        }

    def _required(self, plan: Plan) -> tuple[SparkSession, Java]:
        """Raises PlanConflict where the quarantine is another table, or its history has lost the plan's snapshot."""
        session = self._session()
        table = java_table(session, plan.topic, kind=KIND)
        if str(table.uuid()) != plan.requirements.table_uuid:
            raise PlanConflict(plan.plan_id, "the quarantine is another table now")
        if all(ancestor.snapshot_id != plan.requirements.snapshot_id for ancestor in main_ancestors(table)):
            raise PlanConflict(plan.plan_id, f"snapshot {plan.requirements.snapshot_id} is no longer in the quarantine's history")
        return session, table


def _files(table: Table, snapshot: Snapshot, *, heeding_marks: bool = True) -> Iterator[QuarantineFile]:
    manifests = snapshot.manifests(table.io)
    # Another writer has marked rows: how many a file still has is not for this metadata to say, so all of it stays.
    marked = heeding_marks and any(manifest.content == ManifestContent.DELETES for manifest in manifests)
    prefix = location_prefix(table.location())
    for manifest in manifests:
        if manifest.content == ManifestContent.DATA:
            for status, _, (path, rows, size, lower, upper, nulls) in entries(table.io, manifest, _PICK):
                if status != DELETED:
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
    with table.io.new_input(path).open() as stream:
        times = pq.ParquetFile(pa.PythonFile(stream, mode="r")).read(columns=["at"])["at"]
    newest = pc.max(times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64()), skip_nulls=False).as_py()
    return len(times), newest


def _going(session: SparkSession, table: Java, plan: Plan, base_id: int) -> Java:
    """The update that takes the plan's files out: those very names in its snapshot, each of them."""
    from message_lifecycle.stores.iceberg.data_files import files_named

    prefix = location_prefix(str(table.location()))
    found = files_named(session, table, table.snapshot(base_id), [absolute(prefix, name) for name in plan.selection.files])
    if len(found) != len(plan.selection.files):
        raise PlanConflict(plan.plan_id, f"it names {len(plan.selection.files)} files, of which its snapshot holds {len(found)}")
    jvm: Java = session._jvm
    going = jvm.org.apache.iceberg.util.DataFileSet.create()
    for file in found:
        going.add(file)
    return table.newOverwrite().deleteFiles(going, jvm.org.apache.iceberg.util.DeleteFileSet.create())


def _returned(session: SparkSession, table: Java, verdict: Verdict) -> Java:
    """The update that adds what was staged. Raises PlanConflict where that is gone."""
    from message_lifecycle.stores.iceberg.branches import StagedChange

    plan, staged_id = verdict.plan, verdict.staged.snapshot_id
    staged = None if staged_id is None else table.snapshot(staged_id)
    if staged is None:
        raise PlanConflict(plan.plan_id, f"what was staged for it (snapshot {staged_id}) is gone")
    update = table.newAppend()
    for file in StagedChange.of(session, table, [staged]).added:
        update.appendFile(file)
    return update


# What a plan took out of the quarantine, found in its history and brought back (DEL-7, QUA-1).
#
# Refused rows have no offsets, and an erasure gives a file another name and keeps the times of the rows that stay. So a file is known by its
# name; one that an erasure has written anew, by times that lie within those of a file that went; and a copy by its times and number of rows.


def returning(
    plan: Plan, *, source_id: int, rewritten: bool, source: Iterable[QuarantineFile], now: Iterable[QuarantineFile]
) -> QuarantineReturning:
    """What the plan took and is not there `now`. `rewritten`: an erasure has come since, and made the source."""
    dropped = plan.on_quarantine.files
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
    """How many of an undo's rows its commit has brought, each file known by its times and its number of rows."""
    old = {file.name for file in before}
    new = Counter(_known_by(file) for file in after if file.name not in old)
    named = Counter((action.oldest_at, action.newest_at, action.rows) for action in plan.on_quarantine.files_back)
    return sum(min(many, new[oldest, newest, rows]) * rows for (oldest, newest, rows), many in named.items())


def bringing_back(session: SparkSession, io: FileIO, table: Java, plan: Plan) -> Java:
    """The update that adds a copy of each of the plan's files. Raises UndoSourceGone."""
    prefix, undone = location_prefix(str(table.location())), plan.parent or plan.plan_id
    wanted = {absolute(prefix, action.file): at for at, action in enumerate(plan.on_quarantine.files_back)}
    update = table.newAppend()
    found = originals(session, io, table, plan.on_quarantine.source_id, wanted, undone=undone)
    for _, (_, file) in copies(session, io, table, found, undone=undone):
        update.appendFile(file)
    return update


def looked_at(io: FileIO, prefix: str, plan: Plan, rows: Iterable[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """The frame `back` of `gates.tables`. `rows`: new files by name, and how many rows each was read to hold."""
    named = dict(enumerate(plan.on_quarantine.files_back))
    for name, count in rows:
        at = copied_from(name)
        action = None if at is None else named.pop(at, None)  # each of them once
        same = action is not None and digest_of(io, absolute(prefix, name)) == digest_of(io, absolute(prefix, action.file))
        yield {"rows": count, "planned": action is not None, "same": same}


def _known_by(file: QuarantineFile) -> tuple[int | None, int | None, int]:
    return file.oldest_at, file.newest_at, file.rows


def _within(file: QuarantineFile, dropped: Iterable[QuarantinedFile]) -> bool:
    oldest, newest = file.oldest_at, file.newest_at
    assert oldest is not None and newest is not None, "asked of known times alone"
    return any(action.oldest_at <= oldest and newest <= action.newest_at for action in dropped)
