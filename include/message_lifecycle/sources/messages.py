"""Records of files as messages to append: fields mapped, partitions chosen, own lifetimes read, and what breaks a rule marked with its code.

A refused message keeps its raw text, gets no offset, and goes to quarantine; the others go on (TTL-4). Rules on single
messages have one place, `_messages`.

`Nats-TTL` is read once, as the column `lifetime`: microseconds, or one of the numbers of `lifetimes`; null where a message has no such header
(TTL-1 to TTL-6). A frame of messages that can have no headers has no such column, and nothing is asked of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf

from message_lifecycle.model.instants import INT64_MAX, INVALID_TTL, MICROS_PER_SECOND, TTL_DISABLED, TTL_HEADER
from message_lifecycle.sources.files import AT_BITS, MAX_FILES, InputFile, shapes, wrong_time_unit
from message_lifecycle.sources.lifetimes import INVALID, NEVER, NO_LIFETIME, lifetimes
from message_lifecycle.sources.mapping import FieldMapping
from message_lifecycle.sources.records import (
    Records,
    TimeColumns,
    block_of,
    first_lines,
    likely_unit,
    line_in_task,
    local_frame,
    read_records,
    reading,
    time_columns,
)

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
"""Columns of what a source is read into, as Spark's DDL: a message, or why its record is none."""
LIFETIME = "lifetime"
_DAY_US = 86_400 * MICROS_PER_SECOND


def read_messages(session: SparkSession, files: Sequence[InputFile], mapping: FieldMapping, *, partitions: int, ttl: TtlRules) -> DataFrame:
    """One row per record. Message columns as in a topic's table, `size_bytes` included, and beside them:

    `log_order` (int64: file, then place in it), `file` (name), `path` and `at` (see records), `code` and `reason` (null for
    a good message), `raw`, and `suspect_append_time`, `suspect_event_time` (the text of a time that looks wrong);
    where messages have headers, `lifetime`. Raises MissingField, UnreadableFile.
    """
    assert len(files) <= MAX_FILES
    # A time without a zone is UTC, wherever this runs.
    session.conf.set("spark.sql.session.timeZone", "UTC")
    frames = []
    for shape, some in shapes(files, delimiter=mapping.delimiter, encoding=mapping.encoding).items():
        records = read_records(session, shape, some, mapping.fields, delimiter=mapping.delimiter, encoding=mapping.encoding)
        frames.append(_messages(records, mapping, partitions, ttl))
    if not frames:
        return local_frame(session, MESSAGES, [])
    read = reduce(DataFrame.unionAll, frames)
    named = local_frame(session, "path string, file string, number bigint", _names(read, files))
    order = F.shiftleft("number", AT_BITS).bitwiseOR(F.col("at"))
    return read.join(F.broadcast(named), "path").withColumn("log_order", order).drop("number")


def _names(read: DataFrame, files: Sequence[InputFile]) -> list[tuple[str, str, int]]:
    """Spark spells paths its own way, and file systems list them in any order."""
    by_path = {file.path: (file.name, number) for number, file in enumerate(files)}
    if files[0].store is not None:
        return [(path, *found) for path, found in by_path.items()]
    spelled = {uri: Path(unquote(uri.removeprefix("file:"))) for uri in read.inputFiles()}
    return [("file:" + uri.removeprefix("file:").replace("///", "/", 1), *by_path[str(p)]) for uri, p in spelled.items()]


def _messages(records: Records, mapping: FieldMapping, partitions: int, ttl: TtlRules) -> DataFrame:
    def field(name: str | None) -> tuple[Column, T.DataType]:
        return (F.lit(None).cast("string"), T.StringType()) if name is None else records.fields[name]

    append_time = time_columns(*field(mapping.append_time), mapping.append_time_unit)
    event_time = time_columns(*field(mapping.event_time), mapping.event_time_unit)
    given = field(mapping.partition)[0].cast("string")
    headers = _headers(*field(mapping.headers))
    own_lifetime = [lifetime(headers).alias(LIFETIME)] if mapping.headers else []
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
        *own_lifetime,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlRules:
    """What the topic makes of the header. `copies`: its messages are no publishes, so nothing is refused (TTL-6)."""

    allow_msg_ttl: bool = False
    reject_zero: bool = False
    copies: bool = False


def lifetime(headers: Column) -> Column:
    """Of the first header of that exact name (TTL-1)."""
    first = F.get(F.filter(headers, lambda header: header["name"] == TTL_HEADER), F.lit(0))["value"]
    # One column of bytes goes to Python and one of numbers comes back: the grammar has one place, and it is not SQL.
    found: Column = arrow_udf(lifetimes, "bigint")(first)  # type: ignore[call-overload]  # the kind is taken from the hints
    return found


