"""Tables with a history, written by PyIceberg in a catalog of their own: no JVM, no server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from message_lifecycle.stores.iceberg.document import local_path

PLACE = ("demo", "t")
_SCHEMA = pa.schema([pa.field("offset", pa.int64(), nullable=False)])


def catalog_in(folder: Path) -> SqlCatalog:
    (folder / "warehouse").mkdir(exist_ok=True)
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder / "warehouse"))
    catalog.create_namespace_if_not_exists(PLACE[0])
    return catalog


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
