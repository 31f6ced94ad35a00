"""Which rows of many files hold a key: here, file by file, or by tasks of a cluster's executors where there are many rows.

Each distinct key of each file is hashed, which is all that a search costs: a core does some hundred thousand a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from message_lifecycle.model.erasure import Matches, TableKind
from message_lifecycle.model.errors import FileUnreadable, Unavailable
from message_lifecycle.stores.iceberg.data_rows import Positions
from message_lifecycle.stores.iceberg.erasure.rewrite import rows_with
from message_lifecycle.stores.iceberg.table_folder import reading
from message_lifecycle.stores.iceberg.tasks import Failed, Resources, Store, in_tasks

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyspark.sql import SparkSession

RowsOf = Callable[["FileIO", str, Matches, TableKind], Positions]
FAR_ROWS = 3_000_000
"""Fewer are searched sooner than a cluster's executors have started."""
FILES_OF_TASK = 16


def search_failed(kind: str, reason: str) -> Unavailable:
    """A task could not look into files that may hold the key, so nothing is said of them."""
    return Unavailable(f"searching data files failed ({kind}): {reason} Nothing was changed; mend that and run again.", code="SearchFailed")


@dataclass(slots=True, kw_only=True)
class Looks:
    """Searches in the files of one table.

    Attributes:
        io: The table's own I/O.
        store: The way to the files for a task.
        matches: The question whether a key is the erased one.
        kind: The kind of the table.
        cluster: A session whose executors search the files that are `ahead`. None: this process searches them.
        far_rows: From so many rows on, the executors search.
        rows_of: Finds the rows of one file. By default those of the key; else those that tell it inside their values.
    """

    io: FileIO
    store: Store
    matches: Matches
    kind: TableKind
    cluster: Callable[[], SparkSession] | None = None
    far_rows: int = FAR_ROWS
    rows_of: RowsOf = rows_with
    _found: dict[str, Positions | FileUnreadable] = field(default_factory=dict)

    def ahead(self, rows: Mapping[str, int]) -> None:
        """These files will be asked for. `rows`: of each, by path. Raises SearchFailed."""
        if self.cluster is None or sum(rows.values()) < self.far_rows:
            return
        paths = sorted(rows)
        items = [
            _Files(paths[at : at + FILES_OF_TASK], self.store, self.matches, self.kind, self.rows_of)
            for at in range(0, len(paths), FILES_OF_TASK)
        ]
        for item, found in zip(items, in_tasks(self.cluster(), items, _looked), strict=True):
            if isinstance(found, Failed):
                raise search_failed(found.kind, found.reason)
            self._found.update(zip(item.paths, found, strict=True))

    def rows(self, path: str) -> Positions:
        """Those that hold the key, once. Raises FileLost, FileUnreadable."""
        if path not in self._found:
            with reading(path):
                return self.rows_of(self.io, path, self.matches, self.kind)
        found = self._found.pop(path)
        if isinstance(found, FileUnreadable):
            raise found
        return found


@dataclass(frozen=True, slots=True)
class _Files:
    paths: Sequence[str]
    store: Store
    matches: Matches = field(repr=False)  # it has the secret of keyed hashes, or a key itself
    kind: TableKind
    rows_of: RowsOf


def _looked(files: _Files, _share: Resources) -> list[Positions | FileUnreadable]:
    """In a task. Why a file cannot be read is for whoever asks for it: history names files that are gone."""
    return [_rows(files, path) for path in files.paths]


def _rows(files: _Files, path: str) -> Positions | FileUnreadable:
    try:
        with reading(path):
            return files.rows_of(files.store.io, path, files.matches, files.kind)
    except FileUnreadable as error:
        return error
