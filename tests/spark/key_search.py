"""Every byte that tables, databases and logs keep, searched for a key: whatever wrote it, and however it is spelled or packed."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import Record
from sqlalchemy import Connection, inspect

from message_lifecycle.stores.iceberg.table_folder import local_path

_IO = PyArrowFileIO()
TELLING = 12
"""Bytes at a key's beginning that tell of it: bounds are cut off after sixteen, and messages wherever they like."""


def forms(key: bytes) -> tuple[bytes, ...]:
    """What to look for in bytes without their backslashes, which every level of quoting doubles."""
    start = key[:TELLING]
    signed = [byte - 256 if byte > 127 else byte for byte in start]
    hexes = start.hex(), start.hex(" ")
    numbers = [separator.join(map(str, of)) for of in (start, signed) for separator in (",", ", ")]
    texts = start.decode("latin-1"), key.decode("utf-8", "replace"), key.decode("utf-8", "surrogateescape")
    addresses = quote(start), quote(start, safe="")
    spelled = [*hexes, *map(str.upper, hexes), *addresses, *numbers, *texts, *(json.dumps(text)[1:-1] for text in texts), repr(start)[2:-1]]
    coded = [word.encode("utf-8", "surrogateescape") for word in spelled] + [*_base64(start), start]
    return tuple(dict.fromkeys(form.replace(b"\\", b"") for form in coded))


def _base64(start: bytes) -> Iterator[bytes]:
    """As it stands in a longer text too: at each of the three places within a group of bytes."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            whole = (before + len(start)) * 8 // 6
            yield encode(bytes(before) + start)[-(-before * 8 // 6) : whole]


def files_with(location: str | Path, key: bytes) -> list[str]:
    """Names of the files below a table's location, or any other folder, in which the key is found, in any form."""
    root, sought = local_path(str(location)), forms(key)
    # `os.walk` passes over a folder that goes meanwhile.
    paths = sorted(Path(folder, name) for folder, _, names in os.walk(root) for name in names)
    return [str(path.relative_to(root)) for path in paths if path.is_file() and _still_holds(path, sought)]


def tables_with(database: Connection, key: bytes) -> list[str]:
    """Names of the tables, the connection's temporary ones too, with a row in which the key is found, in any form."""
    sought, names = forms(key), [*inspect(database).get_table_names(), *inspect(database).get_temp_table_names()]
    rows = {name: database.exec_driver_sql(f'SELECT * FROM "{name}"') for name in names}
    return [name for name in names if any(_inside(tuple(row), sought) for row in rows[name])]


def _told(content: bytes, sought: tuple[bytes, ...]) -> bool:
    plain = content.replace(b"\\", b"")
    return any(form in plain for form in sought)


def _still_holds(path: Path, sought: tuple[bytes, ...]) -> bool:
    try:
        return _holds(path, sought)
    except FileNotFoundError:
        return False  # a log that was moved, a temporary file


def _holds(path: Path, sought: tuple[bytes, ...]) -> bool:
    if _told(path.read_bytes(), sought):
        return True
    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            told = [str(file.metadata.metadata), *(_statistics(file))]
            decoded = any(_inside(column.to_pylist(), sought) for column in file.read().columns)
        return decoded or any(_told(text.encode(), sought) for text in told)
    if path.suffix == ".avro":
        with AvroFile[Record](_IO.new_input(str(path))) as reader:
            return any(_inside(record, sought) for record in reader)
    return False


def _statistics(file: pq.ParquetFile) -> Iterator[str]:
    for group in range(file.num_row_groups):
        for column in range(file.metadata.num_columns):
            found = file.metadata.row_group(group).column(column).statistics
            if found is not None and found.has_min_max:
                yield f"{found.min!r} {found.max!r}"


def _inside(value: Any, sought: tuple[bytes, ...]) -> bool:
    if isinstance(value, bytes):
        return _told(value, sought)
    if isinstance(value, str):
        return _told(value.encode("utf-8", "surrogateescape"), sought)
    if isinstance(value, Record):
        return any(_inside(part, sought) for part in value._data)
    if isinstance(value, dict):
        return any(_inside(part, sought) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple):
        return _told(repr([part for part in value if isinstance(part, int)]).encode(), sought) or any(
            _inside(part, sought) for part in value
        )
    return False
