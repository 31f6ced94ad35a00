"""Columns of Parquet files as text: each value like JSON, with all its digits (MSG-1).

Whole floats have no point and no exponent. Times have the necessary fraction, in groups of three digits. A UUID is its text. A value with
parts is JSON, and bytes within it are base64. PyArrow renders a whole simple column at once. Other columns are rendered value by value.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_list_view, pa.types.is_large_list_view, pa.types.is_fixed_size_list)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FLOATS: Mapping[int, type[np.floating]] = {16: np.float16, 32: np.float32, 64: np.float64}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ODD_IN_JSON = r'["\\\x00-\x1f]'
_ENUM, _UUID = "ENUM", "UUID"


Cell = Any
"""A value of a column, whose shape says its type."""


def _is(kind: pa.DataType, tests: Sequence[Callable[[pa.DataType], bool]]) -> bool:
    return any(test(kind) for test in tests)


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """The type of a column, with facts that only Parquet knows.

    Args:
        kind: Its type, without dictionaries and extensions.
        parts: Names and shapes within it: fields of a struct, the element of a list, key and value of a map.
        logical: Parquet's logical type of a leaf: UUID, ENUM or another.
        is_utc: Arrow gives the time without a zone, but it is UTC (INT96).
    """

    kind: pa.DataType
    parts: tuple[tuple[str, ColumnShape], ...] = ()
    logical: str = ""
    is_utc: bool = False

    @property
    def stored(self) -> pa.DataType:
        """The type whose values Python holds exactly: times as whole numbers, names of an enumeration as text."""
        kind = self.kind
        if self.logical == _ENUM:
            return pa.string()
        if pa.types.is_timestamp(kind) or pa.types.is_time64(kind) or pa.types.is_duration(kind) or pa.types.is_date64(kind):
            return pa.int64()
        if pa.types.is_time32(kind) or pa.types.is_date32(kind):
            return pa.int32()
        if pa.types.is_struct(kind):
            return pa.struct([pa.field(name, part.stored) for name, part in self.parts])
        if pa.types.is_map(kind):
            return pa.map_(self.parts[0][1].stored, self.parts[1][1].stored)
        if _is(kind, _LISTS):
            return pa.large_list(self.parts[0][1].stored) if pa.types.is_large_list(kind) else pa.list_(self.parts[0][1].stored)
        return kind


def column_shape(kind: pa.DataType, leaves: Iterator[tuple[str, str]]) -> ColumnShape:
    """Return the shape of a column.

    Args:
        kind: The column's Arrow type.
        leaves: The physical and the logical type of each leaf column of the file, in order.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return column_shape(kind.storage_type, leaves)
    if pa.types.is_dictionary(kind):
        return column_shape(kind.value_type, leaves)
    if pa.types.is_struct(kind):
        return ColumnShape(kind, tuple((part.name, column_shape(part.type, leaves)) for part in kind))
    if pa.types.is_map(kind):
        return ColumnShape(kind, (("key", column_shape(kind.key_type, leaves)), ("value", column_shape(kind.item_type, leaves))))
    if _is(kind, _LISTS):
        return ColumnShape(kind, (("element", column_shape(kind.value_type, leaves)),))
    physical, logical = next(leaves)
    return ColumnShape(kind, logical=logical, is_utc=physical == "INT96")


