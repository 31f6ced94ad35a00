"""Staging snapshots and purges: new snapshots on a branch of their table, what goes marked on a branch of each table (SNP-4, SNP-10)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING

from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.model.document import StagedDocuments
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.iceberg import requirements
from message_lifecycle.stores.iceberg.branches import branch_of, drop_stage, make_branch
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.compaction.commit import commit
from message_lifecycle.stores.iceberg.compaction.job import Resources
from message_lifecycle.stores.iceberg.compaction.restored import Restored
from message_lifecycle.stores.iceberg.document import local_path
from message_lifecycle.stores.iceberg.documents import tables as places
from message_lifecycle.stores.iceberg.documents.columns import BUCKET, bucket_of
from message_lifecycle.stores.iceberg.documents.engine import each_bucket
from message_lifecycle.stores.iceberg.documents.failures import FoldingFailed, reading
from message_lifecycle.stores.iceberg.documents.inputs import files_at, of_buckets
from message_lifecycle.stores.iceberg.documents.job import FoldBucket, FoldedBucket, Folder, FoldJob, Written
from message_lifecycle.stores.iceberg.layout import SNAPSHOTS, STAGED_PLAN_ID
from message_lifecycle.stores.iceberg.session import Java, forget_cached, java_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STAGED_DOCUMENTS = "lifecycle.staged-documents"


def stage(session: SparkSession, tables: Tables, plan: Plan) -> Staged:
    """Fold, and put what comes and what goes on the plan's branches; done before, it is found. Raises PlanConflict, FoldingFailed,
    UnreadableDocuments, UnreadableDeletes."""
    places.create(tables, plan.topic)
    changes, snapshots = java_table(session, plan.topic), java_table(session, plan.topic, kind=SNAPSHOTS)
    requirements.check(plan, plan.plan_id, changes, None)
    base_id = places.snapshots_base(snapshots, plan)
    found = found_before(plan, changes, snapshots)
    if found is not None:
        return found
    job = _job(tables, plan, base_id)
    try:
        results = each_bucket(session, job.buckets, partial(_fold, _without_buckets(job)))
    except FoldingFailed:
        _discard(job)
        raise
    told = _totals(results)
    # The changes first: what stands on the snapshots' branch says that all is there.
    changes_id = committed(session, plan, changes, [one.changes for one in results], plan.requirements.snapshot_id, {})
    told = replace(told, changes_id=changes_id)
    words = {STAGED_DOCUMENTS: json.dumps(asdict(told))}
    snapshots_id = committed(session, plan, snapshots, [one.snapshots for one in results], base_id, words)
    for kind in ("", SNAPSHOTS):
        forget_cached(session, plan.topic, kind=kind)
    return staged_as(plan, replace(told, snapshots_id=snapshots_id))


def by_bucket(documents: Iterable[SnapshotDocument]) -> dict[int, list[SnapshotDocument]]:
    found: dict[int, list[SnapshotDocument]] = {}
    for action in documents:
        found.setdefault(bucket_of(action.document), []).append(action)
    return found


def folder_of(policy: Policy) -> Folder:
    assert policy.fold is not None, "a plan of documents is made of a topic of documents"
    return Folder(fold=policy.fold, yjs_roots=tuple(sorted(policy.yjs_roots.items())))


def found_before(plan: Plan, changes: Java, snapshots: Java) -> Staged | None:
    """What an earlier run of the plan has staged, where it is whole; what is not is taken away."""
    branch = branch_of(plan.plan_id)
    done, marked = snapshots.snapshot(branch), changes.snapshot(branch)
    if done is not None and done.summary().get(STAGED_PLAN_ID) == plan.plan_id:
        content = json.loads(str(done.summary().get(STAGED_DOCUMENTS)))
        content["blocked"] = tuple((document, reason) for document, reason in content["blocked"])
        told = StagedDocuments(**{**content, "snapshots_id": int(done.snapshotId())})
        if told.changes_id == (None if marked is None else int(marked.snapshotId())):
            return staged_as(plan, told)
    for table, left in ((changes, marked), (snapshots, done)):
        if left is not None:
            drop_stage(table, plan.plan_id)
            table.refresh()
    return None


def staged_as(plan: Plan, told: StagedDocuments) -> Staged:
    """What the verbs are told of a stage."""
    ids = (told.changes_id, told.snapshots_id)
    newest = next((found for found in ids if found is not None), plan.requirements.snapshot_id)
    return Staged(plan_id=plan.plan_id, branch=None if ids == (None, None) else branch_of(plan.plan_id), snapshot_id=newest, documents=told)


def _job(tables: Tables, plan: Plan, base_id: int) -> FoldJob:
    changes, snapshots = tables.load(plan.topic), tables.load(plan.topic, kind=SNAPSHOTS)
    with reading(".".join(changes.name())):
        of_changes = of_buckets(files_at(changes, places.at(changes, plan.requirements.snapshot_id, plan.plan_id)))
        of_snapshots = of_buckets(files_at(snapshots, places.at(snapshots, base_id, plan.plan_id)))
    buckets = tuple(
        FoldBucket(
            bucket=bucket,
            documents=tuple(sorted(documents, key=lambda action: action.document)),
            changes=tuple(of_changes.get(bucket, ())),
            snapshots=tuple(of_snapshots.get(bucket, ())),
        )
        for bucket, documents in sorted(by_bucket(plan.on_snapshots.documents).items())
    )
    return FoldJob(
        # Unique: what an attempt that died has left is never taken for this one's.
        run=f"{plan.plan_id[:16]}-{token_hex(4)}",
        folder=folder_of(Policy.of_values(plan.policy)),
        changes_folder=f"{changes.location()}/data",
        snapshots_folder=f"{snapshots.location()}/data",
        buckets=buckets,
    )


def _without_buckets(job: FoldJob) -> FoldJob:
    """What every task is told; its own bucket comes to it alone."""
    return replace(job, buckets=())


def _discard(job: FoldJob) -> None:
    """Take away what a run has written that will not be committed."""
    for folder in (job.changes_folder, job.snapshots_folder):
        for path in local_path(folder).glob(f"{BUCKET}=*/{job.run}-*"):
            path.unlink(missing_ok=True)


def _fold(job: FoldJob, bucket: FoldBucket, resources: Resources) -> FoldedBucket:
    from message_lifecycle.stores.iceberg.documents.fold import fold_bucket

    return fold_bucket(job, bucket, resources)


def _totals(results: Sequence[FoldedBucket]) -> StagedDocuments:
    return StagedDocuments(
        snapshots_id=None,
        changes_id=None,
        made=sum(one.made for one in results),
        dropped=sum(one.dropped for one in results),
        purged=sum(one.purged for one in results),
        blocked=tuple(sorted(pair for one in results for pair in one.blocked)),
        state_bytes=sum(one.state_bytes for one in results),
    )


def committed(
    session: SparkSession, plan: Plan, table: Java, results: Sequence[Written | Restored], base_id: int | None, words: dict[str, str]
) -> int | None:
    """The branch's new snapshot; None: nothing of the table changes."""
    results = [one for one in results if not one.is_nothing]
    if not results or base_id is None:
        return None
    branch = make_branch(table, plan, base_id)
    table.refresh()
    properties = {STAGED_PLAN_ID: plan.plan_id, **words}
    unmarked = [path for one in results if isinstance(one, Restored) for path in one.unmarked]
    return commit(session, table, results, branch=branch, properties=properties, unmarked=unmarked, partitioned_by=BUCKET)
