"""The file of a backup: JSON lines, gzipped; a heading, each table's columns and rows, at the end counts and a SHA-256.

Written whole or not at all, readable by its owner alone; what is read is proved whole before anybody keeps it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from message_lifecycle.ledger.codec import canonical
from message_lifecycle.ledger.errors import BackupNotWritten, BrokenBackup

FORMAT = "message_lifecycle ledger backup 1"
_PORTION_ROWS = 500
# A plan's document may be of 8 MB: rows are handed on before many such are in memory.
_PORTION_BYTES = 4_000_000

Portion = tuple[str, list[dict[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """Which ledger, at which age. `taken_at`: microseconds, by the ledger's clock."""

    ledger_version: int
    uuid: str
    sequence: int
    taken_at: int
    format: str = FORMAT


class BackupWriter:
    """Takes tables and rows in turn; `counts` holds the rows of each table so far."""

    def __init__(self, file: gzip.GzipFile, heading: Heading) -> None:
        self._file, self._digest, self._table = file, hashlib.sha256(), ""
        self.counts: dict[str, int] = {}
        self._line(asdict(heading))

    def table(self, name: str, columns: list[str]) -> None:
        self._table = name
        self.counts[name] = 0
        self._line({"table": name, "columns": columns})

    def row(self, values: list[Any]) -> None:
        self.counts[self._table] += 1
        self._line(values)

    def end(self) -> None:
        self._line({"counts": self.counts, "sha256": self._digest.hexdigest()})

    def _line(self, content: object) -> None:
        text = (canonical(content) + "\n").encode()
        self._digest.update(text)
        self._file.write(text)


@contextmanager
def new_file(path: Path) -> Iterator[gzip.GzipFile]:
    """A gzip file that appears under its name when it is complete and on the disk; mode 0600. Raises BackupNotWritten."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            number = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(number, "wb") as raw:
                with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as file:
                    yield file
                raw.flush()
                os.fsync(raw.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise BackupNotWritten(str(path), error.strerror or str(error)) from error


def heading(path: Path) -> Heading:
    """The first line. Raises BrokenBackup."""
    first = next(_lines(path), b"")
    content = _parse(path, first, 1) if first else {}
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BrokenBackup(str(path), f"it does not begin with {FORMAT!r}")
    if set(content) != {field.name for field in fields(Heading)}:
        raise BrokenBackup(str(path), "its heading is not that of a backup")
    return Heading(**content)


def portions(path: Path) -> Iterator[Portion]:
    """(table, rows), a few at a time. Raises BrokenBackup, at the end only: what came before it must not be kept then."""
    digest, counts = hashlib.sha256(), dict[str, int]()
    table, columns, rows, size = "", list[str](), list[dict[str, Any]](), 0
    ended = False
    for number, line in enumerate(_lines(path), start=1):
        content = _parse(path, line, number)
        if ended:
            raise BrokenBackup(str(path), f"line {number} comes after its end")
        if isinstance(content, list):
            if len(content) != len(columns):
                raise BrokenBackup(str(path), f"line {number} is no row of {table or 'any table'}")
            rows.append(dict(zip(columns, content, strict=True)))
            counts[table] += 1
            size += len(line)
        if rows and (not isinstance(content, list) or len(rows) >= _PORTION_ROWS or size >= _PORTION_BYTES):
            yield table, rows
            rows, size = [], 0
        if isinstance(content, dict) and "table" in content:
            table, columns = content["table"], content["columns"]
            counts[table] = 0
        if isinstance(content, dict) and "sha256" in content:
            ended = True
            if content != {"counts": counts, "sha256": digest.hexdigest()}:
                raise BrokenBackup(str(path), "its contents are not those that were written (SHA-256 or counts differ)")
        digest.update(line)
    if not ended:
        raise BrokenBackup(str(path), "its end is missing")


def _parse(path: Path, line: bytes, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        raise BrokenBackup(str(path), f"line {number} is not JSON") from None


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) as file:
            yield from file
    except EOFError:
        raise BrokenBackup(str(path), "it was cut off") from None
    except (gzip.BadGzipFile, zlib.error):
        raise BrokenBackup(str(path), "it is not a gzip file, or was damaged") from None
    except OSError as error:
        raise BrokenBackup(str(path), error.strerror or str(error)) from None
