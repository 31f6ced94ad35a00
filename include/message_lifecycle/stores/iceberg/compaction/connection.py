"""DuckDB as a task uses it: within its share of the machine, and within the topic's rates."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from message_lifecycle.stores.iceberg.compaction.job import Resources

if TYPE_CHECKING:
    import duckdb


@contextmanager
def opened(resources: Resources) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
    """A database in memory, and what the names of the files begin with that it reads and writes."""
    import duckdb

    with tempfile.TemporaryDirectory(dir=resources.spill_folder) as spill, duckdb.connect(config=_settings(resources, spill)) as connection:
        if not (resources.read_bytes_per_second or resources.write_bytes_per_second):
            yield connection, ""
            return
        from message_lifecycle.stores.iceberg.compaction.pace import SCHEME, PacedFiles

        paced = PacedFiles(read_bytes_per_second=resources.read_bytes_per_second, write_bytes_per_second=resources.write_bytes_per_second)
        connection.register_filesystem(paced)
        yield connection, SCHEME


def _settings(resources: Resources, spill: str) -> dict[str, str | bool | int | float | list[str]]:
    return {
        "threads": resources.threads,
        "memory_limit": f"{resources.memory_bytes}B",
        "temp_directory": spill,
        # Nothing is fetched from anywhere.
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
