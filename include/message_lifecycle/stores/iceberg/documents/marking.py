"""Rows that go, as deletion vectors; a file of which nothing is left goes whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from message_lifecycle.stores.iceberg.compaction.job import Written
from message_lifecycle.stores.iceberg.document import local_path
from message_lifecycle.stores.iceberg.documents.columns import BUCKET
from message_lifecycle.stores.iceberg.documents.inputs import DocumentFile
from message_lifecycle.stores.iceberg.puffin import Positions, marked, write_here, write_vectors

if TYPE_CHECKING:
    import duckdb

_NONE = np.empty(0, np.int64)
Going = tuple[str, int, int]
"""Rows of a document from the first server_seq to before the last."""


class Marking:
    """Of one bucket, in one run."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, run: str, bucket: int) -> None:
        self._connection, self._run, self._bucket = connection, run, bucket

    def marked(
        self,
        relation: str,
        files: Sequence[DocumentFile],
        folder: str,
        going: Sequence[Going],
        *,
        also: tuple[str, Sequence[str]] | None = None,
    ) -> tuple[int, Written]:
        """Mark the relation's rows of each document from the first server_seq to before the last; how many those are. `also`: all rows
        of these documents in another relation over the same files, which are not counted."""
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
        path = local_path(f"{folder}/{BUCKET}={self._bucket}") / f"{self._run}-deletes.puffin"
        return counted, Written(
            partition=self._bucket, vectors=write_vectors(str(path), positions.items(), write_here), dropped=tuple(dropped)
        )


def places_of(connection: duckdb.DuckDBPyConnection, relation: str, going: Sequence[Going]) -> dict[int, Positions]:
    """Rows of the relation by place of their file, ascending."""
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
