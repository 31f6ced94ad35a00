"""Changes and snapshots as relations in DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.stores.iceberg.columns import BUCKET
from message_lifecycle.stores.iceberg.documents import DocumentFile
from message_lifecycle.stores.iceberg.puffin import Positions, marked, write_vector_file
from message_lifecycle.stores.iceberg.relations import create_relation, duckdb_types, literal
from message_lifecycle.stores.iceberg.shapes import CHANGES_SHAPE, SNAPSHOTS_SHAPE
from message_lifecycle.stores.iceberg.shares import MEBIBYTE
from message_lifecycle.stores.iceberg.tasks import Store, Written

if TYPE_CHECKING:
    import duckdb

# Relations of a plan's documents. Queries about changes and snapshots join with them.


_LONGS = ("seq", "after", "snapshot", "epoch", "purge_from", "purge_before")


def register(connection: duckdb.DuckDBPyConnection, documents: Sequence[SnapshotDocument]) -> None:
    """Create the relations `plan`, a row for each document, and `planned_drops`, the (document, server_seq) of snapshots to remove."""
    columns = {name: pa.array([getattr(action, name) for action in documents], pa.int64()) for name in _LONGS}
    names = pa.array([action.document for action in documents], pa.string())
    connection.register("plan", pa.table({"document": names, **columns}))
    drops = [(action.document, seq) for action in documents for seq in action.dropped]
    register_pairs(connection, "planned_drops", drops)


def register_pairs(connection: duckdb.DuckDBPyConnection, name: str, pairs: Sequence[tuple[str, int]]) -> None:
    """Create a relation (document, server_seq)."""
    documents = pa.array([document for document, _ in pairs], pa.string())
    connection.register(name, pa.table({"document": documents, "server_seq": pa.array([seq for _, seq in pairs], pa.int64())}))


def newest_of(connection: duckdb.DuckDBPyConnection, snapshots: str) -> Mapping[str, int]:
    """Return the newest snapshot of each of the plan's documents in the relation."""
    rows = connection.execute(
        f"SELECT document, max(server_seq) FROM {snapshots} SEMI JOIN plan USING (document) WHERE digest IS NOT NULL GROUP BY document"
    )
    return dict(rows.fetchall())


# The rows of one batch. A batch is in memory twice, as Arrow's and as Python's values, and a state or a change may have megabytes.
_AT_ONCE = 64
# A larger batch for parts of a limited size, because it is faster.
_AT_ONCE_OF_PART = 2_048
PART_BYTES = 32 * MEBIBYTE
Row = tuple[Any, ...]


class Stored(NamedTuple):
    """A state or a change in a stream.

    Attributes:
        kind: The part of the query that returned the row.
        digest: The digest of a state.
    """

    document: str
    kind: int
    server_seq: int
    payload: bytes
    digest: str | None


def relate_changes(connection: duckdb.DuckDBPyConnection, name: str, files: Sequence[DocumentFile]) -> None:
    """Create the view `name` of live changes, each with `file` (its place in `files`) and `row` (its position there)."""
    create_relation(connection, name, [file.file for file in files], duckdb_types(CHANGES_SHAPE.schema), places=True)


def relate_snapshots(connection: duckdb.DuckDBPyConnection, name: str, files: Sequence[DocumentFile]) -> None:
    """Create the view `name` of live snapshots like `relate_changes`, including rows that only raise an epoch."""
    create_relation(connection, name, [file.file for file in files], duckdb_types(SNAPSHOTS_SHAPE.schema), places=True)


