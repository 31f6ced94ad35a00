"""Records of files of one shape, as a frame: which file, where in it, the fields that are wanted, and what is broken; and times of records.

`at` is a record's place in its file as one number, ascending in the file: the row of a Parquet file; in text, the block of
the file that a task reads and the line in that task. It orders; `first_lines` turns it into line numbers where a person needs them.

A time is read as microseconds since 1970, and its unit can be told to be wrong (CLK-4). A missing, empty or zero time is unknown: null.
A time before 1970 is a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf

from message_lifecycle.model.erasure import BASE64
from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant, format_instant
from message_lifecycle.sources import elsewhere
from message_lifecycle.sources.files import AT_BITS, UTF_8, InputFile, Shape, missing_field, unreadable_file
from message_lifecycle.sources.mapping import PLAUSIBLE_FROM, PLAUSIBLE_TO, Unit

_LINE_BITS = 33
_BLOCKS = 1 << (AT_BITS - _LINE_BITS)
_NANOS_AS_LONG = "spark.sql.legacy.parquet.nanosAsLong"

# Microseconds in one; nanoseconds are divided.
_FACTORS: dict[str, Decimal] = {"s": Decimal(1_000_000), "ms": Decimal(1000), "us": Decimal(1), "ns": Decimal("0.001")}
_NUMBER = "decimal(38,9)"
_HALF = r"(?i)\\ud[89a-f]"
"""An escape of JSON for one half of a surrogate pair."""
_OTHER_ESCAPE = r"(?i)\\(?:[^u]|ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2})"
"""One for a whole pair, or for no letter by its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """`whole`: the record as JSON. `raw`: as it stood in the source. `broken`: why it is no record, null where it is one."""

    frame: DataFrame
    fields: Mapping[str, tuple[Column, T.DataType]]
    whole: Column
    raw: Column
    broken: Column


def read_records(
    session: SparkSession, shape: Shape, files: Sequence[InputFile], wanted: Sequence[str], *, delimiter: str, encoding: str
) -> Records:
    """The frame has columns `path` (as Spark spells it) and `at`. Raises MissingField, UnreadableFile."""
    if shape.fields:
        for field in wanted:
            if field not in shape.fields:
                raise missing_field(files[0].path, field, shape.fields)
    try:
        match shape.kind:
            case "parquet":
                return _parquet(session, shape, files)
            case "csv":
                return _csv(_filled_lines(session, files, encoding), shape, delimiter, encoding)
            case "json lines":
                return _json(_filled_lines(session, files, encoding), wanted, encoding)
    except PySparkException as error:
        raise unreadable_file(files[0].path, str(error).splitlines()[0]) from error


def _lines(session: SparkSession, files: Sequence[InputFile]) -> DataFrame:
    if files[0].store is not None:
        return elsewhere.lines(session, files)
    # Spark cuts no file into blocks smaller than this, so blocks can be counted by it.
    java: Any = session._jsparkSession
    conf = java.sessionState().conf()
    block_bytes = max(1, min(int(conf.filesOpenCostInBytes()), int(conf.filesMaxPartitionBytes())))
    for file in files:
        if file.size_bytes >= _BLOCKS * block_bytes:
            raise unreadable_file(file.path, f"it is larger than {_BLOCKS * block_bytes} bytes; split it")
    line = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << _LINE_BITS) - 1))
    block = F.shiftleft((F.col("_metadata.file_block_start") / F.lit(block_bytes)).cast("bigint"), _LINE_BITS)
    return session.read.text([file.path for file in files]).select(
        "value", F.col("_metadata.file_path").alias("path"), (block + line).alias("at")
    )


def _filled_lines(session: SparkSession, files: Sequence[InputFile], encoding: str) -> DataFrame:
    """`value`: the line as text; null where its bytes are none in that encoding, and then `raw` has them (MSG-1): of UTF-8 the line in base64,
    of another encoding those that are no letters as `\\x81`."""
    # The reader of lines hands on the bytes that are there; only who looks for letters in them would replace some.
    frame = _lines(session, files).where(F.trim("value") != "").withColumnRenamed("value", "line")
    line = F.col("line")
    text = F.when(F.is_valid_utf8(line), line) if encoding == UTF_8 else _decoder(encoding)(line.cast("binary"))
    frame = frame.withColumn("value", text)
    # Spark breaks base64 into lines. Keys of other encodings are text of ours, by which an erasure must find them in what is kept.
    in_base64 = F.concat(F.lit(BASE64), F.regexp_replace(F.base64(line.cast("binary")), r"\s", ""))
    kept = in_base64 if encoding == UTF_8 else _decoder(encoding, errors="backslashreplace")(line.cast("binary"))
    return frame.withColumn("raw", F.when(F.col("value").isNull(), kept).otherwise(F.col("value")))


def _decoder(encoding: str, errors: str = "strict") -> Callable[[Column], Column]:
    def decoded(lines: pa.Array) -> pa.Array:
        def text(line: bytes | None) -> str | None:
            try:
                return None if line is None else line.decode(encoding, errors)
            except UnicodeDecodeError:
                return None

        return pa.array([text(line) for line in lines.to_pylist()], pa.string())

    found: Callable[[Column], Column] = arrow_udf(decoded, "string")  # type: ignore[call-overload]  # the kind is taken from the hints
    return found


