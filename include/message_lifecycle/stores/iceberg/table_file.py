"""A topic's table metadata, written without a JVM.

PyIceberg 0.12 reads format v3 but writes none. A table's metadata is one JSON document by Iceberg's specification, and a
commit is a compare-and-swap of its location in the catalog: enough for making a topic and for changing its properties. What
a document holds beside that is carried over as it stands.
"""

from __future__ import annotations

import json
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyiceberg.typedef import Identifier
from sqlalchemy import update
from sqlalchemy.orm import Session

from message_lifecycle.model.errors import CatalogUnavailable, TableBusy
from message_lifecycle.stores.iceberg.columns import PARTITION_SPEC, SCHEMA, SORT_ORDER

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema

_ATTEMPTS = 20
_MAIN = "main"
Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Columns, partitioning and order of a new table."""

    schema: Schema
    spec: PartitionSpec
    order: SortOrder


TOPIC = Layout(schema=SCHEMA, spec=PARTITION_SPEC, order=SORT_ORDER)


def create(
    catalog: Catalog, identifier: Identifier, *, properties: Mapping[str, str], summary: Mapping[str, str], layout: Layout = TOPIC
) -> None:
    """Make the table with one empty snapshot that carries `summary`; it appears whole or not at all.

    The location is named by a fresh uuid, so a topic that is made again never meets the files of its predecessor. Raises
    PyIceberg's TableAlreadyExistsError.
    """
    _only_sql(catalog)
    table_uuid = str(uuid.uuid4())
    location = f"{catalog.properties['warehouse'].rstrip('/')}/{table_uuid}"
    io = file_io(catalog, location)
    snapshot_id = secrets.randbits(62) + 1
    manifest_list = f"{location}/metadata/snap-{snapshot_id}-1-{uuid.uuid4()}.avro"
    metadata_location = f"{location}/metadata/00000-{uuid.uuid4()}.metadata.json"
    written = [manifest_list, metadata_location]
    try:
        _write_empty_manifest_list(io, manifest_list, snapshot_id)
        _write(io, metadata_location, _new_document(layout, table_uuid, location, properties, summary, snapshot_id, manifest_list))
        catalog.register_table(identifier, metadata_location)
    except Exception:
        for path in written:
            if io.new_input(path).exists():
                io.delete(path)
        raise


def set_properties(catalog: Catalog, identifier: Identifier, changes: Mapping[str, str | None]) -> None:
    """Set table properties, None removes one; nothing else changes. Raises TableBusy when other commits always come first."""

    def change(document: Document) -> Document:
        properties = {**document.get("properties", {}), **changes}
        return {**document, "properties": {key: value for key, value in properties.items() if value is not None}}

    change_document(catalog, identifier, change)


def remove_branch(catalog: Catalog, identifier: Identifier, branch: str) -> None:
    """Forget a branch; it is no error when there is none. What only it held goes with the next expiry of snapshots."""
    assert branch != _MAIN

    def change(document: Document) -> Document:
        return {**document, "refs": {name: ref for name, ref in document.get("refs", {}).items() if name != branch}}

    change_document(catalog, identifier, change)


def change_document(catalog: Catalog, identifier: Identifier, change: Callable[[Document], Document]) -> str:
    """Swap the table's metadata for what `change` makes of it; it is asked anew at each attempt, and may raise to leave all as it is.

    Where the metadata lies then; no new file where nothing changes. Raises TableBusy."""
    for _ in range(_ATTEMPTS):
        made = write_changed(catalog, identifier, change)
        if made.new == made.old or _swap(catalog, identifier, old=made.old, new=made.new):
            return made.new
        made.forget()
    raise TableBusy(f"altering {'.'.join(identifier)}", _ATTEMPTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A table's metadata, written and not yet the table's: where it was, and where it is to be."""

    identifier: Identifier
    old: str
    new: str
    io: FileIO

    def forget(self) -> None:
        """Take the new file away, where it is known that no table has come to it."""
        if self.new != self.old:
            self.io.delete(self.new)


def write_changed(catalog: Catalog, identifier: Identifier, change: Callable[[Document], Document]) -> Written:
    """Write what `change` makes of the metadata beside them; no new file where nothing changes. Raises PyIceberg's NoSuchTableError,
    CatalogUnavailable where the catalog is no SQL catalog."""
    _only_sql(catalog)
    table = catalog.load_table(identifier)
    before: Document = json.loads(_read(table.io, table.metadata_location))
    after = change(before)
    if after == before:
        return Written(identifier=identifier, old=table.metadata_location, new=table.metadata_location, io=table.io)
    seen = {"metadata-file": table.metadata_location, "timestamp-ms": before["last-updated-ms"]}
    after["metadata-log"] = [*after.get("metadata-log", []), seen]
    after["last-updated-ms"] = max(_now_ms(), before["last-updated-ms"])
    new_location = table.location_provider().new_table_metadata_file_location(_version_of(table.metadata_location) + 1)
    _write(table.io, new_location, after)
    return Written(identifier=identifier, old=table.metadata_location, new=new_location, io=table.io)


