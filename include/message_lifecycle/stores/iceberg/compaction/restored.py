"""Single rows that come back to one partition of a table, found in its history (DEL-7).

Where the table has their file still, marks are taken off it. Else a copy of the file comes under a fresh path with all others marked, for a
path that a table has let go may be deleted by any other engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING

import numpy as np

from message_lifecycle.stores.iceberg.compaction.job import InputFile, NewFile, NewVector
from message_lifecycle.stores.iceberg.compaction.removals import write_marks
from message_lifecycle.stores.iceberg.compaction.vectors import marked
from message_lifecycle.stores.iceberg.file_copies import copy_file
from message_lifecycle.stores.iceberg.puffin import Positions

if TYPE_CHECKING:
    from pyiceberg.table import Table

NONE = np.empty(0, np.int64)
Holding = tuple[InputFile, Positions, int]
"""A file of the table's history, positions in it that come back, and how many rows it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What comes back to one partition (`compaction.commit.Written`). `unmarked`: paths of files of which nothing is marked any more."""

    partition: int
    files: tuple[NewFile, ...]
    vectors: tuple[NewVector, ...]
    unmarked: tuple[str, ...]
    rows: int
    dropped: tuple[str, ...] = ()

    @property
    def is_nothing(self) -> bool:
        return not (self.files or self.vectors or self.unmarked)


def bring_back(table: Table, partition: int, holding: Iterable[Holding], now: Sequence[InputFile], *, field: str = "partition") -> Restored:
    """Write copies and vectors beside the table's data. `now`: its files of the partition. `field`: name of the partition field. Raises
    FileNotFoundError where a file of its history is lost."""
    standing = {file.path: NONE if file.vector is None else marked(file.vector) for file in now}
    positions: dict[str, Positions] = {}
    copies: list[NewFile] = []
    unmarked: list[str] = []
    rows = 0
    for file, mine, total in holding:
        path = file.path
        if path in standing:
            left = np.setdiff1d(standing[path], mine)
            rows += len(standing[path]) - len(left)
        else:
            path = f"{table.location()}/data/{field}={partition}/{token_hex(8)}-undo.parquet"
            copies.append(NewFile(path=path, rows=total, bytes=copy_file(table.io, file.path, path)))
            left = np.setdiff1d(np.arange(total), mine)
            rows += len(mine)
        if len(left):
            positions[path] = left
        elif path in standing:
            unmarked.append(path)
    vectors = write_marks(table, f"{field}={partition}", positions)
    return Restored(partition=partition, files=tuple(copies), vectors=vectors, unmarked=tuple(unmarked), rows=rows)