def refusal_of_ttl(rules: TtlRules) -> Column:
    """{code, reason} for a message that the topic refuses for its TTL, by its column `lifetime`; null: it does not (TTL-4)."""
    if rules.copies:
        return F.lit(None).cast("struct<code: string, reason: string>")
    zero = ", and not zero" if rules.reject_zero else ""
    invalid = F.struct(
        F.lit(str(INVALID_TTL)).alias("code"),
        F.lit(f"{TTL_HEADER} is neither a duration of at least 1s, nor whole seconds, nor never{zero}").alias("reason"),
    )
    disabled = F.struct(
        F.lit(str(TTL_DISABLED)).alias("code"), F.lit(f"the message has {TTL_HEADER}, the topic has allow_msg_ttl off").alias("reason")
    )
    found = F.col(LIFETIME)
    refused = [INVALID, NO_LIFETIME] if rules.reject_zero else [INVALID]
    return F.when(found.isin(refused), invalid).when(found.isNotNull() & F.lit(not rules.allow_msg_ttl), disabled)


def with_deadlines(messages: DataFrame) -> DataFrame:
    """`lifetime` replaced by `expires_at`, saturating (CLK-3) and null where the time is unknown (CLK-4), and `never`."""
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
    return with_deadlines(copies.withColumn(LIFETIME, lifetime(F.col("headers"))))


def refused(session: SparkSession, messages: DataFrame, files: Sequence[InputFile], mapping: FieldMapping) -> DataFrame:
    """What goes to quarantine: `file`, `position` (line of a text file, row of a Parquet file, from 1), `code`, `reason`, `raw`."""
    found = shapes(files, delimiter=mapping.delimiter, encoding=mapping.encoding)
    text = [some for shape, some in found.items() if shape.kind != "parquet"]
    bad = messages.where(F.col("code") != ERASED)
    position = F.col("at") + 1
    if text:
        starts = reduce(DataFrame.unionAll, [first_lines(session, some) for some in text])
        bad = bad.withColumn("block", block_of("at")).join(F.broadcast(starts), ["path", "block"], "left")
        position = F.coalesce(F.col("line") + line_in_task("at") - F.col("first"), position)
    return bad.select("file", position.alias("position"), "code", "reason", "raw")


def shifted(messages: DataFrame, days: int) -> DataFrame:
    """All times later (or, negative, earlier) by whole days."""
    if not days:
        return messages
    times = {name: F.timestamp_micros(F.try_add(F.unix_micros(name), F.lit(days * _DAY_US))) for name in ("append_time", "event_time")}
    return messages.withColumns(times)


_TIMES = ("append_time", "event_time")


def _findings() -> list[Column]:
    found = [F.count(F.lit(1)).alias("rows"), F.count_if(F.col("code") != ERASED).alias("refused")]
    found.append(F.count_if(F.col("code") == ERASED).alias("erased"))
    found.append(F.count_if(F.col("code").isNull() & F.col("append_time").isNull()).alias("unknown_times"))
    for name in _TIMES:
        found += [F.count(f"suspect_{name}").alias(f"{name}_suspects"), F.min(f"suspect_{name}").alias(f"{name}_suspect")]
    return found


def observed(messages: DataFrame) -> tuple[DataFrame, Callable[[], Mapping[str, object]]]:
    """The good ones of these messages, and what was met on the way, to be asked when they have all been written."""
    observation = Observation()
    return messages.observe(observation, *_findings()).where(F.col("code").isNull()), lambda: observation.get


def survey(messages: DataFrame) -> Mapping[str, object]:
    """The same by a pass of its own, and `newest`: the greatest append time of a good message, in microseconds, or None."""
    newest = F.max(F.when(F.col("code").isNull(), F.unix_micros("append_time"))).alias("newest")
    return messages.agg(*_findings(), newest).collect()[0].asDict()


def check_units(found: Mapping[str, object], mapping: FieldMapping) -> None:
    """Raises WrongTimeUnit where any time is so far off that its unit must be another."""
    units: tuple[tuple[str | None, str], ...] = (
        (mapping.append_time, mapping.append_time_unit),
        (mapping.event_time, mapping.event_time_unit),
    )
    for name, (field, unit) in zip(_TIMES, units, strict=True):
        count, rows = found[f"{name}_suspects"], found["rows"]
        if field is not None and isinstance(count, int) and isinstance(rows, int) and count:
            value = str(found[f"{name}_suspect"])
            raise wrong_time_unit(
                field=field, value=value, unit=unit, reads_as=reading(value, unit), likely=likely_unit(value), rows=count, of=rows
            )
