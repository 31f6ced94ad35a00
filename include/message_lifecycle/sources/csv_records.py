"""CSV files as blocks of records, by RFC 4180.

Line breaks within quotes belong to their value. `""` is an empty value, and nothing between delimiters is no value.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, cast

import pyarrow as pa
import pyarrow.compute as pc

from message_lifecycle.sources.arrow_text import json_objects, json_strings
from message_lifecycle.sources.block import BLOCK_BYTES, MESSAGE_BYTES, ROWS, Block, raw_text
from message_lifecycle.sources.files import UTF_8, InputFile, unreadable_file

# Python's own limit is 128 KiB a value.
csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
# States of a CSV parser: at the beginning of a value, within a plain value, within quotes, behind a quote that may close them.
_START, _PLAIN, _QUOTED, _QUOTE = range(4)
_WITHIN = re.compile(r'[^"]*+(?:""[^"]*+)*+')


class _Lines:
    """The lines of a text. Remembers the lines of the current record.

    The rest of an oversized record is skipped: memory does not hold it, and the parser gets a short end instead.
    """

    def __init__(self, text: io.TextIOWrapper, delimiter: str) -> None:
        self._text, self._delimiter, self._ahead = text, delimiter, ""
        self.number = 0
        self.has_ended = False
        self.begin()

    def begin(self) -> None:
        """Forget the lines of the last record."""
        self.taken: list[str] = []
        self.first, self.size = self.number + 1, 0

    @property
    def is_too_large(self) -> bool:
        return self.size > MESSAGE_BYTES

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._piece()
        if not line:
            self.has_ended = True
            raise StopIteration
        # The parser asks for a further line of a record only within quotes.
        goes_on, self.size = self.number >= self.first, self.size + len(line)
        if self.is_too_large:
            self._pass_over(line, _QUOTED if goes_on else _START)
            return '"\n' if goes_on else "x\n"
        self.taken.append(line)
        self.number += 1
        return line

    def _pass_over(self, piece: str, state: int) -> None:
        """Read to the end of the record. Raises StopIteration if the file ends within quotes."""
        self.taken.clear()
        while piece:
            state = self._state_after(state, piece.rstrip("\r\n") if state != _QUOTED else piece)
            ends = piece.endswith(("\n", "\r"))
            self.number += ends
            if ends and state != _QUOTED:
                return
            piece = self._piece()
            self.size += len(piece)
        if state == _QUOTED:
            self.number, self.has_ended = max(self.number, self.first), True
            raise StopIteration

    def _state_after(self, state: int, piece: str) -> int:
        """Return the parser's state behind this part of a line."""
        at, opening = 0, self._delimiter + '"'
        while at < len(piece):
            if state == _QUOTED:
                found = _WITHIN.match(piece, at)
                assert found is not None
                if (at := found.end() + 1) > len(piece):
                    return _QUOTED
                state = _QUOTE
            elif state == _QUOTE:
                state = {'"': _QUOTED, self._delimiter: _START}.get(piece[at], _PLAIN)
                at += 1
            elif state == _START and piece[at] == '"':
                state, at = _QUOTED, at + 1
            else:
                if (found_at := piece.find(opening, at)) < 0:
                    return _START if piece.endswith(self._delimiter) else _PLAIN
                state, at = _QUOTED, found_at + len(opening)
        return state

    def _piece(self) -> str:
        """Read a line with its end, or a part of an oversized line."""
        piece, self._ahead = self._ahead, ""
        if not piece.endswith("\r"):
            piece += self._text.readline(MESSAGE_BYTES + 1)
        if piece.endswith("\r"):
            # A part may end within the two characters of a line's end.
            self._ahead = self._text.readline(1)
            if self._ahead == "\n":
                piece, self._ahead = piece + "\n", ""
        return piece


class _Grammar:
    """RFC 4180 for one delimiter: checks a record, and finds its values that are empty in quotes."""

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
    """Yield the records behind the header. Raises UnreadableFile for an unclosed quote."""
    with file.open() as raw, gzip.open(raw) if file.is_packed else raw as opened:
        lines, reader = _reader(cast("IO[bytes]", opened), delimiter, encoding)
        header = _next(file, reader, lines)
        if header is None:
            return
        grammar = _Grammar(delimiter)
        rows = _Rows(header, wanted, folders, encoding, whole)
        while (record := _next(file, reader, lines)) is not None:
            text = lines.taken[0] if len(lines.taken) == 1 else "".join(lines.taken)
            if lines.is_too_large:
                rows.add_too_large(lines.size, lines.first)
                continue
            if not record or (len(header) > 1 and not text.strip(" \r\n")):
                continue
            rows.add(record, text, lines.first, grammar)
            if len(rows.raw) >= ROWS or rows.size >= BLOCK_BYTES:
                yield rows.block()
                rows = _Rows(header, wanted, folders, encoding, whole)
        if rows.raw:
            yield rows.block()


def read_header(file: InputFile, *, delimiter: str, encoding: str) -> list[str]:
    """Return the names of the fields. Empty for an empty file. Raises UnreadableFile."""
    with file.open() as raw, gzip.open(raw) if file.is_packed else raw as opened:
        lines, reader = _reader(cast("IO[bytes]", opened), delimiter, encoding)
        return _next(file, reader, lines) or []


def _reader(content: IO[bytes], delimiter: str, encoding: str) -> tuple[_Lines, Iterator[list[str]]]:
    # Invalid bytes pass here, and later only their record is refused. A byte order mark is not part of the first name.
    text = io.TextIOWrapper(
        cast("io.BufferedReader", content), "utf-8-sig" if encoding == UTF_8 else encoding, "surrogateescape", newline=""
    )
    lines = _Lines(text, delimiter)
    return lines, csv.reader(lines, delimiter=delimiter)


def _next(file: InputFile, reader: Iterator[list[str]], lines: _Lines) -> list[str] | None:
    lines.begin()
    record = next(reader, None)
    if lines.has_ended and lines.number >= lines.first:
        raise unreadable_file(file.path, f"a quote in the record of line {lines.first} is never closed")
    return record


class _Rows:
    """Collects records for a block."""

    def __init__(self, header: Sequence[str], wanted: Sequence[str], folders: Mapping[str, str | None], encoding: str, whole: bool) -> None:
        self._header, self._wanted, self._folders, self._encoding, self._whole = header, wanted, folders, encoding, whole
        self._records: list[Sequence[str | None]] = []
        self._positions: list[int] = []
        self._broken: dict[int, str] = {}
        self._empty: list[tuple[int, int]] = []
        self._none = (None,) * len(header)
        self._too_large: dict[int, int] = {}
        self.raw: list[str] = []
        self.size = 0

    def add_too_large(self, size: int, position: int) -> None:
        self._too_large[len(self.raw)] = size
        self.raw.append("")
        self._positions.append(position)
        self._records.append(self._none)

    def add(self, record: Sequence[str], text: str, position: int, grammar: _Grammar) -> None:
        row = len(self.raw)
        self.raw.append(text)
        self.size += len(text)
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
            too_large=self._too_large,
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
