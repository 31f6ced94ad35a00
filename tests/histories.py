"""Tables with a history, written by PyIceberg in a catalog of their own, which Java sees as well: a schema of the embedded database."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.table import Table
from pyiceberg.utils.config import Config
from sqlalchemy import NullPool, create_engine, text, update

from message_lifecycle.stores.iceberg import table_metadata
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.java import PROPERTIES, Jvm
from message_lifecycle.stores.iceberg.layout import CATALOG
from message_lifecycle.stores.iceberg.table_folder import local_path
from message_lifecycle.stores.iceberg.table_metadata import change_metadata

ON_OWN_CATALOG = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.usefixtures("own_catalog")]
"""Marks of tests that make such catalogs."""
PLACE = ("demo", "t")
_SCHEMA = pa.schema([pa.field("offset", pa.int64(), nullable=False)])
_made: set[str] = set()
_opened: list[SqlCatalog] = []


def uri_in(folder: Path) -> str:
    """Return the folder's own catalog as an address for SQLAlchemy. From now on, Java in this process commits to that catalog."""
    named = folder / "catalog"
    uri = _embedded()
    if not named.exists():
        schema = f"test_{token_hex(8)}"
        _execute(uri, f"CREATE SCHEMA {schema}")
        _made.add(schema)
        named.write_text(schema)
    schema = named.read_text()
    jvm = _jvm()
    _forget_lake(jvm)
    settings = jvm.settings
    own = {f"{PROPERTIES}.uri": f"{settings[f'{PROPERTIES}.uri']}?currentSchema={schema}", f"{PROPERTIES}.warehouse": f"{folder}/warehouse"}
    jvm.__dict__["lake"] = Jvm({**settings, **own}, lambda _: (jvm.gateway, None)).lake
    return f"{uri}?options=-csearch_path%3D{schema}"


def forget_catalogs() -> None:
    """Java sees the embedded catalog again, and the schemas and connections that this process has made go."""
    while _opened:
        _opened.pop().engine.dispose()
    if _made:
        _forget_lake(_jvm())
        _execute(_embedded(), *(f"DROP SCHEMA {schema} CASCADE" for schema in _made))
        _made.clear()


def _embedded() -> str:
    found = Config().get_catalog_config(CATALOG)
    assert found is not None
    return str(found["uri"])


def _jvm() -> Jvm:
    found = engine_of_process()
    assert isinstance(found, Jvm)
    return found


def _forget_lake(jvm: Jvm) -> None:
    lake = jvm.__dict__.pop("lake", None)
    if lake is not None:
        lake.close()


def _execute(uri: str, *statements: str) -> None:
    with create_engine(uri, poolclass=NullPool).begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def catalog_in(folder: Path, **properties: str) -> SqlCatalog:
    (folder / "warehouse").mkdir(exist_ok=True)
    uri = uri_in(folder)
    catalog = SqlCatalog(CATALOG, uri=uri, warehouse=str(folder / "warehouse"), **properties)
    # Every test has a catalog or two. If they kept their connections after the test, the server would have too many. If they kept none, each
    # statement would make one, and its password would take a third of the test.
    _opened.append(catalog)
    catalog.create_namespace_if_not_exists(PLACE[0])
    return catalog


def set_properties(place: tuple[str, str], changes: Mapping[str, str | None]) -> None:
    """As another writer does; None removes one."""
    change_metadata(place, lambda base, builder: table_metadata.set_properties(base, builder, changes), what="a test")


def rewrite_document(catalog: SqlCatalog, table: Table, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Put what `change` makes of the table's metadata in their place: what no writer would do, and what time alone does."""
    old = table.refresh().metadata_location
    new = f"{table.location()}/metadata/{int(old.rsplit('/', 1)[-1].split('-', 1)[0]) + 1:05}-{uuid.uuid4()}.metadata.json"
    before = document_of(table)
    log = [*before["metadata-log"], {"metadata-file": old, "timestamp-ms": before["last-updated-ms"]}]
    local_path(new).write_text(json.dumps(change({**before, "metadata-log": log})))
    with catalog.engine.begin() as connection:
        statement = update(IcebergTables).where(IcebergTables.metadata_location == old)
        assert connection.execute(statement.values(metadata_location=new, previous_metadata_location=old)).rowcount == 1
    table.refresh()


def new_table(catalog: SqlCatalog, **properties: str) -> Table:
    return catalog.create_table(PLACE, schema=_SCHEMA, properties=properties)


def append(table: Table, *offsets: int, **summary: str) -> int:
    """One data file; the snapshot's id."""
    table.append(pa.table({"offset": list(offsets)}, schema=_SCHEMA), snapshot_properties=summary)
    return head(table)


def head(table: Table) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def document_of(table: Table) -> dict[str, Any]:
    return dict(json.loads(local_path(table.refresh().metadata_location).read_bytes()))


def folder_of(table: Table) -> Path:
    return local_path(table.location())


def names_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def read_by_pyiceberg(table: Table, snapshots: Sequence[int]) -> set[str]:
    """Every file that these snapshots are read through, by PyIceberg's own readers; relative to the location."""
    found = set[str]()
    for snapshot_id in snapshots:
        snapshot = table.snapshot_by_id(snapshot_id)
        assert snapshot is not None
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found.update(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))
    folder = folder_of(table)
    return {str(local_path(path).relative_to(folder)) for path in found}
