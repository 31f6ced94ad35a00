"""What the gate judges of a staged undo of documents: frames of `gates.documents`, read without a JVM.

What was there is shown to be unchanged by the places of rows, file by file; what comes back is compared with the tables' history, all
columns of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.documents.actions import register_pairs
from message_lifecycle.stores.iceberg.documents.columns import CHANGES
from message_lifecycle.stores.iceberg.documents.columns import SNAPSHOTS as SNAPSHOT_ROWS
from message_lifecycle.stores.iceberg.documents.evidence import files_of, rows_at
from message_lifecycle.stores.iceberg.documents.failures import reading
from message_lifecycle.stores.iceberg.documents.inputs import DocumentFile
from message_lifecycle.stores.iceberg.documents.proof import relate_differences
from message_lifecycle.stores.iceberg.documents.relations import database, relate_changes, relate_snapshots
from message_lifecycle.stores.iceberg.documents.returns import Part, parts_of, source_files
from message_lifecycle.stores.iceberg.layout import SNAPSHOTS

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.schema import Schema

_Files = Mapping[int, Sequence[DocumentFile]]
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
    """Raises PlanConflict where what was staged is gone, UndoSourceGone, UnreadableDocuments."""
    told, before = staged.documents, plan.snapshots
    assert before is not None, "an undo of documents says what snapshots it builds on"
    changes, snapshots = tables.load(plan.topic), tables.load(plan.topic, kind=SNAPSHOTS)
    base_id, snapshots_base = plan.requirements.snapshot_id, before.snapshot_id
    staged_id = base_id if told is None or told.changes_id is None else told.changes_id
    snapshots_id = snapshots_base if told is None or told.snapshots_id is None else told.snapshots_id
    files = [
        (files_of(table, was, plan.plan_id), files_of(table, now, plan.plan_id), source_files(table, part, plan))
        for table, was, now, part in zip(
            (changes, snapshots), (base_id, snapshots_base), (staged_id, snapshots_id), parts_of(plan), strict=True
        )
    ]
    totals = Counter[str]()
    with reading(str(plan.topic)):
        for bucket in sorted({bucket for of_table in files for each in of_table for bucket in each}):
            if any(bucket in source or was.get(bucket) != now.get(bucket) for was, now, source in files):
                totals.update(_judged(bucket, files, parts_of(plan)))
    rows_in, rows_kept = rows_at(changes, base_id), rows_at(changes, staged_id)
    figures = {"rows_in": rows_in, "rows_restored": rows_kept - rows_in, "rows_kept": rows_kept, "asks": len(plan.asks)}
    columns = [*(f"{table}_{column}" for table in ("changes", "snapshots") for column in _COUNTS), "holes", "epochs_wrong"]
    return {
        "documents": _frame({column: totals[column] for column in columns}),
        "figures": _frame(figures),
    }


def _judged(bucket: int, files: Sequence[tuple[_Files, _Files, _Files]], parts: Sequence[Part]) -> dict[str, int]:
    """Of one bucket, in which all of a document lies."""
    found: dict[str, int] = {}
    with database() as connection:
        for table, relate, schema, (was, now, source), part in zip(
            ("changes", "snapshots"), (relate_changes, relate_snapshots), (CHANGES.schema, SNAPSHOT_ROWS.schema), files, parts, strict=True
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
    """A row's place, and a hash over all its columns. Of a document at one server_seq there may be a snapshot, and a row that only raises
    the epoch."""
    names = [field.name for field in schema.fields]
    raised = "digest IS NULL AS raised" if "digest" in names else "false AS raised"
    every = ", ".join(f'"{name}"' for name in names)
    return f"document, server_seq, {raised}" + (f", hash({every}) AS content" if content else "")


def _number(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    return int(connection.execute(query).fetchall()[0][0])


def _frame(row: Mapping[str, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(row)], schema=pa.schema([(name, pa.int64()) for name in row]))
