"""DuckDB as a task uses it: within its share of the machine, and within the topic's rates."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

from fsspec.implementations.local import LocalFileSystem

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


# Files read and written no faster than a rate, for the kernel (CMP-11). DuckDB opens them through this where a rate is set, and by
# itself where none is.


SCHEME = "paced://"


class Pace:
    """Lets `bytes_per_second` pass, over all since the first; 0: any number."""

    def __init__(self, bytes_per_second: int) -> None:
        self._rate, self._lock = bytes_per_second, Lock()
        self._began: float | None = None
        self._passed = 0

    def wait(self, size: int) -> None:
        """Return when these bytes, too, are within the rate."""
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            self._began = now if self._began is None else self._began
            self._passed += size
            ahead = self._began + self._passed / self._rate - now
        if ahead > 0:
            time.sleep(ahead)  # the pace itself


class PacedFiles(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Local files under names that begin with SCHEME."""

    protocol: ClassVar[str] = SCHEME.removesuffix("://")
    cachable = False
    """Each has rates of its own."""

    def __init__(self, *, read_bytes_per_second: int, write_bytes_per_second: int) -> None:
        super().__init__()
        self._read, self._write = Pace(read_bytes_per_second), Pace(write_bytes_per_second)

    @classmethod
    def _strip_protocol(cls, path: str) -> Any:
        return super()._strip_protocol(path.removeprefix(SCHEME))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return _Paced(super()._open(path, mode=mode, **options), self._read, self._write)


class _Paced:
    """An open file."""

    def __init__(self, file: Any, read: Pace, write: Pace) -> None:
        self._file, self._read, self._write = file, read, write

    def read(self, size: int = -1) -> bytes:
        found: bytes = self._file.read(size)
        self._read.wait(len(found))
        return found

    def write(self, content: bytes) -> int:
        self._write.wait(len(content))
        return int(self._file.write(content))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
