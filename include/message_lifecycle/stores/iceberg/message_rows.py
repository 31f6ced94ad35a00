"""Messages out of data files, in the order of the log, read without a JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import FileScanTask, Table


def rows_in_order(
    table: Table, *, snapshot_id: int | None = None, partition: int | None = None, start: int = 0, after: Mapping[int, int] | None = None
) -> Iterator[pa.Table]:
    """Rows by (partition, offset), the files of one stretch of offsets at a time. `after`: of each partition only what lies past it."""
    from pyiceberg.expressions import And, EqualTo, GreaterThan, GreaterThanOrEqual, NotEqualTo, Or, Reference
    from pyiceberg.expressions.literals import literal

    wanted: BooleanExpression = GreaterThanOrEqual(term=Reference("offset"), value=literal(start))
    if partition is not None:
        wanted = And(wanted, EqualTo(term=Reference("partition"), value=literal(partition)))
    for each, offset in (after or {}).items():
        elsewhere = NotEqualTo(term=Reference("partition"), value=literal(each))
        wanted = And(wanted, Or(elsewhere, GreaterThan(term=Reference("offset"), value=literal(offset))))
    tasks = list(table.scan(row_filter=wanted, snapshot_id=snapshot_id).plan_files())
    for stretch in _stretches(tasks):
        yield _scan(table, stretch, wanted).sort_by("offset")


def _stretches(tasks: list[FileScanTask]) -> Iterator[list[FileScanTask]]:
    """Files by partition and ascending offsets; those whose offsets overlap are read together."""
    from message_lifecycle.stores.iceberg.columns import OFFSET

    def bound(bounds: Mapping[int, bytes] | None, otherwise: int) -> int:
        found = (bounds or {}).get(OFFSET)
        return otherwise if found is None else int.from_bytes(found, "little", signed=True)

    ranges = sorted(
        (
            (int(task.file.partition[0]), bound(task.file.lower_bounds, -1), bound(task.file.upper_bounds, 2**63 - 1), task)
            for task in tasks
        ),
        key=lambda entry: entry[:3],
    )
    for _, group in groupby(ranges, key=lambda entry: entry[0]):
        stretch: list[FileScanTask] = []
        end = -1
        for _, first, last, task in group:
            if stretch and first > end:
                yield stretch
                stretch, end = [], -1
            stretch.append(task)
            end = max(end, last)
        yield stretch


def _scan(table: Table, tasks: list[FileScanTask], wanted: BooleanExpression, columns: Sequence[str] = ("*",)) -> pa.Table:
    from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO

    schema = table.schema() if columns == ("*",) else table.schema().select(*columns)
    # Data is read by PyArrow, whichever way the metadata came.
    return ArrowScan(table.metadata, PyArrowFileIO(table.io.properties), schema, wanted).to_table(tasks)


def messages_of(rows: pa.Table) -> Iterator[Message]:
    for batch in rows.to_batches(max_chunksize=10_000):
        column = {field: batch.column(field) for field in batch.schema.names}
        for row in zip(
            *(column[name].to_pylist() for name in ("partition", "offset", "key", "value", "segment", "headers", "origin_offset", "never")),
            micros(column["append_time"]),
            micros(column["event_time"]),
            micros(column["expires_at"]),
            strict=True,
        ):
            partition, offset, key, value, segment, headers, origin_offset, never, append_time, event_time, expires_at = row
            yield Message(
                partition=partition,
                offset=offset,
                append_time=append_time,
                key=key,
                value=value,
                segment=segment,
                headers=tuple((header["name"], header["value"]) for header in headers or ()),
                event_time=event_time,
                origin_offset=origin_offset,
                expires_at=expires_at,
                never=bool(never),
            )


def micros(times: Any) -> list[Instant | None]:
    """Not every instant of a log has a date that Python knows."""
    import pyarrow as pa

    found: list[Instant | None] = times.cast(pa.int64()).to_pylist()
    return found
