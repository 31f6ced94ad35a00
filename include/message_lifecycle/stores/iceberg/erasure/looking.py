"""Find the rows of many files that hold a key, in tasks.

A task hashes the distinct keys of its files together, and then searches only files that may hold the key. A quick hash comes first and
leaves few candidates (`key_mask`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from message_lifecycle.model.erasure import TableKind
from message_lifecycle.model.errors import FileUnreadable, Unavailable
from message_lifecycle.stores.iceberg.data_rows import Positions
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.file_tasks import files_of_tasks
from message_lifecycle.stores.iceberg.shares import Failed, Resources
from message_lifecycle.stores.iceberg.table_folder import reading
from message_lifecycle.stores.iceberg.tasks import Store

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_NONE = np.empty(0, np.int64)


class RowFinder(Protocol):
    """Searches files for a key. Tasks receive it."""

    def __call__(self, io: FileIO, path: str, kind: TableKind, /) -> Positions:
        """Return the positions of the rows of one file that hold the key."""
        ...

    def suspects(self, io: FileIO, paths: Sequence[str], kind: TableKind, /) -> frozenset[str]:
        """Return the paths of files that may hold the key, and of files that cannot be read. No other file holds the key."""
        ...


def search_failed(kind: str, reason: str) -> Unavailable:
    """Return the error for a task that could not search its files. The key may be in them."""
    return Unavailable(f"searching data files failed ({kind}): {reason} Nothing was changed; mend that and run again.", code="SearchFailed")


@dataclass(slots=True, kw_only=True)
class Looks:
    """Searches in the files of one table.

    Attributes:
        io: The table's own I/O.
        store: How a task reaches the files.
        kind: The kind of the table.
        rows_of: Finds the rows of a file. The object holds the secret of the keyed hashes, or a key itself.
        engine: Runs the tasks that search the files given to `ahead`. None: `rows` searches each file itself.
        description: The first words of the job's description.
    """

    io: FileIO
    store: Store
    kind: TableKind
    rows_of: RowFinder = field(repr=False)
    engine: Callable[[], Engine] | None = None
    description: str = "erasure"
    _found: dict[str, Positions | FileUnreadable] = field(default_factory=dict)

    def ahead(self, rows: Mapping[str, int]) -> None:
        """Search files that `rows` will ask for. Raises SearchFailed.

        Args:
            rows: How many rows each file has, by its path.
        """
        if self.engine is None or not rows:
            return
        paths = sorted(rows)
        items = [_Files(some, self.store, self.kind, self.rows_of) for some in files_of_tasks(paths)]
        answers = self.engine().run(items, _looked, description=f"{self.description}: searching {len(paths)} files")
        for item, found in zip(items, answers, strict=True):
            if isinstance(found, Failed):
                raise search_failed(found.kind, found.reason)
            self._found.update(zip(item.paths, found, strict=True))

    def rows(self, path: str) -> Positions:
        """Return the positions of the rows that hold the key. A second call searches the file again.

        Raises:
            FileLost: The file is missing.
            FileUnreadable: The file cannot be read.
        """
        if path not in self._found:
            with reading(path):
                return self.rows_of(self.io, path, self.kind)
        found = self._found.pop(path)
        if isinstance(found, FileUnreadable):
            raise found
        return found


@dataclass(frozen=True, slots=True)
class _Files:
    paths: Sequence[str]
    store: Store
    kind: TableKind
    rows_of: RowFinder = field(repr=False)


def _looked(files: _Files, _share: Resources) -> list[Positions | FileUnreadable]:
    """Search files in a task.

    The task returns read errors, because only the caller knows whether the file matters: history names deleted files.
    """
    suspects = files.rows_of.suspects(files.store.io, files.paths, files.kind)
    return [_rows(files, path) if path in suspects else _NONE for path in files.paths]


def _rows(files: _Files, path: str) -> Positions | FileUnreadable:
    try:
        with reading(path):
            return files.rows_of(files.store.io, path, files.kind)
    except FileUnreadable as error:
        return error
