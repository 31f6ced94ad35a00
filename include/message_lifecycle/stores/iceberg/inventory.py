"""What a table's history names, against what lies in its folder: which files nothing that is kept needs any more.

Both lists may be of a million files: they lie in a scratch database, not in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from message_lifecycle.stores.iceberg.file_names import is_absolute
from message_lifecycle.stores.iceberg.history import Document, FileKind, NamedFile, all_named, snapshot_ids
from message_lifecycle.stores.iceberg.scratch_database import scratch_database
from message_lifecycle.stores.iceberg.table_folder import ListedFile, owner_of

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.io import FileIO

_MEMORY = "256MB"
_BATCH = 50_000
# A checksum goes and stays with its file: `owner` is what is looked for.
_TABLES = """
CREATE TABLE named (name VARCHAR, kind VARCHAR, kept BOOLEAN);
CREATE TABLE listed (name VARCHAR, owner VARCHAR, size_bytes BIGINT, changed_at_ms BIGINT);
"""


class LooseFile(NamedTuple):
    """A file that may go: named only by snapshots that are not kept, or by nothing (`orphan`)."""

    name: str
    kind: str
    size_bytes: int


class Inventory:
    """Made by `inventory`."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        connection.execute(_TABLES)

    def add_named(self, files: Iterable[NamedFile]) -> None:
        self._insert("named", ("name", "kind", "kept"), files)

    def add_listed(self, files: Iterable[ListedFile]) -> None:
        rows = ((file.name, owner_of(file.name), file.size_bytes, file.changed_at_ms) for file in files)
        self._insert("listed", ("name", "owner", "size_bytes", "changed_at_ms"), rows)

    def count_kept(self) -> int:
        """Files that something kept names."""
        return self._one("SELECT count(DISTINCT name) FROM named WHERE kept")

    def missing(self, limit: int, *, name: str | None = None) -> list[str]:
        """Files within the location that something kept names and that were not listed; of one name only, if that is given."""
        found = self._rows(
            "SELECT DISTINCT named.name FROM named ANTI JOIN listed ON named.name = listed.name "
            "WHERE kept AND NOT starts_with(named.name, '/') AND NOT contains(named.name, ':/') AND named.name = coalesce(?, named.name) "
            "ORDER BY named.name LIMIT ?",
            [name, limit],
        )
        return [name for (name,) in found]

    def unneeded(self) -> Iterator[tuple[str, FileKind]]:
        """Name and kind of each file that is named, and by nothing kept; in order. Files outside the location are among them."""
        yield from self._stream("SELECT name, any_value(kind) FROM named GROUP BY name HAVING NOT bool_or(kept) ORDER BY name")

    def going(self, limit: int, *, metadata: bool = False) -> list[LooseFile]:
        """Of the files that were listed, those that history names and nothing kept does; in order, at the most `limit`. `metadata`: the
        table's own documents, else all but them."""
        found = self._rows(
            "SELECT listed.name, kind, size_bytes FROM listed JOIN "
            "(SELECT name, any_value(kind) AS kind FROM named GROUP BY name HAVING NOT bool_or(kept)) AS gone ON owner = gone.name "
            "WHERE (kind = 'metadata') = ? ORDER BY listed.name LIMIT ?",
            [metadata, limit],
        )
        return [LooseFile(*row) for row in found]

    def orphans(self, *, before_ms: int, limit: int) -> list[LooseFile]:
        """Of the files that were listed, those that nothing names and that last changed before a time; in order."""
        found = self._rows(
            "SELECT listed.name, 'orphan', size_bytes FROM listed ANTI JOIN named ON owner = named.name "
            "WHERE changed_at_ms < ? ORDER BY listed.name LIMIT ?",
            [before_ms, limit],
        )
        return [LooseFile(*row) for row in found]

    def totals(self) -> tuple[int, int]:
        """Number and bytes of all files that were listed."""
        found = self._rows("SELECT count(*), coalesce(sum(size_bytes), 0) FROM listed", [])
        return int(found[0][0]), int(found[0][1])

    def _insert(self, table: str, columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> None:
        import pyarrow as pa

        left = iter(rows)
        while batch := list(islice(left, _BATCH)):
            # Read by DuckDB under this name.
            self._connection.register("batch", pa.table(dict(zip(columns, map(list, zip(*batch, strict=True)), strict=True))))
            self._connection.execute(f"INSERT INTO {table} SELECT * FROM batch")
            self._connection.unregister("batch")

    def _one(self, statement: str) -> int:
        return int(self._rows(statement, [])[0][0])

    def _rows(self, statement: str, values: Sequence[int | str | None]) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()

    def _stream(self, statement: str) -> Iterator[tuple[Any, ...]]:
        found = self._connection.execute(statement)
        while batch := found.fetchmany(_BATCH):
            yield from batch


@contextmanager
def inventory() -> Iterator[Inventory]:
    with scratch_database(memory=_MEMORY) as connection:
        yield Inventory(connection)


def only_of(io: FileIO, document: Document, snapshots: Collection[int]) -> list[NamedFile]:
    """The files within the location that these snapshots name and no other that the table remembers: what may go once they are expired."""
    kept = set(snapshot_ids(document)).difference(snapshots)
    with inventory() as found:
        found.add_named(all_named(io, document, kept=kept))
        return [NamedFile(name, kind, kept=False) for name, kind in found.unneeded() if not is_absolute(name)]
