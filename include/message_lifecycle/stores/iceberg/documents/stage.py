"""Stage snapshots and purges (SNP-4, SNP-10).

New snapshots go to a branch of their table. Removed rows are marked on a branch of each table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Protocol, TypeVar

from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.model.document import StagedDocuments
from message_lifecycle.model.errors import PlanConflict, undo_source_gone
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.iceberg import fence
from message_lifecycle.stores.iceberg.branches import branch_of, drop_stage, make_branch
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.change import load_side_table, snapshot_at, table_to_build_on
from message_lifecycle.stores.iceberg.columns import BUCKET
from message_lifecycle.stores.iceberg.compaction.removals import Holding, bring_back
from message_lifecycle.stores.iceberg.data_files import commit
from message_lifecycle.stores.iceberg.documents import (
    BucketFoldResult,
    DocumentFile,
    FoldBucket,
    FoldJob,
    FoldSettings,
    files_at,
    group_by_bucket,
)
from message_lifecycle.stores.iceberg.documents import tables as places
from message_lifecycle.stores.iceberg.documents.relations import Going, places_of, relate_changes, relate_snapshots
from message_lifecycle.stores.iceberg.documents.tables import FoldingFailed, reading
from message_lifecycle.stores.iceberg.engine import Engine, job_text
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import SNAPSHOTS, STAGED_PLAN_ID
from message_lifecycle.stores.iceberg.relations import database
from message_lifecycle.stores.iceberg.shapes import bucket_of
from message_lifecycle.stores.iceberg.shares import Failed, Resources
from message_lifecycle.stores.iceberg.table_folder import folder_at
from message_lifecycle.stores.iceberg.tasks import Store, Written

if TYPE_CHECKING:
    from pyiceberg.table import Table


STAGED_DOCUMENTS = "lifecycle.staged-documents"


Parts = tuple[StagedDocuments, Sequence[Written], Sequence[Written]]
"""The totals, the changes of the table of changes, and the changes of the table of snapshots."""
Work = Callable[[Tables, Plan, int], Parts]
"""Writes the files of a stage. Takes the snapshot of the snapshots' table that the plan builds on."""


def stage(engine: Engine, tables: Tables, plan: Plan, work: Work) -> Staged:
    """Stage a plan of documents on its branches, unless an earlier run has done so.

    A stage counts only after the last commit, on the branch of the snapshots. So after an error nothing is staged.

    Raises:
        PlanConflict: The tables have changed since the plan.
        FoldingFailed: A task failed.
        UnreadableDocuments: A file cannot be read.
        UnreadableDeletes: A table has equality deletes, or position deletes of an older kind.
        UndoSourceGone: The rows to restore are missing.
    """
    changes = engine.table(plan.topic)
    snapshots = table_to_build_on(engine, plan, SNAPSHOTS, plan.snapshots, partial(places.create, tables, plan.topic))
    fence.check(plan, plan.plan_id, changes, None)
    base_id, snapshots_base = plan.requirements.snapshot_id, places.snapshots_base(snapshots, plan)
    found = find_earlier_stage(plan, changes, snapshots)
    if found is not None:
        return found
    staged, of_changes, of_snapshots = work(tables, plan, snapshots_base)
    # Load the tables again: storage keys from the catalog may have expired.
    changes, snapshots = engine.table(plan.topic), load_side_table(engine, plan, SNAPSHOTS)
    # Commit the changes first. The commit on the snapshots' branch then marks the stage as complete.
    staged = replace(staged, changes_id=commit_to_branch(engine, plan, changes, of_changes, base_id, {}))
    words = {STAGED_DOCUMENTS: json.dumps(asdict(staged))}
    snapshots_id = commit_to_branch(engine, plan, snapshots, of_snapshots, snapshots_base, words)
    for kind in ("", SNAPSHOTS):
        engine.forget(plan.topic, kind=kind)
    return describe_stage(plan, replace(staged, snapshots_id=snapshots_id))


def fold_documents(engine: Engine, tables: Tables, plan: Plan, snapshots_base: int) -> Parts:
    """Fold the documents. See `Work`."""
    job = _job(tables, plan, snapshots_base)
    try:
        results = each_bucket(
            engine, plan, "folding", job.buckets, partial(_fold, replace(job, buckets=()))
        )  # a task receives only its own bucket
    except BaseException:  # no commit will follow, so delete the new files
        _discard(job)
        raise
    return _sum_results(results), [one.changes for one in results], [one.snapshots for one in results]


def group_documents_by_bucket(documents: Iterable[SnapshotDocument]) -> dict[int, list[SnapshotDocument]]:
    found: dict[int, list[SnapshotDocument]] = {}
    for action in documents:
        found.setdefault(bucket_of(action.document), []).append(action)
    return found


