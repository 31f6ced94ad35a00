"""DuckDB: its databases (one a question, a task or a process), Parquet files as relations of them, and rules over their columns."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, assert_never

import numpy as np

from message_lifecycle.model.errors import FileLost, FileUnreadable
from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant
from message_lifecycle.model.rules import AllOfRules, AnyOfRules, NeverExpires, NotRule, PeriodPassed, Rule, TimeColumn, TimeKnown
from message_lifecycle.stores.iceberg.lake_files import LakeFiles, parse_failure
from message_lifecycle.stores.iceberg.puffin import marked
from message_lifecycle.stores.iceberg.shares import MEBIBYTE, THREAD_BYTES, Resources
from message_lifecycle.stores.iceberg.table_folder import is_local, local_path
from message_lifecycle.stores.iceberg.tasks import InputFile, Store

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.schema import Schema

# A database for one question: rows that do not fit into memory are in a scratch file, which is removed with the database.


@contextmanager
def scratch_database(*, memory: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database. `memory`: the limit in memory, as DuckDB writes sizes; the rest spills. Raises FileLost, FileUnreadable."""
    import duckdb

    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": memory,
            "temp_directory": folder,
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        with named_file_errors(folder), duckdb.connect(str(Path(folder) / "scratch.duckdb"), config=settings) as connection:
            yield connection


_QUOTED_PATH = re.compile(r"""['"]((?:[a-z][a-z0-9+.-]*:/)?/[^'"]+)['"]""")


@contextmanager
def named_file_errors(spill: str) -> Iterator[None]:
    """Let DuckDB read files of tables in the block, and name its errors.

    Raises FileLost, FileUnreadable or StorageRefused if DuckDB's error names a file of a table. Errors about spilled files pass
    unchanged.
    """
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        text = str(error)
        if failed := parse_failure(text):
            raise failed from error
        if not isinstance(error, duckdb.IOException | duckdb.InvalidInputException):
            raise
        named = _QUOTED_PATH.search(text)
        if named is None or spill in text:
            raise
        file = LakeFiles.without_prefix(named[1])
        if "No files found" in text:
            raise FileLost(file, "it is not there") from error
        raise FileUnreadable(file, text.splitlines()[0]) from error


# DuckDB as a task uses it: within its share of the machine, and within the topic's rates.


@contextmanager
def opened(resources: Resources) -> Iterator[tuple[duckdb.DuckDBPyConnection, Names]]:
    """Open a database in memory, and the names under which the database opens files. Raises as `named_file_errors`."""
    import duckdb

    with (
        tempfile.TemporaryDirectory(dir=resources.spill_folder) as spill,
        named_file_errors(spill),
        duckdb.connect(config=_settings(resources, spill)) as connection,
    ):
        yield connection, Names(connection, resources.read_bytes_per_second, resources.write_bytes_per_second)


