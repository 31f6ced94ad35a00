"""JSON lines as blocks of records. A number keeps its digits, and a field with parts keeps its text in the line (MSG-1).

A line ends with a line feed, a carriage return, or both. Several tasks may read slices of a large file. A slice has the lines that begin in
it.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import IO, NoReturn, cast

import pyarrow as pa

from message_lifecycle.sources.block import MESSAGE_BYTES, ROWS, Block, raw_text
from message_lifecycle.sources.files import UTF_8, InputFile

_CHUNK = 8 << 20
_BLANK = " \t"
_SPACE = re.compile(r"[ \t\r\n]*")
Json = bool | str | list["Json"] | dict[str, "Json"] | None
"""A value of a JSON text; its numbers are the texts that they are."""


class NotRecord(ValueError):
    """A line is not a record. The text says why."""


class Absent:
    """The type of a field that a record does not have."""


ABSENT = Absent()


class _Twice(dict[str, Json]):
    """An object that names a field more than once."""

    names: frozenset[str] = frozenset()


def _object_from_pairs(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    twice, names = _Twice(found), [name for name, _ in pairs]
    twice.names = frozenset(name for name in found if names.count(name) > 1)
    return twice


def _constant(text: str) -> NoReturn:
    raise NotRecord(f"{text} is no number of JSON")


_scan = json.JSONDecoder(object_pairs_hook=_object_from_pairs, parse_float=str, parse_int=str, parse_constant=_constant).raw_decode


def parse(text: str) -> Json:
    """Return the value of a JSON text. Numbers stay text. Raises NotRecord."""
    found: Json
    text = text.strip(" \t\r\n")
    try:
        found, end = _scan(text, 0)
    except NotRecord:
        raise
    except (ValueError, RecursionError):
        raise NotRecord("the text is not JSON") from None
    if end != len(text):
        raise NotRecord("more follows the value")
    return found


def parse_members(text: str) -> Iterator[tuple[str, str]]:
    """Yield names and texts of the fields of an object that `parse` has accepted."""
    at = _SPACE.match(text, text.index("{") + 1).end()  # type: ignore[union-attr]  # it matches anywhere
    while text[at] != "}":
        name, at = _scan(text, at)
        at = _SPACE.match(text, _SPACE.match(text, at).end() + 1).end()  # type: ignore[union-attr]
        _, end = _scan(text, at)
        yield name, text[at:end]
        at = _SPACE.match(text, end).end()  # type: ignore[union-attr]
        if text[at] == ",":
            at = _SPACE.match(text, at + 1).end()  # type: ignore[union-attr]


def parse_elements(text: str) -> Iterator[str]:
    """Yield the texts of the elements of a list that `parse` has accepted."""
    at = _SPACE.match(text, text.index("[") + 1).end()  # type: ignore[union-attr]
    while text[at] != "]":
        _, end = _scan(text, at)
        yield text[at:end]
        at = _SPACE.match(text, end).end()  # type: ignore[union-attr]
        if text[at] == ",":
            at = _SPACE.match(text, at + 1).end()  # type: ignore[union-attr]


def value_text(value: Json, source: str) -> str | None:
    """Return a value as text. A value with parts keeps its source text."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return source


def _find_value(record: Json, path: Sequence[str]) -> Json | Absent:
    for name in path:
        if not isinstance(record, dict) or name not in record:
            return ABSENT
        if isinstance(record, _Twice) and name in record.names:
            raise NotRecord("the line has a field twice")
        record = record[name]
    return record


def _source_text(text: str, path: Sequence[str]) -> str:
    for name in path:
        text = next(source for found, source in parse_members(text) if found == name)
    return text


def read_json_lines(
    file: InputFile,
    wanted: Sequence[str],
    folders: Mapping[str, str | None],
    *,
    encoding: str,
    whole: bool,
    start: int = 0,
    end: int | None = None,
) -> Iterator[Block]:
    """Yield the records of the lines that begin from byte `start` on, and before byte `end`."""
    number = 1
    for places, lines in _lines(file, start, end):
        for some in range(0, len(lines), ROWS):
            mine = lines[some : some + ROWS]
            block = _block(mine, places[some : some + ROWS], number + some, wanted, folders, encoding, whole)
            if start > 0:
                block.positions = None
            if len(block.at):
                yield block
        number += len(lines)


def _block(
    lines: Sequence[bytes | int],
    places: Sequence[int],
    number: int,
    wanted: Sequence[str],
    folders: Mapping[str, str | None],
    encoding: str,
    whole: bool,
) -> Block:
    columns: list[list[str | None]] = [[] for _ in wanted]
    absent: dict[str, set[int]] = {name: set() for name in wanted}
    broken: dict[int, str] = {}
    too_large: dict[int, int] = {}
    kept: list[bytes] = []
    at: list[int] = []
    positions: list[int] = []
    utf_8 = encoding == UTF_8
    fields = list(zip(wanted, (column.append for column in columns), strict=True))
    for index, line in enumerate(lines):
        size = line if isinstance(line, int) else len(line)
        line = b"" if isinstance(line, int) or size > MESSAGE_BYTES else line.rstrip(b"\r\n")
        if size <= MESSAGE_BYTES and not line.strip(b" \t"):
            continue
        row = len(at)
        at.append(places[index])
        positions.append(number + index)
        kept.append(line)
        if size > MESSAGE_BYTES:
            too_large[row] = size
            for _, append in fields:
                append(None)
            continue
        try:
            text = line.decode(encoding).strip(_BLANK)
            record = _parse_record(text)
            found = [_field(record, name, text, folders) for name in wanted]
        except UnicodeDecodeError:
            broken[row] = f"the line is not valid {encoding}"
        except NotRecord as error:
            broken[row] = str(error)
        else:
            for (name, append), one in zip(fields, found, strict=True):
                if one is ABSENT:
                    absent[name].add(row)
                    append(None)
                else:
                    append(cast("str | None", one))
            continue
        for _, append in fields:
            append(None)
    if not whole:
        values = None
    elif utf_8:
        values = pa.array(kept, pa.binary())
    else:
        values = pa.array([None if row in broken else line.decode(encoding).encode() for row, line in enumerate(kept)], pa.binary())
    return Block(
        at=pa.array(at, pa.int64()),
        positions=positions,
        fields={name: pa.array(column, pa.string()) for name, column in zip(wanted, columns, strict=True)},
        whole=values,
        raw=lambda row: raw_text(kept[row], encoding),
        broken=broken,
        too_large=too_large,
        absent=absent,
    )