def _only_sql(catalog: Catalog) -> None:
    if not isinstance(catalog, SqlCatalog):
        raise CatalogUnavailable(f"topics are made and altered in SQL (JDBC) catalogs; this one is a {type(catalog).__name__}")


def _swap(catalog: Catalog, identifier: Identifier, *, old: str, new: str) -> bool:
    assert isinstance(catalog, SqlCatalog)
    statement = (
        update(IcebergTables)
        .where(
            IcebergTables.catalog_name == catalog.name,
            IcebergTables.table_namespace == ".".join(identifier[:-1]),
            IcebergTables.table_name == identifier[-1],
            IcebergTables.metadata_location == old,
        )
        .values(metadata_location=new, previous_metadata_location=old)
    )
    with Session(catalog.engine) as session:
        changed: int = session.execute(statement).rowcount  # type: ignore[attr-defined]  # updates return a CursorResult
        session.commit()
    return changed == 1


def _version_of(metadata_location: str) -> int:
    """`.../00007-<uuid>.metadata.json` -> 7, as every writer of the catalog numbers them."""
    number = metadata_location.rsplit("/", 1)[-1].split("-", 1)[0]
    return int(number) if number.isdigit() else 0


def _new_document(
    layout: Layout,
    table_uuid: str,
    location: str,
    properties: Mapping[str, str],
    summary: Mapping[str, str],
    snapshot_id: int,
    manifest_list: str,
) -> Document:
    now = _now_ms()
    totals = (
        "total-records",
        "total-files-size",
        "total-data-files",
        "total-delete-files",
        "total-position-deletes",
        "total-equality-deletes",
    )
    snapshot = {
        "sequence-number": 1,
        "snapshot-id": snapshot_id,
        "timestamp-ms": now,
        "summary": {"operation": "append", **dict.fromkeys(totals, "0"), **summary},
        "manifest-list": manifest_list,
        "schema-id": 0,
        "first-row-id": 0,
        "added-rows": 0,
    }
    return {
        "format-version": 3,
        "table-uuid": table_uuid,
        "location": location,
        "last-sequence-number": 1,
        "last-updated-ms": now,
        "last-column-id": layout.schema.highest_field_id,
        "current-schema-id": 0,
        "schemas": [json.loads(layout.schema.model_dump_json())],
        "default-spec-id": 0,
        "partition-specs": [json.loads(layout.spec.model_dump_json())],
        "last-partition-id": layout.spec.last_assigned_field_id,
        "default-sort-order-id": layout.order.order_id,
        "sort-orders": [json.loads(layout.order.model_dump_json())],
        "properties": {key: value for key, value in properties.items() if key != "format-version"},
        "current-snapshot-id": snapshot_id,
        "next-row-id": 0,
        "refs": {_MAIN: {"snapshot-id": snapshot_id, "type": "branch"}},
        "snapshots": [snapshot],
        "snapshot-log": [{"timestamp-ms": now, "snapshot-id": snapshot_id}],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
    }


def _write_empty_manifest_list(io: FileIO, path: str, snapshot_id: int) -> None:
    from pyiceberg.avro.file import AvroOutputFile
    from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestFile
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    # Version 3 has one column more than version 2.
    schema = Schema(*MANIFEST_LIST_FILE_SCHEMAS[2].fields, NestedField(520, "first_row_id", LongType(), required=False))
    header = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null",
        "sequence-number": "1",
        "first-row-id": "0",
        "format-version": "3",
    }
    with AvroOutputFile[ManifestFile](io.new_output(path), schema, "manifest_file", metadata=header):
        pass


def file_io(catalog: Catalog, location: str) -> FileIO:
    """The catalog's own way to the files there."""
    from pyiceberg.io import load_file_io

    return load_file_io(properties=catalog.properties, location=location)


def _write(io: FileIO, path: str, document: Document) -> None:
    with io.new_output(path).create() as stream:
        stream.write(json.dumps(document).encode())


def _read(io: FileIO, path: str) -> bytes:
    with io.new_input(path).open() as stream:
        return stream.read()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
