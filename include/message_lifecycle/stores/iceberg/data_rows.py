"""Read columns of single data files and find the live rows, without a JVM."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from typing import TYPE_CHECKING, assert_never

import numpy as np
from numpy.typing import NDArray

from message_lifecycle.model.errors import FileUnreadable, keys_unknown, message_without_place, offset_given_twice
from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.rules import AllOfRules, AnyOfRules, NeverExpires, NotRule, PeriodPassed, Rule, TimeKnown
from message_lifecycle.stores.iceberg.table_folder import is_local, local_path, reading

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot

Longs = NDArray[np.int64]
Positions = NDArray[np.int64]
NO_POSITIONS: Positions = np.empty(0, np.int64)
Columns = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """The rows of one data file, in the order of the file.

    Attributes:
        columns: Times as microseconds, `never` as a truth value.
        alive: Rows that no deletion vector marks.
    """

    offsets: Longs
    columns: Mapping[str, NDArray[np.generic]]
    alive: NDArray[np.bool_]

    def at(self, positions: Positions) -> FileRows:
        """Return only the rows at these positions."""
        columns = {name: column[positions] for name, column in self.columns.items()}
        return FileRows(offsets=self.offsets[positions], columns=columns, alive=self.alive[positions])


class Vectors:
    """The deletion vectors of one snapshot, by data file. A file of vectors is read once."""

    def __init__(self, table: Table, snapshot: Snapshot) -> None:
        from message_lifecycle.stores.iceberg.manifests import vector_files

        self.snapshot_id = snapshot.snapshot_id
        self._file_of = dict(vector_files(table, snapshot))
        self._files = VectorFiles(table.io)

    def __getitem__(self, data_file: str) -> Positions:
        """Return the positions of a data file that are marked as removed. `data_file` is a path."""
        puffin = self._file_of.get(data_file)
        return NO_POSITIONS if puffin is None else self._files.vector(puffin, data_file)


class VectorFiles:
    """Reads files of deletion vectors, and keeps their content."""

    def __init__(self, io: FileIO) -> None:
        self._io = io
        self._read: dict[str, dict[str, Positions]] = {}

    def vector(self, puffin: str, data_file: str) -> Positions:
        """Return the positions of a data file that a file of vectors marks. Raises FileLost, FileUnreadable."""
        if puffin not in self._read:
            self._read[puffin] = vectors_in(self._io, puffin)
        if data_file not in self._read[puffin]:
            raise FileUnreadable(puffin, f"it has no deletion vector for {data_file}")
        return self._read[puffin][data_file]


def vectors_in(io: FileIO, path: str) -> dict[str, Positions]:
    """Return the vectors of one file of vectors, by the path of their data file."""
    from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
    from pyiceberg.table.puffin import PuffinFile

    with reading(path), io.new_input(path).open() as stream:
        found = PuffinFile(stream.read())
    return {
        vector.referenced_data_file: np.asarray(vector.to_vector().to_numpy(), np.int64)
        for vector in deletion_vectors_from_puffin_file(found)
    }


@contextmanager
def _opened(io: FileIO, path: str) -> Iterator[pq.ParquetFile]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with ExitStack() as opened:
        # PyArrow reads only the wanted columns of a local file; a stream may hold the whole file.
        source = local_path(path) if is_local(path) else pa.PythonFile(opened.enter_context(io.new_input(path).open()), mode="r")
        yield opened.enter_context(pq.ParquetFile(source))


def read_columns(io: FileIO, path: str, columns: Iterable[str]) -> pa.Table:
    """Return columns of one data file, with all rows in order. Missing columns are left out. Raises FileLost, FileUnreadable."""
    with reading(path), _opened(io, path) as file:
        return file.read(columns=sorted(set(columns) & set(file.schema_arrow.names)))


class OpenRows:
    """The rows of one open data file, in the order of the file. A column is read when a question needs it.

    Offsets take longer to read than lifetimes or sizes, and a search needs the offsets of few files. Other files are not checked for missing
    or repeated offsets.

    Attributes:
        alive: Rows that no deletion vector marks.
    """

    def __init__(self, path: str, file: pq.ParquetFile, removed: Positions) -> None:
        self._path, self._file = path, file
        self._offsets: Longs | None = None
        self.alive = self.unmarked(removed)

    def unmarked(self, removed: Positions) -> NDArray[np.bool_]:
        """Return which rows a deletion vector does not mark.

        Raises:
            FileUnreadable: The vector marks a row that the file does not have.
        """
        count = self._file.metadata.num_rows
        if len(removed) and removed.max() >= count:
            raise FileUnreadable(self._path, f"its deletion vector marks row {removed.max()}, and the file has {count} rows")
        unmarked = np.ones(count, np.bool_)
        unmarked[removed] = False
        return unmarked

    def columns(self, names: Collection[str]) -> Columns:
        """Return columns: times as microseconds, `never` as a truth value. A missing column has unknown values only. Raises FileUnreadable."""
        with reading(self._path):
            return {
                name: bool_values(column) if name == "never" else time_values(column, zero_is_unknown=name == "append_time")
                for name, column in self._read(names).items()
            }

    def offsets(self) -> Longs:
        """Return the offsets; -1 in removed rows without one. Raises FileUnreadable, MessageWithoutPlace, OffsetGivenTwice."""
        if self._offsets is None:
            with reading(self._path):
                self._offsets = self._checked(self._read(("offset",))["offset"])
        return self._offsets

    def keys(self) -> pa.ChunkedArray:
        """Return the keys as bytes; null: no key.

        Raises:
            FileUnreadable: The file is damaged.
            KeysUnknown: The file has no column `key`. Its keys may have another name.
        """
        import pyarrow as pa

        if "key" not in self._file.schema_arrow.names:
            raise keys_unknown(self._path)
        with reading(self._path):
            return self._read(("key",))["key"].cast(pa.binary())

    def _read(self, names: Collection[str]) -> Mapping[str, pa.ChunkedArray]:
        """Read columns. A missing column has nulls only."""
        import pyarrow as pa

        there = sorted(set(names) & set(self._file.schema_arrow.names))
        read = self._file.read(columns=there) if there else None
        return {
            name: pa.chunked_array([pa.nulls(len(self.alive), pa.bool_() if name == "never" else pa.int64())])
            if read is None or name not in there
            else read[name]
            for name in names
        }

    def _checked(self, offsets: pa.ChunkedArray) -> Longs:
        if offsets.null_count:
            if (self.alive & offsets.is_null().to_numpy()).any():
                raise message_without_place(self._path, "an offset")
            offsets = offsets.fill_null(-1)
        numbers: Longs = offsets.to_numpy()
        _require_once(self._path, numbers, self.alive)
        return numbers


@contextmanager
def open_rows(io: FileIO, path: str, removed: Positions) -> Iterator[OpenRows]:
    """Open the rows of one data file in the block. Raises FileLost, FileUnreadable."""
    with ExitStack() as opened:
        # Errors of the block are not errors of the file.
        with reading(path):
            rows = OpenRows(path, opened.enter_context(_opened(io, path)), removed)
        yield rows


def read_rows(io: FileIO, path: str, removed: Positions, columns: Collection[str]) -> FileRows:
    """Read `offset` and the given columns of one data file.

    Raises:
        MessageWithoutPlace: A live row has no offset.
        OffsetGivenTwice: Two live rows have the same offset.
    """
    with open_rows(io, path, removed) as rows:
        return FileRows(offsets=rows.offsets(), columns=rows.columns(columns), alive=rows.alive)


def _require_once(path: str, offsets: Longs, alive: NDArray[np.bool_]) -> None:
    """Check that no offset repeats. Our own files are in the order of offsets, so the check is fast. Raises OffsetGivenTwice."""
    if (np.diff(offsets) > 0).all():
        return
    left = np.sort(offsets[alive])
    twice = left[1:][np.diff(left) == 0]
    if len(twice):
        raise offset_given_twice(int(twice[0]), [path])


def read_keys(io: FileIO, path: str, positions: Positions) -> pa.Array:
    """Return the keys of rows at these positions of one data file; null: no key. Raises FileLost, FileUnreadable, KeysUnknown."""
    import pyarrow as pa

    with open_rows(io, path, NO_POSITIONS) as rows:
        return rows.keys().take(pa.array(positions)).combine_chunks()


# Read messages from data files in the order of the log, without a JVM.


def rows_in_order(
    table: Table, *, snapshot_id: int | None = None, partition: int | None = None, start: int = 0, after: Mapping[int, int] | None = None
) -> Iterator[pa.Table]:
    """Yield rows in the order of (partition, offset), one stretch of files at a time.

    Args:
        table: The table, with the columns `partition` and `offset`.
        snapshot_id: The snapshot to read. None: main's newest one.
        partition: Yield rows of this partition. None: of all partitions.
        start: The first offset in each partition.
        after: By partition, an offset. Only rows past it count.
    """
    from pyiceberg.expressions import And, EqualTo, GreaterThan, GreaterThanOrEqual, NotEqualTo, Or, Reference
    from pyiceberg.expressions.literals import literal
    from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO

    wanted: BooleanExpression = GreaterThanOrEqual(term=Reference("offset"), value=literal(start))
    if partition is not None:
        wanted = And(wanted, EqualTo(term=Reference("partition"), value=literal(partition)))
    for each, offset in (after or {}).items():
        elsewhere = NotEqualTo(term=Reference("partition"), value=literal(each))
        wanted = And(wanted, Or(elsewhere, GreaterThan(term=Reference("offset"), value=literal(offset))))
    with reading(f"a manifest in {table.location()}"):
        tasks = list(table.scan(row_filter=wanted, snapshot_id=snapshot_id).plan_files())
    if not tasks:
        return
    # PyArrow reads the data, whichever way the metadata were read. PyIceberg reads its configuration file for each new scan.
    scan = ArrowScan(table.metadata, PyArrowFileIO(table.io.properties), table.schema(), wanted)
    for stretch in _stretches(tasks):
        first, others = stretch[0].file.file_path, f" (or one of {len(stretch) - 1} files read with it)" if stretch[1:] else ""
        with reading(f"{first}{others}"):
            found = scan.to_table(stretch)
        yield found.sort_by("offset")


def _stretches(tasks: list[FileScanTask]) -> Iterator[list[FileScanTask]]:
    """Yield files by partition and ascending offsets. Files with overlapping offsets are one stretch."""
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


def micros(times: pa.Array) -> list[Instant | None]:
    """Return times in microseconds, because Python's dates cannot represent every time in a log."""
    import pyarrow as pa

    found: list[Instant | None] = times.cast(pa.int64()).to_pylist()
    return found


