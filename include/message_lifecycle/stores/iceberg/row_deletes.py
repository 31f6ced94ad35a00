"""Single messages, named by file and offset, marked as removed on a branch: by deletion vectors that we write ourselves.

A `DELETE` in SQL would look for the rows in every column and file that might hold them. What is to go is known by file already, so
one narrow column of those files gives the positions, and the vectors go into one small file.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.rows import Place, ranges_of
from message_lifecycle.stores.iceberg.compaction.commit import vector_files
from message_lifecycle.stores.iceberg.data_files import vectors_of, write_file
from message_lifecycle.stores.iceberg.data_rows import Positions, read_rows, vectors_in
from message_lifecycle.stores.iceberg.puffin import write_vectors as write_vectors_at
from message_lifecycle.stores.iceberg.session import Java, forget_cached, java_table
from message_lifecycle.stores.iceberg.table_folder import absolute, location_prefix

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyspark.sql import SparkSession

_NONE = np.empty(0, np.int64)


def delete_rows(
    session: SparkSession,
    io: FileIO,
    name: TopicName,
    branch: str,
    removals: Sequence[RemoveRows],
    properties: Mapping[str, str] | None = None,
) -> None:
    """Mark the named messages as removed, in one commit on the branch; `properties` go to its summary.

    `io` reaches the table's files. What is named and not there, or marked before, is passed over: the summary tells what was done.
    """
    table = java_table(session, name)
    prefix = location_prefix(str(table.location()))
    by_file = {absolute(prefix, file): list(group) for file, group in groupby(sorted(removals, key=_file), key=_file)}
    head = table.snapshot(branch)
    before = {str(vector.referencedDataFile()): vector for vector in vectors_of(session, table, head, by_file)}
    update = table.newRowDelta().validateFromSnapshot(head.snapshotId())
    places = {path: (group[0].partition, group[0].base_offset) for path, group in by_file.items()}
    for path, vector in write_vectors(session, table, io, _vectors(io, by_file, before), places):
        update.addDeletes(vector)
        if path in before:
            update.removeDeletes(before[path])
    for key, value in (properties or {}).items():
        update.set(key, value)
    update.toBranch(branch).commit()
    forget_cached(session, name)


def write_vectors(
    session: SparkSession, table: Java, io: FileIO, vectors: Iterable[tuple[str, Positions]], places: Mapping[str, Place]
) -> Iterator[tuple[str, Java]]:
    """One small file of vectors: the path of each data file, and Iceberg's description of its vector. `places`: the segment of each
    data file by its path."""
    path = str(table.locationProvider().newDataLocation(f"{uuid.uuid4()}-deletes.puffin"))
    written = write_vectors_at(path, vectors, partial(write_file, io))
    yield from vector_files(session, table, written, {path: f"partition={at[0]}/segment={at[1]}" for path, at in places.items()})


def _vectors(io: FileIO, by_file: Mapping[str, Sequence[RemoveRows]], before: Mapping[str, Java]) -> Iterator[tuple[str, Positions]]:
    """A data file has one vector: it marks what was marked before as well."""
    read: dict[str, Mapping[str, Positions]] = {}
    for path, removals in by_file.items():
        rows = read_rows(io, path, _NONE, ())
        marked = np.zeros(len(rows.offsets), np.bool_)
        for removal in removals:
            marked |= within(rows.offsets, removal.offsets)
        if path in before:
            puffin = str(before[path].location())
            if puffin not in read:
                read[puffin] = vectors_in(io, puffin)
            marked[read[puffin][path]] = True
        yield path, np.flatnonzero(marked)


def within(offsets: NDArray[np.int64], text: str) -> NDArray[np.bool_]:
    """Which of the offsets a `ranges_text` names."""
    runs = np.array([(run.start, run.stop) for run in ranges_of(text)], np.int64).reshape(-1, 2)
    at = np.searchsorted(runs[:, 0], offsets, side="right") - 1
    return np.asarray((at >= 0) & (offsets < runs[np.maximum(at, 0), 1]), np.bool_)


def _file(removal: RemoveRows) -> str:
    return removal.file
