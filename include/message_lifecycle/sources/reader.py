"""One file as messages to append. The same reader serves every format, in this process and in tasks of Spark.

`read_slice` depends on its arguments alone, so the messages of a file never depend on other files (P12). A record that breaks a rule is
refused alone, with its code, and keeps its raw text for the quarantine (TTL-4).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from message_lifecycle.model.instants import INVALID_TTL, TTL_DISABLED, TTL_HEADER, Instant
from message_lifecycle.sources import arrow_text
from message_lifecycle.sources.block import MESSAGE_BYTES, Block, folder_values
from message_lifecycle.sources.csv_records import read_csv
from message_lifecycle.sources.files import AT_BITS, InputFile
from message_lifecycle.sources.json_lines import NotRecord, parse, parse_elements, parse_members, read_json_lines, value_text
from message_lifecycle.sources.lifetimes import INVALID, NO_LIFETIME, parse_lifetimes
from message_lifecycle.sources.mapping import FieldMapping
from message_lifecycle.sources.parquet_records import read_parquet
from message_lifecycle.sources.times import TimeRule, Times, read_times, read_typed_times

UNREADABLE_LINE = "unreadable_line"
UNREADABLE_TIME = "unreadable_time"
INVALID_PARTITION = "invalid_partition"
INVALID_HEADERS = "invalid_headers"
TOO_LARGE = "too_large"
ERASED = "erased"
"""The code of a message with a forbidden key. Such a message is stored nowhere, not even in the quarantine."""

_NOT_HEADERS = "headers are neither a list of {name, value} or {key, value} nor an object"
_HEADER = pa.struct([("name", pa.string()), ("value", pa.binary())])
_MICROS = pa.timestamp("us", "UTC")
COLUMNS = pa.schema(
    [
        ("partition", pa.int32()),
        ("append_time", _MICROS),
        ("event_time", _MICROS),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(_HEADER)),
        ("size_bytes", pa.int64()),
        ("code", pa.string()),
        ("reason", pa.string()),
        ("raw", pa.string()),
        ("suspect_append_time", pa.string()),
        ("suspect_event_time", pa.string()),
        ("zoneless_append_time", pa.string()),
        ("zoneless_event_time", pa.string()),
        ("file", pa.string()),
        ("position", pa.int64()),
        ("log_order", pa.int64()),
        ("absent", pa.int32()),
    ]
)
LIFETIME = "lifetime"
Headers = Sequence[tuple[str, bytes | None]]
Refuse = Callable[[int, str, str], None]
"""Refuses a row: with a code, and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlRules:
    """The topic's rules for the header.

    Attributes:
        copies: The messages are copies, not publishes, so no message is refused (TTL-6).
    """

    allow_msg_ttl: bool = False
    reject_zero: bool = False
    copies: bool = False

    @property
    def invalid(self) -> str:
        zero = ", and not zero" if self.reject_zero else ""
        return f"{TTL_HEADER} is neither a duration of at least 1s, nor whole seconds, nor never{zero}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of one file: the whole file, or the JSON lines that begin from byte `start` on and before `end`.

    Attributes:
        number: The file's number in its batch, which orders the messages.
    """

    file: InputFile
    number: int
    start: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """How records become messages.

    Attributes:
        for_quarantine: Tasks read whole files, and refused rows have their place and raw text.
        latest_allowed_time: Return the spans of times up to this time (CLK-4).
    """

    mapping: FieldMapping
    partitions: int
    ttl: TtlRules
    for_quarantine: bool = False
    latest_allowed_time: Instant | None = None

    @property
    def columns(self) -> pa.Schema:
        """COLUMNS, and `lifetime` if messages can have headers."""
        return COLUMNS.append(pa.field(LIFETIME, pa.int64())) if self.mapping.headers else COLUMNS


def read_slice(part: Slice, job: Job) -> Iterator[pa.RecordBatch]:
    """Yield the messages and the refused rows of a slice, in their order, as `job.columns`. Raises UnreadableFile, and errors of reading.

    A bit of `absent` is set for each of `mapping.fields` that a record of JSON lines lacks. Null: the row is not a record.
    """
    mapping, file = job.mapping, part.file
    wanted, whole, folders = mapping.fields, mapping.value is None, folder_values(file.name)
    blocks: Iterator[Block]
    match file.kind:
        case "json lines":
            blocks = read_json_lines(file, wanted, folders, encoding=mapping.encoding, whole=whole, start=part.start, end=part.end)
        case "csv":
            blocks = read_csv(file, wanted, folders, delimiter=mapping.delimiter, encoding=mapping.encoding, whole=whole)
        case "parquet":
            blocks = read_parquet(file, wanted, folders, whole=whole, raw=job.for_quarantine)
    for block in blocks:
        yield _messages(block, part, job)


def _messages(block: Block, part: Slice, job: Job) -> pa.RecordBatch:
    mapping, count = job.mapping, len(block.at)
    refused = {row: (UNREADABLE_LINE, reason) for row, reason in block.broken.items()}
    refused |= {row: (TOO_LARGE, _too_large(size)) for row, size in block.too_large.items()}

    def refuse(row: int, code: str, reason: str) -> None:
        refused.setdefault(row, (code, reason))

    times = []
    for what, name, rule in (("append", mapping.append_time, mapping.append_rule), ("event", mapping.event_time, mapping.event_rule)):
        found = Times(micros=pa.nulls(count, pa.int64())) if name is None else _times(block, name, rule)
        times.append(found)
        for row, reason in found.refused.items():
            refuse(row, UNREADABLE_TIME, f"the {what} time cannot be read: {reason}")
    append_time, event_time = times
    key = _bytes(block, mapping.key) if mapping.key is not None else pa.nulls(count, pa.binary())
    value: pa.Array = block.whole if mapping.value is None else _bytes(block, mapping.value)
    headers: list[Headers] = []
    if mapping.headers is not None:
        headers, bad = _headers(block, mapping.headers)
        for row, reason in bad.items():
            refuse(row, INVALID_HEADERS, reason)
    keys, values = key.to_pylist(), value.to_pylist()
    partition = [zlib.crc32(one if one is not None else other or b"") % job.partitions for one, other in zip(keys, values, strict=True)]
    if mapping.partition is not None:
        _given_partitions(block, mapping.partition, job.partitions, partition, refuse)
    lifetime = None
    if mapping.headers is not None:
        stated = [next((one for name, one in some if name == TTL_HEADER), None) for some in headers]
        lifetime = parse_lifetimes(pa.array(stated, pa.binary()))
        _judge_lifetimes(lifetime, job.ttl, refuse)
    sizes = pc.add(_lengths(key), _lengths(value))
    if mapping.headers is not None:
        sizes = pc.add(sizes, pa.array([sum(len(name.encode()) + len(one or b"") for name, one in some) for some in headers], pa.int64()))
    if (pc.max(sizes).as_py() or 0) > MESSAGE_BYTES:
        for row, size in enumerate(sizes.to_pylist()):
            if size > MESSAGE_BYTES:
                refuse(row, TOO_LARGE, _too_large(size))
                headers[row : row + 1] = [()] if headers else []
        key, value = _without_large(key, sizes), _without_large(value, sizes)
    rows = sorted(refused)
    columns = {
        "partition": pa.array(partition, pa.int32()),
        "append_time": append_time.micros.cast(_MICROS),
        "event_time": event_time.micros.cast(_MICROS),
        "key": key,
        "value": value,
        # Never null: for a null list, Spark's Arrow writer counts all rows of a batch again for every row.
        "headers": _header_column(headers, count),
        "size_bytes": sizes,
        "code": _sparse(count, {row: refused[row][0] for row in rows}),
        "reason": _sparse(count, {row: refused[row][1] for row in rows}),
        "raw": _sparse(count, {row: _raw(block, row, refused[row][0]) for row in rows} if job.for_quarantine or block.broken else {}),
        "suspect_append_time": _sparse(count, append_time.suspects),
        "suspect_event_time": _sparse(count, event_time.suspects),
        "zoneless_append_time": _sparse(count, _texts_at(block, mapping.append_time, append_time.zoneless)),
        "zoneless_event_time": _sparse(count, _texts_at(block, mapping.event_time, event_time.zoneless)),
        "file": _sparse(count, dict.fromkeys(rows, part.file.name)),
        "position": pa.array([block.positions[row] if row in refused else None for row in range(count)], pa.int64())
        if rows and block.positions is not None
        else pa.nulls(count, pa.int64()),
        "log_order": pc.add(block.at, part.number << AT_BITS),
        "absent": _absent(block, mapping.fields, count),
    }
    if lifetime is not None:
        columns[LIFETIME] = lifetime
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=job.columns)


def _sparse(count: int, values: Mapping[int, str | None]) -> pa.Array:
    return pa.array([values.get(row) for row in range(count)], pa.string()) if values else pa.nulls(count, pa.string())


def _absent(block: Block, fields: Sequence[str], count: int) -> pa.Array:
    absent: list[int | None] = [0] * count
    for bit, name in enumerate(fields):
        for row in block.absent.get(name, ()):
            absent[row] = (absent[row] or 0) | 1 << bit
    for row in (*block.broken, *block.too_large):
        absent[row] = None
    return pa.array(absent, pa.int32())


def _too_large(size: int) -> str:
    return f"the message has {size:,} bytes, and at most {MESSAGE_BYTES:,} are allowed: keep the large part elsewhere, and its address in the message"


def _without_large(column: pa.Array, sizes: pa.Array) -> pa.Array:
    """Return null for each oversized message, so that no task of Spark gets it."""
    return pc.if_else(pc.greater(sizes, MESSAGE_BYTES), pa.scalar(None, column.type), column)


def _raw(block: Block, row: int, code: str) -> str | None:
    """Return the record's text for the quarantine. None: the text is too large to keep."""
    if code == TOO_LARGE:
        return None
    text = block.raw(row)
    return None if text is None or len(text) > MESSAGE_BYTES else text


