"""Deletion vectors as a task needs them: the marks of one blob, and a file of new ones."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from pyroaring import BitMap64

from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.stores.iceberg.compaction.job import NewFile, NewVector, Vector
from message_lifecycle.stores.iceberg.document import local_path
from message_lifecycle.stores.iceberg.puffin import Positions, puffin_file

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
    with local_path(vector.path).open("rb") as file:
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


def write_vectors(path: Path, positions: Mapping[str, Positions]) -> list[NewVector]:
    """One file with a vector for each data file; none where there are no positions, which are in ascending order."""
    if not positions:
        return []
    content, blobs = puffin_file(positions.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    puffin = NewFile(path=str(path), rows=sum(blob.rows for blob in blobs), bytes=len(content))
    return [NewVector(data_file=blob.data_file, puffin=puffin, offset=blob.offset, length=blob.length, rows=blob.rows) for blob in blobs]