def fold_settings(policy: Policy) -> FoldSettings:
    assert policy.fold is not None, "a plan of documents is made of a topic of documents"
    return FoldSettings(fold=policy.fold, yjs_roots=tuple(sorted(policy.yjs_roots.items())))


def find_earlier_stage(plan: Plan, changes: Java, snapshots: Java) -> Staged | None:
    """Return the complete stage of an earlier run, or delete an incomplete stage and return None."""
    branch = branch_of(plan.plan_id)
    done, marked = snapshots.snapshot(branch), changes.snapshot(branch)
    if done is not None and done.summary().get(STAGED_PLAN_ID) == plan.plan_id:
        content = json.loads(str(done.summary().get(STAGED_DOCUMENTS)))
        content["blocked"] = tuple((document, reason) for document, reason in content["blocked"])
        staged = StagedDocuments(**{**content, "snapshots_id": int(done.snapshotId())})
        if staged.changes_id == (None if marked is None else int(marked.snapshotId())):
            return describe_stage(plan, staged)
    for table, left in ((changes, marked), (snapshots, done)):
        if left is not None:
            drop_stage(table, plan.plan_id)
            table.refresh()
    return None


def describe_stage(plan: Plan, staged: StagedDocuments) -> Staged:
    """Return the description of a stage."""
    ids = (staged.changes_id, staged.snapshots_id)
    newest = next((found for found in ids if found is not None), plan.requirements.snapshot_id)
    return Staged(
        plan_id=plan.plan_id, branch=None if ids == (None, None) else branch_of(plan.plan_id), snapshot_id=newest, documents=staged
    )


def _job(tables: Tables, plan: Plan, base_id: int) -> FoldJob:
    changes, snapshots = tables.load(plan.topic), tables.load(plan.topic, kind=SNAPSHOTS)
    with reading(".".join(changes.name())):
        of_changes = group_by_bucket(files_at(changes, snapshot_at(changes, plan.requirements.snapshot_id, plan.plan_id)))
        of_snapshots = group_by_bucket(files_at(snapshots, snapshot_at(snapshots, base_id, plan.plan_id)))
    buckets = tuple(
        FoldBucket(
            bucket=bucket,
            documents=tuple(sorted(documents, key=lambda action: action.document)),
            changes=tuple(of_changes.get(bucket, ())),
            snapshots=tuple(of_snapshots.get(bucket, ())),
        )
        for bucket, documents in sorted(group_documents_by_bucket(plan.snapshots_commit.documents).items())
    )
    return FoldJob(
        # A unique name, so that leftovers of an attempt that died never count as files of this one.
        run=f"{plan.plan_id[:16]}-{token_hex(4)}",
        folder=fold_settings(Policy.from_values(plan.policy)),
        changes_folder=f"{folder_at(changes.location())}/data",
        snapshots_folder=f"{folder_at(snapshots.location())}/data",
        buckets=buckets,
        changes_store=Store.of(changes),
        snapshots_store=Store.of(snapshots),
    )


def _discard(job: FoldJob) -> None:
    """Delete the files of a run that no commit will use."""
    for folder, store in ((job.changes_folder, job.changes_store), (job.snapshots_folder, job.snapshots_store)):
        store.remove_named(folder, lambda file: file.startswith(f"{job.run}-"))


def _fold(job: FoldJob, bucket: FoldBucket, resources: Resources) -> BucketFoldResult:
    from message_lifecycle.stores.iceberg.documents.fold import fold_bucket

    return fold_bucket(job, bucket, resources)


def _sum_results(results: Sequence[BucketFoldResult]) -> StagedDocuments:
    return StagedDocuments(
        made=sum(one.made for one in results),
        dropped=sum(one.dropped for one in results),
        purged=sum(one.purged for one in results),
        blocked=tuple(sorted(pair for one in results for pair in one.blocked)),
        state_bytes=sum(one.state_bytes for one in results),
    )


def commit_to_branch(
    engine: Engine, plan: Plan, table: Java, results: Sequence[Written], base_id: int | None, words: dict[str, str]
) -> int | None:
    """Commit to the plan's branch and return its new snapshot; None: the table does not change."""
    results = [one for one in results if not one.is_empty]
    if not results or base_id is None:
        return None
    branch = make_branch(table, plan, base_id)
    table.refresh()
    properties = {STAGED_PLAN_ID: plan.plan_id, **words}
    return commit(engine, table, results, branch=branch, properties=properties, partitioned_by=BUCKET)


# Work on documents: one task per bucket, values in and values out.


class _HasBucket(Protocol):
    @property
    def bucket(self) -> int: ...


