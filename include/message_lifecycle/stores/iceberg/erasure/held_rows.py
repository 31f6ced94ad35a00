"""The rows of one data file that hold a key, and how they are named: by their offsets, or where they have none of their own, by their
positions in the file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from message_lifecycle.model.erasure import TABLE_KINDS, Matches, TableKind
from message_lifecycle.operations.erasure import tells_key
from message_lifecycle.stores.iceberg.data_rows import Longs, Positions
from message_lifecycle.stores.iceberg.document import is_local, local_path
from message_lifecycle.stores.iceberg.erasure.manifest_files import Manifest

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_KEYS = ("key", "document")
"""Columns that are the key: of a message, and of what belongs to a document."""
_TEXTS = ("reason", "raw")
"""Columns that may tell a key. A refused row is text, and why it was refused may quote it."""
_NONE = np.empty(0, np.int64)


def rows_with(io: FileIO, path: str, matches: Matches, kind: TableKind) -> Positions:
    """Positions of the rows of one file that hold the key; of its columns only those are read that may, a row group at a time."""
    found, before = [], 0
    text = TABLE_KINDS[kind].of_text
    names = _TEXTS if text else _KEYS
    # Each distinct key is asked for once: as Parquet's dictionary has them, they need not be looked for.
    with opened(io, path, dictionaries=() if text else names) as file:
        columns = [name for name in names if name in file.schema_arrow.names]
        for group in range(file.num_row_groups) if columns else ():
            rows = file.read_row_group(group, columns=columns)
            masks = [_holding(rows[name], partial(tells_key, matches=matches) if text else matches) for name in columns]
            found.append(np.flatnonzero(np.logical_or.reduce(masks)).astype(np.int64) + before)
            before += len(rows)
    return np.concatenate(found) if found else _NONE


def _holding(values: pa.ChunkedArray, matches: Matches) -> np.ndarray:
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    distinct = {key for chunk in encoded.chunks for key in chunk.dictionary.cast(pa.binary()).to_pylist() if key is not None}
    hits = [key for key in distinct if matches(key)]
    if not hits:
        return np.zeros(len(values), np.bool_)
    keys = encoded.cast(encoded.type.value_type).cast(pa.binary())
    return np.asarray(pc.is_in(keys, value_set=pa.array(hits, pa.binary())).to_numpy(), np.bool_)


def names_of(file: pq.ParquetFile, kind: TableKind) -> Longs:
    """What a plan calls the rows of a file: see `by_position`."""
    if by_position(file, kind):
        return np.arange(file.metadata.num_rows, dtype=np.int64)
    return np.asarray(file.read(columns=["offset"])["offset"].to_numpy(), np.int64)


def by_position(file: pq.ParquetFile, kind: TableKind) -> bool:
    """Whether rows are named by where they lie: a refused row has no offset, and a server_seq is one of its document alone."""
    return TABLE_KINDS[kind].of_text or "offset" not in file.schema_arrow.names


class opened:  # a context manager that reads as a word
    """A Parquet file; of a local one only what is asked for is read."""

    def __init__(self, io: FileIO, path: str, *, dictionaries: Sequence[str] = ()) -> None:
        """`dictionaries`: columns that are given as such, of those that there are."""
        self._io, self._path, self._stack, self._dictionaries = io, path, ExitStack(), list(dictionaries)

    def __enter__(self) -> pq.ParquetFile:
        source: Any
        if is_local(self._path):
            source = local_path(self._path)
        else:
            source = pa.PythonFile(self._stack.enter_context(self._io.new_input(self._path).open()), mode="r")
        footer = pq.read_metadata(source) if self._dictionaries else None
        there = [name for name in self._dictionaries if footer is not None and name in footer.schema.names]
        return self._stack.enter_context(pq.ParquetFile(source, metadata=footer, read_dictionary=there))

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def tells_of_gone(manifest: Manifest) -> bool:
    """Whether it keeps bounds of columns that may tell a key, of files that went: those cannot be searched any more."""
    told = {
        field
        for entry in manifest.entries
        if not entry.live
        for bounds in ("lower_bounds", "upper_bounds")
        for field in entry.file[bounds] or ()
    }
    return bool(told) and not told.isdisjoint(_ids_of(manifest, (*_KEYS, *_TEXTS)))


def _ids_of(manifest: Manifest, names: tuple[str, ...]) -> set[int]:
    """Field ids, by the schema that the manifest was written with."""
    from pyiceberg.schema import Schema

    schema = Schema.model_validate_json(manifest.header["schema"])
    return {field.field_id for field in schema.fields if field.name in names}
