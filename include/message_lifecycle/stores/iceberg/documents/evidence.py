"""Evidence about staged documents: the frames of `gates.documents`, from both tables before and after (SNP-6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.change import snapshot_at
from message_lifecycle.stores.iceberg.documents import BucketProof, DocumentFile, FoldSettings, ProofBucket, files_at, group_by_bucket
from message_lifecycle.stores.iceberg.documents import tables as places
from message_lifecycle.stores.iceberg.documents.fold import prove_bucket, relate_differences
from message_lifecycle.stores.iceberg.documents.relations import register_pairs, relate_changes, relate_snapshots
from message_lifecycle.stores.iceberg.documents.stage import (
    RestoredPart,
    each_bucket,
    fold_settings,
    group_documents_by_bucket,
    parts_of,
    source_files,
)
from message_lifecycle.stores.iceberg.documents.tables import reading
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.evidence_files import longs
from message_lifecycle.stores.iceberg.layout import SNAPSHOTS, summary_of
from message_lifecycle.stores.iceberg.relations import database
from message_lifecycle.stores.iceberg.shapes import CHANGES_SHAPE, SNAPSHOTS_SHAPE
from message_lifecycle.stores.iceberg.shares import Resources

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table


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
_Files = Mapping[int, Sequence[DocumentFile]]
_UNPROVED = pa.schema([("document", pa.string()), ("reason", pa.string())])


def evidence(engine: Engine, tables: Tables, plan: Plan, staged: Staged, policy: Policy) -> Mapping[str, object]:
    """Return the evidence about staged documents.

    Returns:
        The frame `documents`, one row of totals over the plan's documents that staging has not blocked; `unproved`, a row for each document
        with a failed proof; and `figures`.

    Raises:
        PlanConflict: The stage is missing.
        FoldingFailed: A task failed.
        UnreadableDocuments: A file cannot be read.
    """
    proved: Sequence[BucketProof] = ()
    if staged.documents is not None:
        proved = each_bucket(engine, plan, "judging", _buckets(tables, plan, staged), partial(_prove, fold_settings(policy)))
    totals = {name: sum(dict(one.totals)[name] for one in proved) for name in TOTALS}
    unproved = sorted(pair for one in proved for pair in one.unproved)
    rows_in, rows_kept = _rows(tables, plan, staged)
    figures = {"rows_in": rows_in, "rows_kept": rows_kept, "rows_removed": rows_in - rows_kept, "asks": len(plan.asks)}
    return {
        "documents": longs([totals]),
        "unproved": pa.Table.from_pylist([{"document": document, "reason": reason} for document, reason in unproved], schema=_UNPROVED),
        "figures": longs([figures]),
    }


def _ids(plan: Plan, staged: Staged) -> tuple[tuple[int | None, int | None], tuple[int | None, int | None]]:
    """Return the snapshot ids before and after, of the table of changes and of the table of snapshots."""
    staged_documents, base_id, before = staged.documents, plan.requirements.snapshot_id, plan.snapshots
    snapshots_base = None if before is None else before.snapshot_id
    return (
        (base_id, base_id if staged_documents is None or staged_documents.changes_id is None else staged_documents.changes_id),
        (
            snapshots_base,
            snapshots_base if staged_documents is None or staged_documents.snapshots_id is None else staged_documents.snapshots_id,
        ),
    )


def _rows(tables: Tables, plan: Plan, staged: Staged) -> list[int]:
    """Return the number of changes before and after, from Iceberg's own counts."""
    changes, counted = tables.load(plan.topic), []
    for snapshot_id in _ids(plan, staged)[0]:
        summary = summary_of(None if snapshot_id is None else changes.snapshot_by_id(snapshot_id))
        counted.append(int(summary.get("total-records", "0")) - int(summary.get("total-position-deletes", "0")))
    return counted


def _prove(folder: FoldSettings, bucket: ProofBucket, resources: Resources) -> BucketProof:
    return prove_bucket(folder, bucket, resources)


def _buckets(tables: Tables, plan: Plan, staged: Staged) -> list[ProofBucket]:
    """Return the files of every bucket that the plan names or that differs."""
    assert staged.documents is not None
    (was, now), (snapshots_were, snapshots_are) = _files_of_both(tables, plan, staged)
    blocked = {document for document, _ in staged.documents.blocked}
    documents = group_documents_by_bucket(action for action in plan.snapshots_commit.documents if action.document not in blocked)
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


def _files_of_both(tables: Tables, plan: Plan, staged: Staged) -> list[tuple[_Files, _Files]]:
    """Return the files before and after, of the changes and of the snapshots; none without a table of snapshots. Raises PlanConflict."""
    found: list[tuple[_Files, _Files]] = []
    for kind, ids in zip(("", SNAPSHOTS), _ids(plan, staged), strict=True):
        if kind and places.snapshots_document(tables, plan.topic) is None:
            found.append(({}, {}))
        else:
            table = tables.load(plan.topic, kind=kind)
            found.append((_files_at(table, ids[0], plan.plan_id), _files_at(table, ids[1], plan.plan_id)))
    return found


def _files_at(table: Table, snapshot_id: int | None, plan_id: str) -> _Files:
    snapshot = snapshot_at(table, snapshot_id, plan_id)
    with reading(".".join(table.name())):
        found = group_by_bucket(files_at(table, snapshot))
    # Two listings of the same files are equal, however manifests were merged.
    return {bucket: sorted(files, key=lambda file: file.file.path) for bucket, files in found.items()}


# Evidence about a staged undo of documents: the frames of `gates.documents`, read without a JVM.
#
# The places of rows, file by file, show that existing rows are unchanged. Restored rows are compared with the tables' history in all
# columns.


