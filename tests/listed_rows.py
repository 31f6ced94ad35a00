"""Rows that a test lists, in place of the rows of data files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from message_lifecycle.stores.iceberg.data_rows import FileRows, Longs, OpenRows, Positions


class ListedRows:
    """Answers as `OpenRows` does.

    Attributes:
        columns_read: The names of the columns that a question has read.
    """

    def __init__(self, rows: FileRows, keys: Sequence[bytes | None] = ()) -> None:
        self._rows, self._keys = rows, keys
        self.alive, self.columns_read = np.ones(len(rows.offsets), np.bool_), list[str]()

    def columns(self, names: Collection[str]) -> Mapping[str, NDArray[Any]]:
        self.columns_read += sorted(names)
        return {name: self._rows.columns[name] for name in names}

    def offsets(self) -> Longs:
        self.columns_read.append("offset")
        return self._rows.offsets

    def keys(self) -> pa.ChunkedArray:
        self.columns_read.append("key")
        return pa.chunked_array([pa.array(self._keys, pa.binary())])


class ListedVectors:
    """Stands for `data_rows.Vectors` of a snapshot: the positions of the rows that are not alive."""

    def __init__(self, rows_of: Callable[[str], FileRows]) -> None:
        self._rows_of = rows_of

    def __getitem__(self, path: str) -> Positions:
        return np.flatnonzero(~self._rows_of(path).alive)


def opening(rows_of: Callable[[str], ListedRows]) -> Callable[..., Any]:
    """Return a stand-in of `data_rows.open_rows`. `rows_of` returns the rows of the file at a path."""

    @contextmanager
    def open_rows(_io: object, path: str, removed: Positions) -> Iterator[OpenRows]:
        rows = rows_of(path)
        rows.alive[removed] = False
        yield cast("OpenRows", rows)

    return open_rows
