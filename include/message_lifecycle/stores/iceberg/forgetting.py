"""Tables forgotten in a SQL catalog, many in one transaction, and the word that is left of it on their namespace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError
from sqlalchemy import CursorResult, delete
from sqlalchemy.orm import Session

from message_lifecycle.stores.iceberg.layout import DELETED
from message_lifecycle.stores.iceberg.pointers import Place, reaching_catalog
from message_lifecycle.stores.iceberg.renaming import at_place

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def forget(catalog: Catalog, rows: Sequence[tuple[Place, str]], words: Mapping[str, str], *, steps: Callable[[str], None]) -> bool:
    """Take these tables, whose metadata lie there, out of the catalog and leave the words (text by name), or change nothing; False: a table
    has moved on. No file is touched."""
    assert isinstance(catalog, SqlCatalog)
    with Session(catalog.engine) as session:
        for place, location in rows:
            done = session.execute(delete(IcebergTables).where(*at_place(catalog, place), IcebergTables.metadata_location == location))
            assert isinstance(done, CursorResult)
            if done.rowcount != 1:
                session.rollback()
                return False
            steps("inside_commit")
        for name, text in words.items():
            session.add(IcebergNamespaceProperties(catalog_name=catalog.name, namespace=DELETED, property_key=name, property_value=text))
        steps("before_commit")
        session.commit()
    return True


def words(catalog: Catalog) -> Mapping[str, str]:
    """By name; whatever else the namespace tells is among them."""
    with reaching_catalog():
        try:
            return catalog.load_namespace_properties(DELETED)
        except NoSuchNamespaceError:
            return {}


def tell(catalog: Catalog, name: str, text: str) -> None:
    """Change a word, if it is there."""
    if name in words(catalog):
        with reaching_catalog():
            catalog.update_namespace_properties(DELETED, updates={name: text})


def unsay(catalog: Catalog, names: Collection[str]) -> None:
    """Drop words; one that is not there is success."""
    there = words(catalog).keys() & set(names)
    if there:
        with reaching_catalog():
            catalog.update_namespace_properties(DELETED, removals=there)