def _lengths(column: pa.Array) -> pa.Array:
    return pc.binary_length(column).cast(pa.int64()).fill_null(0)


def _text_column(block: Block, name: str) -> pa.Array:
    column = block.fields[name]
    return arrow_text.values_as_texts(column, block.shapes[name]) if name in block.shapes else column


def _bytes(block: Block, name: str) -> pa.Array:
    return _text_column(block, name).cast(pa.binary())


def _readable(block: Block, name: str) -> pa.Array:
    """Return the column as text, with replacement characters for invalid bytes."""
    column = _text_column(block, name)
    if pa.types.is_string(column.type):
        return column
    return pa.array([None if one is None else one.decode("utf-8", "replace") for one in column.to_pylist()], pa.string())


def _times(block: Block, name: str, rule: TimeRule) -> Times:
    shape = block.shapes.get(name)
    if shape is not None and (pa.types.is_timestamp(shape.kind) or pa.types.is_date(shape.kind)):
        return read_typed_times(block.fields[name], rule, is_utc=shape.is_utc)
    return read_times(_readable(block, name), rule)


def _texts_at(block: Block, name: str | None, rows: set[int]) -> dict[int, str | None]:
    if name is None or not rows:
        return {}
    texts = _readable(block, name)
    return {row: texts[row].as_py() for row in rows}


