"""Where the metadata of each table lies now: what a catalog is at bottom.

A SQL (JDBC) catalog is asked by its own rows: one short query, and none of the seconds that opening it as an object costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from message_lifecycle.model.errors import DISK_FULL, CatalogUnavailable, storage_full
from message_lifecycle.stores.iceberg.layout import CATALOG

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from sqlalchemy import Engine

Place = tuple[str, str]
"""(namespace, table)"""


class Pointers(Protocol):
    @property
    def file_properties(self) -> Mapping[str, str]: ...

    def one(self, place: Place) -> str | None:
        """Location of the newest metadata; None: no such table."""

    def all(self, namespace: str | None) -> Sequence[tuple[Place, str]]: ...


@contextmanager
def reaching_catalog() -> Iterator[None]:
    """Tell a catalog that does not answer from our own mistakes."""
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        lines = str(error.orig).strip().splitlines() if error.orig else []
        raise CatalogUnavailable(lines[0] if lines else str(error)) from error
    except ConnectionError as error:
        raise CatalogUnavailable(str(error)) from error
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise storage_full(str(error.strerror)) from error


class SqlPointers:
    """By the rows that JdbcCatalog and PyIceberg share."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.file_properties = properties

    @cached_property
    def _engine(self) -> Engine:
        from sqlalchemy import create_engine

        # One query reads one state by itself: a transaction around it would go to the server twice more.
        return create_engine(self.file_properties["uri"], pool_pre_ping=True, isolation_level="AUTOCOMMIT")

    def one(self, place: Place) -> str | None:
        found = self._rows("AND table_namespace = :namespace AND table_name = :table", {"namespace": place[0], "table": place[1]})
        return found[0][1] if found else None

    def all(self, namespace: str | None) -> Sequence[tuple[Place, str]]:
        return self._rows("", {}) if namespace is None else self._rows("AND table_namespace = :namespace", {"namespace": namespace})

    def _rows(self, condition: str, values: Mapping[str, str]) -> list[tuple[Place, str]]:
        from sqlalchemy import text
        from sqlalchemy.exc import ProgrammingError

        statement = text(
            f"SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE catalog_name = :catalog {condition}"
        )
        with reaching_catalog():
            try:
                with self._engine.connect() as connection:
                    rows = connection.execute(statement, {"catalog": CATALOG, **values}).all()
            except ProgrammingError:
                return []  # the first writer makes the catalog's tables: there is no table yet
        return [((namespace, table), location) for namespace, table, location in rows if location]


class CatalogPointers:
    """Through PyIceberg, for catalogs of any other kind."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    @property
    def file_properties(self) -> Mapping[str, str]:
        return self._catalog.properties

    def one(self, place: Place) -> str | None:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            with reaching_catalog():
                return self._catalog.load_table(place).metadata_location
        except NoSuchTableError:
            return None

    def all(self, namespace: str | None) -> Sequence[tuple[Place, str]]:
        from pyiceberg.exceptions import NoSuchNamespaceError

        try:
            with reaching_catalog():
                namespaces = self._catalog.list_namespaces() if namespace is None else [(namespace,)]
                places = [(".".join(found[:-1]), found[-1]) for parent in namespaces for found in self._catalog.list_tables(parent)]
        except NoSuchNamespaceError:
            return []
        return [(place, location) for place in places if (location := self.one(place)) is not None]
