"""The fixture as one file: a lake's folder, the catalog's rows, the ledger's backup; saved without the path where it lay, restored anywhere.

Iceberg's metadata name every file by its whole path. They are saved as they are, but for that path: a placeholder of the same length stands
in its place, and the path of a restored lake is padded to that length. So restoring changes no size and no checksum.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tarfile
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables, SqlCatalog
from sqlalchemy import Table, delete, insert, or_, select

from message_lifecycle.ledger import restore_ledger
from message_lifecycle.ledger.backup import BackupWriter, heading, new_file, portions
from message_lifecycle.ledger.codec import plan_id_of
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.iceberg.layout import DELETED
from tests.head_lake.world import STREAM

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

LENGTH = 180
"""Of the path of every lake of the fixture."""
PLACEHOLDER = "/head-lake-lies-here".ljust(LENGTH, "-")
FILE = Path(__file__).with_name("head_lake.tar.xz")
EXPECTED = Path(__file__).with_name("expected.json")
_LAKE, _CATALOG, _LEDGER = "lake", "catalog.json", "ledger.jsonl"
_TABLES: Table = IcebergTables.__table__  # type: ignore[assignment]  # it is declared as any selectable
_NAMESPACES: Table = IcebergNamespaceProperties.__table__  # type: ignore[assignment]  # as above


def padded(folder: Path) -> Path:
    """A folder in there whose path is as long as the placeholder."""
    room = LENGTH - len(str(folder)) - 1
    assert 0 < room < 256, f"a path of {LENGTH} characters cannot begin with {folder}"
    return folder / ("_" * room)


def save(catalog: Catalog, warehouse: Path, ledger: Path, expected: dict[str, Any]) -> None:
    assert isinstance(catalog, SqlCatalog)
    assert len(str(warehouse)) == LENGTH
    here = str(warehouse)
    with catalog.engine.connect() as connection:
        rows = {
            table.name: [dict(row._mapping) for row in connection.execute(select(table).where(_ours(table, catalog)))]
            for table in (_TABLES, _NAMESPACES)
        }
    saved = _moved(ledger, ledger.with_suffix(".saved"), here=here, there=PLACEHOLDER)
    texts = {
        _CATALOG: json.dumps(rows, indent=1, sort_keys=True).replace(here, PLACEHOLDER),
        _LEDGER: gzip.decompress(saved.read_bytes()).decode(),
    }
    with tarfile.open(FILE, "w:xz", preset=9) as tar:
        for title, text in texts.items():
            _put(tar, title, text.encode(), 0)
        for path in sorted((path for path in warehouse.rglob("*") if path.is_file()), key=lambda path: (path.suffix, path)):
            content = path.read_bytes().replace(here.encode(), PLACEHOLDER.encode())
            assert path.suffix in (".avro", ".json", ".puffin", ".jsonl") or PLACEHOLDER.encode() not in content, path
            assert str(warehouse.parent).encode() not in content, path
            _put(tar, f"{_LAKE}/{path.relative_to(warehouse)}", content, path.stat().st_mtime)
    EXPECTED.write_text(json.dumps(expected, sort_keys=True, indent=1) + "\n", encoding="utf-8")


def _put(tar: tarfile.TarFile, title: str, content: bytes, changed: float) -> None:
    entry = tarfile.TarInfo(title)
    entry.size, entry.mtime, entry.mode = len(content), changed, 0o600
    tar.addfile(entry, BytesIO(content))


def restore(catalog: Catalog, folder: Path, ledger_url: str) -> Path:
    """The lake in the folder, its rows in the catalog, its ledger in the empty database at that address. Where the lake lies."""
    assert isinstance(catalog, SqlCatalog)
    warehouse = padded(folder)
    here = str(warehouse)
    warehouse.mkdir(parents=True)
    with tarfile.open(FILE) as tar:
        tar.extractall(folder / "saved", filter="data")
    saved = folder / "saved"
    for path in [path for path in (saved / _LAKE).rglob("*") if path.is_file()]:
        content = path.read_bytes()
        if PLACEHOLDER.encode() in content:
            changed = path.stat().st_mtime_ns
            path.write_bytes(content.replace(PLACEHOLDER.encode(), here.encode()))
            os.utime(path, ns=(changed, changed))
    for path in (saved / _LAKE).iterdir():
        path.rename(warehouse / path.name)
    whole = saved / "ledger.gz"
    whole.write_bytes(gzip.compress((saved / _LEDGER).read_bytes(), 1))
    restore_ledger(ledger_url, _moved(whole, saved / "moved.gz", here=PLACEHOLDER, there=here))
    rows = json.loads((saved / _CATALOG).read_text(encoding="utf-8").replace(PLACEHOLDER, here))
    forget(catalog)
    with catalog.engine.begin() as connection:
        for table in (_TABLES, _NAMESPACES):
            connection.execute(insert(table), [{**row, "catalog_name": catalog.name} for row in rows[table.name]])
    shutil.rmtree(saved)
    return warehouse


def _moved(ledger: Path, moved: Path, *, here: str, there: str) -> Path:
    """The backup of the ledger, of a lake that lies elsewhere: a plan that names a whole path keeps its id beside its new text."""
    last = ""
    with new_file(moved) as file:
        writer = BackupWriter(file, heading(ledger))
        for name, rows in portions(ledger):
            if name != last:
                writer.table(name, list(rows[0]))
                last = name
            for row in rows:
                writer.row(list(_moved_row(row, here, there).values()))
        writer.end()
    return moved


def _moved_row(row: dict[str, Any], here: str, there: str) -> dict[str, Any]:
    found = {column: value.replace(here, there) if isinstance(value, str) else value for column, value in row.items()}
    if "document" in found and "text_id" in found and found["document"] != row["document"]:
        # An archive's folder is one of the topic's settings, and of these the plan names the hash.
        found["document"] = found["document"].replace(_policy_hash(row["document"]), _policy_hash(found["document"]))
        found["text_id"] = plan_id_of(found["document"])
    return found


def _policy_hash(document: str) -> str:
    return Policy.of_values(tuple((name, value) for name, value in json.loads(document)["policy"])).hash


def forget(catalog: Catalog) -> None:
    """Take the fixture's rows out of the catalog; its files are the caller's."""
    assert isinstance(catalog, SqlCatalog)
    with catalog.engine.begin() as connection:
        for table in (_TABLES, _NAMESPACES):
            connection.execute(delete(table).where(_ours(table, catalog)))


def _ours(table: Table, catalog: SqlCatalog) -> Any:
    column = table.c["table_namespace" if table is _TABLES else "namespace"]
    return (table.c.catalog_name == catalog.name) & or_(column == STREAM, column == DELETED)
