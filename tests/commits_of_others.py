"""Commits of another engine to our tables, by Iceberg's Java library alone, which knows nothing of our state (MSG-4, DEL-4)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table

from message_lifecycle.app import steps
from message_lifecycle.app.operations.registry import Work
from message_lifecycle.app.services import Services
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import PlanRecord
from message_lifecycle.stores.iceberg.branches import branch_of
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.columns import BUCKET
from message_lifecycle.stores.iceberg.data_files import data_file, vector_files
from message_lifecycle.stores.iceberg.data_rows import Vectors
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import Java, Jvm, each, entries, identifier
from message_lifecycle.stores.iceberg.layout import COMPACTED, QUARANTINE, WITNESS
from message_lifecycle.stores.iceberg.puffin import write_vector_file
from message_lifecycle.stores.iceberg.shapes import bucket_of
from message_lifecycle.stores.iceberg.table_folder import local_path
from message_lifecycle.stores.iceberg.tasks import NewFile
from tests.undone import approved

LATER_S = 580
SECOND = 1_000_000
Row = Mapping[str, Any]
Pick = Callable[[Row], bool]


def _place_of(row: Row, kind: str) -> str:
    """The partition of a row, as a path. Only changes and snapshots have a document."""
    if "document" in row:
        return f"{BUCKET}={bucket_of(row['document'])}"
    if kind == QUARANTINE:
        return ""
    return f"partition={row['partition']}" + ("" if kind == COMPACTED else f"/segment={row['segment']}")


@dataclass(slots=True)
class Other:
    """Another engine at one table of a topic.

    Attributes:
        name: The topic.
        kind: The kind of its table; empty: the topic's own.
        new: Rows that the engine brings.
        planned: Picks a row that our plan takes.
        another: Picks a row that stays.
        newest: Picks a row of the file that the engine drops.
        edit: What the engine writes into a row that stays.
        plan_id: The plan whose stage the engine may meet.
    """

    name: TopicName
    kind: str = ""
    new: Sequence[Row] = ()
    planned: Pick = lambda _: False
    another: Pick = lambda _: False
    newest: Pick = lambda _: False
    edit: Row = field(default_factory=dict)
    plan_id: str = ""

    @property
    def table(self) -> Java:
        return engine_of_process().table(self.name, kind=self.kind)

    @property
    def by_pyiceberg(self) -> Table:
        """Also a table that is not ours."""
        return _tables().catalog.load_table((self.name.namespace, self.name.table(self.kind)))

    @property
    def jvm(self) -> Jvm:
        return engine_of_process()

    def files(self) -> list[tuple[Java, list[Java], list[Row]]]:
        """Data files of main, each with its deletion vectors and its rows."""
        tasks = self.table.newScan().includeColumnStats().planFiles()
        found = [(task.file(), list(each(task.deletes()))) for task in each(tasks)]
        tasks.close()
        table = self.by_pyiceberg
        head = table.current_snapshot()
        if head is None:
            return []
        gone = Vectors(table, head)
        return [(file, vectors, _rows_in(str(file.location()), gone)) for file, vectors in found]

    def rows(self) -> list[Row]:
        return [row for *_, rows in self.files() for row in rows]

    def write(self, rows: Iterable[Row]) -> list[Java]:
        """Files with these rows, which nothing names yet."""
        table, files = self.table, []
        schema = self.by_pyiceberg.schema().as_arrow()
        place_of = partial(_place_of, kind=self.kind)
        for place, group in groupby(sorted(rows, key=place_of), key=place_of):
            mine = pa.Table.from_pylist([dict(row) for row in group], schema=schema)
            path = str(table.locationProvider().newDataLocation(f"{place}/{uuid.uuid4()}.parquet".lstrip("/")))
            content = pa.BufferOutputStream()
            pq.write_table(mine, content)
            size = _put(table, path, bytes(content.getvalue()))
            files.append(data_file(engine_of_process(), table, place, NewFile(path=path, rows=len(mine), bytes=size)))
        return files


@cache
def _tables() -> Tables:
    """One for all tests of a process, because each holds connections."""
    return Tables()


def _put(table: Java, path: str, content: bytes) -> int:
    stream = table.io().newOutputFile(path).create()
    stream.write(content)
    stream.close()
    return len(content)


def _rows_in(path: str, gone: Vectors) -> list[Row]:
    rows = pq.ParquetFile(local_path(path)).read().to_pylist()
    marked = set(np.asarray(gone[path]).tolist())
    return [row for at, row in enumerate(rows) if at not in marked]


def append(by: Other, *, to: str | None = None) -> None:
    update = by.table.newAppend()
    for file in by.write(by.new):
        update = update.appendFile(file)
    (update if to is None else update.toBranch(to)).commit()


def _delete(by: Other, pick: Pick) -> None:
    """Delete by deletion vectors, as Spark's DELETE does."""
    table = by.table
    loaded = by.by_pyiceberg
    head = loaded.current_snapshot()
    assert head is not None
    gone, vectors, before, places = Vectors(loaded, head), [], {}, {}
    for file, old, _ in by.files():
        path = str(file.location())
        rows = pq.ParquetFile(local_path(path)).read().to_pylist()
        marked = set(np.asarray(gone[path]).tolist())
        found = {at for at, row in enumerate(rows) if pick(row) and at not in marked}
        if found:
            vectors.append((path, np.asarray(sorted(marked | found), np.int64)))
            before[path], places[path] = old, str(table.spec().partitionToPath(file.partition()))
    if not vectors:
        return
    puffin = str(table.locationProvider().newDataLocation(f"{uuid.uuid4()}.puffin"))
    written = write_vector_file(puffin, vectors, partial(_put, table))
    update = table.newRowDelta().validateFromSnapshot(table.currentSnapshot().snapshotId())
    for path, vector in vector_files(engine_of_process(), table, written, places):
        update.addDeletes(vector)
        for old_vector in before[path]:
            update.removeDeletes(old_vector)
    update.commit()