_PLACE = "document, server_seq, raised"
_TABLE = """
CREATE TEMP TABLE {table}_came AS SELECT {place}, content FROM {table}_differ WHERE came;
CREATE TEMP TABLE {table}_then AS SELECT {columns} FROM {table}_source SEMI JOIN {table}_named USING (document, server_seq);
CREATE TEMP TABLE {table}_wanted AS SELECT document, server_seq, false AS raised FROM {table}_named;
"""
_COUNTS = {
    "back": "SELECT count(*) FROM (SELECT DISTINCT {place} FROM {table}_came SEMI JOIN {table}_wanted USING ({place}))",
    "missing": "SELECT count(*) FROM {table}_wanted ANTI JOIN {table}_came USING ({place})",
    "unnamed": "SELECT count(*) FROM {table}_came ANTI JOIN {table}_wanted USING ({place})",
    "changed": "SELECT count(*) FROM {table}_came ANTI JOIN {table}_then USING ({place}, content)",
    "lost": "SELECT count(*) FROM {table}_differ WHERE NOT came",
    "twice": "SELECT count(*) FROM (SELECT {place} FROM {table}_came JOIN {table}_all USING ({place}) GROUP BY ALL HAVING count(*) > 1)",
}
_HOLES = """
SELECT count(*) FROM (SELECT DISTINCT document FROM changes_named) LEFT JOIN (
    SELECT document, min(server_seq) AS first, max(server_seq) AS last, count(*) AS stored FROM staged_changes GROUP BY document
) USING (document) LEFT JOIN (SELECT document, max(server_seq) AS seq FROM changes GROUP BY document) USING (document)
WHERE stored IS DISTINCT FROM last - first + 1 OR last IS DISTINCT FROM seq
"""
_EPOCHS = """
SELECT count(*) FROM (SELECT document, max(epoch) AS epoch FROM snapshots GROUP BY document) AS was
FULL JOIN (SELECT document, max(epoch) AS epoch FROM staged_snapshots GROUP BY document) AS now USING (document)
WHERE was.epoch IS DISTINCT FROM now.epoch
"""


def return_evidence(tables: Tables, plan: Plan, staged: Staged) -> Mapping[str, object]:
    """Return the evidence about a staged undo of documents.

    Raises:
        PlanConflict: The stage is missing.
        UndoSourceGone: The rows to restore are missing from the tables' history.
        UnreadableDocuments: A file cannot be read.
    """
    assert plan.snapshots is not None, "an undo of documents says what snapshots it builds on"
    files = [
        (*both, source_files(tables.load(plan.topic, kind=part.kind), part, plan))
        for both, part in zip(_files_of_both(tables, plan, staged), parts_of(plan), strict=True)
    ]
    totals = Counter[str]()
    with reading(str(plan.topic)):
        for bucket in sorted({bucket for of_table in files for each in of_table for bucket in each}):
            if any(bucket in source or was.get(bucket) != now.get(bucket) for was, now, source in files):
                totals.update(_judged(bucket, files, parts_of(plan)))
    rows_in, rows_kept = _rows(tables, plan, staged)
    figures = {"rows_in": rows_in, "rows_restored": rows_kept - rows_in, "rows_kept": rows_kept, "asks": len(plan.asks)}
    columns = [*(f"{table}_{column}" for table in ("changes", "snapshots") for column in _COUNTS), "holes", "epochs_wrong"]
    return {
        "documents": longs([{column: totals[column] for column in columns}]),
        "figures": longs([figures]),
    }


def _judged(bucket: int, files: Sequence[tuple[_Files, _Files, _Files]], parts: Sequence[RestoredPart]) -> dict[str, int]:
    """Count one bucket's rows by kind. A bucket holds all rows of its documents."""
    found: dict[str, int] = {}
    with database() as connection:
        for table, relate, schema, (was, now, source), part in zip(
            ("changes", "snapshots"),
            (relate_changes, relate_snapshots),
            (CHANGES_SHAPE.schema, SNAPSHOTS_SHAPE.schema),
            files,
            parts,
            strict=True,
        ):
            relate(connection, table, was.get(bucket, ()))
            relate(connection, f"staged_{table}", now.get(bucket, ()))
            relate(connection, f"{table}_source", source.get(bucket, ()))
            named = [(document, seq) for document, first, before in part.going.get(bucket, ()) for seq in range(first, before)]
            register_pairs(connection, f"{table}_named", named)
            columns = _columns(schema)
            relate_differences(connection, f"{table}_differ", was.get(bucket, ()), now.get(bucket, ()), columns)
            connection.execute(f"CREATE TEMP VIEW {table}_all AS SELECT {_columns(schema, content=False)} FROM staged_{table}")
            connection.execute(_TABLE.format(table=table, place=_PLACE, columns=columns))
            for name, query in _COUNTS.items():
                found[f"{table}_{name}"] = _number(connection, query.format(table=table, place=_PLACE))
        found["holes"], found["epochs_wrong"] = _number(connection, _HOLES), _number(connection, _EPOCHS)
    return found


def _columns(schema: Schema, *, content: bool = True) -> str:
    """Return the SQL of a row's place, and of a hash over all its columns.

    One server_seq of a document may have two rows: a snapshot, and a row that only raises the epoch.
    """
    names = [field.name for field in schema.fields]
    raised = "digest IS NULL AS raised" if "digest" in names else "false AS raised"
    every = ", ".join(f'"{name}"' for name in names)
    return f"document, server_seq, {raised}" + (f", hash({every}) AS content" if content else "")


def _number(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    return int(connection.execute(query).fetchall()[0][0])
