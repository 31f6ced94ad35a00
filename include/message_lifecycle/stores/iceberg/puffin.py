"""Deletion vectors as Iceberg's specification writes them (Puffin, blob type `deletion-vector-v1`): positions of removed rows."""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap, BitMap64

from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.stores.iceberg.tasks import NewFile, NewVector, Vector

Positions = NDArray[np.int64]
_FILE_MAGIC = b"PFA1"
_VECTOR_MAGIC = b"\xd1\xd3\x39\x64"
_ROW_POSITION_FIELD = 2**31 - 1 - 2
"""Id of Iceberg's reserved column `_pos`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """One vector within its file: `offset` and `length` in bytes, `rows` that it marks."""

    data_file: str
    offset: int
    length: int
    rows: int


def puffin_file(vectors: Iterable[tuple[str, Positions]]) -> tuple[bytes, list[Blob]]:
    """Return the file's bytes, and the position of each data file's vector in them. `vectors`: path, positions in ascending order."""
    content, blobs = bytearray(_FILE_MAGIC), []
    for data_file, positions in vectors:
        vector = _blob(positions)
        blobs.append(Blob(data_file=data_file, offset=len(content), length=len(vector), rows=len(positions)))
        content += vector
    entries = [
        {
            "type": "deletion-vector-v1",
            "fields": [_ROW_POSITION_FIELD],
            # Not known before the commit; the specification wants them so.
            "snapshot-id": -1,
            "sequence-number": -1,
            "offset": blob.offset,
            "length": blob.length,
            "properties": {"referenced-data-file": blob.data_file, "cardinality": str(blob.rows)},
        }
        for blob in blobs
    ]
    footer = json.dumps({"blobs": entries, "properties": {"created-by": "message-lifecycle"}}).encode()
    content += _FILE_MAGIC + footer + len(footer).to_bytes(4, "little") + bytes(4) + _FILE_MAGIC
    return bytes(content), blobs


def _blob(positions: Positions) -> bytes:
    body = _VECTOR_MAGIC + _bitmap(positions)
    return len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")


def _bitmap(positions: Positions) -> bytes:
    """64 bits in Roaring's portable format: a bitmap of the lower 32 bits for each value of the upper ones."""
    maps = [
        (key, BitMap(array("I", (positions[positions >> 32 == key] & 0xFFFFFFFF).astype(np.uint32).tobytes())))
        for key, _ in groupby((positions >> 32).tolist())
    ]
    parts = [len(maps).to_bytes(8, "little")]
    for key, bitmap in maps:
        bitmap.run_optimize()
        parts += [key.to_bytes(4, "little"), bitmap.serialize()]
    return b"".join(parts)


# Deletion vectors as a task needs them: the marks of one blob, and a file of new ones.


_MAGIC = b"\xd1\xd3\x39\x64"


def corrupt_vector(vector: Vector) -> LifecycleError:
    """A deletion vector that is not what the table's metadata say; taking it for empty would bring messages back."""
    return LifecycleError(
        f"{vector.path}, byte {vector.offset}: no deletion vector of {vector.length} bytes is there. Nothing was changed; "
        "restore that file, or roll the table back to a snapshot before it.",
        code="CorruptVector",
    )


def marked(vector: Vector) -> Positions:
    """Positions that the vector marks, ascending. Raises CorruptVector."""
    with vector.store.open(vector.path) as file:
        file.seek(vector.offset)
        blob = file.read(vector.length)
    body = blob[4:-4]
    sound = (
        len(blob) == vector.length
        and int.from_bytes(blob[:4], "big") == len(body)
        and body[:4] == _MAGIC
        and zlib.crc32(body) == int.from_bytes(blob[-4:], "big")
    )
    if not sound:
        raise corrupt_vector(vector)
    # The portable form of a 64-bit Roaring bitmap is what the specification puts after the magic number.
    return np.array(BitMap64.deserialize(body[4:]), np.int64)


def write_vector_file(path: str, vectors: Iterable[tuple[str, Positions]], write: Callable[[str, bytes], object]) -> tuple[NewVector, ...]:
    """Write one file with a vector for each data file. Write no file if there are no vectors.

    The positions of a vector are in ascending order. `write` puts the bytes at the path.
    """
    content, blobs = puffin_file(vectors)
    if not blobs:
        return ()
    write(path, content)
    puffin = NewFile(path=path, rows=sum(blob.rows for blob in blobs), bytes=len(content))
    return tuple(
        NewVector(data_file=blob.data_file, puffin=puffin, offset=blob.offset, length=blob.length, rows=blob.rows) for blob in blobs
    )
