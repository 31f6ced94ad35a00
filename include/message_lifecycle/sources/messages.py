"""Files as messages to append: the slices of a task, and findings about its rows.

A task calls `read_slices`. The findings of all tasks together decide whether the batch may come in (`check_found`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, MICROS_PER_SECOND
from message_lifecycle.sources.file_times import Spans, join_spans, spans_of_rows
from message_lifecycle.sources.files import TORN, InputFile, unreadable_file, wrong_time_unit
from message_lifecycle.sources.heads import missing_field, names_of
from message_lifecycle.sources.lifetimes import deadlines
from message_lifecycle.sources.mapping import FieldMapping
from message_lifecycle.sources.reader import ERASED, LIFETIME, Job, Slice, read_slice
from message_lifecycle.sources.times import likely_unit, missing_time_zone, reading

_DAY_US = 86_400 * MICROS_PER_SECOND
_SLICE_BYTES = 32 << 20
"""The size of the files, or of the part of a large file, that one task reads."""
_LEAST_BYTES = 1 << 20
_TASKS = 16
"""The tasks of a small batch that would fill fewer slices of the full size."""
# The weight of a byte of a packed or columnar file against a byte of plain text.
_WEIGHTS = {True: 8, False: 1}
_TIMES = ("append_time", "event_time")
MESSAGE = ("partition", "append_time", "event_time", "key", "value", "headers", "size_bytes")

Mark = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Sets the code ERASED for each message with a forbidden key, and removes its raw text."""


