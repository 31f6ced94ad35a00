"""The newest metadata of each table, and the metadata's location.

A SQL (JDBC) catalog is queried directly: one short query, instead of the seconds that opening the catalog as an object costs. A catalog of
any other kind returns the metadata in its answer. We never read the metadata file itself, because the catalog's own credentials may not
allow that.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from errno import EIO
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias, cast

from message_lifecycle.model.errors import DISK_FULL, CatalogUnavailable, UnknownTopic, storage_full
from message_lifecycle.stores.iceberg.layout import BESIDE, CATALOG, LATEST, LIVE, OF_TABLE
from message_lifecycle.stores.iceberg.table_folder import TORN, TableDocument

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.view import View
    from sqlalchemy import Engine

Place = tuple[str, str]
"""(namespace, table)"""
_VIEWS, _BESIDE = (f"__{LIVE}", f"__{LATEST}"), tuple(f"__{kind}" for kind in BESIDE)
# PostgreSQL's, of a table.
_NO_SUCH_TABLE = "42P01"
_Answer: TypeAlias = "tuple[str, Table | View | Exception]"


@dataclass(slots=True)
class _Seen:
    """`listed`: all tables are among them."""

    tables: dict[Place, str | None] = field(default_factory=dict)
    listed: bool = False


_looking: ContextVar[dict[Pointers, _Seen] | None] = ContextVar("looking", default=None)


@contextmanager
def look() -> Iterator[None]:
    """Ask the catalog for each thing only once in this block and thread. No code in the block changes the catalog."""
    if _looking.get() is not None:
        yield
        return
    token = _looking.set({})
    try:
        yield
    finally:
        _looking.reset(token)


def is_looking() -> bool:
    """Return whether this thread is inside a `look`."""
    return _looking.get() is not None


class Pointers(ABC):
    """Locations of the newest metadata. A location identifies one version of a table's metadata. In a SQL catalog it is a file."""

    def one(self, place: Place) -> str | None:
        """Location of the newest metadata; None: no such table, nor view."""
        seen = self._seen()
        if seen is None:
            return self.newest(place)
        if place in seen.tables:
            return seen.tables[place]
        beside = place[1].endswith(_BESIDE)
        if beside and seen.listed and not place[1].endswith(_VIEWS):
            return None
        found = self.newest(place)
        if found is not None or beside:  # do not note that a topic is missing: a report of that checks again first
            seen.tables[place] = found
        return found

    def all(self, namespace: str | None) -> Sequence[tuple[Place, str]]:
        """Return where the newest metadata of each table in the namespace are. None: of every table."""
        found, seen = self._all(namespace), self._seen()
        if seen is not None:
            seen.tables.update(found)
            seen.listed = seen.listed or namespace is None
        return found

    def _seen(self) -> _Seen | None:
        looking = _looking.get()
        return None if looking is None else looking.setdefault(self, _Seen())

    @abstractmethod
    def newest(self, place: Place) -> str | None:
        """As `one`, asked for now."""

    @abstractmethod
    def _all(self, namespace: str | None) -> Sequence[tuple[Place, str]]: ...

    @abstractmethod
    def read(self, place: Place, location: str) -> TableDocument:
        """The metadata there, or newer ones. Raises UnknownTopic, OSError, and what reading a damaged file raises."""

    @abstractmethod
    def file_io(self, place: Place, location: str) -> FileIO:
        """The way to the table's files. Raises as `read`."""

    @abstractmethod
    def table(self, place: Place, location: str) -> Table:
        """For reading manifests and data: of the metadata there, or of newer ones. Raises as `read`."""


@contextmanager
def reaching_catalog() -> Iterator[None]:
    """Tell a catalog that does not answer from our own mistakes."""
    from pyiceberg.exceptions import RESTError
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        lines = str(error.orig).strip().splitlines() if error.orig else []
        raise CatalogUnavailable(lines[0] if lines else str(error)) from error
    except (RESTError, ConnectionError) as error:
        raise CatalogUnavailable(str(error).partition("\n")[0]) from error
    except OSError as error:
        from requests import RequestException

        if isinstance(error, RequestException):
            raise CatalogUnavailable(f"{type(error).__name__}: {error}".partition("\n")[0]) from error
        if error.errno not in DISK_FULL:
            raise
        raise storage_full(str(error.strerror)) from error


