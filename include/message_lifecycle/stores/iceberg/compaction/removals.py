"""Remove single messages, named by their offsets, from a compacted view for other operations than compaction (PRG-1, CMP-9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from message_lifecycle.model.change import RemoveRows, RestoreRows
from message_lifecycle.model.errors import PlanConflict, undo_source_gone
from message_lifecycle.model.message import StagedView, parse_ranges_text, ranges_text
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.reasons import ViewReason
from message_lifecycle.model.undo import ReturningView
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.compaction.view_table import SCHEMA, columns_of, files_by_partition
from message_lifecycle.stores.iceberg.data_files import copy_file, is_named, write_file
from message_lifecycle.stores.iceberg.data_rows import read_rows
from message_lifecycle.stores.iceberg.evidence_files import longs
from message_lifecycle.stores.iceberg.layout import COMPACTED
from message_lifecycle.stores.iceberg.puffin import Positions, marked, write_vector_file
from message_lifecycle.stores.iceberg.relations import create_relation, database, duckdb_types
from message_lifecycle.stores.iceberg.tasks import InputFile, NewFile, NewVector, Written
from message_lifecycle.stores.iceberg.undo_sources import source_of

if TYPE_CHECKING:
    from pyiceberg.table import Table


_NONE = np.empty(0, np.int64)


def write_removals(view: Table, snapshot_id: int, removals: Sequence[RemoveRows]) -> list[Written]:
    """Write deletion vectors that mark the named messages, next to the view's data. The new vectors repeat earlier marks."""
    files = files_by_partition(view, view.snapshot_by_id(snapshot_id))
    return [_remove_in_partition(view, files.get(action.partition, []), action) for action in removals]


def _remove_in_partition(view: Table, files: Sequence[InputFile], action: RemoveRows) -> Written:
    positions: dict[str, Positions] = {}
    going = 0
    for file in files:
        before = _NONE if file.vector is None else marked(file.vector)
        offsets = read_rows(view.io, file.path, before, ()).offsets
        named = np.setdiff1d(np.flatnonzero(is_named(offsets, action.offsets)), before)
        going += len(named)
        if len(named):
            positions[file.path] = np.union1d(before, named)
    return Written(partition=action.partition, vectors=write_marks(view, f"partition={action.partition}", positions), rows=going)


def write_marks(table: Table, place: str, positions: Mapping[str, Positions]) -> tuple[NewVector, ...]:
    """Write one file of new vectors.

    Args:
        table: The view's table.
        place: The partition of the data files, as `name=value`.
        positions: The marked rows, by the path of each data file.
    """
    path = f"{table.location()}/data/{place}/{token_hex(8)}-deletes.puffin"
    return write_vector_file(path, positions.items(), partial(write_file, table.io))


def staged_removal(plan: Plan, results: Sequence[Written]) -> StagedView:
    """Describe the view after single messages were removed."""
    removed: Counter[ViewReason] = Counter()
    for action, result in zip(plan.view_removal.mark, results, strict=True):
        removed[action.reason] += result.rows
    return _stage_view(plan, come=0, removed=removed, engine="request")


def staged_return(plan: Plan, results: Iterable[Written]) -> StagedView:
    """Describe the view after single messages were restored. Restored messages count as a tail, as in a compaction."""
    return _stage_view(plan, come=sum(result.rows for result in results), removed=Counter(), engine="undo")


def _stage_view(plan: Plan, *, come: int, removed: Counter[ViewReason], engine: str) -> StagedView:
    assert plan.view is not None
    return StagedView(
        view_rows=plan.view.rows,
        tail_rows=come,
        rows=plan.view.rows + come - sum(removed.values()),
        removed=tuple(sorted(removed.items())),
        bytes_read=0,
        bytes_written=0,
        engine=engine,
    )


# Restore single rows to one partition of a table, from its history (DEL-7).
#
# If the table still has their file, the new vector drops their marks. Otherwise a copy of the file gets a new path and a vector that marks
# all other rows. The old path is unsafe: any other engine may delete a file that the table has dropped.


NONE = np.empty(0, np.int64)
Holding = tuple[InputFile, Positions, int]
"""A file of the table's history, the positions in it to restore, and its number of rows."""