# Evaluate rules about messages on columns of a file: find the first time when a rule applies to each row.


UNKNOWN = INT64_MIN
"""An unknown time, in `time_values`."""


def columns_of(rule: Rule) -> Iterator[str]:
    """Yield the names of the columns that the rule reads."""
    match rule:
        case PeriodPassed(column) | TimeKnown(column):
            yield column
        case NeverExpires():
            yield "never"
        case NotRule(negated):
            yield from columns_of(negated)
        case AnyOfRules(rules) | AllOfRules(rules):
            for inner in rules:
                yield from columns_of(inner)
        case never:
            assert_never(never)


def first_times(rule: Rule, columns: Mapping[str, NDArray[np.generic]], rows: int) -> Longs:
    """Return the first time when the rule applies to each row. INT64_MIN: always; INT64_MAX: never.

    Args:
        rule: The rule to evaluate.
        columns: Columns as returned by `time_values` and `bool_values`.
        rows: The number of rows.
    """
    match rule:
        case PeriodPassed(column, us):
            found = np.asarray(columns[column], np.int64)
            never = (found == UNKNOWN) | (found >= INT64_MAX - us)
            return np.where(never, INT64_MAX, np.where(never, 0, found) + us)
        case NeverExpires():
            return np.where(columns["never"], INT64_MIN, INT64_MAX)
        case TimeKnown(column):
            return np.where(columns[column] == UNKNOWN, INT64_MAX, INT64_MIN)
        case NotRule(inner):
            return np.where(first_times(inner, columns, rows) == INT64_MIN, INT64_MAX, INT64_MIN)
        case AnyOfRules(rules):
            return reduce(np.minimum, (first_times(inner, columns, rows) for inner in rules), np.full(rows, INT64_MAX))
        case AllOfRules(rules):
            return reduce(np.maximum, (first_times(inner, columns, rows) for inner in rules), np.full(rows, INT64_MIN))
        case never_:
            assert_never(never_)


def time_values(column: pa.ChunkedArray, *, zero_is_unknown: bool) -> Longs:
    """Return times in microseconds; missing times are unknown (CLK-4).

    Files of other writers may count in milliseconds, or in nanoseconds as INT96. Iceberg reads both as microseconds. Without a conversion,
    milliseconds would look like times in 1970.
    """
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) and column.type.unit != "us":
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    found: Longs = column.cast(pa.int64()).fill_null(UNKNOWN).to_numpy()
    return np.where(found == 0, UNKNOWN, found) if zero_is_unknown else found


def bool_values(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = column.fill_null(False).to_numpy()
    return found