def _parse_record(text: str) -> dict[str, Json]:
    try:
        record, end = _scan(text, 0)
    except NotRecord:
        raise
    except (ValueError, RecursionError):
        raise NotRecord("the line is not one JSON object") from None
    if end != len(text) or not isinstance(record, dict):
        raise NotRecord("the line is not one JSON object")
    if "\\u" in text:
        try:
            # Half of a surrogate pair would become another letter.
            json.dumps(record, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise NotRecord("the line has half of a surrogate pair, which is no letter") from None
    return record


def _field(record: dict[str, Json], name: str, text: str, folders: Mapping[str, str | None]) -> str | Absent | None:
    value = record.get(name, ABSENT)
    if isinstance(record, _Twice) and name in record.names:
        raise NotRecord("the line has a field twice")
    if value is ABSENT:
        if "." in name:
            path = name.split(".")
            value = _find_value(record, path)
            if isinstance(value, dict | list):
                return _source_text(text, path)
        if value is ABSENT:
            value = folders.get(name, ABSENT)
    if isinstance(value, dict | list):
        return _source_text(text, (name,))
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


def _lines(file: InputFile, start: int, end: int | None) -> Iterator[tuple[Sequence[int], Sequence[bytes | int]]]:
    """Yield lines with their ends, and the place of each.

    For an oversized line, yield its length instead, so that memory never holds the line.
    """
    with file.open() as raw, gzip.open(raw) if file.is_packed else raw as opened:
        content = cast("IO[bytes]", opened)
        place, rest = _skip_to_first_line(content, start)
        if start == 0 and place > 0 and end is not None:
            end = max(end, place + 1)  # the line behind a byte order mark starts with the mark
        while end is None or place < end:
            chunk = content.read(_CHUNK)
            rest += chunk
            # A final carriage return may be half of a line's end.
            ready = len(rest) if not chunk else max(rest.rfind(b"\n"), rest.rfind(b"\r", 0, max(len(rest) - 1, 0))) + 1
            if not ready and len(rest) > MESSAGE_BYTES:
                length, rest = _past_line(content, rest)
                yield [place], [length]
                place += length
                continue
            lines = rest[:ready].splitlines(keepends=True)
            begins = list(accumulate(map(len, lines), initial=place))
            if end is not None and place + ready > end:
                lines = lines[: next(at for at, begin in enumerate(begins) if begin >= end)]
            if lines:
                yield begins, lines
            if not chunk:
                return
            place, rest = place + ready, rest[ready:]


def _past_line(content: IO[bytes], rest: bytes) -> tuple[int, bytes]:
    """Read to the end of the line that begins with `rest`. Return the line's length, and the bytes of the next line."""
    length = 0
    while True:
        found = re.search(rb"\r\n|\n|\r(?=[^\n])", rest)
        if found is not None:
            return length + found.end(), rest[found.end() :]
        chunk = content.read(_CHUNK)
        if not chunk:
            return length + len(rest), b""
        # The last byte may be half of the line's end.
        length, rest = length + len(rest[:-1]), rest[-1:] + chunk


def _skip_to_first_line(content: IO[bytes], start: int) -> tuple[int, bytes]:
    """Skip the line that begins before `start`. Return the first line's place, and its bytes so far."""
    if start == 0:
        head = content.read(len(codecs.BOM_UTF8))
        return (len(head), b"") if head == codecs.BOM_UTF8 else (0, head)
    content.seek(start - 1)
    length, rest = _past_line(content, content.read(_CHUNK))
    return start - 1 + length, rest


def names_in(file: InputFile, encoding: str, *, most: int = 1000) -> list[str]:
    """Return the names of fields in the first lines. Inner fields have points in their names."""
    names: dict[str, None] = {}
    for _, lines in _lines(file, 0, _CHUNK):
        for line in lines[:most]:
            if isinstance(line, int):
                continue
            try:
                record = _parse_record(line.decode(encoding).strip(" \t\r\n"))
            except (NotRecord, UnicodeDecodeError):
                continue
            _collect_field_names(names, record, "")
        break
    return list(names)


def _collect_field_names(names: dict[str, None], record: dict[str, Json], before: str) -> None:
    for name, value in record.items():
        names[before + name] = None
        if isinstance(value, dict):
            _collect_field_names(names, value, f"{before}{name}.")


def multiline_json_form(content: bytes, encoding: str) -> str | None:
    """Return the form of a file that is one JSON value in many lines, by its beginning. None: the file may be JSON lines."""
    text = content.decode(encoding, "ignore").lstrip(" \t\r\n")
    first = re.search(r"[\r\n]|$", text)
    line_end = len(text) if first is None else first.start()
    try:
        _, end = _scan(text, 0)
    except (ValueError, RecursionError):
        end = len(text) + 1
    if text.startswith("["):
        # A first line that is a complete array, with more lines behind it, is one bad line.
        return None if end <= line_end and text[end:].strip() else "a JSON array"
    return "a JSON object in many lines" if line_end < end <= len(text) else None
