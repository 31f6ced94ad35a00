"""Backup of the whole ledger to one file, and restore into an empty database.

The file has names and texts of people, but no password. Its format is JSON lines, gzipped: a heading, each table's columns and rows, then
counts and a SHA-256. The backup writes the whole file or nothing, readable by its owner alone. A restore checks the whole file before it
commits.
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

from sqlalchemy import Connection, Table, delete, func, select

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import backup_not_written, broken_backup, canonical, ledger_not_empty
from message_lifecycle.ledger.database import Database, add_rows
from message_lifecycle.ledger.schema import create_tables, require_current, require_version, version

_ROWS_AT_ONCE = 500
_DOCUMENTS_AT_ONCE = 4
"""The number of rows to read at once from the table of documents. A plan's document may have 8 MB."""
FORMAT = "message_lifecycle ledger backup 1"
_PORTION_ROWS = 500
_PORTION_BYTES = 4_000_000
"""The size at which the reader of a backup yields rows, so that few documents are in memory. A plan's document may have 8 MB."""

Portion = tuple[str, list[dict[str, object]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """The content of a backup: its heading, and rows per table."""

    heading: Heading
    counts: dict[str, int]


def backup(database: Database, path: Path) -> Backup:
    """Write the ledger as it is at one instant. Replaces a file of that name. Raises BackupNotWritten."""
    require_current(database)
    with new_file(path) as file, database.snapshot() as connection:
        meta = connection.execute(select(tables.meta)).one()
        head = Heading(ledger_version=meta.version, uuid=meta.uuid, sequence=meta.sequence, taken_at=database.now(connection))
        writer = BackupWriter(file, head)
        for table in tables.metadata.sorted_tables:
            writer.table(table.name, [column.name for column in table.columns])
            at_once = _DOCUMENTS_AT_ONCE if table is tables.plan_documents else _ROWS_AT_ONCE
            rows = select(table).order_by(*table.primary_key).execution_options(yield_per=at_once)
            for row in connection.execute(rows):
                writer.row(list(row))
        writer.end()
    return Backup(heading=head, counts=writer.counts)


def restore(database: Database, path: Path) -> Backup:
    """Fill an empty database from a backup.

    The ledger is then as old as the backup. Topics whose tables are newer refuse deletions until a person accepts them (`Identity.accept`).

    Raises BrokenBackup, LedgerTooNew, LedgerTooOld, LedgerNotEmpty. The database is then unchanged.
    """
    head = heading(path)
    require_version(str(path), head.ledger_version)
    counts: dict[str, int] = {}
    with database.writing(alone=True) as connection:
        _make_empty(connection, database)
        connection.execute(delete(tables.meta))
        for name, rows in read_portions(path):
            add_rows(connection, _find_table(name, rows[0], path), rows)
            counts[name] = counts.get(name, 0) + len(rows)
    return Backup(heading=head, counts=counts)


def _find_table(name: str, row: dict[str, object], path: Path) -> Table:
    table = tables.metadata.tables.get(name)
    if table is None or {column.name for column in table.columns} != set(row):
        raise broken_backup(str(path), f"it holds {name} otherwise than a ledger of its version does")
    return table


def _make_empty(connection: Connection, database: Database) -> None:
    """Create the tables, or check that they are empty. Raises LedgerNotEmpty, LedgerTooNew, LedgerTooOld."""
    found = version(connection)
    if found == 0:
        create_tables(connection)
        return
    require_version(database.place, found)
    for table in tables.metadata.sorted_tables:
        rows = connection.execute(select(func.count()).select_from(table)).scalar_one()
        if table is not tables.meta and rows:
            raise ledger_not_empty(database.place, f"{table.name} has {rows} rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The ledger's identity and age. `taken_at`: microseconds by the ledger's clock."""

    ledger_version: int
    uuid: str
    sequence: int
    taken_at: int
    format: str = FORMAT


class BackupWriter:
    """Writes tables and rows in turn. `counts` holds the rows of each table so far."""

    def __init__(self, file: gzip.GzipFile, heading: Heading) -> None:
        self._file, self._digest, self._table = file, hashlib.sha256(), ""
        self.counts: dict[str, int] = {}
        self._line(asdict(heading))

    def table(self, name: str, columns: list[str]) -> None:
        self._table = name
        self.counts[name] = 0
        self._line({"table": name, "columns": columns})

    def row(self, values: list[object]) -> None:
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
    """Open a gzip file that appears under its name when it is complete and on the disk, with mode 0600. Raises BackupNotWritten."""
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
        raise backup_not_written(str(path), error.strerror or str(error)) from error


def heading(path: Path) -> Heading:
    """Read the first line. Raises BrokenBackup."""
    first = next(_lines(path), b"")
    content = _parse(path, first, 1) if first else {}
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise broken_backup(str(path), f"it does not begin with {FORMAT!r}")
    if set(content) != {field.name for field in fields(Heading)}:
        raise broken_backup(str(path), "its heading is not that of a backup")
    return Heading(**content)


def read_portions(path: Path) -> Iterator[Portion]:
    """Yield (table, rows), a few rows at a time.

    Raises BrokenBackup, possibly only at the end. The caller must then drop all earlier portions.
    """
    digest, counts = hashlib.sha256(), dict[str, int]()
    table, columns, rows, size = "", list[str](), list[dict[str, object]](), 0
    ended = False
    for number, line in enumerate(_lines(path), start=1):
        content = _parse(path, line, number)
        if ended:
            raise broken_backup(str(path), f"line {number} comes after its end")
        if isinstance(content, list):
            if len(content) != len(columns):
                raise broken_backup(str(path), f"line {number} is no row of {table or 'any table'}")
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
                raise broken_backup(str(path), "its contents are not those that were written (SHA-256 or counts differ)")
        digest.update(line)
    if not ended:
        raise broken_backup(str(path), "its end is missing")


def _parse(path: Path, line: bytes, number: int) -> object:
    try:
        return json.loads(line)
    except ValueError:
        raise broken_backup(str(path), f"line {number} is not JSON") from None


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) as file:
            yield from file
    except EOFError:
        raise broken_backup(str(path), "it was cut off") from None
    except (gzip.BadGzipFile, zlib.error):
        raise broken_backup(str(path), "it is not a gzip file, or was damaged") from None
    except OSError as error:
        raise broken_backup(str(path), error.strerror or str(error)) from None
