"""The search that shows a key to be nowhere finds it wherever it is put: else an empty answer would say nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from secrets import token_bytes
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import create_engine

from tests.spark.key_search import files_with, tables_with

SPELLED: dict[str, Callable[[bytes], bytes | str]] = {
    "raw": lambda key: key,
    "hex": lambda key: key.hex(),
    "hex as PostgreSQL has it": lambda key: rf"\\x{key.hex()}",
    "hex in capitals": lambda key: key.hex().upper(),
    "hex as Spark shows it": lambda key: key.hex(" ").upper(),
    "base64": base64.b64encode,
    "base64 for addresses": base64.urlsafe_b64encode,
    "in the middle of base64": lambda key: base64.b64encode(b"k=" + key + b";"),
    "at the end of base64": lambda key: base64.b64encode(b"k" + key),
    "Python": repr,
    "Python in JSON in JSON": lambda key: json.dumps(json.dumps({"key": repr(key)})),
    "JSON": lambda key: json.dumps(key.decode("latin-1")),
    "JSON in Python": lambda key: repr(json.dumps(key.decode("utf-8", "surrogateescape"))),
    "numbers": lambda key: json.dumps([*key]),
    "numbers of Java": lambda key: str([byte - 256 if byte > 127 else byte for byte in key]),
    "an address": lambda key: quote(key),
    "read as text": lambda key: key.decode("utf-8", "replace"),
    "read as Latin": lambda key: key.decode("latin-1"),
    "cut off": lambda key: key[:16].hex(),
}


@pytest.fixture(params=SPELLED)
def spelled(request: pytest.FixtureRequest) -> Callable[[bytes], bytes]:
    def made(key: bytes) -> bytes:
        told = SPELLED[request.param](key)
        return told if isinstance(told, bytes) else told.encode()

    return made


def test_in_a_file(tmp_path: Path, spelled: Callable[[bytes], bytes]) -> None:
    key = token_bytes(32)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "task.log").write_bytes(b"before " + spelled(key) + b" after")
    (tmp_path / "other.log").write_bytes(spelled(token_bytes(32)))
    assert files_with(tmp_path, key) == ["deep/task.log"]


def test_in_a_row(spelled: Callable[[bytes], bytes]) -> None:
    key = token_bytes(32)
    with create_engine("sqlite://").connect() as database:
        for name, of in {"planted": key, "other": token_bytes(32)}.items():
            database.exec_driver_sql(f"CREATE TABLE {name} (at int, told)")
            database.exec_driver_sql(f"INSERT INTO {name} VALUES (1, NULL), (2, ?)", (spelled(of),))
        assert tables_with(database, key) == ["planted"]


def test_in_packed_columns(tmp_path: Path) -> None:
    key = token_bytes(32)
    rows = [{"headers": [{"name": "h", "value": of}]} for of in (b"other", key)]
    pq.write_table(pa.Table.from_pylist(rows * 1000), tmp_path / "packed.parquet", compression="zstd")
    pq.write_table(pa.Table.from_pylist(rows[:1]), tmp_path / "other.parquet")
    assert files_with(tmp_path, key) == ["packed.parquet"]
