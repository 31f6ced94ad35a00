"""A topic's table metadata, written without a JVM.

PyIceberg 0.12 reads format v3 but writes none. A table's metadata is one JSON document by Iceberg's specification, and a
commit is a compare-and-swap of its location in the catalog: enough for changing it. What a document holds beside the change is carried
over as it stands.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.typedef import Identifier
from sqlalchemy import update
from sqlalchemy.orm import Session

from message_lifecycle.model.errors import CatalogUnavailable, TableBusy

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO

_ATTEMPTS = 20
_MAIN = "main"
Document = dict[str, Any]


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
