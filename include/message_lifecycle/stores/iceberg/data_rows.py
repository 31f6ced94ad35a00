"""Columns of single data files and the rows that are still alive in them, read without a JVM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from message_lifecycle.stores.iceberg.document import is_local, local_path
from message_lifecycle.stores.iceberg.rule_columns import flags, times

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

Longs = NDArray[np.int64]
Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """`columns`: times as microseconds, `never` as truth, in the order of the file. `alive`: not marked by a deletion vector."""

    offsets: Longs
    columns: Mapping[str, NDArray[np.generic]]
    alive: NDArray[np.bool_]

    def at(self, positions: Positions) -> FileRows:
        """These rows alone."""
        columns = {name: column[positions] for name, column in self.columns.items()}
        return FileRows(offsets=self.offsets[positions], columns=columns, alive=self.alive[positions])


class Vectors:
    """The deletion vectors of one snapshot, by data file; each file of vectors is read once."""

    def __init__(self, table: Table, snapshot: Snapshot) -> None:
        from message_lifecycle.stores.iceberg.manifests import vector_files

        self.snapshot_id = snapshot.snapshot_id
        self._io = table.io
        self._file_of = dict(vector_files(table, snapshot))
        self._read: dict[str, dict[str, Positions]] = {}

    def __getitem__(self, data_file: str) -> Positions:
        """Positions that are marked as removed; `data_file` is a path."""
        puffin = self._file_of.get(data_file)
        if puffin is None:
            return np.empty(0, np.int64)
        if puffin not in self._read:
            self._read[puffin] = vectors_in(self._io, puffin)
        return self._read[puffin][data_file]


def vectors_in(io: FileIO, path: str) -> dict[str, Positions]:
    """Every vector of one file of vectors, by the path of its data file."""
    from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
    from pyiceberg.table.puffin import PuffinFile

    with io.new_input(path).open() as stream:
        found = PuffinFile(stream.read())
    return {
        vector.referenced_data_file: np.asarray(vector.to_vector().to_numpy(), np.int64)
        for vector in deletion_vectors_from_puffin_file(found)
    }


def read_columns(io: FileIO, path: str, columns: Iterable[str]) -> pa.Table:
    """Columns of one data file, all its rows in order; a column that the file does not have is left out."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with ExitStack() as opened:
        # Of a local file only these columns are read; a stream may hold all of it.
        source = local_path(path) if is_local(path) else pa.PythonFile(opened.enter_context(io.new_input(path).open()), mode="r")
        file = opened.enter_context(pq.ParquetFile(source))
        return file.read(columns=sorted(set(columns) & set(file.schema_arrow.names)))


def read_rows(io: FileIO, path: str, removed: Positions, columns: Iterable[str]) -> FileRows:
    """Read `offset` and the given columns of one data file."""
    import pyarrow as pa

    wanted = {"offset", *columns}
    found = read_columns(io, path, wanted)
    # A column that the file does not have is nothing but unknown.
    for name in wanted - set(found.column_names):
        found = found.append_column(name, pa.nulls(len(found), pa.bool_() if name == "never" else pa.int64()))
    alive = np.ones(len(found), np.bool_)
    alive[removed] = False
    return FileRows(
        offsets=found["offset"].to_numpy(),
        columns={
            name: flags(found[name]) if name == "never" else times(found[name], zero_is_unknown=name == "append_time")
            for name in wanted - {"offset"}
        },
        alive=alive,
    )


def keys_at(io: FileIO, path: str, positions: Positions) -> pa.Array:
    """The keys (null: none) of these rows of one data file."""
    import pyarrow as pa

    found = read_columns(io, path, ("key",))
    if "key" not in found.column_names:
        return pa.nulls(len(positions), pa.binary())
    return found["key"].cast(pa.binary()).take(pa.array(positions)).combine_chunks()
