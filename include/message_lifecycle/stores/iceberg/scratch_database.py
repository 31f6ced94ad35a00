"""A database of one question: what does not fit into memory lies in a scratch file, and goes with it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


@contextmanager
def scratch_database(*, memory: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """`memory`: how much of it is held at once, as DuckDB writes sizes; the rest spills."""
    import duckdb

    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": memory,
            "temp_directory": folder,
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        with duckdb.connect(str(Path(folder) / "scratch.duckdb"), config=settings) as connection:
            yield connection
