"""Where the metadata of each table lies now, and the metadata: what a catalog is at bottom.

A SQL (JDBC) catalog is asked by its own rows: one short query, and none of the seconds that opening it as an object costs. Of any other kind
the metadata are what it answered, never a file read beside it: to that the catalog's own credentials may not reach.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, cast

from message_lifecycle.model.errors import DISK_FULL, CatalogUnavailable, UnknownTopic, storage_full
from message_lifecycle.stores.iceberg.layout import CATALOG, LATEST, LIVE
from message_lifecycle.stores.iceberg.table_folder import TableDocument

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.view import View
    from sqlalchemy import Engine

Place = tuple[str, str]
"""(namespace, table)"""
_VIEWS = (f"__{LIVE}", f"__{LATEST}")


class Pointers(Protocol):
    """Locations are told apart by; only those of a SQL catalog are certain to be a file's."""

    def one(self, place: Place) -> str | None:
        """Location of the newest metadata; None: no such table, nor view."""

    def all(self, namespace: str | None) -> Sequence[tuple[Place, str]]: ...

    def read(self, place: Place, location: str) -> TableDocument:
        """The metadata there, or newer ones. Raises UnknownTopic, OSError, and what reading a damaged file raises."""

    def file_io(self, place: Place, location: str) -> FileIO:
        """The way to the table's files. Raises as `read`."""

    def table(self, place: Place) -> Table:
        """For reading manifests and data. Raises NoSuchTableError, and as `read`."""

    def __hash__(self) -> int: ...


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

    def __init__(self, properties: Mapping[str, str], catalog: Callable[[], Catalog]) -> None:
        self._properties, self._catalog = properties, catalog

    @cached_property
    def _engine(self) -> Engine:
        from sqlalchemy import create_engine

        # One query reads one state by itself: a transaction around it would go to the server twice more.
        return create_engine(self._properties["uri"], pool_pre_ping=True, isolation_level="AUTOCOMMIT")

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

    def read(self, _place: Place, location: str) -> TableDocument:
        return TableDocument.read(location, self._properties)

    def file_io(self, _place: Place, location: str) -> FileIO:
        from pyiceberg.io import load_file_io

        return load_file_io(self._catalog().properties, location)

    def table(self, place: Place) -> Table:
        return self._catalog().load_table(place)


class CatalogPointers:
    """Through PyIceberg, for catalogs of any other kind. What was answered last of each table is kept, with the way to its files: who asks
    where a table is now has new credentials with it."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._answers: dict[Place, tuple[str, Table | View]] = {}

    def one(self, place: Place) -> str | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, NoSuchViewError

        try:
            with reaching_catalog():
                return self._ask(place)
        except (NoSuchTableError, NoSuchViewError, NoSuchNamespaceError, NotImplementedError):  # the last of a catalog without views
            self._answers.pop(place, None)
            return None

    def _ask(self, place: Place) -> str:
        if place[1].endswith(_VIEWS):
            view = self._catalog.load_view(place)
            answer: tuple[str, Table | View] = f"view {view.uuid()} version {view.metadata.current_version_id}", view
        else:
            table = self._catalog.load_table(place)
            answer = table.metadata_location, table
        self._answers[place] = answer
        return answer[0]

    def all(self, namespace: str | None) -> Sequence[tuple[Place, str]]:
        from pyiceberg.exceptions import NoSuchNamespaceError

        try:
            with reaching_catalog():
                namespaces = self._catalog.list_namespaces() if namespace is None else [(namespace,)]
                places = [(".".join(found[:-1]), found[-1]) for parent in namespaces for found in self._catalog.list_tables(parent)]
        except NoSuchNamespaceError:
            return []
        return [(place, location) for place in places if (location := self.one(place)) is not None]

    def read(self, place: Place, location: str) -> TableDocument:
        from pyiceberg.typedef import IcebergBaseModel

        newest, answer = self._answered(place, location)
        # Of version 3 PyIceberg's own word for it says that it cannot write tables yet; what the model holds, it tells.
        return TableDocument(location=newest, content=json.loads(IcebergBaseModel.model_dump_json(answer.metadata)))

    def file_io(self, place: Place, location: str) -> FileIO:
        return cast("Table", self._answered(place, location)[1]).io

    def table(self, place: Place) -> Table:
        if place not in self._answers:
            self._ask(place)
        return cast("Table", self._answers[place][1])

    def _answered(self, place: Place, location: str) -> tuple[str, Table | View]:
        if (place not in self._answers or self._answers[place][0] != location) and self.one(place) is None:
            raise UnknownTopic(".".join(place))
        return self._answers[place]
