"""Parquet files as relations of DuckDB's SQL, and how the compacted table's columns are written."""

from __future__ import annotations

import atexit
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np

from message_lifecycle.model.errors import Unavailable
from message_lifecycle.stores.iceberg.compaction.job import MEBIBYTE, InputFile
from message_lifecycle.stores.iceberg.document import is_local, local_path
from message_lifecycle.stores.iceberg.puffin import marked

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.schema import Schema

OFFSET = '"offset"'
TOPIC_COLUMNS = f"partition, {OFFSET}, append_time, event_time, key, value, headers, size_bytes, segment, expires_at, never, origin_offset"
FIELD_IDS = (
    f"{{partition: 1, {OFFSET}: 2, append_time: 3, event_time: 4, key: 5, value: 6, "
    "headers: {__duckdb_field_id: 7, element: {__duckdb_field_id: 13, name: 14, value: 15}}, "
    "size_bytes: 8, segment: 9, expires_at: 10, never: 11, origin_offset: 12, delete_horizon: 16, remembered: 17}"
)
_PLACES = (("file", "BIGINT"), ("row", "BIGINT"))
_PLACE = ", f.file_index::BIGINT AS file, f.file_row_number AS row"


def not_local(path: str) -> Unavailable:
    """The engine reads files of the machine it runs on."""
    return Unavailable(
        f"{path} is not a local file, which this engine needs. Compact this topic by the engine in Spark SQL.", code="NotLocal"
    )


NO_MESSAGES = f"(SELECT 0::BIGINT AS {OFFSET}, NULL::BLOB AS key)"


def live_rows(files: Sequence[InputFile], gone: str | None, scheme: str = "") -> str:
    """A relation of the files' rows, without those that a table (file, row) names."""
    if gone is None:
        return f"{all_rows(files, scheme)} AS f"
    return (
        f"(SELECT f.*, f.file_index, f.file_row_number FROM {all_rows(files, scheme)} AS f "
        f"ANTI JOIN {gone} AS g ON f.file_index = g.file AND f.file_row_number = g.row) AS f"
    )


def all_rows(files: Sequence[InputFile], scheme: str = "") -> str:
    """A relation of the files' rows, with `file_index` (place in `files`) and `file_row_number`. `scheme`: by which file system."""
    # A folder's name (`partition=0`) must not take the place of a column.
    return f"read_parquet({path_list(files, scheme)}, hive_partitioning = false)"


def path_list(files: Sequence[InputFile], scheme: str = "") -> str:
    """The files' paths as a list in SQL. Raises NotLocal."""
    return f"[{', '.join(literal(scheme + local_file(file.path)) for file in files)}]"


def local_file(path: str) -> str:
    """The path without `file:`. Raises NotLocal."""
    if not is_local(path):
        raise not_local(path)
    return str(local_path(path))


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
    """Make the view `name` over the live rows of the files. `columns`: names and types, of a relation of no files. `places`: with the
    columns `file`, the place in `files`, and `row`, the position in that file."""
    if not files:
        typed = ", ".join(f'CAST(NULL AS {kind}) AS "{column}"' for column, kind in (*columns, *(_PLACES if places else ())))
        connection.execute(f"CREATE TEMP VIEW {name} AS SELECT {typed} WHERE false")
        return
    gone = {at: marked(file.vector) for at, file in enumerate(files) if file.vector is not None}
    if gone:
        of_file = np.concatenate([np.full(len(positions), at, np.int64) for at, positions in gone.items()])
        connection.register(f"{name}_gone", {"file": of_file, "row": np.concatenate(list(gone.values()))})
    chosen = ", ".join(f'f."{column}"' for column, _ in columns) + _PLACE if places else "f.*"
    connection.execute(f"CREATE TEMP VIEW {name} AS SELECT {chosen} FROM {live_rows(files, f'{name}_gone' if gone else None)}")


# Making a database takes a hundred times as long as a small question: the readers of a process share one in memory.


MEMORY_BYTES = 1024 * MEBIBYTE
"""Of all their questions at one time together; beyond it they spill."""


class _Shared:
    """`asked`: by how many sessions now. `spill`: is there as long as one is, so that nothing is left where a process just ends."""

    def __init__(self) -> None:
        import duckdb

        self.asked, self.spill = 0, Path(mkdtemp())
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": f"{MEMORY_BYTES}B",
            "temp_directory": str(self.spill),
            "autoinstall_known_extensions": False,
            # What is read is not kept: it would outlive its erasure.
            "enable_external_file_cache": False,
            # Settings are those of all sessions.
            "lock_configuration": True,
        }
        self.root = duckdb.connect(config=settings)
        self.spill.rmdir()


_shared: _Shared | None = None
# Taken again by its own thread where Python meanwhile clears away an answer that nobody has read to its end.
_changing = RLock()


@contextmanager
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """For a question of a reader: spills beyond its memory, and fetches nothing from anywhere. What it makes is temporary, and its own."""
    global _shared
    import duckdb

    with _changing:
        shared = _shared = _shared or _Shared()
        shared.asked += 1
        if shared.asked == 1:
            shared.spill.mkdir(mode=0o700)
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
                shutil.rmtree(shared.spill)


def _forget(shared: _Shared | None = None) -> None:
    """The next question makes another; this one goes with its last session. None: whichever it is."""
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