def streamed(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[Row]:
    """Yield the query's rows, with a few in memory at a time."""
    for batch in connection.sql(query).to_arrow_reader(_AT_ONCE):
        yield from zip(*map(_values, batch.columns), strict=True)


def streamed_in_order(
    connection: duckdb.DuckDBPyConnection, query: str, *, part_bytes: int = PART_BYTES
) -> Iterator[tuple[str, Iterator[Stored]]]:
    """Yield each document with its rows, in the order of document, kind and server_seq.

    DuckDB sorts whole rows with their contents, in chunks of two thousand rows whatever their size. So each sort has a few documents only.

    Args:
        connection: The database.
        query: A query for the fields of `Stored`: `document`, `kind`, `server_seq`, `content`, `digest`.
        part_bytes: About how many bytes of contents one sort has. A single document may have more.
    """
    # Keep the joins in their written order: the right side is small. DuckDB keeps the right side of a join in memory, so contents must not
    # be there.
    connection.execute("SET disabled_optimizers = 'join_order,build_side_probe_side'")
    return groupby(chain.from_iterable(_stored(connection, part) for part in _parts(connection, query, part_bytes)), itemgetter(0))


def _stored(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[Stored]:
    for batch in connection.sql(f"{query} ORDER BY document, kind, server_seq").to_arrow_reader(_AT_ONCE_OF_PART):
        yield from map(Stored, *map(_values, batch.columns))


def _parts(connection: duckdb.DuckDBPyConnection, query: str, part_bytes: int) -> list[str]:
    """Return the query for one range of documents after the other, each with about `part_bytes` of contents."""
    ends = connection.execute(
        "SELECT min(document), max(document) FROM ("
        f"SELECT document, (sum(size) OVER (ORDER BY document) - size) // {part_bytes} AS part FROM ("
        f"SELECT document, coalesce(sum(octet_length(content)), 0) AS size FROM ({query}) GROUP BY document)) GROUP BY part ORDER BY part"
    ).fetchall()
    return [f"SELECT * FROM ({query}) WHERE document BETWEEN {literal(first)} AND {literal(last)}" for first, last in ends]


def _values(column: pa.Array) -> list[object]:
    """Return Python's values. NumPy creates them several times as fast as Arrow, but turns integers with nulls into floats."""
    by_arrow = column.null_count and pa.types.is_integer(column.type)
    found: list[object] = column.to_pylist() if by_arrow else column.to_numpy(zero_copy_only=False).tolist()
    return found


# Mark removed rows in deletion vectors. A file without any remaining row is dropped.


_NONE = np.empty(0, np.int64)
Going = tuple[str, int, int]
"""A document, and a range of its rows: from the first server_seq up to, not including, the last."""


class Marking:
    """Marks rows of one bucket in one run."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, run: str, bucket: int) -> None:
        self._connection, self._run, self._bucket = connection, run, bucket

    def marked(
        self,
        relation: str,
        files: Sequence[DocumentFile],
        folder: tuple[str, Store],
        going: Sequence[Going],
        *,
        also: tuple[str, Sequence[str]] | None = None,
    ) -> tuple[int, Written]:
        """Mark the relation's rows in the ranges of `going`, and return how many they are.

        Args:
            relation: The name of the relation.
            files: The data files of the relation.
            folder: The folder of the new vectors, and its store.
            going: The ranges of rows to mark.
            also: Another relation over the same files, and documents that lose all rows in it. The returned number leaves these rows out.
        """
        place = places_of(self._connection, relation, going)
        counted = sum(len(rows) for rows in place.values())
        if also is not None:
            for at, rows in places_of(self._connection, also[0], [(document, 0, 2**62) for document in also[1]]).items():
                place[at] = np.union1d(place.get(at, _NONE), rows)
        positions: dict[str, Positions] = {}
        dropped: list[str] = []
        for at, rows in sorted(place.items()):
            file = files[at]
            before = _NONE if file.file.vector is None else marked(file.file.vector)
            now = np.union1d(before, rows)
            if len(now) == file.rows:
                dropped.append(file.file.path)
            else:
                positions[file.file.path] = now
        path = f"{folder[0]}/{BUCKET}={self._bucket}/{self._run}-deletes.puffin"
        return counted, Written(
            partition=self._bucket, vectors=write_vector_file(path, positions.items(), folder[1].write), dropped=tuple(dropped)
        )


def places_of(connection: duckdb.DuckDBPyConnection, relation: str, going: Sequence[Going]) -> dict[int, Positions]:
    """Return the rows of the relation in the ranges of `going`, ascending, by the place of their file."""
    if not going:
        return {}
    documents, firsts, befores = zip(*going, strict=True)
    columns = {
        "document": pa.array(documents, pa.string()),
        "first": pa.array(firsts, pa.int64()),
        "before": pa.array(befores, pa.int64()),
    }
    connection.register("going", pa.table(columns))
    found = connection.execute(
        f"SELECT file, row FROM {relation} JOIN going USING (document) WHERE server_seq >= first AND server_seq < before ORDER BY ALL"
    ).fetchnumpy()
    connection.unregister("going")
    of_file, rows = np.asarray(found["file"], np.int64), np.asarray(found["row"], np.int64)
    return {int(at): rows[of_file == at] for at in np.unique(of_file)}
