"""Files that a table let go, back as copies under fresh paths (DEL-7).

Were its old path added again, any engine that expires snapshots the old way would delete the live file with the snapshot that had dropped it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import undo_source_gone
from message_lifecycle.stores.iceberg.data_files import files_named
from message_lifecycle.stores.iceberg.file_copies import copy_file
from message_lifecycle.stores.iceberg.session import Java

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyspark.sql import SparkSession

_COPY = re.compile(r"-undo-(\d{6})\.parquet$")


def copied_from(path: str) -> int | None:
    """Which of the plan's files a staged one is the copy of; None: it is no such copy."""
    found = _COPY.search(path)
    return None if found is None else int(found[1])


def originals(
    session: SparkSession, io: FileIO, table: Java, source_id: int | None, wanted: Mapping[str, int], *, undone: str
) -> dict[int, Java]:
    """The files by their place in the plan, which `wanted` gives by path: each described by the source, and each still there.
    Raises UndoSourceGone of the `undone` plan."""
    source = None if source_id is None else table.snapshot(source_id)
    if source is None:
        raise undo_source_gone(undone, "the snapshot that holds what it removed has been expired")
    described = {wanted[str(file.location())]: file for file in files_named(session, table, source, wanted)} if wanted else {}
    gone = sorted(path for path, at in wanted.items() if at not in described or not io.new_input(path).exists())
    if gone:
        raise undo_source_gone(undone, f"{len(gone)} of the {len(wanted)} files that it removed are not there any more, {gone[0]} first")
    return described


def copies(
    session: SparkSession, io: FileIO, table: Java, originals: Mapping[int, Java], *, undone: str
) -> Iterator[tuple[int, tuple[str, Java]]]:
    """Write them; by their place in the plan the path and the description of each copy. Raises UndoSourceGone."""
    jvm: Java = session._jvm
    once = uuid.uuid4()
    for at, file in sorted(originals.items()):
        path = str(table.locationProvider().newDataLocation(f"{once}-undo-{at:06}.parquet"))
        written = copy_file(io, str(file.location()), path)
        if written != int(file.fileSizeInBytes()):
            raise undo_source_gone(undone, f"{file.location()} has {written} bytes, the table says {file.fileSizeInBytes()}")
        spec = table.specs().get(file.specId())
        yield at, (path, jvm.org.apache.iceberg.DataFiles.builder(spec).copy(file).withPath(path).build())