def slices(files: Sequence[InputFile], *, whole: bool = False) -> list[list[Slice]]:
    """Return the slices of each task in the order of the log.

    Several tasks read a large file of plain JSON lines. One task reads several small files.

    Args:
        files: The files to read.
        whole: Cut no file, so that refused rows have their place.
    """
    slice_bytes = max(_LEAST_BYTES, min(_SLICE_BYTES, sum(map(_weight, files)) // _TASKS))
    groups: list[list[Slice]] = []
    filled = slice_bytes
    for number, file in enumerate(files):
        parts = [Slice(file=file, number=number)]
        if not whole and file.kind == "json lines" and not file.is_packed and file.size_bytes > slice_bytes:
            starts = range(0, file.size_bytes, slice_bytes)
            parts = [Slice(file=file, number=number, start=start, end=start + slice_bytes) for start in starts]
        for part in parts:
            weight = _weight(file) // len(parts)
            if filled + weight > slice_bytes:
                groups.append([])
                filled = 0
            groups[-1].append(part)
            filled += weight
    return groups


def _weight(file: InputFile) -> int:
    return file.size_bytes * _WEIGHTS[file.is_packed or file.kind == "parquet"]


@dataclass(slots=True, kw_only=True)
class FoundTimes:
    """Times of one field.

    Attributes:
        known: Rows that have a time.
        suspects: Rows whose time is far from any likely date. `suspect`: the least of their texts.
        zoneless: Rows whose time has no zone. `without_zone`: the least of their texts.
    """

    known: int = 0
    suspects: int = 0
    suspect: str | None = None
    zoneless: int = 0
    without_zone: str | None = None

    def join(self, other: FoundTimes) -> None:
        self.known += other.known
        self.suspects += other.suspects
        self.zoneless += other.zoneless
        self.suspect = _least(self.suspect, other.suspect)
        self.without_zone = _least(self.without_zone, other.without_zone)


@dataclass(slots=True, kw_only=True)
class Findings:
    """Counts of the rows.

    Attributes:
        records: Rows that are records.
        absent: Records that lack a field, by the field.
        messages: Messages, by the number of their file.
        refused: Refused rows that the quarantine keeps, by file and code.
        erased: Messages whose key is forbidden.
        newest: The greatest append time of a message, in microseconds.
        spans: The spans of the files' times, up to `Job.latest_allowed_time` (CLK-4).
    """

    rows: int = 0
    records: int = 0
    unknown_times: int = 0
    erased: int = 0
    newest: int | None = None
    absent: Counter[str] = field(default_factory=Counter)
    messages: Counter[int] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    times: dict[str, FoundTimes] = field(default_factory=lambda: {name: FoundTimes() for name in _TIMES})
    spans: Spans = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch, part: Slice, job: Job) -> None:
        """Count the rows of one batch of a slice."""
        is_message = pc.is_null(batch["code"])
        times = pc.if_else(is_message, batch["append_time"].cast(pa.int64()), pa.scalar(None, pa.int64()))
        messages = pc.sum(is_message).as_py() or 0
        self.rows += batch.num_rows
        self.messages[part.number] += messages
        self.unknown_times += messages - len(times) + times.null_count
        self.newest = _greatest(self.newest, pc.max(times).as_py())
        for code, count in zip(*pc.value_counts(batch["code"].drop_null()).flatten(), strict=True):
            if code.as_py() == ERASED:
                self.erased += count.as_py()
            else:
                self.refused[part.file.name, code.as_py()] += count.as_py()
        self.records += batch.num_rows - batch["absent"].null_count
        for bits, count in zip(*pc.value_counts(batch["absent"].drop_null()).flatten(), strict=True):
            for bit, name in enumerate(job.mapping.fields):
                self.absent[name] += count.as_py() * (bits.as_py() >> bit & 1)
        for name, found in self.times.items():
            found.join(_found_times(batch, name))
        if job.latest_allowed_time is not None:
            spans = spans_of_rows(
                times, None if job.mapping.partition is None else batch["partition"], latest_allowed_time=job.latest_allowed_time
            )
            join_spans(self.spans, part.number, spans)

    def join(self, other: Findings) -> None:
        """Add the counts of another task."""
        self.rows += other.rows
        self.records += other.records
        self.unknown_times += other.unknown_times
        self.erased += other.erased
        self.newest = _greatest(self.newest, other.newest)
        self.absent += other.absent
        self.messages += other.messages
        self.refused += other.refused
        for name, found in self.times.items():
            found.join(other.times[name])
        for number, spans in other.spans.items():
            join_spans(self.spans, number, spans.values())


def _found_times(batch: pa.RecordBatch, name: str) -> FoundTimes:
    suspects, zoneless = batch[f"suspect_{name}"], batch[f"zoneless_{name}"]
    return FoundTimes(
        known=batch.num_rows - batch[name].null_count,
        suspects=batch.num_rows - suspects.null_count,
        suspect=pc.min(suspects).as_py(),
        zoneless=batch.num_rows - zoneless.null_count,
        without_zone=pc.min(zoneless).as_py(),
    )


def _least(one: str | None, other: str | None) -> str | None:
    return min((text for text in (one, other) if text is not None), default=None)


def _greatest(one: int | None, other: int | None) -> int | None:
    return max((at for at in (one, other) if at is not None), default=None)


def read_slices(group: Iterable[Slice], job: Job, found: Findings, mark: Mark | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the slices in their order, as `job.columns`, and count them in `found`. Raises UnreadableFile, StorageRefused."""
    for part in group:
        batches = read_slice(part, job)
        while True:
            with _naming(part.file):
                batch = next(batches, None)
            if batch is None:
                break
            batch = batch if mark is None else mark(batch)
            found.add(batch, part, job)
            yield batch


def messages_of(batch: pa.RecordBatch, *, shift_days: int) -> pa.RecordBatch:
    """Return the messages of a batch as a table stores them, without their places.

    A lifetime counts from the time that the message has in the log.

    Args:
        batch: The rows as the tasks read them.
        shift_days: Move all times by this number of days.
    """
    kept = batch.filter(pc.is_null(batch["code"]))
    columns = {name: kept[name] for name in MESSAGE}
    if shift_days:
        columns |= {name: _shifted(kept[name], shift_days * _DAY_US) for name in _TIMES}
    if LIFETIME in batch.schema.names:
        columns["expires_at"], columns["never"] = deadlines(columns["append_time"], kept[LIFETIME])
    return pa.RecordBatch.from_pydict(columns)


def _shifted(times: pa.Array, by_us: int) -> pa.Array:
    """Move times. A time that would leave the range of int64 becomes unknown."""
    at = times.cast(pa.int64())
    outside = pc.greater(at, INT64_MAX - by_us) if by_us > 0 else pc.less(at, INT64_MIN - by_us)
    return pc.if_else(outside, pa.scalar(None, pa.int64()), pc.add(at, by_us)).cast(times.type)


@contextmanager
def _naming(file: InputFile) -> Iterator[None]:
    try:
        yield
    except LifecycleError:
        raise
    except (OSError, *TORN, pa.ArrowException) as error:
        raise unreadable_file(file.path, str(error).partition("\n")[0] or type(error).__name__) from error


def check_found(found: Findings, files: Sequence[InputFile], mapping: FieldMapping, *, allow_implausible_times: bool) -> dict[str, int]:
    """Return the number of records without a field, for each field that some records lack.

    Raises:
        MissingField: No record has one of the fields.
        MissingTimeZone: No time has a zone, and the mapping names none.
        WrongTimeUnit: A time is so far off that its unit must be another.
    """
    for name in mapping.fields:
        if found.records and found.absent[name] == found.records:
            raise missing_field(f"none of {found.records:,} records has", name, names_of(files, mapping.encoding))
    fields = (mapping.append_time, mapping.append_time_unit), (mapping.event_time, mapping.event_time_unit)
    for name, (source, unit) in zip(_TIMES, fields, strict=True):
        times = found.times[name]
        if source is None:
            continue
        if times.without_zone is not None and not times.known:
            raise missing_time_zone(source, times.without_zone, times.zoneless)
        if times.suspect is not None and not allow_implausible_times:
            raise wrong_time_unit(
                field=source,
                value=times.suspect,
                unit=unit,
                reads_as=reading(times.suspect, unit),
                likely=likely_unit(times.suspect),
                rows=times.suspects,
                of=found.rows,
            )
    return {name: count for name, count in found.absent.items() if count}
