"""Checks of the beginnings of files, before an ingest takes any row: the kind of each file, and its wanted fields."""

from __future__ import annotations

import codecs
import csv
import gzip
from collections.abc import Sequence
from difflib import get_close_matches
from typing import IO, cast

from message_lifecycle.model.errors import BadInput
from message_lifecycle.sources.block import folder_values
from message_lifecycle.sources.csv_records import read_header
from message_lifecycle.sources.files import TORN, UTF_8, InputFile, unreadable_file
from message_lifecycle.sources.json_lines import multiline_json_form, names_in
from message_lifecycle.sources.mapping import FieldMapping

_PARQUET_MAGIC = b"PAR1"
_LINES_TRIED = 1000
_HEAD_BYTES = 1 << 20
_DELIMITERS = (";", "\t", "|", ",")
_NAME_IT = "name the encoding that it has with --encoding, as latin-1"
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
"""Byte order marks, the longer ones first."""


def check_heads(files: Sequence[InputFile], mapping: FieldMapping) -> None:
    """Check the beginning of each file.

    Raises:
        UnreadableFile: A file is not of the kind in its name, is not text in its encoding, or has a header that repeats a name.
        MissingField: A CSV or Parquet file lacks a wanted field.
    """
    for file in files:
        try:
            fields = _fields(file, mapping)
        except (OSError, *TORN, UnicodeDecodeError, csv.Error) as error:
            raise unreadable_file(file.path, str(error)) from error
        if fields is None:
            continue
        folders = folder_values(file.name)
        for name in mapping.fields:
            if name not in fields and name not in folders:
                raise missing_field(f"file {file.path} does not have", name, [*fields, *folders])


def _fields(file: InputFile, mapping: FieldMapping) -> Sequence[str] | None:
    """Return the allowed names of wanted fields. None: each record has its own fields, or the file has no records."""
    if file.kind == "parquet":
        return _fields_of_parquet(file)
    _check_text(file, mapping.encoding)
    if file.kind == "json lines":
        return None
    header = read_header(file, delimiter=mapping.delimiter, encoding=mapping.encoding)
    if any(_is_no_text(name) for name in header):
        raise unreadable_file(file.path, f"its header is not valid {mapping.encoding}; {_NAME_IT}")
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise unreadable_file(file.path, f"its header names {', '.join(map(repr, twice))} more than once")
    return header or None


def _check_text(file: InputFile, encoding: str) -> None:
    with file.open() as raw, gzip.open(raw) if file.is_packed else raw as opened:
        content = cast("IO[bytes]", opened)
        head = content.read(_HEAD_BYTES)
    if head.startswith(_PARQUET_MAGIC):
        raise unreadable_file(file.path, f"it is a Parquet file, but its name says {file.kind}")
    if wide := next((name for mark, name in _MARKS if head.startswith(mark)), None):
        how = f"convert it first (`iconv -f {wide} -t UTF-8`); --encoding is for files whose lines end as those of ASCII"
        raise unreadable_file(file.path, f"by its byte order mark it is {wide}; {how}")
    head = head.removeprefix(codecs.BOM_UTF8)
    lines = head.splitlines(keepends=True)[:_LINES_TRIED]
    if lines and all(_is_no_text(line, encoding) for line in lines):
        raise unreadable_file(file.path, f"none of its first {_LINES_TRIED:,} lines is valid {encoding}; {_NAME_IT}")
    if file.kind == "json lines" and (found := multiline_json_form(head, encoding)):
        raise unreadable_file(
            file.path, f"it is {found}, not one object a line; `jq -c '.[]'` makes lines of an array, `jq -c .` of objects"
        )


def _is_no_text(text: str | bytes, encoding: str = UTF_8) -> bool:
    try:
        # The last line may end within a letter.
        codecs.getincrementaldecoder(encoding)().decode(text) if isinstance(text, bytes) else text.encode()
    except UnicodeError:
        return True
    return False


def _fields_of_parquet(file: InputFile) -> Sequence[str]:
    import pyarrow as pa

    from message_lifecycle.sources.parquet_records import names_in as fields_in
    from message_lifecycle.sources.parquet_records import open_parquet, shapes_of

    try:
        with file.open() as content, open_parquet(content) as found:
            names, shapes = found.schema_arrow.names, shapes_of(found)
    except (pa.ArrowException, OSError) as error:
        raise unreadable_file(file.path, f"it is no Parquet file, or a broken one ({error})") from error
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise unreadable_file(file.path, f"it has the fields {', '.join(map(repr, twice))} more than once")
    return fields_in(shapes)


def missing_field(without: str, field: str, fields: Sequence[str]) -> BadInput:
    """A file, or every record of a batch, lacks a wanted field. `without`: the file or the records, with a verb."""
    same = [name for name in fields if name.casefold() == field.casefold()]
    near = same or get_close_matches(field, fields, n=1) or [name for name in fields if name.rpartition(".")[2] == field]
    meant = f" Did you mean {near[0]!r}?" if near else ""
    known = f" It has: {', '.join(fields)}." if fields else ""
    return BadInput(f"{without} a field {field!r}.{meant}{known} Nothing was taken.{_delimiter(without, fields)}", code="MissingField")


def names_of(files: Sequence[InputFile], encoding: str) -> list[str]:
    """Return the names of fields in the first lines of the first files of JSON lines."""
    return list(dict.fromkeys(name for file in files[:10] if file.kind == "json lines" for name in names_in(file, encoding)))


def _delimiter(file: str, fields: Sequence[str]) -> str:
    is_csv = ".csv" in file.lower() and len(fields) == 1
    between = next((mark for mark in _DELIMITERS if is_csv and mark in fields[0]), None)
    return "" if between is None else f" If {between!r} stands between its fields, say so: --delimiter {between!r}"
