"""Files and deletion vectors that a task reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, cast

from message_lifecycle.stores.iceberg.table_files import delete_files, list_files, remote_size
from message_lifecycle.stores.iceberg.table_folder import is_local, local_path

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

# Prefixes of PyIceberg's settings for opening files.
_OF_FILES = ("s3.", "client.", "gcs.", "adls.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The way to files by the scheme of their paths, which a task takes along.

    `settings` are the settings of the table's own I/O. The disk of this machine needs none.
    """

    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # there are secrets among them

    @classmethod
    def of(cls, table: Table) -> Store:
        return cls.of_io(table.io, table.location())

    @classmethod
    def of_io(cls, io: FileIO, location: str) -> Store:
        """As the table there opens its files."""
        if is_local(location):
            return HERE
        return cls(settings=tuple(sorted((key, value) for key, value in io.properties.items() if isinstance(value, str))))

    @classmethod
    def of_catalog(cls, catalog: Catalog) -> Store:
        """By the keys that its configuration has, for files of no table; what opens the catalog itself stays here."""
        return cls(settings=tuple(sorted((key, str(value)) for key, value in catalog.properties.items() if key.startswith(_OF_FILES))))

    @property
    def io(self) -> FileIO:
        from message_lifecycle.stores.iceberg.lake_io import io_of

        return io_of(self.settings)

    def open(self, path: str) -> IO[bytes]:
        """For reading here and there: a local file is not read whole."""
        return local_path(path).open("rb") if is_local(path) else cast("IO[bytes]", self.io.new_input(path).open())

    def create(self, path: str) -> IO[bytes]:
        """Open a file for writing. Replaces an existing file."""
        if is_local(path):
            local_path(path).parent.mkdir(parents=True, exist_ok=True)
            return local_path(path).open("wb")
        return cast("IO[bytes]", self.io.new_output(path).create(overwrite=True))

    def write(self, path: str, content: bytes) -> None:
        with self.create(path) as file:
            file.write(content)

    def size(self, path: str) -> int:
        return local_path(path).stat().st_size if is_local(path) else len(self.io.new_input(path))

    def listed(self, place: str) -> list[tuple[str, int]]:
        """Names of the files below it with their sizes; of a file, one without name. Raises StorageRefused."""
        size = remote_size(self.io, place)
        return [(file.name, file.size_bytes) for file in list_files(self.io, place)] if size is None else [("", size)]

    def remove(self, path: str) -> None:
        """Remove a file. A missing file is no error."""
        if is_local(path):
            local_path(path).unlink(missing_ok=True)
        else:
            with suppress(FileNotFoundError):
                self.io.delete(path)

    def remove_named(self, folder: str, wanted: Callable[[str], bool]) -> None:
        """Remove the files below the folder whose own name, without folders, is wanted."""
        if is_local(folder):
            for path in local_path(folder).rglob("*"):
                if wanted(path.name) and path.is_file():
                    path.unlink(missing_ok=True)
        else:
            delete_files(self.io, folder, [file.name for file in list_files(self.io, folder) if wanted(file.name.rpartition("/")[2])])


HERE = Store()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """A deletion vector: a blob of `length` bytes at `offset` of a Puffin file."""

    path: str
    offset: int
    length: int
    store: Store = HERE


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A Parquet file of the log or of the view, by absolute path or URI.

    `may_be_due`: whether its bounds leave it possible that a row is dead, or past its delete horizon, at the rules' `as_of`; False
    saves reading the columns of times.
    """

    path: str
    size_bytes: int = 0
    vector: Vector | None = None
    may_be_due: bool = True
    store: Store = HERE


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A new file of a table, of data or of deletion vectors. `rows`: its rows, or the rows that its vectors mark."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVector:
    """Takes the place of the data file's earlier vector: its `rows` marks include those."""

    data_file: str
    puffin: NewFile
    offset: int
    length: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The changes in one partition of a table.

    `dropped`: paths of data files to drop whole. `unmarked`: paths of data files that lose their vector and get no new one. `rows`: the
    number of rows that the change removes or brings back, if the caller needs it.
    """

    partition: int
    files: tuple[NewFile, ...] = ()
    vectors: tuple[NewVector, ...] = ()
    dropped: tuple[str, ...] = ()
    unmarked: tuple[str, ...] = ()
    rows: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.vectors or self.dropped or self.unmarked)
