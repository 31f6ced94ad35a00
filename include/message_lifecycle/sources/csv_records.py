"""CSV files as blocks of records, by RFC 4180: line breaks within quotes belong to their value, and `""` is an empty value where nothing
between delimiters is none.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, cast

import pyarrow as pa
import pyarrow.compute as pc

from message_lifecycle.sources.arrow_text import json_objects, json_strings
from message_lifecycle.sources.block import ROWS, Block, raw_text
from message_lifecycle.sources.files import UTF_8, InputFile, unreadable_file

# Python's own limit is 128 KiB a value.
csv.field_size_limit(min(sys.maxsize, 2**31 - 1))


class _Lines:
    """The lines of a text, with a memory of those that the current record has taken."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self.taken: list[str] = []
        self.number = 0
        self.has_ended = False

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = next(self._lines, None)
        if line is None:
            self.has_ended = True
            raise StopIteration
        self.taken.append(line)
        self.number += 1
        return line


class _Grammar:
    """RFC 4180 for one delimiter: whether a record follows it, and which of its values are empty in quotes."""

    def __init__(self, delimiter: str) -> None:
        mark = re.escape(delimiter)
        value = rf'(?:"[^"]*+(?:""[^"]*+)*+"|[^"{mark}\r\n][^{mark}\r\n]*+)?'
        self._record = re.compile(rf"{value}(?:{mark}{value})*+(?:\r\n|\r|\n)?")
        self._value = re.compile(rf'("[^"]*+(?:""[^"]*+)*+"|[^{mark}\r\n]*+)({mark})?')

    def allows(self, record: str) -> bool:
        return self._record.fullmatch(record) is not None

    def empty_in_quotes(self, record: str) -> list[int]:
        found, at, column = [], 0, 0
        while True:
            value = self._value.match(record, at)
            assert value is not None
            if value[1] == '""':
                found.append(column)
            if value[2] is None:
                return found
            at, column = value.end(), column + 1


def read_csv(
    file: InputFile, wanted: Sequence[str], folders: Mapping[str, str | None], *, delimiter: str, encoding: str, whole: bool
) -> Iterator[Block]:
    """The records behind the header. Raises UnreadableFile for a quote that is never closed."""
    with file.open() as raw, gzip.open(raw) if file.is_packed else raw as opened:
        lines, reader = _reader(cast("IO[bytes]", opened), delimiter, encoding)
        header = _next(file, reader, lines)
        if header is None:
            return
        grammar = _Grammar(delimiter)
        rows = _Rows(header, wanted, folders, encoding, whole)
        while (record := _next(file, reader, lines)) is not None:
            text = lines.taken[0] if len(lines.taken) == 1 else "".join(lines.taken)
            if not record or (len(header) > 1 and not text.strip(" \r\n")):
                continue
            rows.add(record, text, lines.number - len(lines.taken) + 1, grammar)
            if len(rows.raw) >= ROWS:
                yield rows.block()
                rows = _Rows(header, wanted, folders, encoding, whole)
        if rows.raw:
            yield rows.block()


def read_header(file: InputFile, *, delimiter: str, encoding: str) -> list[str]:
    """The names of the fields; none of an empty file. Raises UnreadableFile."""
    with file.open() as raw, gzip.open(raw) if file.is_packed else raw as opened:
        lines, reader = _reader(cast("IO[bytes]", opened), delimiter, encoding)
        return _next(file, reader, lines) or []


def _reader(content: IO[bytes], delimiter: str, encoding: str) -> tuple[_Lines, Iterator[list[str]]]:
    # Bytes that are no letters come through, and their record is refused alone. A byte order mark is no part of the first name.
    text = io.TextIOWrapper(
        cast("io.BufferedReader", content), "utf-8-sig" if encoding == UTF_8 else encoding, "surrogateescape", newline=""
    )
    lines = _Lines(text)
    return lines, csv.reader(lines, delimiter=delimiter)


def _next(file: InputFile, reader: Iterator[list[str]], lines: _Lines) -> list[str] | None:
    lines.taken.clear()
    record = next(reader, None)
    if lines.has_ended and lines.taken:
        first = lines.number - len(lines.taken) + 1
        raise unreadable_file(file.path, f"a quote in the record of line {first} is never closed")
    return record


class _Rows:
    """Records on their way into a block."""

    def __init__(self, header: Sequence[str], wanted: Sequence[str], folders: Mapping[str, str | None], encoding: str, whole: bool) -> None:
        self._header, self._wanted, self._folders, self._encoding, self._whole = header, wanted, folders, encoding, whole
        self._records: list[Sequence[str | None]] = []
        self._positions: list[int] = []
        self._broken: dict[int, str] = {}
        self._empty: list[tuple[int, int]] = []
        self._none = (None,) * len(header)
        self.raw: list[str] = []

    def add(self, record: Sequence[str], text: str, position: int, grammar: _Grammar) -> None:
        row = len(self.raw)
        self.raw.append(text)
        self._positions.append(position)
        reason = None
        if not (text.isascii() or _is_text(text)):
            reason = f"the line is not valid {self._encoding}"
        elif '"' in text and not grammar.allows(text):
            reason = "the record breaks the rules of quotes: a quoted value goes on behind its closing quote"
        elif len(record) != len(self._header):
            reason = f"the line has {len(record)} fields, and the header {len(self._header)}"
        if reason is not None:
            self._broken[row] = reason
            self._records.append(self._none)
            return
        self._records.append(record)
        if '""' in text:
            self._empty += [(row, column) for column in grammar.empty_in_quotes(text)]

    def block(self) -> Block:
        columns = {
            name: self._column(at, values)
            for at, (name, values) in enumerate(zip(self._header, zip(*self._records, strict=True), strict=True))
        }
        count = len(self.raw)
        fields = {}
        for name in self._wanted:
            missing = pa.array([self._folders.get(name)] * count, pa.string())
            fields[name] = columns.get(name, missing)
        whole = json_objects([(name, json_strings(values)) for name, values in columns.items()]) if self._whole else None
        at = pa.array(self._positions, pa.int64())
        raw, encoding = self.raw, self._encoding
        return Block(
            at=at,
            positions=self._positions,
            fields=fields,
            whole=whole,
            raw=lambda row: raw_text(raw[row].rstrip("\r\n").encode(encoding, "surrogateescape"), encoding),
            broken=self._broken,
        )

    def _column(self, at: int, values: tuple[str | None, ...]) -> pa.Array:
        column = pa.array(values, pa.string())
        nothing = pc.equal(column, "")
        if quoted := [row for row, place in self._empty if place == at]:
            there = set(quoted)
            nothing = pa.array([one and row not in there for row, one in enumerate(nothing.to_pylist())], pa.bool_())
        return pc.if_else(pc.fill_null(nothing, True), pa.scalar(None, pa.string()), column)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
