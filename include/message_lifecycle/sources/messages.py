"""Files as messages to append: by tasks of Spark, or, where they are few, in this process. Both run `reader.read_slice`.

`Nats-TTL` is read once, as the column `lifetime`: microseconds, or one of the numbers of `lifetimes`; null where a message has no such header
(TTL-1 to TTL-6). A frame of messages that can have no headers has no such column.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from message_lifecycle.model.errors import LifecycleError, code_of
from message_lifecycle.model.instants import INT64_MAX, MICROS_PER_SECOND, TTL_HEADER, Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.sources.file_times import Spans, read_spans
from message_lifecycle.sources.files import AT_BITS, MAX_FILES, TORN, InputFile, NotReached, NotRead, wrong_time_unit
from message_lifecycle.sources.heads import check_heads, missing_field, names_of
from message_lifecycle.sources.lifetimes import NEVER, lifetimes
from message_lifecycle.sources.mapping import FieldMapping
from message_lifecycle.sources.reader import ERASED, LIFETIME, SPANS, UNREADABLE_LINE, Job, Slice, TtlRules, read_slice
from message_lifecycle.sources.times import likely_unit, missing_time_zone, reading

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["ERASED", "LIFETIME", "UNREADABLE_LINE", "TtlRules"]

_DAY_US = 86_400 * MICROS_PER_SECOND
_SLICE_BYTES = 32 << 20
"""Of the files, or of the part of a large one, that one task reads."""
_LEAST_BYTES = 1 << 20
# What a byte of a packed or columnar file weighs beside one of plain text.
_WEIGHTS = {True: 8, False: 1}

Batches = Iterable[pa.RecordBatch]


def read_messages(
    session: SparkSession,
    files: Sequence[InputFile],
    mapping: FieldMapping,
    *,
    partitions: int,
    ttl: TtlRules,
    for_quarantine: bool = False,
    late_after: Instant | None = None,
    slice_bytes: int | None = None,
) -> DataFrame:
    """One row per record, with the columns of `Job.columns`: a message, or why its record is none.

    Args:
        for_quarantine: Read whole files, so that refused rows have their place and raw text.
        late_after: Observe the spans of times up to this one; None: nobody asks for them.
        slice_bytes: What one task reads, about; None: by the size of the batch.

    Raises:
        MissingField: A CSV or Parquet file does not have a wanted field.
        UnreadableFile: A file is not what its name says.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    assert len(files) <= MAX_FILES
    check_heads(files, mapping)
    # Times leave the tasks as UTC, wherever this runs.
    session.conf.set("spark.sql.session.timeZone", "UTC")
    if slice_bytes is None:
        total = sum(map(_weight, files))
        slice_bytes = max(_LEAST_BYTES, min(_SLICE_BYTES, total // session.sparkContext.defaultParallelism))
    groups = _groups(files, slice_bytes, whole=for_quarantine)
    job = Job(mapping=mapping, partitions=partitions, ttl=ttl, for_quarantine=for_quarantine, late_after=late_after)
    store = files[0].store if files else None
    # Small, so that Spark sends it with each task: it would put a large one on disks, and keys are in it.
    told = zlib.compress(json.dumps([[_described(part) for part in group] for group in groups]).encode())

    def read(batches: Batches) -> Iterator[pa.RecordBatch]:
        every = json.loads(zlib.decompress(told))
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for name, path, kind, at, start, end in every[number]:
                    file = InputFile(name=name, path=path, kind=kind, size_bytes=0, store=store)
                    with _naming(file):
                        yield from read_slice(Slice(file=file, number=at, start=start, end=end), job)

    return session.range(0, len(groups), 1, max(1, len(groups))).mapInArrow(read, from_arrow_schema(job.columns))


def _described(part: Slice) -> list[object]:
    return [part.file.name, part.file.path, part.file.kind, part.number, part.start, part.end]


def _weight(file: InputFile) -> int:
    return file.size_bytes * _WEIGHTS[file.is_packed or file.kind == "parquet"]


def _groups(files: Sequence[InputFile], slice_bytes: int, *, whole: bool) -> list[list[Slice]]:
    """Slices for each task: a large file of plain JSON lines in several, small files together."""
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


@contextmanager
def _naming(file: InputFile) -> Iterator[None]:
    """Name the file of a task that failed, in the form that `named_failures` reads."""
    try:
        yield
    except LifecycleError as error:
        if code_of(error) == "UnreadableFile":
            raise NotRead(
                file, error.__cause__ or _Reason(str(error).partition(" cannot be read: ")[2].partition(". Nothing was")[0])
            ) from error
        raise NotReached(file, error.__cause__ or error) from error
    except (OSError, *TORN, pa.ArrowException) as error:
        raise NotRead(file, error) from error


class _Reason(Exception):
    """Why a file is unreadable, without the advice around it."""


FEW_ROWS = 100_000
"""Messages that this process takes without Spark, at the most."""
_FEW_BYTES = 64 << 20
"""Bytes of these messages: a small Parquet file may hold a thousand times its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Few:
    """A small batch: its messages in their order, how many of its records lack which field, and the spans of its files' times."""

    messages: Sequence[NewMessage]
    absent: Mapping[str, int]
    spans: Spans


def read_few(files: Sequence[InputFile], mapping: FieldMapping, *, partitions: int, ttl: TtlRules, late_after: Instant) -> Few | None:
    """The messages of a small batch, read in this process; None: a record is refused or in doubt, or they are many. Spark reads them then.

    Raises as `read_messages`, and MissingField as `check_found`.
    """
    check_heads(files, mapping)
    job = Job(mapping=mapping, partitions=partitions, ttl=ttl, late_after=late_after)
    messages: list[NewMessage] = []
    absent, held = [0] * len(mapping.fields), 0
    spans: list[tuple[int, str]] = []
    try:
        for number, file in enumerate(files):
            for batch in read_slice(Slice(file=file, number=number), job):
                doubts = ("code", "suspect_append_time", "suspect_event_time")
                held += batch.nbytes
                if (
                    len(messages) + batch.num_rows > FEW_ROWS
                    or held > _FEW_BYTES
                    or any(batch[name].null_count < batch.num_rows for name in doubts)
                ):
                    return None
                made = _new_messages(batch)
                if made is None:
                    return None
                messages += made
                spans += [(number, one) for one in batch[SPANS].to_pylist() if one is not None]
                for bits in batch["absent"].to_pylist():
                    for bit in range(len(absent)) if bits else ():
                        absent[bit] += bits >> bit & 1
    except (OSError, *TORN, pa.ArrowException):
        return None  # Spark's tasks name the file
    counts = dict(zip(mapping.fields, absent, strict=True))
    _check_absent(files, mapping, counts, len(messages))
    return Few(messages=messages, absent={name: count for name, count in counts.items() if count}, spans=read_spans(spans))


def _new_messages(batch: pa.RecordBatch) -> list[NewMessage] | None:
    names = ("partition", "append_time", "event_time", "key", "value", "headers")
    columns = [batch[name].cast(pa.int64()) if name.endswith("_time") else batch[name] for name in names]
    found = []
    for partition, append_time, event_time, key, value, headers in zip(*(column.to_pylist() for column in columns), strict=True):
        pairs = tuple((header["name"], header["value"]) for header in headers)
        if any(content is None for _, content in pairs):
            return None
        found.append(
            NewMessage(
                append_time=None if append_time is None else Instant(append_time),
                event_time=None if event_time is None else Instant(event_time),
                key=key,
                value=value,
                headers=pairs,
                partition=partition,
            )
        )
    return found


def with_deadlines(messages: DataFrame) -> DataFrame:
    """`lifetime` replaced by `expires_at`, saturating (CLK-3) and null where the time is unknown (CLK-4), and `never`."""
    from pyspark.sql import functions as F

    if LIFETIME not in messages.columns:
        return messages
    found, at = F.col(LIFETIME), F.unix_micros("append_time")
    # A saturated lifetime is never due, also where the time it counts from is far below zero.
    beyond = (found == INT64_MAX) | (at > F.lit(INT64_MAX) - found)
    due = F.when(at.isNotNull() & (found > 0), F.when(beyond, F.lit(INT64_MAX)).otherwise(at + found))
    never = F.when(found == NEVER, F.lit(True))
    return messages.withColumns({"expires_at": F.timestamp_micros(due), "never": never}).drop(LIFETIME)


def with_own_lifetimes(copies: DataFrame) -> DataFrame:
    """`expires_at` and `never` as the headers say, of messages that are copied: a value that is not valid has no effect (TTL-6)."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.functions import arrow_udf

    # Of the first header of that exact name (TTL-1).
    first = F.get(F.filter("headers", lambda header: header["name"] == TTL_HEADER), F.lit(0))["value"]
    # One column of bytes goes to Python and one of numbers comes back: the grammar has one place, and it is not SQL.
    found: Column = arrow_udf(lifetimes, "bigint")(first)  # type: ignore[call-overload]  # the kind is taken from the hints
    return with_deadlines(copies.withColumn(LIFETIME, found))


def refused(messages: DataFrame) -> DataFrame:
    """The rows for the quarantine, of messages that were read for it: `file`, `position` (line of a text file, row of a Parquet file, from 1),
    `code`, `reason`, `raw`."""
    from pyspark.sql import functions as F

    return messages.where(F.col("code") != ERASED).select("file", "position", "code", "reason", "raw")


def shifted(messages: DataFrame, days: int) -> DataFrame:
    """All times later (or, negative, earlier) by whole days."""
    from pyspark.sql import functions as F

    if not days:
        return messages
    times = {name: F.timestamp_micros(F.try_add(F.unix_micros(name), F.lit(days * _DAY_US))) for name in ("append_time", "event_time")}
    return messages.withColumns(times)


_TIMES = ("append_time", "event_time")


def _findings(mapping: FieldMapping) -> list[Column]:
    from pyspark.sql import functions as F

    found = [F.count(F.lit(1)).alias("rows"), F.count_if(F.col("code") != ERASED).alias("refused")]
    found.append(F.count_if(F.col("code") == ERASED).alias("erased"))
    found.append(F.count_if(F.col("code").isNull() & F.col("append_time").isNull()).alias("unknown_times"))
    found.append(F.count("absent").alias("records"))
    for bit in range(len(mapping.fields)):
        found.append(F.count_if(F.col("absent").bitwiseAND(F.lit(1 << bit)) != 0).alias(f"absent_{bit}"))
    for name in _TIMES:
        found += [F.count(f"suspect_{name}").alias(f"{name}_suspects"), F.min(f"suspect_{name}").alias(f"{name}_suspect")]
        found += [F.count(f"zoneless_{name}").alias(f"{name}_zoneless"), F.min(f"zoneless_{name}").alias(f"{name}_without_zone")]
        found.append(F.count(name).alias(f"{name}_known"))
    return found


Findings = Mapping[str, Any]


def observed(messages: DataFrame, mapping: FieldMapping) -> tuple[DataFrame, Callable[[], Findings]]:
    """The good ones of these messages, and what was met on the way, to be asked when they have all been written."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    observation = Observation()
    findings = _findings(mapping)
    if SPANS in messages.columns:
        file = F.shiftright("log_order", AT_BITS)
        findings.append(F.collect_list(F.when(F.col(SPANS).isNotNull(), F.struct(file.alias("file"), SPANS))).alias(SPANS))
    return messages.observe(observation, *findings).where(F.col("code").isNull()), lambda: observation.get


def observed_spans(found: Findings) -> Spans:
    """The spans of times that were observed; none where nobody asked, or nothing was read."""
    return read_spans((row["file"], row[SPANS]) for row in found.get(SPANS) or ())


def survey(messages: DataFrame, mapping: FieldMapping) -> Findings:
    """The same by a pass of its own, and `newest`: the greatest append time of a good message, in microseconds, or None."""
    from pyspark.sql import functions as F

    newest = F.max(F.when(F.col("code").isNull(), F.unix_micros("append_time"))).alias("newest")
    return messages.agg(*_findings(mapping), newest).collect()[0].asDict()


def check_found(found: Findings, files: Sequence[InputFile], mapping: FieldMapping, *, allow_implausible_times: bool) -> dict[str, int]:
    """How many records lack which field; only those that some lack.

    Raises:
        MissingField: No record has one of the fields.
        MissingTimeZone: No time has a zone, and the mapping names none.
        WrongTimeUnit: A time is so far off that its unit must be another.
    """
    counts = {name: int(found[f"absent_{bit}"]) for bit, name in enumerate(mapping.fields)}
    _check_absent(files, mapping, counts, int(found["records"]))
    fields = (mapping.append_time, mapping.append_time_unit), (mapping.event_time, mapping.event_time_unit)
    for name, (field, unit) in zip(_TIMES, fields, strict=True):
        if field is None:
            continue
        if found[f"{name}_zoneless"] and not found[f"{name}_known"]:
            raise missing_time_zone(field, found[f"{name}_without_zone"], found[f"{name}_zoneless"])
        if (count := found[f"{name}_suspects"]) and not allow_implausible_times:
            value = str(found[f"{name}_suspect"])
            of = found["rows"]
            raise wrong_time_unit(
                field=field, value=value, unit=unit, reads_as=reading(value, unit), likely=likely_unit(value), rows=count, of=of
            )
    return {name: count for name, count in counts.items() if count}


def _check_absent(files: Sequence[InputFile], mapping: FieldMapping, counts: Mapping[str, int], records: int) -> None:
    for name, count in counts.items():
        if records and count == records:
            raise missing_field(f"none of {records:,} records has", name, names_of(files, mapping.encoding))