def without_dictionaries(column: pa.Array) -> pa.Array:
    """Return the column without dictionaries and extensions."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column


def values_as_texts(column: pa.Array, shape: ColumnShape) -> pa.Array:
    """Return the values as text (string), or as their bytes (binary). Null stays null."""
    kind = shape.kind
    if shape.logical == _UUID:
        return pa.array([None if one is None else str(uuid.UUID(bytes=one)) for one in column.to_pylist()], pa.string())
    if _is(kind, _TEXTS):
        return column.cast(pa.string())
    if _is(kind, _BYTES):
        return column.cast(pa.binary())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.string())
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_timestamp(kind) and kind.unit != "s":
        return _timestamps(column, shape)
    return pa.array([None if one is None else _text(one, shape) for one in column.cast(shape.stored).to_pylist()], pa.string())


def json_texts(column: pa.Array, shape: ColumnShape) -> pa.Array:
    """Return the values as JSON (string). Null is `null`."""
    kind = shape.kind
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return values_as_texts(column, shape).fill_null("null")
    if _is(kind, _TEXTS):
        return json_strings(column.cast(pa.string()))
    if pa.types.is_timestamp(kind) and kind.unit != "s":
        return json_strings(values_as_texts(column, shape))
    if pa.types.is_floating(kind):
        found = _floats(column)
        odd = pc.match_substring(found, "N")
        quoted = pc.binary_join_element_wise('"', found, '"', "")
        return pc.if_else(pc.fill_null(odd, False), quoted, found).fill_null("null")
    return pa.array([_json(one, shape) for one in column.cast(shape.stored).to_pylist()], pa.string())


def json_strings(column: pa.Array) -> pa.Array:
    """Return texts as JSON strings. Null is `null`."""
    if pc.any(pc.match_substring_regex(column, _ODD_IN_JSON)).as_py():
        found = [None if one is None else json.dumps(one, ensure_ascii=False) for one in column.to_pylist()]
        return pa.array(found, pa.string()).fill_null("null")
    return pc.binary_join_element_wise('"', column, '"', "").fill_null("null")


def json_objects(columns: Sequence[tuple[str, pa.Array]]) -> pa.Array:
    """Join columns of JSON to objects: `{"name":value,...}` (binary)."""
    if not columns:
        return pa.array([], pa.binary())
    pieces: list[object] = []
    for at, (name, values) in enumerate(columns):
        pieces += [("{" if at == 0 else ",") + json.dumps(name, ensure_ascii=False) + ":", values]
    return pc.binary_join_element_wise(*pieces, "}", "").cast(pa.binary())


def _floats(column: pa.Array) -> pa.Array:
    found = column.cast(pa.float32() if pa.types.is_float16(column.type) else column.type).cast(pa.string())
    if pa.types.is_float16(column.type) or pc.any(pc.match_substring_regex(found, "[einfEINF]")).as_py():
        # The shortest text of a half float differs from the text of the wider float.
        kind = _FLOATS[column.type.bit_width]
        return pa.array([None if one is None else _float(kind(one)) for one in column.to_pylist()], pa.string())
    return pc.replace_substring_regex(found, r"\.0$", "")


def _float(number: np.floating) -> str:
    if np.isnan(number):
        return "NaN"
    if np.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return str(np.format_float_positional(number, trim="-"))


def _timestamps(column: pa.Array, shape: ColumnShape) -> pa.Array:
    kind = shape.kind
    whole = column.cast(pa.int64())
    # Only years of four digits: Arrow writes other years in its own ways.
    per = _PER_SECOND[kind.unit]
    far = pc.or_(pc.less(whole, -62_135_596_800 * per), pc.greater_equal(whole, 253_402_300_800 * per)) if kind.unit != "ns" else None
    if far is not None and pc.any(far).as_py():
        return pa.array([None if one is None else _text(one, shape) for one in whole.to_pylist()], pa.string())
    found = column.cast(pa.timestamp(kind.unit, "UTC") if kind.tz or shape.is_utc else pa.timestamp(kind.unit)).cast(pa.string())
    found = pc.replace_substring(found, " ", "T", max_replacements=1)
    for form in (r"(\.[0-9]{6})000(Z?)$", r"(\.[0-9]{3})000(Z?)$", r"()\.000(Z?)$"):
        found = pc.replace_substring_regex(found, form, r"\1\2")
    return found


def _json(value: Cell, shape: ColumnShape) -> str:
    if value is None:
        return "null"
    kind = shape.kind
    if pa.types.is_struct(kind):
        return "{" + ",".join(f"{_quoted(name)}:{_json(value[name], part)}" for name, part in shape.parts) + "}"
    if pa.types.is_map(kind):
        (_, key), (_, item) = shape.parts
        return "{" + ",".join(f"{_quoted(_as_str(one, key))}:{_json(other, item)}" for one, other in value) + "}"
    if _is(kind, _LISTS):
        return "[" + ",".join(_json(one, shape.parts[0][1]) for one in value) + "]"
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_duration(kind):
        return _text(value, shape)
    if pa.types.is_floating(kind):
        found = _text(value, shape)
        return _quoted(found) if "N" in found or "I" in found else found
    return _quoted(_as_str(value, shape))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _as_str(value: Cell, shape: ColumnShape) -> str:
    if isinstance(value, bytes) and shape.logical != _UUID:
        return base64.b64encode(value).decode()
    return _text(value, shape)


def cell_to_bytes(value: Cell, shape: ColumnShape) -> bytes | None:
    """Return a single value as bytes, like `values_as_texts` for a column."""
    if value is None:
        return None
    if isinstance(value, bytes) and shape.logical != _UUID:
        return value
    return _text(value, shape).encode()


def _text(value: Cell, shape: ColumnShape) -> str:
    kind = shape.kind
    if shape.parts:
        return _json(value, shape)
    if shape.logical == _UUID:
        return str(uuid.UUID(bytes=value))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    if pa.types.is_floating(kind):
        return _float(_FLOATS[kind.bit_width](value))
    if pa.types.is_timestamp(kind):
        return _moment(value, _PER_SECOND[kind.unit], "Z" if kind.tz or shape.is_utc else "")
    if pa.types.is_date(kind):
        days = value if pa.types.is_date32(kind) else value // 86_400_000
        return _moment(days, 1, "", day=True)
    if pa.types.is_time(kind):
        seconds, rest = divmod(value, _PER_SECOND[kind.unit])
        return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{_fraction(rest, _PER_SECOND[kind.unit])}"
    return str(value)


def _moment(count: int, per: int, zone: str, *, day: bool = False) -> str:
    seconds, rest = divmod(count, per)
    try:
        moment = _EPOCH + (timedelta(days=seconds) if day else timedelta(seconds=seconds))
    except OverflowError:
        return str(count)
    text = moment.replace(tzinfo=None).isoformat()
    return text[:10] if day else text + _fraction(rest, per) + zone


def _fraction(rest: int, per: int) -> str:
    """Return the fraction in groups of three digits, as many as necessary."""
    digits = f"{rest:0{len(str(per)) - 1}}" if rest else ""
    while digits.endswith("000"):
        digits = digits[:-3]
    return f".{digits}" if digits else ""
