"""A data file's bytes under a fresh path of the same table, by the table's own I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from message_lifecycle.stores.iceberg.document import is_local, local_path

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_CHUNK = 8 * 1024 * 1024


def copy_file(io: FileIO, source: str, target: str) -> int:
    """How many bytes were written. `target` must not be there yet."""
    written = 0
    with io.new_output(target).create() as stream:
        for chunk in _chunks(io, source):
            stream.write(chunk)
            written += len(chunk)
    return written


def digest_of(io: FileIO, path: str) -> str:
    """SHA-256 of the file's bytes."""
    digest = hashlib.sha256()
    for chunk in _chunks(io, path):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(io: FileIO, path: str) -> Iterator[bytes]:
    # PyIceberg's own opening of a local file may read it whole.
    with local_path(path).open("rb") if is_local(path) else io.new_input(path).open() as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk
