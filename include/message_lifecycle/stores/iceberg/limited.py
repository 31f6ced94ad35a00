"""The limits of one question, applied to what rules of age leave of a table's files, by their scope (RET-4, DEL-9)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.rows import Beyond, LimitReason, Place, Reason
from message_lifecycle.stores.iceberg.data_rows import FileRows, Longs, Vectors
from message_lifecycle.stores.iceberg.left_rows import Files, Flags, Left, exact_span
from message_lifecycle.stores.iceberg.limit_rows import Gone, beyond_of_group
from message_lifecycle.stores.iceberg.segments import FileMetrics

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Going:
    """Messages of one file that lie beyond a limit, ascending."""

    file: FileMetrics
    reason: LimitReason
    offsets: Longs | range


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """As of `BeyondRows`, and `gone` by file and reason."""

    gone: tuple[Going, ...] = ()
    left: int = 0
    most_records: int = 0
    most_bytes: int = 0
    emptied: int = 0
    oversized: int = 0


class Limited:
    """Gathers what is left of each file, in order of (partition, segment, name), then says what lies beyond."""

    def __init__(self, table: Table, vectors: Vectors, prefix: str, as_of: Instant, beyond: Beyond) -> None:
        self.files = Files(table=table, vectors=vectors, prefix=prefix, as_of=as_of, beyond=beyond)
        self._left: list[Left] = []

    @property
    def dead(self) -> frozenset[Place]:
        return self.files.beyond.dead

    def leave(self, file: FileMetrics) -> None:
        """A file of which no rule of age has anything."""
        lapsed, alive = self.files.lapsed_by_bounds(file), file.rows - file.deleted
        if lapsed is not None:
            self._left.append(Left(file=file, rows=alive, lapsed=lapsed, all=True))
            return
        rows = self.files.read(file, self.files.lapsed_columns)
        self.leave_some(file, rows, rows.alive.copy(), ())

    def leave_some(self, file: FileMetrics, rows: FileRows, open_: Flags, reasons: tuple[Reason, ...]) -> None:
        """A file whose columns are at hand; `open_`: rows that none of the reasons has."""
        self._left += self.files.split(file, rows, open_, reasons)

    def found(self) -> Found:
        """What goes of each file by number and by size, in order of offset, with the offsets."""
        limits = self.files.beyond.limits
        if limits.scope == "key":
            return self._of_keys()
        if limits.scope == "topic":
            groups = [self._left]
        else:
            groups = [list(group) for _, group in groupby(self._left, key=lambda left: left.file.partition)]
        found = [beyond_of_group(self.files, group, limits) for group in groups]
        return Found(
            gone=_merged(self._with_offsets(entry) for group in found for entry in group.gone),
            left=sum(group.left for group in found),
            most_records=max((group.most_records for group in found), default=0),
            most_bytes=max((group.most_bytes for group in found), default=0),
            emptied=sum(group.emptied for group in found),
            oversized=sum(group.oversized for group in found),
        )

    def _of_keys(self) -> Found:
        from message_lifecycle.stores.iceberg.key_rows import beyond_of_keys, offsets_of

        limits = self.files.beyond.limits
        found = beyond_of_keys(self.files, self._left, limits)
        gone = [
            Going(file=self._left[at].file, reason=reason, offsets=offsets_of(runs)) for (at, reason), runs in sorted(found.runs.items())
        ]
        passes = found.passes
        return Found(
            gone=_merged(gone),
            left=sum(entry.rows for entry in self._left),
            most_records=found.most_records,
            most_bytes=found.most_bytes,
            emptied=0 if limits.min_keep else passes,
            oversized=passes if limits.min_keep else 0,
        )

    def _with_offsets(self, gone: Gone) -> Going:
        """All that is left of a file, by its bounds where they name exactly that."""
        offsets = gone.offsets
        if offsets is None:
            offsets = exact_span(gone.left)
        if offsets is None:
            offsets = self.files.rows_of(gone.left, ()).offsets
        return Going(file=gone.left.file, reason=gone.reason, offsets=offsets)


def _merged(gone: Iterable[Going]) -> tuple[Going, ...]:
    """One of each file and reason: of a file, some may have lapsed."""
    by_file: dict[tuple[FileMetrics, LimitReason], list[Going]] = {}
    for entry in gone:
        by_file.setdefault((entry.file, entry.reason), []).append(entry)
    found = []
    for (file, reason), entries in sorted(by_file.items(), key=lambda item: (item[0][0], item[0][1] != "retention_count")):
        one = entries[0] if len(entries) == 1 else None
        offsets = one.offsets if one is not None else np.sort(np.concatenate([np.asarray(entry.offsets) for entry in entries]))
        found.append(Going(file=file, reason=reason, offsets=offsets))
    return tuple(found)
