"""Parquet files as blocks of records, read by PyArrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from message_lifecycle.sources.arrow_text import ColumnShape, column_shape, json_objects, json_texts, without_dictionaries
from message_lifecycle.sources.block import BLOCK_BYTES, MESSAGE_BYTES, ROWS, Block
from message_lifecycle.sources.files import InputFile


def open_parquet(content: IO[bytes]) -> parquet.ParquetFile:
    """Open the file, with times of 96 bits in microseconds: in nanoseconds their years would end in 2262."""
    return parquet.ParquetFile(content, arrow_extensions_enabled=False, coerce_int96_timestamp_unit="us")


def shapes_of(found: parquet.ParquetFile) -> dict[str, ColumnShape]:
    """Return the shapes of a file's fields by name, in their order."""
    columns = [found.schema.column(at) for at in range(len(found.schema))]
    leaves = iter([(column.physical_type, column.logical_type.type) for column in columns])
    return {field.name: column_shape(field.type, leaves) for field in found.schema_arrow}


def path_in(shapes: Mapping[str, ColumnShape], name: str) -> tuple[str, ...] | None:
    """Return the path of a field. None: the file has no such field.

    The name is a field's name, or names of nested structs with points between.
    """
    if name in shapes:
        return (name,)
    path = tuple(name.split("."))
    parts: Mapping[str, ColumnShape] = shapes
    for step in path:
        if step not in parts:
            return None
        shape = parts[step]
        parts = dict(shape.parts) if pa.types.is_struct(shape.kind) else {}
    return path


def names_in(shapes: Mapping[str, ColumnShape], before: str = "") -> list[str]:
    """Return the names of all fields. Fields within structs have points in their names."""
    names = []
    for name, shape in shapes.items():
        names.append(before + name)
        if pa.types.is_struct(shape.kind):
            names += names_in(dict(shape.parts), f"{before}{name}.")
    return names


@dataclass(frozen=True, slots=True)
class _Part:
    """A wanted field: its column, the steps within it, and its shape."""

    column: str
    steps: tuple[str, ...]
    shape: ColumnShape


def _part(shapes: Mapping[str, ColumnShape], path: Sequence[str]) -> _Part:
    shape = shapes[path[0]]
    for step in path[1:]:
        shape = dict(shape.parts)[step]
    return _Part(path[0], tuple(path[1:]), shape)


def read_parquet(file: InputFile, wanted: Sequence[str], folders: Mapping[str, str | None], *, whole: bool, raw: bool) -> Iterator[Block]:
    """Yield the records in the order of their rows.

    Args:
        file: The Parquet file.
        wanted: The names of the wanted fields.
        folders: Fields that the file's folders give, with their values.
        whole: The messages need the whole record.
        raw: The caller may ask for original records, so read every column.
    """
    with file.open() as content, open_parquet(content) as found:
        shapes = shapes_of(found)
        parts = {name: _part(shapes, path) for name in wanted if (path := path_in(shapes, name)) is not None}
        needed = None if whole or raw else list(dict.fromkeys(part.column for part in parts.values()))
        if needed is not None and (not needed or any("." in name for name in shapes)):
            needed = None
        number = 1
        for batch in found.iter_batches(batch_size=_rows_at_once(found), columns=needed):
            columns = {name: without_dictionaries(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
            columns, too_large = _without_large(columns)
            yield _block(columns, shapes, parts, wanted, folders, number, batch.num_rows, whole, too_large)
            number += batch.num_rows


def _rows_at_once(found: parquet.ParquetFile) -> int:
    """Return how many rows of the largest row group make about a block."""
    groups = [found.metadata.row_group(at) for at in range(found.num_row_groups)]
    largest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
    return max(1, min(ROWS, BLOCK_BYTES // max(1, largest)))


def _without_large(columns: Mapping[str, pa.Array]) -> tuple[dict[str, pa.Array], dict[int, int]]:
    """Return the columns with null for each oversized value, before anything copies the value.

    Also return the rows of such values with their sizes.
    """
    kept, too_large = dict(columns), dict[int, int]()
    for name, column in columns.items():
        if not any(
            is_kind(column.type) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
        ):
            continue
        lengths = pc.binary_length(column)
        if (pc.max(lengths).as_py() or 0) <= MESSAGE_BYTES:
            continue
        kept[name] = pc.if_else(pc.greater(lengths, MESSAGE_BYTES), pa.scalar(None, column.type), column)
        too_large |= {row: size for row, size in enumerate(lengths.to_pylist()) if size is not None and size > MESSAGE_BYTES}
    return kept, too_large


def _block(
    columns: Mapping[str, pa.Array],
    shapes: Mapping[str, ColumnShape],
    parts: Mapping[str, _Part],
    wanted: Sequence[str],
    folders: Mapping[str, str | None],
    number: int,
    count: int,
    whole: bool,
    too_large: Mapping[int, int],
) -> Block:
    fields, kinds = {}, {}
    for name in wanted:
        if name not in parts:
            fields[name] = pa.array([folders.get(name)] * count, pa.string())
            continue
        part = parts[name]
        column = columns[part.column]
        for step in part.steps:
            column = pc.struct_field(column, step)
        fields[name] = without_dictionaries(column)
        kinds[name] = part.shape

    def records(of: Mapping[str, pa.Array]) -> pa.Array:
        return json_objects([(name, json_texts(column, shapes[name])) for name, column in of.items()])

    def raw_at(row: int) -> str:
        found: bytes = records({name: column.slice(row, 1) for name, column in columns.items()})[0].as_py()
        return found.decode()

    positions = range(number, number + count)
    at = pa.array(positions, pa.int64())
    block = Block(at=at, positions=positions, fields=fields, whole=None, raw=raw_at, shapes=kinds, too_large=too_large)
    return replace(block, whole=records(columns)) if whole else block