Given = TypeVar("Given", bound=_HasBucket)
Made = TypeVar("Made")


def each_bucket(engine: Engine, plan: Plan, what: str, buckets: Sequence[Given], work: Callable[[Given, Resources], Made]) -> list[Made]:
    """Run the work of every bucket, each within its share of the machine. Raises FoldingFailed."""
    found = engine.run(buckets, work, description=job_text(plan, f"{what} {len(buckets)} buckets"))
    for bucket, failed in zip(buckets, found, strict=True):
        if isinstance(failed, Failed):
            raise FoldingFailed(bucket.bucket, failed.kind, failed.reason)
    return [one for one in found if not isinstance(one, Failed)]


# Stage the undo of a purge: restore the removed changes and snapshots on branches of both tables (DEL-7).
#
# The tables' history has the rows, by document and server_seq, even if their files have changed since.


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredPart:
    """The rows that an undo restores to one of the two tables.

    Attributes:
        source_id: The snapshot of the table that holds the rows.
        going: The rows by bucket.
    """

    kind: str
    source_id: int | None
    rows: int
    going: Mapping[int, Sequence[Going]]


def parts_of(plan: Plan) -> tuple[RestoredPart, RestoredPart]:
    """Return the part of the changes and the part of the snapshots."""
    changes: dict[int, list[Going]] = {}
    snapshots: dict[int, list[Going]] = {}
    for back in plan.changes_return.documents:
        changes.setdefault(bucket_of(back.document), []).append((back.document, back.changes_from, back.changes_before))
    for back in plan.snapshots_return.documents:
        snapshots.setdefault(bucket_of(back.document), []).extend((back.document, seq, seq + 1) for seq in back.snapshots)
    return (
        RestoredPart(kind="", source_id=plan.changes_return.source_id, rows=plan.restored_rows, going=changes),
        RestoredPart(kind=SNAPSHOTS, source_id=plan.snapshots_return.source_id, rows=plan.restored_snapshots, going=snapshots),
    )


def stage_returned_rows(tables: Tables, plan: Plan, snapshots_base: int) -> Parts:
    """Restore the rows that an undo names. See `Work`."""
    bases = (plan.requirements.snapshot_id, snapshots_base)
    changes, snapshots = (
        _write_restored_rows(tables.load(plan.topic, kind=part.kind), base_id, part, plan)
        for part, base_id in zip(parts_of(plan), bases, strict=True)
    )
    return StagedDocuments(made=plan.restored_snapshots), changes, snapshots


def source_files(table: Table, part: RestoredPart, plan: Plan) -> dict[int, list[DocumentFile]]:
    """Return the files of the table's history, by bucket, that may hold the rows to restore. Raises UndoSourceGone."""
    source = None if part.source_id is None else table.snapshot_by_id(part.source_id)
    if source is None:
        if part.rows:
            raise undo_source_gone(plan.parent_id, "the snapshot that holds what it removed has been expired")
        return {}
    found: dict[int, list[DocumentFile]] = {}
    for bucket, files in group_by_bucket(files_at(table, source)).items():
        names = {document.encode() for document, _, _ in part.going.get(bucket, ())}
        holding = [file for file in files if any(file.may_contain(name) for name in names)]
        if holding:
            found[bucket] = holding
    wanted = [file.file.path for files in found.values() for file in files]
    lost = [path for path in wanted if not table.io.new_input(path).exists()]
    if lost:
        raise undo_source_gone(
            plan.parent_id, f"{len(lost)} of the {len(wanted)} files that hold what it removed are lost, {lost[0]} first"
        )
    return found


def _write_restored_rows(table: Table, base_id: int | None, part: RestoredPart, plan: Plan) -> list[Written]:
    source = source_files(table, part, plan)
    now = group_by_bucket(files_at(table, snapshot_at(table, base_id, plan.plan_id)))
    back = [
        bring_back(table, bucket, _holding(part, bucket, files), [file.file for file in now.get(bucket, ())], field=BUCKET)
        for bucket, files in sorted(source.items())
    ]
    come = sum(one.rows for one in back)
    if come != part.rows:
        raise PlanConflict(plan.plan_id, f"{come} rows would come back to {'.'.join(table.name())}, the plan names {part.rows}")
    return back


def _holding(part: RestoredPart, bucket: int, files: Sequence[DocumentFile]) -> list[Holding]:
    with database() as connection:
        relation = "(FROM source WHERE digest IS NOT NULL) AS source" if part.kind else "source"
        (relate_snapshots if part.kind else relate_changes)(connection, "source", files)
        found = places_of(connection, relation, part.going[bucket])
    return [(files[at].file, positions, files[at].rows) for at, positions in sorted(found.items())]
