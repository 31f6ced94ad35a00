"""Files that lie in an object store, as frames: lines of text, and records of Parquet files. Spark's own readers know no store but by Hadoop's
ways, which are not those of the tables; here a task opens each file as tables' files are opened.

Each file is read by one task, from its first byte to its last, so a record's place in it is its number.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO, Any

import pyarrow as pa
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.sources.files import ENUMERATION, TORN, InputFile, NotReached, NotRead, Shape, unreadable_file

_MARK = b"\xef\xbb\xbf"
"""UTF-8's byte order mark, which is no part of a line."""
_CHUNK = 8 << 20
_ROWS_AT_ONCE = 10_000
_LINES = T.StructType([T.StructField("value", T.StringType()), T.StructField("path", T.StringType()), T.StructField("at", T.LongType())])
# What Spark makes of unsigned numbers, which it has no types for.
_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}

_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_list_view, pa.types.is_large_list_view, pa.types.is_fixed_size_list)

Batches = Iterable[pa.RecordBatch]


def lines(session: SparkSession, files: Sequence[InputFile]) -> DataFrame:
    """`value` (the line's bytes, as they are), `path` and `at`, its number from 0. A line ends as Hadoop's reader ends it: by a line feed, a
    carriage return, or both."""
    return _frame(session, files, _lines_of, _LINES)


def records(session: SparkSession, shape: Shape, files: Sequence[InputFile]) -> tuple[DataFrame, T.StructType]:
    """Of Parquet files of one shape: `record` (a struct), `path` and `at`, its number from 0; and the fields. Times in
    nanoseconds are whole numbers. Raises UnreadableFile for a type that Spark does not know."""
    with files[0].open() as file:
        fields = zip(parquet.read_schema(file, arrow_extensions_enabled=False), shape.types, strict=True)
        told = pa.schema([field.with_type(pa.string() if kind == ENUMERATION else _readable(field.type)) for field, kind in fields])
    try:
        schema = from_arrow_schema(told, prefer_timestamp_ntz=True)
        wanted = to_arrow_schema(schema, timestamp_utc=True)
    except (PySparkException, ValueError) as error:
        raise unreadable_file(files[0].path, str(error).splitlines()[0]) from error
    placed = T.StructType([T.StructField("record", schema), *_LINES.fields[1:]])
    return _frame(session, files, partial(_records_of, schema=wanted), placed), schema


@contextmanager
def _told(file: InputFile) -> Iterator[None]:
    try:
        yield
    except LifecycleError as error:
        raise NotReached(file, error.__cause__ or error) from error
    except (OSError, *TORN, pa.ArrowException) as error:
        raise NotRead(file, error) from error


def _frame(session: SparkSession, files: Sequence[InputFile], read: Callable[[InputFile], Batches], schema: T.StructType) -> DataFrame:
    # Small, so that Spark sends it with each task: it would put a large one on disks, and keys are in it.
    store, told = files[0].store, zlib.compress(json.dumps([[file.path, file.kind] for file in files]).encode())

    def all_of(batches: Batches) -> Batches:
        every = json.loads(zlib.decompress(told))
        for batch in batches:
            for number in batch.column(0).to_pylist():
                path, kind = every[number]
                yield from read(InputFile(name=path, path=path, kind=kind, size_bytes=0, store=store))

    return session.range(0, len(files), 1, len(files)).mapInArrow(all_of, schema)


def _lines_of(file: InputFile) -> Batches:
    number = 0
    with _told(file), file.open() as raw, gzip.open(raw) if file.is_packed else raw as content:
        for some in _split(content):  # type: ignore[arg-type]  # GzipFile reads bytes, whatever typeshed calls it
            for start in range(0, len(some), _ROWS_AT_ONCE):
                texts = pa.array(some[start : start + _ROWS_AT_ONCE], pa.binary())
                # Not cast: bytes that are no text are told apart later.
                texts = pa.Array.from_buffers(pa.string(), len(texts), texts.buffers())
                yield _batch(texts, file, number)
                number += len(texts)


def _split(content: IO[bytes]) -> Iterator[list[bytes]]:
    rest = content.read(len(_MARK))
    rest = b"" if rest == _MARK else rest
    while chunk := content.read(_CHUNK):
        rest += chunk
        # A carriage return that comes last may be half of a line's end.
        end = max(rest.rfind(b"\n"), rest.rfind(b"\r", 0, len(rest) - 1)) + 1
        yield rest[:end].splitlines()
        rest = rest[end:]
    yield rest.splitlines()


def _records_of(file: InputFile, schema: pa.Schema) -> Batches:
    number = 0
    with _told(file), file.open() as content, parquet.ParquetFile(content, arrow_extensions_enabled=False) as found:
        for batch in found.iter_batches(batch_size=_ROWS_AT_ONCE):
            columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
            yield _batch(pa.StructArray.from_arrays(columns, fields=list(schema)), file, number)
            number += batch.num_rows


def _batch(values: Any, file: InputFile, first: int) -> pa.RecordBatch:
    at = pa.array(range(first, first + len(values)), pa.int64())
    name = "value" if pa.types.is_string(values.type) else "record"
    return pa.RecordBatch.from_arrays([values, pa.array([file.path] * len(values), pa.string()), at], names=[name, "path", "at"])


def _readable(kind: pa.DataType) -> pa.DataType:
    """The type that Spark reads such a column of a Parquet file as."""
    if pa.types.is_timestamp(kind):
        return pa.int64() if kind.unit == "ns" else pa.timestamp("us", tz=kind.tz)
    if pa.types.is_duration(kind):
        return pa.int64()  # Spark does not look at what Arrow has noted of its own types
    if pa.types.is_dictionary(kind):
        return _readable(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_readable(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_readable(kind.key_type), _readable(kind.item_type))
    if any(is_it(kind) for is_it in _LISTS):
        return pa.list_(_readable(kind.value_type))
    return _WIDER.get(kind, kind)
