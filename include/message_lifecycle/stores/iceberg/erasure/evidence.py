"""Evidence about a staged erasure for the gate.

The evidence reads tables as any reader would. PyIceberg plans the files of the staged metadata. A second search and comparison reads them,
against the table at the time of staging. The publish step checks later changes.

Frames: `rewritten`, one row per rewritten file; `tables`, one row per table; `figures`, one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from message_lifecycle.model.change import EraseRows, Rewrite
from message_lifecycle.model.erasure import TableKind
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.iceberg.branches import undo_ref
from message_lifecycle.stores.iceberg.data_files import is_named
from message_lifecycle.stores.iceberg.data_rows import Vectors
from message_lifecycle.stores.iceberg.erasure.looking import Looks
from message_lifecycle.stores.iceberg.erasure.metadata import snapshot_id_of
from message_lifecycle.stores.iceberg.erasure.publish import (
    document_at,
    metadata_name,
    read_stage,
)
from message_lifecycle.stores.iceberg.erasure.rewrite import by_position, names_of, opened
from message_lifecycle.stores.iceberg.erasure.search import MAIN, Heads, UndoWindow
from message_lifecycle.stores.iceberg.table_folder import absolute, location_prefix
from message_lifecycle.stores.iceberg.table_metadata import Document

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table


Row = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEvidence:
    """The evidence about one table of an erasure."""

    rewritten: tuple[Row, ...]
    table: Row
    rows_in: int
    bytes_in: int


def of_table(catalog: Catalog, document: Document, plan: Plan, action: Rewrite, window: UndoWindow, looks: Looks) -> TableEvidence:
    """Return the evidence about one table.

    Args:
        catalog: The catalog of the table.
        document: The table's current metadata.
        plan: The erasure's plan.
        action: The plan's action on the table.
        window: Decides which undo is still open.
        looks: Searches the table's files.

    Raises:
        PlanConflict: The stage is missing, or the metadata that it was built on is missing.
    """
    io = looks.io
    staged = read_stage(io, document, plan.plan_id)
    if staged is None or not io.new_input(staged.base).exists():
        raise PlanConflict(plan.plan_id, "what was staged is gone")
    before = _table(catalog, staged.base, io)
    after = _table(catalog, f"{document['location']}/{metadata_name(plan.plan_id)}", io)
    prefix = location_prefix(str(document["location"]))
    named = {absolute(prefix, row.file): row for row in action.rows}
    written = {file.old: file.path for file in staged.files}
    rewritten = tuple(_rewritten(io, path, written.get(path), action.table, row) for path, row in named.items())
    heads = Heads.of(document_at(io, staged.base), window)
    # Count the rows of the plan's snapshot: an append may have arrived between the plan and its stage (DEL-4).
    planned = dict(action.refs).get(MAIN)
    base = before.snapshot_by_id(planned) if planned is not None else None
    tasks = [] if base is None else list(before.scan(snapshot_id=base.snapshot_id).plan_files())
    return TableEvidence(
        rewritten=rewritten,
        table=_differences(looks, before, after, heads, named, written, plan),
        rows_in=sum(task.file.record_count for task in tasks)
        - (0 if base is None else sum(len(Vectors(before, base)[task.file.file_path]) for task in tasks)),
        bytes_in=sum(task.file.file_size_in_bytes for task in tasks),
    )


def joined(plan: Plan, found: Iterable[TableEvidence]) -> Mapping[str, object]:
    """Return the frames of all tables. The figures describe the log only, which comes last."""
    parts = list(found)
    log = parts[-1] if parts else None
    rows_in = plan.expected.rows_in if log is None else log.rows_in
    removed = plan.expected.removed_rows
    bytes_in = 0 if log is None else log.bytes_in
    figures = {
        "rows_in": rows_in,
        "rows_removed": removed,
        "rows_kept": rows_in - removed,
        "bytes_in": bytes_in,
        "asks": len(plan.asks),
    }
    return {
        "rewritten": _frame([row for part in parts for row in part.rewritten], ("rows", "unnamed", "left", "changed", "found")),
        "tables": _frame([part.table for part in parts], ("found", "files_differ", "marks_differ", "refs_differ", "history", "searched")),
        "figures": pa.table({name: pa.array([value], pa.int64()) for name, value in figures.items()}),
    }


def _frame(rows: list[Row], columns: tuple[str, ...]) -> pa.Table:
    return pa.table({name: pa.array([row[name] for row in rows], pa.int64()) for name in columns})


def _table(catalog: Catalog, metadata_location: str, io: FileIO) -> Table:
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.serializers import FromInputFile
    from pyiceberg.table import StaticTable

    return StaticTable(
        identifier=("static", metadata_location),
        metadata_location=metadata_location,
        metadata=FromInputFile.table_metadata(io.new_input(metadata_location)),
        io=io,
        catalog=NoopCatalog(catalog.name),
    )


def _rewritten(io: FileIO, old: str, new: str | None, kind: TableKind, row: EraseRows) -> Row:
    """Compare by the plan's offsets. The rewrite used positions, so one mistake cannot hide in both."""
    with opened(io, old) as file:
        names, moves, rows = names_of(file, kind), by_position(file, kind), file.metadata.num_rows
    gone = is_named(names, row.offsets)
    kept = rows - int(gone.sum())
    if new is None:
        return {"rows": rows, "unnamed": kept, "left": 0, "changed": 0, "found": 0}
    with opened(io, new) as file:
        made, left = file.metadata.num_rows, names_of(file, kind)
    if moves:
        # A rewrite moves positions, so compare the number of rows here. `changed` compares their contents.
        unnamed, still = max(0, kept - made), max(0, made - kept)
    else:
        unnamed, still = int((~np.isin(names[~gone], left)).sum()), int(np.isin(names[gone], left).sum())
    with opened(io, old) as before, opened(io, new) as after:
        changed = not _same(before, ~gone, after)
    return {"rows": rows - made, "unnamed": unnamed, "left": still, "changed": int(changed), "found": 0}


