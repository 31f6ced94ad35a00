"""The live messages of a topic's snapshots as relations of DuckDB's SQL.

The relations answer questions about keys without a JVM, on any store, and in bounded memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.data_rows import vectors_in
from message_lifecycle.stores.iceberg.manifests import VECTORS, DataFileContent, ManifestContent, files_of, listed
from message_lifecycle.stores.iceberg.relations import Names, duckdb_types, literal, scratch_database
from message_lifecycle.stores.iceberg.segments import FileMetrics
from message_lifecycle.stores.iceberg.table_folder import absolute, location_prefix
from message_lifecycle.stores.iceberg.tasks import Store

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.table import Table

_MEMORY = "1GB"
_COLUMNS = [*duckdb_types(SCHEMA), ("file", "BIGINT")]
_NO_ROWS = "SELECT " + ", ".join(f'NULL::{kind} AS "{column}"' for column, kind in _COLUMNS) + " WHERE false"
_PATHS = pa.schema({"file": pa.int64(), "path": pa.string(), "rows": pa.int64()})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    """`vectors`: by the path of each data file that has a deletion vector, the file that holds it, and where."""

    files: tuple[FileMetrics, ...]
    vectors: Mapping[str, tuple[str, int]]


@contextmanager
def snapshot_rows(table: Table, plan_id: str) -> Iterator[SnapshotRows]:
    """`plan_id` is named in errors."""
    with scratch_database(memory=_MEMORY) as connection:
        yield SnapshotRows(connection, table, plan_id)


class SnapshotRows:
    """Made by `snapshot_rows`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, table: Table, plan_id: str) -> None:
        self._connection, self._table, self._plan_id = connection, table, plan_id
        self._prefix = location_prefix(table.location())
        self._snapshots: dict[int | None, _Snapshot] = {}
        self._names, self._store = Names(connection), Store.of(table)

    def relate(self, name: str, snapshot_id: int | None, chosen: Callable[[FileMetrics], bool] = lambda _: True) -> None:
        """Make the relations `name` and `name_files` in place of older ones.

        `name` has the topic's columns and `file`. `name_files` has the path of each `file` and its number of rows, as written. `chosen`
        selects the data files to read.

        Raises:
            PlanConflict: The snapshot is gone, or has deletes of a kind that this class cannot read.
        """
        snapshot = self._snapshot(snapshot_id)
        files = [file for file in snapshot.files if file.deleted < file.rows and chosen(file)]
        paths = [absolute(self._prefix, file.name) for file in files]
        known = pa.table([range(len(files)), paths, [file.rows for file in files]], schema=_PATHS)
        self.register("files_now", known)
        self.run(f'CREATE OR REPLACE TABLE {name}_files AS FROM files_now; CREATE OR REPLACE TABLE {name}_gone (file BIGINT, "row" BIGINT)')
        self._mark(f"{name}_gone", paths, snapshot.vectors)
        self.run(
            f"CREATE OR REPLACE VIEW {name} AS {_live(name, [self._names.of(path, self._store) for path in paths]) if paths else _NO_ROWS}"
        )

    def differing(self, one_id: int | None, other_id: int | None) -> Callable[[FileMetrics], bool]:
        """Return a test of files: the other snapshot lacks the file, or has it with another deletion vector."""
        one, other = (
            {(file.name, snapshot.vectors.get(absolute(self._prefix, file.name))) for file in snapshot.files}
            for snapshot in map(self._snapshot, (one_id, other_id))
        )
        apart = {name for name, _ in one - other}
        return lambda file: file.name in apart

    def register(self, name: str, rows: pa.Table) -> None:
        self._connection.register(name, rows)

    def run(self, statements: str) -> None:
        self._connection.execute(statements)

    def ask(self, query: str) -> pa.Table:
        return self._connection.sql(query).to_arrow_table()

    def _snapshot(self, snapshot_id: int | None) -> _Snapshot:
        if snapshot_id not in self._snapshots:
            found = None if snapshot_id is None else self._table.snapshot_by_id(snapshot_id)
            if found is None:
                raise PlanConflict(self._plan_id, f"its snapshot {snapshot_id} is gone")
            vectors: dict[str, tuple[str, int]] = {}
            deletes = listed(self._table, found, VECTORS, content=ManifestContent.DELETES)
            for content, path, _, referenced, offset, _ in deletes:
                if content != DataFileContent.POSITION_DELETES or referenced is None:
                    raise PlanConflict(self._plan_id, "the table holds deletes of another kind than deletion vectors; rewrite them first")
                vectors[referenced] = path, offset
            self._snapshots[snapshot_id] = _Snapshot(files=tuple(files_of(self._table, found)), vectors=vectors)
        return self._snapshots[snapshot_id]

    def _mark(self, gone: str, paths: list[str], vectors: Mapping[str, tuple[str, int]]) -> None:
        """Insert the removed rows into `gone`. Read each Puffin file once, and hold only one in memory."""
        of_puffin: dict[str, list[int]] = {}
        for file, path in enumerate(paths):
            if path in vectors:
                of_puffin.setdefault(vectors[path][0], []).append(file)
        for puffin, files in of_puffin.items():
            positions = vectors_in(self._table.io, puffin)
            for file in files:
                self.register("positions_now", pa.table({"row": positions[paths[file]]}))
                self.run(f'INSERT INTO {gone} SELECT {file}, "row" FROM positions_now')


def _live(name: str, paths: list[str]) -> str:
    columns = ", ".join(f'f."{column}"' for column, _ in duckdb_types(SCHEMA))
    files = ", ".join(map(literal, paths))
    # A folder's name (`partition=0`) must not take the place of a column.
    return (
        f"SELECT {columns}, f.file_index::BIGINT AS file FROM read_parquet([{files}], hive_partitioning = false) AS f "
        f'ANTI JOIN {name}_gone AS g ON g.file = f.file_index AND g."row" = f.file_row_number'
    )
