"""Rows that a test lists, in place of the rows of an open data file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from numpy.typing import NDArray

from message_lifecycle.stores.iceberg.data_rows import FileRows, Longs, OpenRows


class ListedRows:
    """Answers as `OpenRows` does. `asked`: the names of the columns that a question has read."""

    def __init__(self, rows: FileRows) -> None:
        self._rows, self.alive, self.asked = rows, rows.alive.copy(), list[str]()

    def columns(self, names: Collection[str]) -> Mapping[str, NDArray[Any]]:
        self.asked += sorted(names)
        return {name: self._rows.columns[name] for name in names}

    def offsets(self) -> Longs:
        self.asked.append("offset")
        return self._rows.offsets


def opening(rows_of: Callable[[str], ListedRows]) -> Callable[..., Any]:
    """Return a stand-in of `data_rows.open_rows`. `rows_of` returns the rows of the file at a path."""

    @contextmanager
    def open_rows(_io: object, path: str, _removed: object) -> Iterator[OpenRows]:
        yield cast("OpenRows", rows_of(path))

    return open_rows
