"""The rows of a quarantine table as a person reads them, and their counts; PyIceberg reads them, without Spark."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from message_lifecycle.model.instants import Instant, of_datetime
from message_lifecycle.model.tables import RefusedCount, RefusedRow

if TYPE_CHECKING:
    from pyiceberg.table import Table

_COUNTED = ("at", "batch", "file", "code")


def counts_of(table: Table) -> Sequence[RefusedCount]:
    """Count the rows by batch, file and code, in order of their time."""
    counts: Counter[tuple[Instant, str, str, str]] = Counter()
    for row in _rows(table, {}, _COUNTED):
        counts[(of_datetime(row["at"]), row["batch"], row["file"], row["code"])] += 1
    return [RefusedCount(at=at, batch=batch, file=file, code=code, rows=rows) for (at, batch, file, code), rows in sorted(counts.items())]


def rows_of(table: Table, wanted: Mapping[str, str | None], *, limit: int) -> Sequence[RefusedRow]:
    """Return the first `limit` rows whose columns have the wanted values (None: any), in order of time, file and position."""
    columns = ("at", "batch", "file", "position", "code", "reason", "raw")
    found = (RefusedRow(**{**row, "at": of_datetime(row["at"])}) for row in _rows(table, wanted, columns))
    return heapq.nsmallest(limit, found, key=lambda row: (row.at, row.file, row.position, row.code))


def _rows(table: Table, wanted: Mapping[str, str | None], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    import pyarrow.compute as pc

    for batch in table.scan(selected_fields=tuple(columns)).to_arrow_batch_reader():
        for column, value in wanted.items():
            if value is not None:
                batch = batch.filter(pc.equal(batch.column(column), value))
        yield from batch.to_pylist()
