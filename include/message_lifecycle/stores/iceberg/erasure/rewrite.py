"""Data files written again without the rows of an erased key: all other rows in their order, with every column as it was.

Rows that a deletion vector marks as removed stay in the file, for an undo may bring them back; the vector is made anew for the new
positions. A file of which nothing is left is not written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from message_lifecycle.model.errors import unsupported_erasure
from message_lifecycle.stores.iceberg.data_rows import Positions, vectors_in
from message_lifecycle.stores.iceberg.document import is_local, local_path
from message_lifecycle.stores.iceberg.erasure.held_rows import opened
from message_lifecycle.stores.iceberg.puffin import puffin_file

if TYPE_CHECKING:
    from pyiceberg.io import FileIO


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVector:
    """A deletion vector of the new file; it takes the place of the one at `old_puffin` and `old_offset`. `puffin` None: no row is
    marked any more."""

    old_puffin: str
    old_offset: int
    puffin: str | None
    offset: int
    length: int
    rows: int
    puffin_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """Takes the place of the data file at `old`. `path` None: nothing of it is left."""

    old: str
    path: str | None
    rows: int
    bytes: int
    vectors: tuple[NewVector, ...]


Truths = NDArray[np.bool_]
Replacements = Mapping[str, NewFile]
"""By the path of the file that was."""


def rewrite(
    io: FileIO, old: str, gone: Positions, new: str, vectors: Iterable[tuple[str, int]], *, new_puffin: str, within: str
) -> NewFile:
    """Write `old` without the rows at `gone` to `new`. `vectors`: where each vector that marks its rows in any snapshot lies, as (file,
    offset); `new_puffin` begins the names of the new ones. Raises UnsupportedErasure where the new file would not be of the same shape; `within` names the table."""
    with opened(io, old) as file:
        total = file.metadata.num_rows
        kept = np.ones(total, np.bool_)
        kept[gone] = False
        rows, size = int(kept.sum()), 0
        if rows:
            _copy(io, file, kept, new, old, within)
            size = len(io.new_input(new))
    places = np.cumsum(kept, dtype=np.int64) - 1
    return NewFile(
        old=old,
        path=new if rows else None,
        rows=rows,
        bytes=size,
        vectors=_vectors(io, old, new if rows else None, vectors, kept, places, new_puffin),
    )


def _copy(io: FileIO, file: pq.ParquetFile, kept: Truths, new: str, old: str, within: str) -> None:
    before = 0
    compression = file.metadata.row_group(0).column(0).compression.lower()
    with ExitStack() as stack:
        sink = stack.enter_context(io.new_output(new).create(overwrite=True))
        writer = stack.enter_context(
            pq.ParquetWriter(
                pa.PythonFile(sink, mode="w"), file.schema_arrow, compression="none" if compression == "uncompressed" else compression,
                store_schema=b"ARROW:schema" in (file.metadata.metadata or {}),
            )
        )  # fmt: skip
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group)
            left = rows.filter(pa.array(kept[before : before + len(rows)]))
            before += len(rows)
            if len(left):
                writer.write_table(left)
    with opened(io, new) as written:
        if _shape(written) != _shape(file):
            raise unsupported_erasure(within, f"the columns of {old} are of types that cannot be written as they are")


def _shape(file: pq.ParquetFile) -> tuple[pa.Schema, list[str], list[bytes | None]]:
    """Types as they are read and as they lie in the file, and the ids by which Iceberg finds columns; writers differ in the rest."""
    leaves = [file.schema.column(at).physical_type for at in range(len(file.schema))]
    return file.schema_arrow.remove_metadata(), leaves, [found for field in file.schema_arrow for found in _ids(field)]


def _ids(field: pa.Field) -> Iterator[bytes | None]:
    yield (field.metadata or {}).get(b"PARQUET:field_id")
    for at in range(field.type.num_fields):
        yield from _ids(field.type.field(at))


def _vectors(
    io: FileIO, old: str, new: str | None, vectors: Iterable[tuple[str, int]], kept: Truths, places: Positions, new_puffin: str
) -> tuple[NewVector, ...]:
    """A file of its own for each: two vectors of one data file, which different snapshots read, cannot be told apart within one."""
    made = []
    for number, (puffin, offset) in enumerate(sorted(vectors)):
        before = vectors_in(io, puffin)[old]
        marked = places[before[kept[before]]]
        if new is None or not len(marked):
            made.append(NewVector(old_puffin=puffin, old_offset=offset, puffin=None, offset=0, length=0, rows=0, puffin_bytes=0))
            continue
        content, (blob,) = puffin_file([(new, marked)])
        path = f"{new_puffin}-{number}-deletes.puffin"
        with io.new_output(path).create(overwrite=True) as stream:
            stream.write(content)
        made.append(
            NewVector(
                old_puffin=puffin,
                old_offset=offset,
                puffin=path,
                offset=blob.offset,
                length=blob.length,
                rows=blob.rows,
                puffin_bytes=len(content),
            )
        )
    return tuple(made)


def to_json(files: Sequence[NewFile]) -> bytes:
    return json.dumps([asdict(file) for file in files]).encode()


def from_json(text: bytes) -> tuple[NewFile, ...]:
    return tuple(
        NewFile(**{**fields, "vectors": tuple(NewVector(**vector) for vector in fields["vectors"])}) for fields in json.loads(text)
    )


def remove(io: FileIO, files: Iterable[NewFile]) -> None:
    """Take away what was written; nothing there is success."""
    for file in files:
        for path in {path for path in (file.path, *(vector.puffin for vector in file.vectors)) if path is not None}:
            delete_if_there(io, path)


def delete_if_there(io: FileIO, path: str) -> None:
    if is_local(path):
        local_path(path).unlink(missing_ok=True)
        return
    if io.new_input(path).exists():
        io.delete(path)