def bring_back(table: Table, partition: int, holding: Iterable[Holding], now: Sequence[InputFile], *, field: str = "partition") -> Written:
    """Write copies and vectors next to the table's data.

    Args:
        table: The view's table.
        partition: The partition of the files and of the new vectors.
        holding: Files that hold returning rows, each with the rows and the number of all its rows.
        now: The table's current files of the partition.
        field: The name of the partition field.

    Raises:
        FileNotFoundError: A file of the table's history is missing.
    """
    standing = {file.path: NONE if file.vector is None else marked(file.vector) for file in now}
    positions: dict[str, Positions] = {}
    copies: list[NewFile] = []
    unmarked: list[str] = []
    rows = 0
    for file, mine, total in holding:
        path = file.path
        if path in standing:
            left = np.setdiff1d(standing[path], mine)
            rows += len(standing[path]) - len(left)
        else:
            path = f"{table.location()}/data/{field}={partition}/{token_hex(8)}-undo.parquet"
            copies.append(NewFile(path=path, rows=total, bytes=copy_file(table.io, file.path, path)))
            left = np.setdiff1d(np.arange(total), mine)
            rows += len(mine)
        if len(left):
            positions[path] = left
        elif path in standing:
            unmarked.append(path)
    vectors = write_marks(table, f"{field}={partition}", positions)
    return Written(partition=partition, files=tuple(copies), vectors=vectors, unmarked=tuple(unmarked), rows=rows)


# An undo restores single messages to a compacted view. The view's history has them, by their offsets (DEL-7).


Files = Mapping[int, Sequence[InputFile]]


def find_returning_rows(view: Table, snapshot_id: int, plan: Plan) -> ReturningView:
    """Return the messages that an undo would restore; see `ports.ViewReader`.

    Args:
        view: The view's table.
        snapshot_id: The view's current snapshot.
        plan: The plan to undo.

    Raises:
        UndoSourceGone: The snapshot that holds the messages is missing.
        FileNotFoundError: A file of the view's history is missing.
    """
    source = source_of(view, plan)
    was, now = files_by_partition(view, source), files_by_partition(view, view.snapshot_by_id(snapshot_id))
    rows: list[RestoreRows] = []
    newest: dict[tuple[int, bytes], int] = {}
    gone = 0
    for action in sorted(plan.view_removal.mark, key=lambda action: action.partition):
        there = [columns_of(view.io, file, ("offset",))["offset"].to_numpy() for file in now.get(action.partition, ())]
        present = np.concatenate(there) if there else NONE
        away: list[int] = []
        known = 0
        for file in was.get(action.partition, ()):
            found = columns_of(view.io, file, ("offset", "key"))
            offsets = found["offset"].to_numpy()
            mine = is_named(offsets, action.offsets)
            known += int(mine.sum())
            mine &= ~np.isin(offsets, present)
            away += offsets[mine].tolist()
            for offset, key in zip(offsets[mine].tolist(), found["key"].filter(pa.array(mine)).to_pylist(), strict=True):
                if key is not None:
                    newest[action.partition, key] = max(offset, newest.get((action.partition, key), offset))
        gone += action.rows - known
        if away:
            text = ranges_text(sorted(away))
            rows.append(RestoreRows(partition=action.partition, offsets=text, rows=len(away)))
    return ReturningView(source_id=source.snapshot_id, rows=tuple(rows), newest=newest, gone=gone)


def restore(view: Table, base_id: int, plan: Plan) -> list[Written]:
    """Write copies and vectors that restore the plan's messages to the view's snapshot `base_id`, next to the view's data.

    Raises:
        UndoSourceGone: The snapshot or a file that holds the messages is missing.
        PlanConflict: The number of restored messages differs from the plan.
    """
    now = files_by_partition(view, view.snapshot_by_id(base_id))
    back, source = [], view.snapshot_by_id(plan.view_return.source_id or 0)
    if source is None:
        raise undo_source_gone(plan.parent_id, "the snapshot that holds what it took from the view has been expired")
    then = files_by_partition(view, source)
    for action in plan.view_return.back:
        files = then.get(action.partition, ())
        try:
            back.append(bring_back(view, action.partition, _holding(view, files, action), now.get(action.partition, ())))
        except FileNotFoundError as lost:
            raise undo_source_gone(plan.parent_id, f"a file of the view's history is lost: {lost.filename or lost}") from lost
    come = sum(part.rows for part in back)
    if come != plan.restored_view_rows:
        raise PlanConflict(plan.plan_id, f"{come} messages would come back to the view, the plan names {plan.restored_view_rows}")
    return back


def _holding(view: Table, source: Sequence[InputFile], action: RestoreRows) -> Iterator[Holding]:
    """Yield the files that hold named messages, the positions of these messages, and the number of rows."""
    for file in source:
        gone = NONE if file.vector is None else marked(file.vector)
        found = read_rows(view.io, file.path, gone, ())
        mine = np.flatnonzero(is_named(found.offsets, action.offsets) & found.alive)
        if len(mine):
            yield file, mine, len(found.offsets)