def _settings(resources: Resources, spill: str) -> dict[str, str | bool | int | float | list[str]]:
    return {
        "threads": max(1, min(resources.threads, resources.memory_bytes // THREAD_BYTES)),
        "memory_limit": f"{resources.memory_bytes}B",
        "temp_directory": spill,
        # A query asks for the order that it needs: no other is promised, and keeping one takes memory.
        "preserve_insertion_order": False,
        # DuckDB must not download anything.
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }


# DuckDB opens files through `LakeFiles`, except local files without a rate limit, which DuckDB reads faster itself.


# DuckDB takes these for patterns.
_PATTERN = re.compile(r"[*?\[{]")


class Names:
    """The names under which a database opens files. The first name that needs a file system registers it. Rates: 0 means no limit."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, read_bytes_per_second: int = 0, write_bytes_per_second: int = 0) -> None:
        self._connection, self._read, self._write = connection, read_bytes_per_second, write_bytes_per_second
        self._systems: dict[Store, str] = {}

    def of(self, path: str, store: Store) -> str:
        if is_local(path) and not (self._read or self._write or _PATTERN.search(path)):
            return str(local_path(path))
        if store not in self._systems:
            system = LakeFiles(store, read_bytes_per_second=self._read, write_bytes_per_second=self._write)
            if not self._connection.filesystem_is_registered(system.protocol):
                self._connection.register_filesystem(system)
            self._systems[store] = system.prefix
        return f"{self._systems[store]}{path}"


# Parquet files as relations of DuckDB's SQL, and how the compacted table's columns are written.


OFFSET = '"offset"'
TOPIC_COLUMNS = f"partition, {OFFSET}, append_time, event_time, key, value, headers, size_bytes, segment, expires_at, never, origin_offset"
FIELD_IDS = (
    f"{{partition: 1, {OFFSET}: 2, append_time: 3, event_time: 4, key: 5, value: 6, "
    "headers: {__duckdb_field_id: 7, element: {__duckdb_field_id: 13, name: 14, value: 15}}, "
    "size_bytes: 8, segment: 9, expires_at: 10, never: 11, origin_offset: 12, delete_horizon: 16, remembered: 17}"
)
_PLACES = (("file", "BIGINT"), ("row", "BIGINT"))
_PLACE = ", f.file_index::BIGINT AS file, f.file_row_number AS row"


NO_MESSAGES = f"(SELECT 0::BIGINT AS {OFFSET}, NULL::BLOB AS key)"


def offset_spans(connection: duckdb.DuckDBPyConnection, offsets: str, count: int) -> list[str]:
    """Return conditions that divide all offsets into at most `count` spans.

    Args:
        connection: The database of the relation.
        offsets: `FROM ...`, a relation with a sample of the offsets, which the spans share about equally.
        count: How many spans to make, at most.

    Returns:
        SQL conditions on the column `offset`. The first span has no lower bound, and the last has no upper bound.
    """
    if count <= 1:
        return ["true"]
    shares = [number / count for number in range(1, count)]
    ((cuts,),) = connection.execute(f"SELECT quantile_disc({OFFSET}, {shares}) {offsets}").fetchall()
    ends = [None, *sorted(set(cuts or ())), None]
    return [
        " AND ".join([f"{OFFSET} > {low}"] * (low is not None) + [f"{OFFSET} <= {high}"] * (high is not None)) or "true"
        for low, high in pairwise(ends)
    ]


def live_rows(files: Sequence[InputFile], gone: str | None, names: Names) -> str:
    """Return a relation of the files' rows, without the rows that the table `gone` (file, row) names."""
    if gone is None:
        return f"{all_rows(files, names)} AS f"
    return (
        f"(SELECT f.*, f.file_index, f.file_row_number FROM {all_rows(files, names)} AS f "
        f"ANTI JOIN {gone} AS g ON f.file_index = g.file AND f.file_row_number = g.row) AS f"
    )


def all_rows(files: Sequence[InputFile], names: Names) -> str:
    """A relation of the files' rows, with `file_index` (place in `files`) and `file_row_number`."""
    # A folder's name (`partition=0`) must not take the place of a column.
    return f"read_parquet({name_list(files, names)}, hive_partitioning = false)"


def name_list(files: Sequence[InputFile], names: Names) -> str:
    """The files' names as a list in SQL."""
    return f"[{', '.join(literal(names.of(file.path, file.store)) for file in files)}]"


def literal(value: object) -> str:
    """A text in SQL."""
    return "'" + str(value).replace("'", "''") + "'"


def duckdb_types(schema: Schema) -> list[tuple[str, str]]:
    """The columns of a topic's table, or its view's, with DuckDB's names of their types."""
    kinds = {"timestamptz": "TIMESTAMPTZ", "binary": "BLOB", "int": "INTEGER", "long": "BIGINT", "boolean": "BOOLEAN", "string": "VARCHAR"}
    return [(field.name, kinds.get(str(field.field_type), "STRUCT(name VARCHAR, value BLOB)[]")) for field in schema.fields]


def create_relation(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    files: Sequence[InputFile],
    columns: Sequence[tuple[str, str]],
    *,
    places: bool = False,
) -> None:
    """Make the view `name` over the live rows of the files.

    Without files, `columns` gives the names and types of the relation. `places` adds two columns: `file`, the place in `files`, and `row`,
    the position in that file.
    """
    if not files:
        typed = ", ".join(f'CAST(NULL AS {kind}) AS "{column}"' for column, kind in (*columns, *(_PLACES if places else ())))
        connection.execute(f"CREATE TEMP VIEW {name} AS SELECT {typed} WHERE false")
        return
    gone = {at: marked(file.vector) for at, file in enumerate(files) if file.vector is not None}
    if gone:
        of_file = np.concatenate([np.full(len(positions), at, np.int64) for at, positions in gone.items()])
        connection.register(f"{name}_gone", {"file": of_file, "row": np.concatenate(list(gone.values()))})
    chosen = ", ".join(f'f."{column}"' for column, _ in columns) + _PLACE if places else "f.*"
    connection.execute(
        f"CREATE TEMP VIEW {name} AS SELECT {chosen} FROM {live_rows(files, f'{name}_gone' if gone else None, Names(connection))}"
    )


# Making a database takes a hundred times as long as a small question: the readers of a process share one in memory.


MEMORY_BYTES = 1024 * MEBIBYTE
"""Of all their questions at one time together; beyond it they spill."""


class _Shared:
    """`asked`: by how many sessions now. `spill`: is there as long as one is, so that nothing is left where a process just ends."""

    def __init__(self) -> None:
        import duckdb

        self.asked, self.spill = 0, Path(tempfile.mkdtemp())
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": f"{MEMORY_BYTES}B",
            "temp_directory": str(self.spill),
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
            # DuckDB must not keep what it has read: a cached row would outlive its erasure.
            "enable_external_file_cache": False,
            # Every session has the same settings, so no session may change them.
            "lock_configuration": True,
        }
        self.root = duckdb.connect(config=settings)
        self.spill.rmdir()


_shared: _Shared | None = None
# The lock's own thread may take it again, when Python's collector ends an answer that no reader has read to its end.
_changing = RLock()


@contextmanager
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a session for a reader's question. The session spills beyond its memory, downloads nothing, and has temporary tables of its own."""
    global _shared
    import duckdb

    with _changing:
        shared = _shared = _shared or _Shared()
        if not shared.asked:
            try:
                shared.spill.mkdir(mode=0o700)
            except OSError:  # a cleaner of temporary folders has removed the parent folder: a new database makes a new one
                shared = _shared = _Shared()
                shared.spill.mkdir(mode=0o700)
        shared.asked += 1
    try:
        with named_file_errors(str(shared.spill)):
            try:
                with shared.root.cursor() as session:
                    yield session
            except duckdb.Error:
                _forget(shared)  # some leave a database of no use
                raise
    finally:
        with _changing:
            shared.asked -= 1
            if not shared.asked:
                shutil.rmtree(shared.spill, ignore_errors=True)


def _forget(shared: _Shared | None = None) -> None:
    """Let the next question make another database. The old database ends with its last session. None: the present database."""
    global _shared
    with _changing:
        if shared in (None, _shared):
            _shared = None


def _before_fork() -> None:
    """Its threads would not be there in the child, which would wait for them as it ends."""
    _changing.acquire()
    _forget()


os.register_at_fork(before=_before_fork, after_in_parent=_changing.release, after_in_child=_changing.release)
atexit.register(_forget)  # DuckDB prints what Python's end finds of it


# Rules about messages, rendered as DuckDB's SQL over the columns of a Parquet file.
#
# Files hold any int64 as a time, and DuckDB's times are narrower. INT64_MAX reads as `infinity` (never due, because it means the end of
# time), and -INT64_MAX as `-infinity`. INT64_MIN, which means unknown, reads as a time even before that.


_FIRST = -9_223_372_022_400_000_000
"""The earliest microsecond that DuckDB can name."""


def instant(us: int) -> str:
    return f"make_timestamptz({us})"


def micros(column: str) -> str:
    """Return the file's time as int64, and the smallest int64 for null. DuckDB gives no number for an infinite time."""
    return (
        f"CASE WHEN {column} = 'infinity'::TIMESTAMPTZ THEN {INT64_MAX} WHEN {column} = '-infinity'::TIMESTAMPTZ THEN {-INT64_MAX} "
        f"ELSE coalesce(epoch_us({column}), {INT64_MIN}) END"
    )


def due(column: str, as_of: int) -> str:
    """Return the condition that the column's time is known and has come. A time that DuckDB cannot name counts as future: data stays."""
    bound = min(as_of, INT64_MAX - 1)
    if bound >= _FIRST:
        return f"({column} <= {instant(bound)})"
    return f"({column} <= '-infinity'::TIMESTAMPTZ)" if bound >= -INT64_MAX else "false"


def rule_condition(rule: Rule, as_of: Instant) -> str:
    """Condition: the rule holds; false, never null, where a column is null."""
    match rule:
        case PeriodPassed(column, us):
            return f"({_known(column)} AND {due(column, min(as_of, INT64_MAX - 1) - us)})"
        case NeverExpires():
            return "coalesce(never, false)"
        case TimeKnown(column):
            return f"({_known(column)})"
        case NotRule(inner):
            return f"(NOT {rule_condition(inner, as_of)})"
        case AnyOfRules(rules):
            return "(" + " OR ".join(rule_condition(inner, as_of) for inner in rules) + ")" if rules else "false"
        case AllOfRules(rules):
            return "(" + " AND ".join(rule_condition(inner, as_of) for inner in rules) + ")" if rules else "true"
        case never:
            assert_never(never)


def _known(column: TimeColumn) -> str:
    known = f"{column} IS NOT NULL AND {column} >= '-infinity'::TIMESTAMPTZ"
    return f"{known} AND {column} <> {instant(0)}" if column == "append_time" else known
