"""Records of files as messages to append: fields mapped, partitions chosen, and what breaks a rule marked with its code.

A refused message keeps its raw text, gets no offset, and goes to quarantine; the others go on (TTL-4). Rules on single
messages have one place, `_messages`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from message_lifecycle.sources.files import InputFile, shapes
from message_lifecycle.sources.records import AT_BITS, Records, local_frame, read_records
from message_lifecycle.sources.times import TimeColumns, Unit, time_columns
from message_lifecycle.sources.ttl import LIFETIME, TtlRules, lifetime, refusal_of_ttl

MAX_FILES = 1 << (63 - AT_BITS)
"""Files that one batch can order."""

UNREADABLE_LINE = "unreadable_line"
UNREADABLE_TIME = "unreadable_time"
INVALID_PARTITION = "invalid_partition"
INVALID_HEADERS = "invalid_headers"
ERASED = "erased"
"""Of a message whose key may not come in: it goes nowhere, not into quarantine either."""

_HEADER = "struct<name: string, value: binary>"
MESSAGES = (
    "path string, at bigint, partition int, append_time timestamp, event_time timestamp, key binary, value binary, "
    f"headers array<{_HEADER}>, size_bytes bigint, code string, reason string, raw string, "
    "suspect_append_time string, suspect_event_time string, file string, log_order bigint"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldMapping:
    """Which fields of a record make the message; None: the source has none.

    `value` None: the whole record, as JSON (a line of JSON stays as it is). A message without a partition of its own goes
    where its key sends it. `headers`: a list of {name, value}, an object or map, or the JSON text of either.
    """

    key: str | None = None
    value: str | None = None
    append_time: str | None = None
    append_time_unit: Unit = "iso"
    event_time: str | None = None
    event_time_unit: Unit = "iso"
    headers: str | None = None
    partition: str | None = None
    delimiter: str = ","

    @property
    def fields(self) -> tuple[str, ...]:
        named = (self.key, self.value, self.append_time, self.event_time, self.headers, self.partition)
        return tuple(dict.fromkeys(name for name in named if name is not None))


def read_messages(session: SparkSession, files: Sequence[InputFile], mapping: FieldMapping, *, partitions: int, ttl: TtlRules) -> DataFrame:
    """One row per record. Message columns as in a topic's table, `size_bytes` included, and beside them:

    `log_order` (int64: file, then place in it), `file` (name), `path` and `at` (see records), `code` and `reason` (null for
    a good message), `raw`, and `suspect_append_time`, `suspect_event_time` (the text of a time that looks wrong);
    where messages have headers, `lifetime` (see ttl). Raises MissingField, UnreadableFile.
    """
    assert len(files) <= MAX_FILES
    # A time without a zone is UTC, wherever this runs.
    session.conf.set("spark.sql.session.timeZone", "UTC")
    frames = []
    for shape, some in shapes(files, delimiter=mapping.delimiter).items():
        records = read_records(session, shape, some, mapping.fields, delimiter=mapping.delimiter)
        frames.append(_messages(records, mapping, partitions, ttl))
    if not frames:
        return local_frame(session, MESSAGES, [])
    read = reduce(DataFrame.unionAll, frames)
    named = local_frame(session, "path string, file string, number bigint", _names(read, files))
    order = F.shiftleft("number", AT_BITS).bitwiseOR(F.col("at"))
    return read.join(F.broadcast(named), "path").withColumn("log_order", order).drop("number")


def _names(read: DataFrame, files: Sequence[InputFile]) -> list[tuple[str, str, int]]:
    """Spark spells paths its own way, and file systems list them in any order."""
    by_path = {str(file.path): (file.name, number) for number, file in enumerate(files)}
    spelled = {uri: Path(unquote(uri.removeprefix("file:"))) for uri in read.inputFiles()}
    return [("file:" + uri.removeprefix("file:").replace("///", "/", 1), *by_path[str(p)]) for uri, p in spelled.items()]


def _messages(records: Records, mapping: FieldMapping, partitions: int, ttl: TtlRules) -> DataFrame:
    def field(name: str | None) -> tuple[Column, T.DataType]:
        return (F.lit(None).cast("string"), T.StringType()) if name is None else records.fields[name]

    append_time = time_columns(*field(mapping.append_time), mapping.append_time_unit)
    event_time = time_columns(*field(mapping.event_time), mapping.event_time_unit)
    given = field(mapping.partition)[0].cast("string")
    headers = _headers(*field(mapping.headers))
    lifetimes = [lifetime(headers).alias(LIFETIME)] if mapping.headers else []
    frame = records.frame.select(
        "path",
        "at",
        _bytes(*field(mapping.key)).alias("key"),
        (_bytes(*field(mapping.value)) if mapping.value else records.whole.cast("binary")).alias("value"),
        # Never null: on a null list, Spark's Arrow writer counts all rows of a batch again for every row.
        F.coalesce(headers, F.array().cast(f"array<{_HEADER}>")).alias("headers"),
        append_time.micros.alias("append_us"),
        event_time.micros.alias("event_us"),
        F.nullif(F.trim(given), F.lit("")).alias("given_partition"),
        F.trim(given).try_cast("int").alias("partition_number"),
        _refusals(records, append_time, event_time, field(mapping.headers)[0], headers).alias("refusal"),
        records.raw.alias("raw"),
        F.when(append_time.suspect, append_time.text).alias("suspect_append_time"),
        F.when(event_time.suspect, event_time.text).alias("suspect_event_time"),
        *lifetimes,
    )
    own = F.col("partition_number")
    out_of_range = F.col("given_partition").isNotNull() & (own.isNull() | (own < 0) | (own >= partitions))
    refusal = F.coalesce(
        "refusal",
        F.when(out_of_range, _refusal(INVALID_PARTITION, f"the partition is not a whole number from 0 to {partitions - 1}")),
        *([refusal_of_ttl(ttl)] if mapping.headers else []),
    )
    return frame.select(
        "path",
        "at",
        F.coalesce(own, partition_of("key", "value", partitions)).alias("partition"),
        F.timestamp_micros("append_us").alias("append_time"),
        F.timestamp_micros("event_us").alias("event_time"),
        "key",
        "value",
        "headers",
        size_bytes("key", "value", "headers" if mapping.headers else None).alias("size_bytes"),
        refusal["code"].alias("code"),
        refusal["reason"].alias("reason"),
        "raw",
        "suspect_append_time",
        "suspect_event_time",
        *([LIFETIME] if mapping.headers else []),
    )


def _refusal(code: str, reason: str) -> Column:
    return F.struct(F.lit(code).alias("code"), F.lit(reason).alias("reason"))


def _refusals(records: Records, append_time: TimeColumns, event_time: TimeColumns, given_headers: Column, headers: Column) -> Column:
    """The first rule that a record breaks by itself, as {code, reason}; null: none."""
    nameless = F.exists(headers, lambda header: header["name"].isNull())
    given = given_headers.isNotNull() & (F.trim(given_headers.cast("string")) != "")
    unparsed = given & (headers.isNull() | nameless)
    return F.coalesce(
        F.when(records.broken.isNotNull(), F.struct(F.lit(UNREADABLE_LINE).alias("code"), records.broken.alias("reason"))),
        F.when(append_time.unreadable, _refusal(UNREADABLE_TIME, "the append time is no time in the unit that was given")),
        F.when(event_time.unreadable, _refusal(UNREADABLE_TIME, "the event time is no time in the unit that was given")),
        F.when(unparsed, _refusal(INVALID_HEADERS, "headers are neither a list of {name, value} nor an object")),
    )


def partition_of(key: str, value: str, partitions: int) -> Column:
    """CRC-32 of the key, modulo the number of partitions; without a key, of the value, so that a rerun gives the same."""
    return F.pmod(F.crc32(F.coalesce(key, value, F.lit(b""))), F.lit(partitions)).cast("int")


def size_bytes(key: str, value: str, headers: str | None) -> Column:
    """MSG-2."""
    plain = F.coalesce(F.octet_length(key), F.lit(0)).cast("bigint") + F.coalesce(F.octet_length(value), F.lit(0))
    if headers is None:
        return plain
    each = F.aggregate(
        headers,
        F.lit(0).cast("bigint"),
        lambda total, header: total + F.octet_length(header["name"]) + F.coalesce(F.octet_length(header["value"]), F.lit(0)),
    )
    return plain + F.coalesce(each, F.lit(0))


def _bytes(column: Column, kind: T.DataType) -> Column:
    """Text as UTF-8, bytes as they are, anything with parts as JSON."""
    if isinstance(kind, T.BinaryType):
        return column
    if isinstance(kind, T.StructType | T.ArrayType | T.MapType):
        return F.to_json(column).cast("binary")
    return column.cast("string").cast("binary")


def _headers(column: Column, kind: T.DataType) -> Column:
    entries: Column
    match kind:
        case T.MapType():
            entries = F.map_entries(column)
            name, value = "key", "value"
        case T.ArrayType():
            entries, name, value = column, "name", "value"
        case _:
            listed = F.from_json(column.cast("string"), "array<struct<name: string, value: string>>")
            mapped = F.from_json(column.cast("string"), "map<string, string>")
            as_list = F.ltrim(column.cast("string")).startswith("[")
            pairs = F.transform(F.map_entries(mapped), lambda e: F.struct(e["key"].alias("name"), e["value"].alias("value")))
            entries, name, value = F.when(as_list, listed).otherwise(pairs), "name", "value"
    return F.transform(
        entries,
        lambda e: F.struct(e[name].cast("string").alias("name"), e[value].cast("binary").alias("value")),
    ).cast(f"array<{_HEADER}>")
