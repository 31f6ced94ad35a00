"""Staging the undo of a purge: changes and snapshots that it took, back on branches of both tables (DEL-7).

Rows are found in the tables' history by document and server_seq, whatever has become of their files since.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from message_lifecycle.model.document import StagedDocuments
from message_lifecycle.model.errors import PlanConflict, undo_source_gone
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.iceberg import requirements
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.compaction.restored import Holding, Restored, bring_back
from message_lifecycle.stores.iceberg.documents import tables as places
from message_lifecycle.stores.iceberg.documents.columns import BUCKET, bucket_of
from message_lifecycle.stores.iceberg.documents.inputs import DocumentFile, files_at, of_buckets
from message_lifecycle.stores.iceberg.documents.marking import Going, places_of
from message_lifecycle.stores.iceberg.documents.relations import database, relate_changes, relate_snapshots
from message_lifecycle.stores.iceberg.documents.stage import STAGED_DOCUMENTS, committed, found_before, staged_as
from message_lifecycle.stores.iceberg.layout import SNAPSHOTS
from message_lifecycle.stores.iceberg.session import forget_cached, java_table

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What an undo brings back to one of the two tables. `source_id`: its snapshot that holds it. `going`: by bucket."""

    kind: str
    source_id: int | None
    rows: int
    going: Mapping[int, Sequence[Going]]


def parts_of(plan: Plan) -> tuple[Part, Part]:
    """Changes, and snapshots."""
    changes: dict[int, list[Going]] = {}
    snapshots: dict[int, list[Going]] = {}
    for back in plan.on_changes.documents_back:
        changes.setdefault(bucket_of(back.document), []).append((back.document, back.changes_from, back.changes_before))
    for back in plan.on_snapshots.documents_back:
        snapshots.setdefault(bucket_of(back.document), []).extend((back.document, seq, seq + 1) for seq in back.snapshots)
    return (
        Part(kind="", source_id=plan.on_changes.source_id, rows=plan.restored_rows, going=changes),
        Part(kind=SNAPSHOTS, source_id=plan.on_snapshots.source_id, rows=plan.restored_snapshots, going=snapshots),
    )


def stage_returns(session: SparkSession, tables: Tables, plan: Plan) -> Staged:
    """Bring back what the plan names; done before, it is found. Raises UndoSourceGone where a file is not there any more, PlanConflict;
    then nothing is staged."""
    changes, snapshots = java_table(session, plan.topic), java_table(session, plan.topic, kind=SNAPSHOTS)
    requirements.check(plan, plan.plan_id, changes, None)
    snapshots_base = places.snapshots_base(snapshots, plan)
    found = found_before(plan, changes, snapshots)
    if found is not None:
        return found
    bases = (plan.requirements.snapshot_id, snapshots_base)
    # Before the branches: where something is lost, or other than planned, nothing is staged.
    back = [
        _restored(tables.load(plan.topic, kind=part.kind), base_id, part, plan) for part, base_id in zip(parts_of(plan), bases, strict=True)
    ]
    told = StagedDocuments(snapshots_id=None, changes_id=None, made=plan.restored_snapshots, dropped=0, purged=0)
    changes_id = committed(session, plan, changes, back[0], bases[0], {})
    told = replace(told, changes_id=changes_id)
    snapshots_id = committed(session, plan, snapshots, back[1], bases[1], {STAGED_DOCUMENTS: json.dumps(asdict(told))})
    for kind in ("", SNAPSHOTS):
        forget_cached(session, plan.topic, kind=kind)
    return staged_as(plan, replace(told, snapshots_id=snapshots_id))


def source_files(table: Table, part: Part, plan: Plan) -> dict[int, list[DocumentFile]]:
    """Files of the table's history, by bucket, that may hold what comes back. Raises UndoSourceGone."""
    source = None if part.source_id is None else table.snapshot_by_id(part.source_id)
    if source is None:
        if part.rows:
            raise undo_source_gone(plan.parent or "", "the snapshot that holds what it removed has been expired")
        return {}
    found: dict[int, list[DocumentFile]] = {}
    for bucket, files in of_buckets(files_at(table, source)).items():
        names = {document.encode() for document, _, _ in part.going.get(bucket, ())}
        holding = [file for file in files if any(file.may_hold(name) for name in names)]
        if holding:
            found[bucket] = holding
    wanted = [file.file.path for files in found.values() for file in files]
    lost = [path for path in wanted if not table.io.new_input(path).exists()]
    if lost:
        raise undo_source_gone(
            plan.parent or "", f"{len(lost)} of the {len(wanted)} files that hold what it removed are lost, {lost[0]} first"
        )
    return found


def _restored(table: Table, base_id: int | None, part: Part, plan: Plan) -> list[Restored]:
    source = source_files(table, part, plan)
    now = of_buckets(files_at(table, places.at(table, base_id, plan.plan_id)))
    back = [
        bring_back(table, bucket, _holding(part, bucket, files), [file.file for file in now.get(bucket, ())], field=BUCKET)
        for bucket, files in sorted(source.items())
    ]
    come = sum(one.rows for one in back)
    if come != part.rows:
        raise PlanConflict(plan.plan_id, f"{come} rows would come back to {'.'.join(table.name())}, the plan names {part.rows}")
    return back


def _holding(part: Part, bucket: int, files: Sequence[DocumentFile]) -> list[Holding]:
    with database() as connection:
        relation = "(FROM source WHERE digest IS NOT NULL) AS source" if part.kind else "source"
        (relate_snapshots if part.kind else relate_changes)(connection, "source", files)
        found = places_of(connection, relation, part.going[bucket])
    return [(files[at].file, positions, files[at].rows) for at, positions in sorted(found.items())]