_MOST_ROWS = 65_536
"""The most rows of each file that one comparison reads."""


def _same(before: pq.ParquetFile, kept: NDArray[np.bool_], after: pq.ParquetFile) -> bool:
    """Return whether the kept rows equal the other file's rows, column by column and in order.

    A null differs from an empty value; NaN equals NaN.
    """
    if not before.schema_arrow.equals(after.schema_arrow):
        return False
    size = _rows_at_once(before)
    starts = range(0, len(kept), size)
    parts = (rows.filter(pa.array(kept[at : at + size])) for at, rows in zip(starts, _batches(before, size), strict=True))
    made, left = _batches(after, size), after.schema_arrow.empty_table()
    for part in parts:
        while len(left) < len(part) and (more := next(made, None)) is not None:
            left = pa.concat_tables([left, more])
        some, left = left.slice(0, len(part)), left.slice(len(part))
        if any(not _bits(part[name]).equals(_bits(some[name])) for name in part.column_names):
            return False
    return not len(left) and next(made, None) is None


def _rows_at_once(file: pq.ParquetFile) -> int:
    """Return how many rows one comparison reads: no more than a row group has, because the rewrite held a row group in memory, too."""
    groups = (file.metadata.row_group(at).num_rows for at in range(file.num_row_groups))
    return max(1, min(_MOST_ROWS, max(groups, default=1)))


def _batches(file: pq.ParquetFile, size: int) -> Iterator[pa.Table]:
    """Yield the rows in tables of `size` rows. The last table may be smaller."""
    held = file.schema_arrow.empty_table()
    for batch in file.iter_batches(batch_size=size):
        held = pa.concat_tables([held, pa.Table.from_batches([batch])])
        while len(held) >= size:
            yield held.slice(0, size)
            held = held.slice(size)
    if len(held):
        yield held


def _bits(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return floats as integers with the same bits: Arrow treats NaN as unequal to NaN, and -0.0 as equal to 0.0."""
    if not pa.types.is_floating(column.type):
        return column
    whole = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[column.type.bit_width]
    return pa.chunked_array([chunk.view(whole) for chunk in column.chunks], whole)


def _differences(
    looks: Looks,
    before: Table,
    after: Table,
    heads: Heads,
    named: Mapping[str, EraseRows],
    written: Mapping[str, str | None],
    plan: Plan,
) -> Row:
    io, kind = looks.io, looks.kind
    expected = {**heads.refs, **{undo_ref(plan_id): at for plan_id, at in heads.undo.items()}}
    refs = after.metadata.refs
    files_differ = marks_differ = 0
    strays = set(refs) ^ set(expected)
    searched: dict[str, bool] = {}
    for ref, snapshot_id in expected.items():
        old = before.snapshot_by_id(snapshot_id)
        new = after.snapshot_by_id(refs[ref].snapshot_id) if ref in refs else None
        if old is None or new is None:
            strays.add(ref)  # the gate cannot check this ref, so the ref must fail (DEL-2)
            continue
        had = {task.file.file_path for task in before.scan(snapshot_id=old.snapshot_id).plan_files()}
        has = {task.file.file_path: task.file.record_count for task in after.scan(snapshot_id=new.snapshot_id).plan_files()}
        wanted = {path for file in had if (path := written.get(file, file)) is not None}
        files_differ += len(wanted ^ has.keys())
        was, now = Vectors(before, old), Vectors(after, new)
        for path in had:
            if path not in named:
                marks_differ += int(not np.array_equal(was[path], now[path]))
            elif (moved := written.get(path)) is not None:
                marks_differ += int(
                    _remaining_marked_rows(io, path, was, kind, named[path].offsets) != _remaining_marked_rows(io, moved, now, kind, "")
                )
        new_files = {path: rows for path, rows in has.items() if path not in searched}
        looks.ahead(new_files)
        searched |= {path: bool(len(looks.rows(path))) for path in new_files}
    return {
        "found": sum(searched.values()),
        "files_differ": files_differ,
        "marks_differ": marks_differ,
        "refs_differ": len(strays) + int(refs[MAIN].snapshot_id != snapshot_id_of(plan.plan_id, MAIN)),
        "history": history_left(after),
        "searched": len(searched),
    }


def history_left(table: Table) -> int:
    """Return how many snapshots are no head of a branch or tag and still name files.

    Carriers of other writers' progress do not count: they name no file.
    """
    heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
    return sum(snapshot.snapshot_id not in heads and bool(snapshot.manifests(table.io)) for snapshot in table.snapshots())


def _remaining_marked_rows(io: FileIO, path: str, vectors: Vectors, kind: TableKind, without: str) -> list[int]:
    """Return the names of the marked rows that stay. Rows named by position get their new positions."""
    marked = vectors[path]
    if not len(marked):
        return []
    with opened(io, path) as file:
        names, moves = names_of(file, kind), by_position(file, kind)
    gone = is_named(names, without) if without else np.zeros(len(names), np.bool_)
    left = marked[~gone[marked]]
    return sorted((left - np.cumsum(gone)[left] if moves else names[left]).tolist())
