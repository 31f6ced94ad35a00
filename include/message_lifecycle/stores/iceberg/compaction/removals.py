"""What other operations than compaction take from a compacted view: single messages, named by their offsets (PRG-1, CMP-9)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import ViewReason
from message_lifecycle.model.view import StagedView
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.compaction.columns import SCHEMA
from message_lifecycle.stores.iceberg.compaction.engine import totals
from message_lifecycle.stores.iceberg.compaction.inputs import files_by_partition
from message_lifecycle.stores.iceberg.compaction.job import InputFile, NewFile, NewVector, PartitionResult
from message_lifecycle.stores.iceberg.compaction.relations import create_relation, duckdb_types
from message_lifecycle.stores.iceberg.compaction.vectors import marked
from message_lifecycle.stores.iceberg.data_rows import read_rows
from message_lifecycle.stores.iceberg.layout import COMPACTED
from message_lifecycle.stores.iceberg.puffin import Positions, puffin_file
from message_lifecycle.stores.iceberg.row_deletes import within

if TYPE_CHECKING:
    from pyiceberg.table import Table

_NONE = np.empty(0, np.int64)


def marks(view: Table, snapshot_id: int, removals: Sequence[RemoveRows]) -> list[PartitionResult]:
    """New deletion vectors for the named messages, written beside the view's data, with those that were there before."""
    files = files_by_partition(view, view.snapshot_by_id(snapshot_id))
    return [_of_partition(view, files.get(action.partition, []), action) for action in removals]


def _of_partition(view: Table, files: Sequence[InputFile], action: RemoveRows) -> PartitionResult:
    positions: dict[str, Positions] = {}
    live = going = 0
    for file in files:
        before = _NONE if file.vector is None else marked(file.vector)
        offsets = read_rows(view.io, file.path, before, ()).offsets
        named = np.setdiff1d(np.flatnonzero(within(offsets, action.offsets)), before)
        live, going = live + len(offsets) - len(before), going + len(named)
        if len(named):
            positions[file.path] = np.union1d(before, named)
    return PartitionResult(
        partition=action.partition,
        through=-1,
        files=(),
        vectors=write_marks(view, f"partition={action.partition}", positions),
        dropped=(),
        view_rows=live,
        tail_rows=0,
        keys=0,
        rows_out=live - going,
        removed={cast(ViewReason, action.reason): going},
    )


def write_marks(table: Table, place: str, positions: Mapping[str, Positions]) -> tuple[NewVector, ...]:
    """One file of new vectors, by the path of each data file. `place`: their partition, as `name=value`."""
    if not positions:
        return ()
    content, blobs = puffin_file(positions.items())
    path = f"{table.location()}/data/{place}/{token_hex(8)}-deletes.puffin"
    with table.io.new_output(path).create() as stream:
        stream.write(content)
    puffin = NewFile(path=path, rows=sum(blob.rows for blob in blobs), bytes=len(content))
    return tuple(
        NewVector(data_file=blob.data_file, puffin=puffin, offset=blob.offset, length=blob.length, rows=blob.rows) for blob in blobs
    )


def staged(plan: Plan, results: Sequence[PartitionResult]) -> StagedView:
    """What it has come to."""
    assert plan.view is not None
    removed = totals(results)
    going = sum(removed.values())
    return StagedView(
        view_rows=plan.view.rows,
        tail_rows=0,
        rows=plan.view.rows - going,
        removed=tuple(sorted(removed.items())),
        bytes_read=0,
        bytes_written=0,
        engine="request",
    )


def removal_evidence(tables: Tables, plan: Plan, before_id: int, after_id: int) -> pa.Table:
    """The frame `view`: per partition that loses messages how many, how many of them the plan does not name, and how many came."""
    import duckdb

    view = tables.load(plan.topic, kind=COMPACTED)
    with tempfile.TemporaryDirectory() as spill, duckdb.connect(config={"temp_directory": spill}) as connection:
        for name, snapshot_id in (("was", before_id), ("now", after_id)):
            files = [file for group in files_by_partition(view, view.snapshot_by_id(snapshot_id)).values() for file in group]
            create_relation(connection, name, files, duckdb_types(SCHEMA))
        place = 'partition, "offset"'
        gone = connection.execute(f"SELECT {place} FROM was EXCEPT ALL SELECT {place} FROM now").fetchall()
        came = connection.execute(f"SELECT {place} FROM now EXCEPT ALL SELECT {place} FROM was").fetchall()
    named = {action.partition: action.offsets for action in plan.on_view.mark}
    rows = []
    for partition in sorted({place[0] for place in (*gone, *came)}):
        mine = np.array([offset for of, offset in gone if of == partition], np.int64)
        known = int(within(mine, named[partition]).sum()) if partition in named else 0
        added = sum(of == partition for of, _ in came)
        rows.append({"partition": partition, "rows": len(mine), "unnamed": len(mine) - known, "added": added})
    schema = pa.schema([(name, pa.int64()) for name in ("partition", "rows", "unnamed", "added")])
    return pa.Table.from_pylist(rows, schema=schema)