def _given_partitions(block: Block, name: str, partitions: int, into: list[int], refuse: Refuse) -> None:
    for row, text in enumerate(_readable(block, name).to_pylist()):
        if text is None or not (given := text.strip(" ")):
            continue
        try:
            number = int(given) if given.isascii() else -1
        except ValueError:
            number = -1
        if 0 <= number < partitions:
            into[row] = number
        else:
            refuse(row, INVALID_PARTITION, f"the partition is not a whole number from 0 to {partitions - 1}")


def _judge_lifetimes(lifetime: pa.Array, rules: TtlRules, refuse: Refuse) -> None:
    if rules.copies or lifetime.null_count == len(lifetime):
        return
    for row, one in enumerate(lifetime.to_pylist()):
        if one == INVALID or (one == NO_LIFETIME and rules.reject_zero):
            refuse(row, str(INVALID_TTL), rules.invalid)
        elif one is not None and not rules.allow_msg_ttl:
            refuse(row, str(TTL_DISABLED), f"the message has {TTL_HEADER}, the topic has allow_msg_ttl off")


# Headers: a list of {name, value} or {key, value}, an object or map, or the JSON text of any of them.


def _headers(block: Block, name: str) -> tuple[list[Headers], dict[int, str]]:
    column, shape = block.fields[name], block.shapes.get(name)
    read: list[Headers] = []
    bad: dict[int, str] = {}
    typed = shape if shape is not None and shape.parts else None
    given = _readable(block, name).to_pylist() if typed is None else column.cast(typed.stored).to_pylist()
    known: dict[str, Headers] = {}
    for row, one in enumerate(given):
        try:
            if one is None or (typed is None and not one.strip(" ")):
                read.append(())
            elif typed is not None:
                read.append(_typed_headers(one, typed))
            else:
                if one not in known:
                    known[one] = _headers_in(one)
                read.append(known[one])
        except (NotRecord, KeyError, TypeError):
            read.append(())
            bad[row] = _NOT_HEADERS
    return read, bad


