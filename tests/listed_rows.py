"""Rows that a test lists, in place of the rows of data files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from message_lifecycle.stores.iceberg.data_rows import FileRows, Longs, OpenRows, Positions


class ListedRows:
    """Answers as `OpenRows` does.

    Attributes:
        asked: The names of the columns that a question has read.
    """

    def __init__(self, rows: FileRows) -> None:
        self._rows, self.alive, self.asked = rows, np.ones(len(rows.offsets), np.bool_), list[str]()

    def columns(self, names: Collection[str]) -> Mapping[str, NDArray[Any]]:
        self.asked += sorted(names)
        return {name: self._rows.columns[name] for name in names}

    def offsets(self) -> Longs:
        self.asked.append("offset")
        return self._rows.offsets


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
