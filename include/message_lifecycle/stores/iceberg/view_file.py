"""The view beside a topic's table that hides dead messages at once, written without a JVM: like a table's metadata, it is one JSON
document and a row of the catalog, by Iceberg's view specification, version 1.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.io import load_file_io
from sqlalchemy import CursorResult, delete, insert, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from message_lifecycle.model.errors import CatalogUnavailable, ForeignTable, TableBusy
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.layout import CATALOG
from message_lifecycle.stores.iceberg.pointers import Place

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

VIEW = "VIEW"


def text_of(content: Mapping[str, Any], *, place: Place) -> str:
    """The view's query for Spark, from its document. Raises ForeignTable where the document is no view's."""
    newest = [version for version in content.get("versions", ()) if version["version-id"] == content.get("current-version-id")]
    if not newest:
        raise ForeignTable(".".join(place), ".".join(place))
    return next((str(told["sql"]) for told in newest[0]["representations"] if told.get("dialect") == "spark"), "")


def put(catalog: Catalog, place: Place, text: str, *, old: tuple[str, Mapping[str, Any]] | None) -> None:
    """Make the view, or replace what is there. `old`: location and content of its newest document; None: there is no view.

    Raises TableBusy where another process was first; CatalogUnavailable where the catalog has no views.
    """
    if not isinstance(catalog, SqlCatalog) or catalog._schema_version == "v0":
        raise CatalogUnavailable("it keeps no views; views need a SQL (JDBC) catalog of schema version V1")
    content = _document(catalog, text, None if old is None else old[1])
    location = f"{content['location']}/metadata/{content['current-version-id']:05d}-{uuid.uuid4()}.metadata.json"
    io = load_file_io(properties=catalog.properties, location=location)
    with io.new_output(location).create() as stream:
        stream.write(json.dumps(content).encode())
    if not _point(catalog, place, old=None if old is None else old[0], new=location):
        io.delete(location)
        raise TableBusy(f"writing the view {'.'.join(place)}", 1)


def drop(catalog: Catalog, place: Place) -> None:
    """Forget the view; it is no error when there is none."""
    assert isinstance(catalog, SqlCatalog)
    statement = delete(IcebergTables).where(*at_place(catalog, place), IcebergTables.iceberg_type == VIEW)
    with Session(catalog.engine) as session:
        session.execute(statement)
        session.commit()


def _document(catalog: Catalog, text: str, old: Mapping[str, Any] | None) -> dict[str, Any]:
    now, view_uuid = time.time_ns() // 1_000_000, str(uuid.uuid4())
    before: Mapping[str, Any] = old or {
        "view-uuid": view_uuid,
        "location": f"{catalog.properties['warehouse'].rstrip('/')}/{view_uuid}",
        "current-version-id": 0,
        "version-log": [],
    }
    number = before["current-version-id"] + 1
    version = {
        "version-id": number,
        "timestamp-ms": now,
        "schema-id": 0,
        "summary": {"engine-name": "message-lifecycle"},
        "default-catalog": CATALOG,
        "default-namespace": [],
        "representations": [{"type": "sql", "sql": text, "dialect": "spark"}],
    }
    return {
        "view-uuid": before["view-uuid"],
        "format-version": 1,
        "location": before["location"],
        # Spark matches the query's columns to the schema by these names.
        "properties": {"spark.query-column-names": ",".join(field.name for field in SCHEMA.fields)},
        "schemas": [json.loads(SCHEMA.model_dump_json())],
        "current-version-id": number,
        "versions": [version],
        "version-log": [*before["version-log"], {"timestamp-ms": now, "version-id": number}],
    }


def _point(catalog: SqlCatalog, place: Place, *, old: str | None, new: str) -> bool:
    """Compare and swap; whether it was done."""
    with Session(catalog.engine) as session:
        try:
            if old is None:
                values = {"catalog_name": catalog.name, "table_namespace": place[0], "table_name": place[1]}
                session.execute(insert(IcebergTables).values(**values, metadata_location=new, iceberg_type=VIEW))
                session.commit()
                return True
            swap = update(IcebergTables).where(*at_place(catalog, place), IcebergTables.metadata_location == old)
            done = session.execute(swap.values(metadata_location=new, previous_metadata_location=old))
            session.commit()
        except IntegrityError:
            return False
    assert isinstance(done, CursorResult)
    return done.rowcount == 1


def at_place(catalog: SqlCatalog, place: Place) -> tuple[Any, ...]:
    return (
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == place[0],
        IcebergTables.table_name == place[1],
    )