def delete_another_row(by: Other) -> None:
    _delete(by, by.another)


def delete_a_planned_row(by: Other) -> None:
    _delete(by, by.planned)


def _replace(by: Other, pick: Pick, change: Callable[[Row], Row | None]) -> None:
    """Rewrite the files that have such a row, as a copy-on-write does."""
    update = by.table.newOverwrite()
    for file, _, rows in by.files():
        if any(map(pick, rows)):
            update = update.deleteFile(file)
            changed = [change(row) if pick(row) else row for row in rows]
            for new in by.write(row for row in changed if row is not None):
                update = update.addFile(new)
    update.commit()


def replace_without_a_planned_row(by: Other) -> None:
    _replace(by, by.planned, lambda _: None)


def drop_a_file(by: Other) -> None:
    """The file of the newest rows."""
    delete = by.table.newDelete()
    for file, _, rows in by.files():
        if any(map(by.newest, rows)):
            delete = delete.deleteFile(file)
    delete.commit()


def overwrite(by: Other) -> None:
    """A value of one row that stays."""
    _replace(by, by.another, lambda row: {**row, **by.edit})


def rewrite(by: Other) -> None:
    """Rewrite every file, as a compaction of small files does."""
    update, files = by.table.newRewrite(), by.files()
    if not files:
        return
    update = update.validateFromSnapshot(by.table.currentSnapshot().snapshotId())
    for file, vectors, _ in files:
        update = update.deleteFile(file)
        for vector in vectors:
            update = update.deleteFile(vector)
    for file in by.write(row for *_, rows in files for row in rows):
        update = update.addFile(file)
    update.commit()


def roll_back(by: Other) -> None:
    """To the snapshot before, where the history has one: an erasure leaves none."""
    parent = by.table.currentSnapshot().parentId()
    if parent is not None and by.table.snapshot(parent) is not None:
        by.table.manageSnapshots().rollbackTo(parent).commit()


def expire(by: Other) -> None:
    by.table.expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()


def append_and_expire(by: Other) -> None:
    append(by)
    expire(by)


def rewrite_and_expire(by: Other) -> None:
    rewrite(by)
    expire(by)


def create_refs(by: Other) -> None:
    head = by.table.currentSnapshot().snapshotId()
    by.table.manageSnapshots().createBranch("theirs", head).createTag("theirs too", head).commit()


def drop_our_branch(by: Other) -> None:
    """Drop every branch and tag except main, as a cleaning of branches does."""
    refs = [str(ref) for ref in by.table.refs() if str(ref) != "main"]
    for ref in refs:
        changing = by.table.manageSnapshots()
        (changing.removeBranch(ref) if by.table.refs().get(ref).isBranch() else changing.removeTag(ref)).commit()


def fast_forward(by: Other) -> None:
    """Messages staged on a branch of theirs, then brought to main."""
    by.table.manageSnapshots().createBranch("audit", by.table.currentSnapshot().snapshotId()).commit()
    append(by, to="audit")
    by.table.manageSnapshots().fastForwardBranch("main", "audit").commit()