def _undecoded(encoding: str) -> Column:
    """Why the line is no record, where it is no text; null: it is text."""
    return F.when(F.col("value").isNull(), F.lit(f"the line is not valid {encoding}"))


def first_lines(session: SparkSession, files: Sequence[InputFile]) -> DataFrame:
    """Per file and block (`path`, `block`): the number of its first line, and that line's place in its task (`first`).

    Reads every line, so only where somebody needs line numbers; `files` must be those that were read together.
    """
    found = (
        _lines(session, files)
        .groupBy("path", block_of("at").alias("block"))
        .agg(F.min(line_in_task("at")).alias("first"), F.count(F.lit(1)).alias("lines"))
        .collect()
    )
    starts, reached = [], {row["path"]: 1 for row in found}
    for row in sorted(found, key=lambda row: (row["path"], row["block"])):
        starts.append((row["path"], row["block"], reached[row["path"]], row["first"]))
        reached[row["path"]] += row["lines"]
    return local_frame(session, "path string, block bigint, line bigint, first bigint", starts)


def local_frame(session: SparkSession, schema: str, rows: Sequence[tuple[object, ...]]) -> DataFrame:
    """A small frame out of one text: made from a list it would import pandas, and start Python workers to unpickle it."""
    names = [column.split()[0] for column in schema.split(",")]
    text = json.dumps([dict(zip(names, row, strict=True)) for row in rows])
    structs = F.from_json(F.lit(text), f"array<struct<{schema}>>")
    return session.range(0, 1, 1, 1).select(F.inline(structs))


def block_of(at: str) -> Column:
    return F.shiftright(at, _LINE_BITS)


def line_in_task(at: str) -> Column:
    return F.col(at).bitwiseAND(F.lit((1 << _LINE_BITS) - 1))


def _json(lines: DataFrame, wanted: Sequence[str], encoding: str) -> Records:
    schema = T.StructType([T.StructField(name, T.StringType()) for name in dict.fromkeys([*wanted, "_"])])
    # As an array, because the parser then sees what follows the object: two objects on one line, or a torn one.
    parsed = F.from_json(F.concat(F.lit("["), "value", F.lit("]")), T.ArrayType(schema))
    frame = lines.withColumn("parsed", parsed)
    record = F.get("parsed", F.lit(0))
    broken = F.col("parsed").isNull() | (F.size("parsed") != 1) | record.isNull()
    return Records(
        frame=frame,
        fields={name: (record[name], T.StringType()) for name in wanted},
        whole=F.col("value"),
        raw=F.col("raw"),
        broken=F.coalesce(
            _undecoded(encoding),
            F.when(broken, F.lit("the line is not one JSON object")),
            F.when(_twice(wanted), F.lit("the line has a field twice")),
            # Parsed, it would be a question mark, and so would the half of another pair.
            F.when(
                F.col("value").rlike(_HALF) & F.regexp_replace("value", _OTHER_ESCAPE, "").rlike(_HALF),
                F.lit("the line has half of a surrogate pair, which is no letter"),
            ),
        ),
    )


def _twice(wanted: Sequence[str]) -> Column:
    """Whether a JSON line in `value` has a field that is read more than once. To list a line's fields costs as much as to parse it, so it is
    asked only where a name stands there twice, or may be spelled by escapes."""

    def often(name: str) -> Column:
        spelled = json.dumps(name, ensure_ascii=False)
        return F.substring_index("value", spelled, 2) != F.col("value")

    # As Spark's parser takes quotes of both kinds.
    unlike = [F.col("value").contains(mark) for mark in ("\\u", "\\/", *(f"'{name}'" for name in wanted))]
    read = F.filter(F.json_object_keys("value"), lambda name: name.isin(*wanted))
    may_be = reduce(Column.__or__, [*unlike, *map(often, wanted)])
    twice = F.coalesce(F.size(read) != F.size(F.array_distinct(read)), F.lit(True))
    return F.when(may_be, twice).otherwise(F.lit(False)) if wanted else F.lit(False)


def _csv(lines: DataFrame, shape: Shape, delimiter: str, encoding: str) -> Records:
    names = [f"c{index}" for index in range(len(shape.fields))]
    # A quote in a quoted value is doubled (RFC 4180), not escaped by Spark's backslash.
    options = {"sep": delimiter, "quote": '"', "escape": '"', "columnNameOfCorruptRecord": "broken"}
    frame = lines.where(~F.col("value").eqNullSafe(F.lit(shape.header))).withColumn(
        "parsed", F.from_csv("value", ", ".join(f"{name} string" for name in [*names, "broken"]), options)
    )
    record = F.col("parsed")
    count = len(names)
    whole = F.struct(*(record[name].alias(field) for name, field in zip(names, shape.fields, strict=True)))
    return Records(
        frame=frame,
        fields={field: (record[name], T.StringType()) for name, field in zip(names, shape.fields, strict=True)},
        whole=F.to_json(whole, {"ignoreNullFields": "false"}),
        raw=F.col("raw"),
        broken=F.coalesce(
            _undecoded(encoding),
            F.when(
                record["broken"].isNotNull(),
                F.lit(f"the line has more or fewer fields than the header's {count} (line breaks in quotes are not read)"),
            ),
        ),
    )