# Evidence for the gate about removed and restored messages. The queries compare places of the view's table before and after, and all
# columns of restored messages with their source.


def removal_evidence(tables: Tables, plan: Plan, before_id: int | None, after_id: int | None) -> pa.Table:
    """Return the frame `view_removals`: per partition, the removed messages, how many of them the plan does not name, and the added messages."""
    return _evidence(tables, plan, {"was": before_id, "now": after_id}, plan.view_removal.mark, _REMOVED, ("rows", "unnamed", "added"))


def return_evidence(tables: Tables, plan: Plan, before_id: int | None, after_id: int | None) -> pa.Table:
    """Return the frame `view_returns` of `undo_suite`."""
    kinds = ("rows", "missing", "unnamed", "changed", "lost", "repeated_keys")
    snapshots = {"was": before_id, "now": after_id, "source": plan.view_return.source_id}
    return _evidence(tables, plan, snapshots, plan.view_return.back, _RETURNED, kinds)


def _evidence(
    tables: Tables,
    plan: Plan,
    snapshots: Mapping[str, int | None],
    actions: Sequence[RemoveRows | RestoreRows],
    found: str,
    kinds: Sequence[str],
) -> pa.Table:
    """Return per partition how many rows of the query `found` are of each kind. Raises PlanConflict."""
    view = tables.load(plan.topic, kind=COMPACTED)
    runs = [(action.partition, run.start, run.stop) for action in actions for run in parse_ranges_text(action.offsets)]
    with database() as connection:
        for name, snapshot_id in snapshots.items():
            snapshot = None if snapshot_id is None else view.snapshot_by_id(snapshot_id)
            if snapshot is None:
                raise PlanConflict(plan.plan_id, f"snapshot {snapshot_id} of the compacted view is gone")
            files = [file for group in files_by_partition(view, snapshot).values() for file in group]
            create_relation(connection, name, files, duckdb_types(SCHEMA))
        connection.register("runs", longs([dict(zip(_RUN, run, strict=True)) for run in runs], _RUN))
        connection.execute(f"{_CHANGED}; CREATE TEMP TABLE found AS {found}")
        counted = ", ".join(f"count_if(kind = '{kind}') AS {kind}" for kind in kinds)
        rows = connection.execute(f"SELECT partition, {counted} FROM found GROUP BY partition ORDER BY partition").fetchall()
    return longs([dict(zip(("partition", *kinds), row, strict=True)) for row in rows], ("partition", *kinds))


_RUN = ("partition", "first", "stop")
_PLACE = 'partition, "offset"'
_ALL = ", ".join(f'{{0}}."{field.name}"' for field in SCHEMA.fields)
_CHANGED = f"""
CREATE TEMP TABLE named AS SELECT partition::INTEGER AS partition, unnest(range(first, stop)) AS "offset" FROM runs;
CREATE TEMP TABLE came AS SELECT {_PLACE} FROM now EXCEPT ALL SELECT {_PLACE} FROM was;
CREATE TEMP TABLE gone AS SELECT {_PLACE} FROM was EXCEPT ALL SELECT {_PLACE} FROM now
"""
_REMOVED = f"""
SELECT partition, 'rows' AS kind FROM gone UNION ALL SELECT partition, 'added' FROM came
UNION ALL SELECT partition, 'unnamed' FROM gone ANTI JOIN named USING ({_PLACE})
"""
_RETURNED = f"""
WITH fresh AS MATERIALIZED (SELECT now.* FROM now SEMI JOIN came USING ({_PLACE}))
SELECT partition, 'rows' AS kind FROM came SEMI JOIN named USING ({_PLACE})
UNION ALL SELECT partition, 'missing' FROM named ANTI JOIN came USING ({_PLACE})
UNION ALL SELECT partition, 'unnamed' FROM came ANTI JOIN named USING ({_PLACE})
UNION ALL SELECT partition, 'lost' FROM gone
UNION ALL SELECT f.partition, 'changed' FROM fresh AS f LEFT JOIN source AS s ON f.partition = s.partition AND f."offset" = s."offset"
    WHERE hash({_ALL.format("f")}) IS DISTINCT FROM hash({_ALL.format("s")})
UNION ALL SELECT partition, 'repeated_keys' FROM (
    SELECT partition, key FROM now SEMI JOIN fresh USING (partition, key)
    WHERE key IS NOT NULL AND NOT coalesce(remembered, false) GROUP BY ALL HAVING count(*) > 1)
"""