def fast_forward_to_our_stage(by: Other) -> None:
    """Fast-forward main. Iceberg refuses this if main has moved on, as main has after our own commit."""
    stage, table = branch_of(by.plan_id), by.table
    if not table.refs().containsKey(stage):
        return
    main, staged = table.currentSnapshot().snapshotId(), table.snapshot(stage).snapshotId()
    if by.jvm.jvm.org.apache.iceberg.util.SnapshotUtil.isAncestorOf(table, staged, main):
        table.manageSnapshots().fastForwardBranch("main", stage).commit()


def set_a_property(by: Other) -> None:
    by.table.updateProperties().set("theirs", "1").commit()


def change_a_setting(by: Other) -> None:
    by.table.updateProperties().set("lifecycle.max_removed_fraction", "0.9").commit()


def remove_our_witness(by: Other) -> None:
    by.table.updateProperties().remove(WITNESS).commit()


def add_a_column(by: Other) -> None:
    by.table.updateSchema().addColumn("note", by.jvm.jvm.org.apache.iceberg.types.Types.StringType.get()).commit()


def _places(by: Other) -> tuple[Java, Java]:
    place = by.name.namespace, by.name.table(by.kind)
    return identifier(by.jvm, place), identifier(by.jvm, (place[0], f"{place[1]}_aside"))


def rename(by: Other) -> None:
    place, aside = _places(by)
    by.jvm.lake.renameTable(place, aside)


def bring_back(by: Other) -> None:
    """After `rename`."""
    place, aside = _places(by)
    if by.jvm.lake.tableExists(aside):
        by.jvm.lake.renameTable(aside, place)


def rename_and_back(by: Other) -> None:
    rename(by)
    bring_back(by)


def _create(by: Other, properties: Mapping[str, str]) -> None:
    table, (place, _) = by.table, _places(by)
    schema, spec = table.schema(), table.spec()
    by.jvm.lake.dropTable(place, False)
    by.jvm.lake.buildTable(place, schema).withPartitionSpec(spec).withProperties({"format-version": "3", **properties}).create()


def create_again(by: Other) -> None:
    """Drop the table, and make an empty one of its name."""
    _create(by, {})


def create_again_alike(by: Other) -> None:
    """Create the table again with all properties, as a tool does that copies the definition of a table."""
    _create(by, {key: text for key, text in entries(by.table.properties()).items() if key != "format-version"})


COMMITS: Mapping[str, Callable[[Other], None]] = {
    made.__name__.replace("_", " "): made
    for made in (
        append, delete_another_row, delete_a_planned_row, replace_without_a_planned_row, drop_a_file, overwrite, rewrite, roll_back, expire, append_and_expire,
        rewrite_and_expire, create_refs, drop_our_branch, fast_forward, fast_forward_to_our_stage, set_a_property, change_a_setting,
        remove_our_witness, add_a_column, rename, rename_and_back, create_again, create_again_alike,
    )
}  # fmt: skip

ANOTHER = ("create again", "create again alike", "rename")
"""Commits that leave no table of ours under the name."""


# A plan of ours, verb by verb, with such a commit in between.

VERBS = ("plan", "stage", "gate", "approve", "publish", "verify")


def named(error: LifecycleError) -> str:
    assert error.code not in ("InternalError", "LifecycleError"), error
    return error.code


def carry_out(s: Services, record: PlanRecord, gap: str, meddle: Callable[[], None]) -> str:
    """Carry out a plan verb by verb, with `meddle` behind one of them. Return how the plan ended, or the code of the error that ended it."""
    plan_id = record.plan.plan_id
    verbs: dict[str, Callable[[], object]] = {
        "plan": lambda: None,
        "stage": lambda: (steps.stage(s, plan_id), steps.mark(s, plan_id)),
        "gate": lambda: steps.gate(s, plan_id),
        "approve": lambda: _approve(s, plan_id),
        "publish": lambda: steps.publish(s, plan_id),
        "verify": lambda: steps.verify(s, plan_id),
    }
    ended = ""
    for verb, do in verbs.items():
        try:
            if not ended:
                do()
        except LifecycleError as error:
            ended = named(error)
        if verb == gap:
            assert not ended, f"{verb} before the other's commit: {ended}"
            meddle()
    outcome = s.ledger.record(plan_id).outcome
    return ended or ("open" if outcome is None else outcome.name)


def _approve(s: Services, plan_id: str) -> None:
    report = s.ledger.record(plan_id).report
    if report is not None and report.judgement == "needs_approval":
        steps.approve(s, plan_id, granted=True, by="tester", text="as expected")


def run_again(s: Services, name: TopicName, work: Work, as_of: Instant) -> str:
    """Run the work as a whole. Return how it ended, or the code of the error."""
    try:
        return steps.run(s, name, as_of=as_of, approver=approved, work=work).name
    except LifecycleError as error:
        return named(error)
