"""What the gate judges of staged documents: frames of `gates.documents`, told from both tables before and after (SNP-6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.compaction.job import Resources
from message_lifecycle.stores.iceberg.documents import tables as places
from message_lifecycle.stores.iceberg.documents.engine import each_bucket
from message_lifecycle.stores.iceberg.documents.failures import reading
from message_lifecycle.stores.iceberg.documents.inputs import DocumentFile, files_at, of_buckets
from message_lifecycle.stores.iceberg.documents.job import Folder, ProofBucket, Proved
from message_lifecycle.stores.iceberg.documents.stage import by_bucket, folder_of
from message_lifecycle.stores.iceberg.layout import SNAPSHOTS

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

TOTALS = (
    "planned",
    "snapshots_made",
    "snapshots_dropped",
    "purged",
    "unnamed",
    "holes",
    "ahead",
    "epochs_wrong",
    "uncovered",
    "snapshots_unnamed",
)
_LONGS = pa.schema([(name, pa.int64()) for name in TOTALS])
_UNPROVED = pa.schema([("document", pa.string()), ("reason", pa.string())])


def evidence(session: Callable[[], SparkSession], tables: Tables, plan: Plan, staged: Staged, policy: Policy) -> Mapping[str, object]:
    """`documents`: one row of totals over the plan's documents that staging has not blocked; `unproved`: a row for each document whose
    proof fails; `figures`. Raises PlanConflict where what was staged is gone, FoldingFailed, UnreadableDocuments."""
    told = staged.documents
    proved: Sequence[Proved] = ()
    changes = tables.load(plan.topic)
    base_id = plan.requirements.snapshot_id
    staged_id = base_id if told is None or told.changes_id is None else told.changes_id
    if told is not None:
        work = partial(_prove, folder_of(policy))
        proved = each_bucket(session(), _buckets(tables, plan, staged, changes, staged_id), work)
    totals = {name: sum(dict(one.totals)[name] for one in proved) for name in TOTALS}
    unproved = sorted(pair for one in proved for pair in one.unproved)
    rows_in, rows_kept = rows_at(changes, base_id), rows_at(changes, staged_id)
    figures = {"rows_in": rows_in, "rows_kept": rows_kept, "rows_removed": rows_in - rows_kept, "asks": len(plan.asks)}
    return {
        "documents": pa.Table.from_pylist([totals], schema=_LONGS),
        "unproved": pa.Table.from_pylist([{"document": document, "reason": reason} for document, reason in unproved], schema=_UNPROVED),
        "figures": pa.Table.from_pylist([figures], schema=pa.schema([(name, pa.int64()) for name in figures])),
    }


def _prove(folder: Folder, bucket: ProofBucket, resources: Resources) -> Proved:
    from message_lifecycle.stores.iceberg.documents.proof import prove_bucket

    return prove_bucket(folder, bucket, resources)


def _buckets(tables: Tables, plan: Plan, staged: Staged, changes: Table, staged_changes_id: int | None) -> list[ProofBucket]:
    """Of every bucket that the plan names or that differs."""
    told, plan_id, topic = staged.documents, plan.plan_id, plan.topic
    assert told is not None
    assert plan.snapshots is not None
    before_id = plan.snapshots.snapshot_id
    was = files_of(changes, plan.requirements.snapshot_id, plan_id)
    now = files_of(changes, staged_changes_id, plan_id)
    snapshots_were, snapshots_are = _snapshot_files(
        tables, topic, before_id, before_id if told.snapshots_id is None else told.snapshots_id, plan_id
    )
    blocked = {document for document, _ in told.blocked}
    documents = by_bucket(action for action in plan.on_snapshots.documents if action.document not in blocked)
    none: tuple[DocumentFile, ...] = ()
    return [
        ProofBucket(
            bucket=bucket,
            documents=tuple(documents.get(bucket, ())),
            changes=tuple(was.get(bucket, none)),
            staged_changes=tuple(now.get(bucket, none)),
            snapshots=tuple(snapshots_were.get(bucket, none)),
            staged_snapshots=tuple(snapshots_are.get(bucket, none)),
        )
        for bucket in sorted({*was, *now, *snapshots_were, *snapshots_are, *documents})
        if bucket in documents or was.get(bucket) != now.get(bucket) or snapshots_were.get(bucket) != snapshots_are.get(bucket)
    ]


def _snapshot_files(
    tables: Tables, name: TopicName, before_id: int | None, after_id: int | None, plan_id: str
) -> tuple[Mapping[int, Sequence[DocumentFile]], Mapping[int, Sequence[DocumentFile]]]:
    if places.snapshots_document(tables, name) is None:
        return {}, {}
    table = tables.load(name, kind=SNAPSHOTS)
    return files_of(table, before_id, plan_id), files_of(table, after_id, plan_id)


def files_of(table: Table, snapshot_id: int | None, plan_id: str) -> Mapping[int, Sequence[DocumentFile]]:
    snapshot = places.at(table, snapshot_id, plan_id)
    with reading(".".join(table.name())):
        found = of_buckets(files_at(table, snapshot))
    # Two listings of the same files are equal, however manifests were merged.
    return {bucket: sorted(files, key=lambda file: file.file.path) for bucket, files in found.items()}


def rows_at(table: Table, snapshot_id: int | None) -> int:
    """By Iceberg's own count."""
    snapshot = None if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    if snapshot is None or snapshot.summary is None:
        return 0
    told = snapshot.summary.additional_properties
    return int(told.get("total-records", "0")) - int(told.get("total-position-deletes", "0"))
