"""Changes and snapshots as relations of DuckDB's SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from message_lifecycle.stores.iceberg.compaction.job import MEBIBYTE
from message_lifecycle.stores.iceberg.compaction.relations import create_relation, duckdb_types
from message_lifecycle.stores.iceberg.documents.columns import CHANGES, SNAPSHOTS
from message_lifecycle.stores.iceberg.documents.inputs import DocumentFile

if TYPE_CHECKING:
    import duckdb

MEMORY_BYTES = 1024 * MEBIBYTE
# Rows of a batch, as Arrow has it and once more as Python's values: a state may have megabytes.
_AT_ONCE = 64
Row = tuple[Any, ...]


class Stored(NamedTuple):
    """A state or a change, as tasks go through them. `kind`: which of the query's parts it is of; `digest`: of a state."""

    document: str
    kind: int
    server_seq: int
    payload: bytes
    digest: str | None


@contextmanager
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """For a question of a reader: spills beyond its memory, and fetches nothing from anywhere."""
    import tempfile

    import duckdb

    with tempfile.TemporaryDirectory() as spill:
        settings: dict[str, Any] = {"memory_limit": f"{MEMORY_BYTES}B", "temp_directory": spill, "autoinstall_known_extensions": False}
        with duckdb.connect(config=settings) as connection:
            yield connection


def relate_changes(connection: duckdb.DuckDBPyConnection, name: str, files: Sequence[DocumentFile]) -> None:
    """The view `name`: live changes, each with `file` (place in `files`) and `row` (its position there)."""
    create_relation(connection, name, [file.file for file in files], duckdb_types(CHANGES.schema), places=True)


def relate_snapshots(connection: duckdb.DuckDBPyConnection, name: str, files: Sequence[DocumentFile]) -> None:
    """The same of snapshots, rows that only raise an epoch included."""
    create_relation(connection, name, [file.file for file in files], duckdb_types(SNAPSHOTS.schema), places=True)


def streamed(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[Row]:
    """The query's rows, a few in memory at a time."""
    for batch in connection.sql(query).to_arrow_reader(_AT_ONCE):
        yield from zip(*map(_values, batch.columns), strict=True)


def streamed_in_order(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[tuple[str, Iterator[Stored]]]:
    """As `streamed`, of a query for the fields of `Stored` in order of documents: each document with its rows."""
    batches = connection.sql(query).to_arrow_reader(_AT_ONCE)
    return groupby(chain.from_iterable(map(Stored, *map(_values, batch.columns)) for batch in batches), itemgetter(0))


def _values(column: pa.Array) -> list[Any]:
    """By NumPy, which makes Python's values several times as fast as Arrow does; but it takes an unknown number for a fraction."""
    by_arrow = column.null_count and pa.types.is_integer(column.type)
    found: list[Any] = column.to_pylist() if by_arrow else column.to_numpy(zero_copy_only=False).tolist()
    return found
