"""What rules of age leave of a table's files, for the limits by number and by size: by metadata, and by columns where that is not enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.rows import Beyond, Reason
from message_lifecycle.stores.iceberg import rule_bounds, rule_columns
from message_lifecycle.stores.iceberg.data_rows import FileRows, Longs, Vectors, keys_at, read_rows
from message_lifecycle.stores.iceberg.file_names import absolute
from message_lifecycle.stores.iceberg.segments import FileMetrics

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Messages of one file that are there and that no rule of age has; `lapsed`: those or the others (see `operations.retention`).

    `all`: every message that is there, so that the file's bounds are of no others but removed ones. `reasons`: what has some of them."""

    file: FileMetrics
    rows: int
    lapsed: bool
    all: bool
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftRows:
    """Columns of what is left of one file, in order of offset."""

    offsets: Longs
    columns: Mapping[str, Longs]
    positions: Longs
    """In the file."""


@dataclass(slots=True, kw_only=True)
class Files:
    """Reads the files of one snapshot."""

    table: Table
    vectors: Vectors
    prefix: str
    as_of: Instant
    beyond: Beyond
    _sizes: dict[tuple[str, bool], int] = field(default_factory=dict)

    def read(self, file: FileMetrics, columns: Iterable[str]) -> FileRows:
        path = absolute(self.prefix, file.name)
        return read_rows(self.table.io, path, self.vectors[path], columns)

    def lapsed_by_bounds(self, file: FileMetrics) -> bool | None:
        """Whether all or none of a file's messages have lapsed; None: its columns must be asked."""
        if self.beyond.lapsed is None:
            return False
        begins = rule_bounds.begins(self.beyond.lapsed, file)
        return False if begins.some > self.as_of else True if begins.all <= self.as_of else None

    def split(self, file: FileMetrics, rows: FileRows, open_: Flags, reasons: tuple[Reason, ...]) -> list[Left]:
        """What is left of a file whose columns are at hand. `open_`: rows that no reason has."""
        lapsed = self._lapsed(rows)
        counts = (int((open_ & ~lapsed).sum()), False), (int((open_ & lapsed).sum()), True)
        alive = file.rows - file.deleted
        return [Left(file=file, rows=count, lapsed=flag, all=count == alive, reasons=reasons) for count, flag in counts if count]

    @property
    def lapsed_columns(self) -> set[str]:
        return set() if self.beyond.lapsed is None else set(rule_columns.columns_of(self.beyond.lapsed))

    def _lapsed(self, rows: FileRows) -> Flags:
        if self.beyond.lapsed is None:
            return np.zeros(len(rows.offsets), np.bool_)
        return np.asarray(rule_columns.begins(self.beyond.lapsed, rows.columns, len(rows.offsets)) <= self.as_of, np.bool_)

    def rows_of(self, left: Left, columns: Iterable[str]) -> LeftRows:
        """Raises what reading raises; holds the columns of one file."""
        wanted = set(columns)
        asked = set() if left.all else {name for reason in left.reasons for name in rule_columns.columns_of(reason.rule)}
        rows = self.read(left.file, wanted | asked | (set() if left.all else self.lapsed_columns))
        mine = rows.alive.copy()
        if not left.all:
            for reason in left.reasons:
                mine &= rule_columns.begins(reason.rule, rows.columns, len(mine)) > self.as_of
            mine &= self._lapsed(rows) == left.lapsed
        positions = np.flatnonzero(mine)
        positions = positions[np.argsort(rows.offsets[positions], kind="stable")]
        found = {name: np.asarray(rows.columns[name], np.int64)[positions] for name in wanted}
        if "size_bytes" in found:
            # A size that is not known pushes nothing out.
            found["size_bytes"] = np.maximum(found["size_bytes"], 0)
        return LeftRows(offsets=rows.offsets[positions], columns=found, positions=positions)

    def size_bytes(self, left: Left) -> int:
        """Sum of the messages' sizes (MSG-2): of no metadata, so the column is read, once."""
        key = left.file.name, left.lapsed
        if key not in self._sizes:
            self._sizes[key] = int(self.rows_of(left, ("size_bytes",)).columns["size_bytes"].sum())
        return self._sizes[key]

    def keys(self, left: Left, rows: LeftRows) -> pa.Array:
        return keys_at(self.table.io, absolute(self.prefix, left.file.name), rows.positions)


def is_exact(left: Left) -> bool:
    """Whether the file's bounds of offsets and times are those of what is left of it."""
    file = left.file
    return left.all and file.deleted == 0 and None not in (file.first_offset, file.last_offset)


def exact_span(left: Left) -> range | None:
    """The offsets that are left of a file where its bounds name exactly these."""
    file = left.file
    if not is_exact(left) or file.first_offset is None or file.last_offset is None or file.last_offset - file.first_offset + 1 != file.rows:
        return None
    return range(file.first_offset, file.last_offset + 1)


def time_bounds(left: Left) -> tuple[int | None, int | None]:
    """At least and at most the newest known time of what is left; None: not known. Zero and the first instant are no times (CLK-4)."""
    file = left.file
    if file.unknown_times == file.rows:
        return None, None
    if file.newest_at is None or file.oldest_at is None:
        return None, INT64_MAX
    straddles = file.oldest_at <= 0 <= file.newest_at or file.oldest_at == rule_columns.UNKNOWN
    if straddles or file.unknown_times != 0:
        return (file.newest_at if is_exact(left) and file.newest_at > 0 else None), file.newest_at
    # Of what a removed message's time is the bound, at least the oldest time is reached by whatever is left.
    return (file.newest_at if is_exact(left) else file.oldest_at), file.newest_at