def _typed_headers(given: arrow_text.Cell, shape: arrow_text.ColumnShape) -> Headers:
    kind = shape.kind
    if pa.types.is_struct(kind):
        return [(name, arrow_text.cell_to_bytes(given[name], part)) for name, part in shape.parts if given[name] is not None]
    if pa.types.is_map(kind):
        (_, key), (_, item) = shape.parts
        return [(_name(arrow_text.cell_to_bytes(name, key)), arrow_text.cell_to_bytes(value, item)) for name, value in given]
    pair = shape.parts[0][1]
    parts = dict(pair.parts)
    named = "name" if "name" in parts else "key"
    name, value = parts[named], parts["value"]
    return [(_name(arrow_text.cell_to_bytes(one[named], name)), arrow_text.cell_to_bytes(one["value"], value)) for one in given]


def _name(given: bytes | None) -> str:
    if given is None:
        raise NotRecord(_NOT_HEADERS)
    try:
        return given.decode()
    except UnicodeDecodeError:
        raise NotRecord(_NOT_HEADERS) from None


def _headers_in(text: str) -> Headers:
    found = parse(text)
    if isinstance(found, dict):
        pairs = list(parse_members(text))
    elif isinstance(found, list):
        pairs = []
        for element in parse_elements(text):
            parts = dict(parse_members(element)) if element.startswith("{") else {}
            name = parse(parts["name"] if "name" in parts else parts["key"])
            if not isinstance(name, str):
                raise NotRecord(_NOT_HEADERS)
            pairs.append((name, parts.get("value", "null")))
    else:
        raise NotRecord(_NOT_HEADERS)
    return [(name, None if (one := value_text(parse(value), value)) is None else one.encode()) for name, value in pairs]


def _header_column(headers: Sequence[Headers], count: int) -> pa.Array:
    if not any(headers):
        empty = pa.array([], _HEADER)
        return pa.ListArray.from_arrays(pa.array([0] * (count + 1), pa.int32()), empty)
    return pa.array([[{"name": name, "value": value} for name, value in some] for some in headers], pa.list_(_HEADER))