def _parquet(session: SparkSession, shape: Shape, files: Sequence[InputFile]) -> Records:
    if shape.nanoseconds:
        # Spark has no type for them; as numbers they are read by their unit.
        session.conf.set(_NANOS_AS_LONG, "true")
    if files[0].store is not None:
        read, schema = elsewhere.records(session, shape, files)
        of, place = "record.", (F.col("path"), F.col("at"))
    else:
        read = session.read.parquet(*(file.path for file in files))
        schema, of = read.schema, ""
        place = F.col("_metadata.file_path").alias("path"), F.col("_metadata.row_index").alias("at")
    # In a struct, so that fields of any name stay apart from our own.
    record = F.struct(*(_finer(f"{of}{_quoted(field.name)}", field.name, shape).alias(field.name) for field in schema))
    frame = read.select(record.alias("record"), *place)
    fields: dict[str, tuple[Column, T.DataType]] = {
        field.name: (
            F.col("record")[field.name],
            T.TimestampType() if field.name in shape.nanoseconds else field.dataType,
        )
        for field in schema
    }
    whole = F.to_json("record", {"ignoreNullFields": "false"})
    return Records(frame=frame, fields=fields, whole=whole, raw=whole, broken=F.lit(None).cast("string"))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _finer(column: str, name: str, shape: Shape) -> Column:
    if name not in shape.nanoseconds:
        return F.col(column)
    # Rounded up: a deadline may only ever be rounded later (TTL-3). `div` cuts towards zero.
    return F.timestamp_micros(F.expr(f"({column} + if({column} > 0, 999, 0)) div 1000"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeColumns:
    """One time field. `micros`: null where missing or unreadable. `suspect`: set, but not at all where a date should be."""

    micros: Column
    unreadable: Column
    suspect: Column
    text: Column


def time_columns(source: Column, kind: T.DataType, unit: Unit) -> TimeColumns:
    """Read a field of the given type; a typed timestamp needs no unit."""
    text = F.trim(F.decode(source, "UTF-8") if isinstance(kind, T.BinaryType) else source.cast("string"))
    is_text = isinstance(kind, T.StringType | T.BinaryType)
    number = F.lit(False)
    if isinstance(kind, T.TimestampType | T.TimestampNTZType | T.DateType):
        read = F.unix_micros(source.cast("timestamp"))
    elif unit == "iso":
        # Spark would read "10:00" as a time of today, which is no property of the message.
        read = F.when(text.substr(5, 1) == "-", F.unix_micros(F.try_to_timestamp(text)))
        number = text.try_cast(_NUMBER).isNotNull()
    elif is_text:
        # Most are whole numbers, and those are read much faster.
        read = F.coalesce(F.when(text.rlike(r"^[+-]?\d+$"), _whole_micros(text, unit)), _exact_micros(text, unit))
    elif isinstance(kind, T.IntegralType):
        read = _whole_micros(source, unit)
    else:
        read = _exact_micros(source, unit)
    missing = (source.isNull() | (text == "")) if is_text else source.isNull()
    micros = F.nullif(read, F.lit(0))
    return TimeColumns(
        micros=micros,
        unreadable=~missing & read.isNull(),
        suspect=(micros < F.lit(PLAUSIBLE_FROM)) | (micros >= F.lit(PLAUSIBLE_TO)) | (read.isNull() & number),
        text=text,
    )


def _whole_micros(number: Column, unit: Unit) -> Column:
    factor = _FACTORS[unit]
    return F.try_multiply(number.try_cast("bigint"), F.lit(int(factor))) if factor >= 1 else _exact_micros(number, unit)


def _exact_micros(number: Column, unit: Unit) -> Column:
    """A deadline may only ever be rounded later, so a part of a microsecond counts as a whole one (TTL-3)."""
    return F.ceil(number.try_cast(_NUMBER) * F.lit(_FACTORS[unit])).try_cast("bigint")


def read_number(value: str, unit: str) -> Instant | None:
    """A number of the unit as an instant; None where it is none or beyond int64."""
    try:
        micros = int(Decimal(value) * _FACTORS[unit])
    except (InvalidOperation, KeyError, ValueError, OverflowError):
        return None
    return Instant(micros) if INT64_MIN <= micros <= INT64_MAX else None


def likely_unit(value: str) -> str | None:
    """The unit in which the number is a date between 1990 and 2100; the spans of the units do not overlap."""
    for unit in _FACTORS:
        instant = read_number(value, unit)
        if instant is not None and PLAUSIBLE_FROM <= instant < PLAUSIBLE_TO:
            return unit
    return None


def reading(value: str, unit: str) -> str | None:
    """How the value reads in the unit, as ISO 8601; None where it does not."""
    instant = read_number(value, unit)
    return None if instant is None else format_instant(instant)