class SqlPointers(Pointers):
    """Locations from the database rows that JdbcCatalog and PyIceberg share.

    PyIceberg's table is read from the location as PyIceberg's own SQL catalog reads it. To open that catalog as an object takes as long as
    twenty tables do. `files`: the properties with the class of I/O.
    """

    def __init__(self, properties: Mapping[str, str], files: Mapping[str, str]) -> None:
        self._properties, self._files = properties, dict(files)
        self._tables: dict[Place, Table] = {}

    @cached_property
    def _engine(self) -> Engine:
        from sqlalchemy import create_engine

        # One query reads one state by itself: a transaction around it would go to the server twice more.
        return create_engine(self._properties["uri"], pool_pre_ping=True, isolation_level="AUTOCOMMIT")

    def newest(self, place: Place) -> str | None:
        found = self._rows("AND table_namespace = :namespace AND table_name = :table", {"namespace": place[0], "table": place[1]})
        return found[0][1] if found else None

    def _all(self, namespace: str | None) -> Sequence[tuple[Place, str]]:
        return self._rows("", {}) if namespace is None else self._rows("AND table_namespace = :namespace", {"namespace": namespace})

    def _rows(self, condition: str, values: Mapping[str, str]) -> list[tuple[Place, str]]:
        from sqlalchemy import text
        from sqlalchemy.exc import OperationalError, ProgrammingError

        statement = text(
            f"SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE catalog_name = :catalog {condition}"
        )
        with reaching_catalog():
            try:
                with self._engine.connect() as connection:
                    rows = connection.execute(statement, {"catalog": CATALOG, **values}).all()
            except (ProgrammingError, OperationalError) as error:
                if getattr(error.orig, "sqlstate", None) != _NO_SUCH_TABLE and "no such table" not in str(error.orig):
                    raise
                return []  # the first writer makes the catalog's tables: there is no table yet
        return [((namespace, table), location) for namespace, table, location in rows if location]

    def read(self, _place: Place, location: str) -> TableDocument:
        return TableDocument.read(location, self._properties)

    def file_io(self, _place: Place, location: str) -> FileIO:
        from pyiceberg.io import load_file_io

        return load_file_io(self._files, location)

    def table(self, place: Place, location: str) -> Table:
        seen = self._tables.get(place)
        if seen is None or seen.metadata_location != location:
            from pyiceberg.catalog.noop import NoopCatalog
            from pyiceberg.exceptions import ValidationError
            from pyiceberg.io import load_file_io
            from pyiceberg.serializers import FromInputFile
            from pyiceberg.table import Table

            with reaching_catalog():
                try:
                    metadata = FromInputFile.table_metadata(self.file_io(place, location).new_input(location))
                except ValidationError as error:
                    first = " ".join(str(error).split("\n")[:3])  # how many there are, where the first is, and what
                    raise ValueError(f"it is no table's metadata as PyIceberg knows them: {first}") from error
                io = load_file_io({**self._files, **metadata.properties}, location)
            seen = self._tables[place] = Table(place, metadata, location, io, NoopCatalog(CATALOG))
        return seen


UNREADABLE = "unreadable: "
"""In place of a location, of a table that its catalog knows and cannot tell of."""


class CatalogPointers(Pointers):
    """Locations through PyIceberg, for catalogs of any other kind.

    The last answer for each table is kept, with the table's file access. A new question for the table's location also renews the
    credentials.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._answers: dict[Place, _Answer] = {}

    def newest(self, place: Place) -> str | None:
        found = self._ask(place)
        return None if found is None else found[0]

    def _ask(self, place: Place, *, listed: bool = False) -> _Answer | None:
        """`listed`: among the tables, so that it is no view."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, ServerError

        try:
            with reaching_catalog():
                try:
                    view = None if listed or not place[1].endswith(_VIEWS) else self._view(place)
                    if view is None:
                        table = self._catalog.load_table(place)
                        table.io.properties[OF_TABLE] = json.dumps(place)
                except (ServerError, FileNotFoundError, PermissionError, *TORN) as error:
                    # The error concerns one table only: the metadata of the other tables may be fine.
                    return f"{UNREADABLE}{'.'.join(place)}", error
        except (NoSuchTableError, NoSuchNamespaceError):
            self._answers.pop(place, None)
            return None
        answer: _Answer = (
            (table.metadata_location, table) if view is None else (f"view {view.uuid()} version {view.metadata.current_version_id}", view)
        )
        self._answers[place] = answer
        return answer

    def _view(self, place: Place) -> View | None:
        from pyiceberg.exceptions import NoSuchViewError

        try:
            return self._catalog.load_view(place)
        except (NoSuchViewError, NotImplementedError):  # the view is missing, or the catalog has no views
            return None

    def _all(self, namespace: str | None) -> Sequence[tuple[Place, str]]:
        from pyiceberg.exceptions import NoSuchNamespaceError

        places: list[Place] = []
        with reaching_catalog():
            for parent in self._catalog.list_namespaces() if namespace is None else [(namespace,)]:
                with suppress(NoSuchNamespaceError):  # this namespace was dropped meanwhile, and the others still count
                    places += [(".".join(found[:-1]), found[-1]) for found in self._catalog.list_tables(parent)]
        return [(place, answer[0]) for place in places if (answer := self._ask(place, listed=True)) is not None]

    def read(self, place: Place, location: str) -> TableDocument:
        from pyiceberg.typedef import IcebergBaseModel

        newest, answer = self._of(place, location)
        # PyIceberg's own function for the JSON text refuses version 3, which PyIceberg cannot write yet. The model itself has all fields.
        return TableDocument(location=newest, content=json.loads(IcebergBaseModel.model_dump_json(answer.metadata)))

    def file_io(self, place: Place, location: str) -> FileIO:
        return self.table(place, location).io

    def table(self, place: Place, location: str) -> Table:
        return cast("Table", self._of(place, location)[1])

    def _of(self, place: Place, location: str) -> tuple[str, Table | View]:
        kept = self._answers.get(place)
        found = kept if kept is not None and kept[0] == location else self._ask(place)
        if found is None:
            raise UnknownTopic(".".join(place))
        version, answer = found
        if isinstance(answer, Exception):
            raise OSError(EIO, str(answer).splitlines()[0])
        return version, answer
