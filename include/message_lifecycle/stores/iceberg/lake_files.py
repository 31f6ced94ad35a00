"""A Python file system for DuckDB: files of any store, read and written no faster than a rate (CMP-11)."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from errno import ENOENT
from functools import cache, partial
from os import SEEK_CUR, SEEK_END, SEEK_SET
from secrets import token_hex
from threading import Lock, local
from typing import IO, Literal

from cachetools import LRUCache
from fsspec import AbstractFileSystem

from message_lifecycle.model.errors import FileLost, FileUnreadable, LifecycleError, storage_failure, storage_refused
from message_lifecycle.stores.iceberg.table_folder import TORN, reason_of
from message_lifecycle.stores.iceberg.tasks import Store

_LAKE = re.compile(r"lake[0-9a-f]*://")


class Pace:
    """Limits the rate to `bytes_per_second`, counted from the first byte on; 0: no limit."""

    def __init__(self, bytes_per_second: int) -> None:
        self._rate, self._lock = bytes_per_second, Lock()
        self._began: float | None = None
        self._passed = 0

    def wait(self, size: int) -> None:
        """Wait until these bytes are within the rate, too."""
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            self._began = now if self._began is None else self._began
            self._passed += size
            ahead = self._began + self._passed / self._rate - now
        if ahead > 0:
            time.sleep(ahead)  # waiting is the purpose


@cache
def _protocol(_store: Store, _read_bytes_per_second: int, _write_bytes_per_second: int) -> str:
    """Return the beginning of the file names of a store: always the same for equal arguments, and without any of its settings."""
    return f"lake{token_hex(6)}"


_KNOWN_FILES, _END_BYTES = 256, 128 * 1024
"""Limits of one file system: the number of files whose size and end it remembers, and the length of an end.

A gigabyte of a log has about thirty files.
"""


@dataclass(slots=True, kw_only=True)
class _Known:
    """The size and the last bytes of a data file, which never changes.

    Every query opens a file and reads its end, where Parquet describes the content. Without this memory, every query would request the end
    from the store again.

    Attributes:
        end: The file's last bytes, after the first read of them.
    """

    size: int
    end: bytes = b""

    def at(self, place: int, size: int) -> bytes | None:
        """Return bytes of the known end; None: read them from the store."""
        first = place - self.size + len(self.end)
        return self.end[first : first + size] if self.end and first >= 0 else None

    def learn(self, place: int, found: bytes) -> None:
        if len(self.end) < len(found) <= _END_BYTES and place + len(found) == self.size:
            self.end = found


class LakeFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The files of one store, under names that begin with `prefix`."""

    cachable = False
    """Every instance has its own store and rates."""

    def __init__(self, store: Store, *, read_bytes_per_second: int = 0, write_bytes_per_second: int = 0) -> None:
        super().__init__()
        self.protocol = _protocol(store, read_bytes_per_second, write_bytes_per_second)
        self._store, self._read, self._write = store, Pace(read_bytes_per_second), Pace(write_bytes_per_second)
        self._known: LRUCache[str, _Known] = LRUCache(_KNOWN_FILES)
        self._knowing = Lock()

    @property
    def prefix(self) -> str:
        return f"{self.protocol}://"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return cls.without_prefix(path)

    @staticmethod
    def without_prefix(path: str) -> str:
        return _LAKE.sub("", path, count=1)

    def glob(self, path: str, **_: object) -> list[str]:
        """Return the path itself: every character of a name is literal."""
        return [self._strip_protocol(path)]

    def info(self, path: str, **_: object) -> dict[str, object]:
        path = self._strip_protocol(path)
        with self._knowing:
            known = self._known.get(path)
        if known is not None:
            return {"name": path, "size": known.size, "type": "file"}
        with _named_errors(path, "read"):
            return {"name": path, "size": self._store.size(path), "type": "file"}

    def modified(self, path: str) -> datetime:  # noqa: ARG002  # DuckDB calls this for each file
        """Return a constant time, because data files are never written twice."""
        return datetime.fromtimestamp(0, UTC)

    def _open(self, path: str, mode: str = "rb", **_: object) -> _Reading | _OutputFile:
        path = self._strip_protocol(path)
        with _named_errors(path, "read" if mode == "rb" else "write"):
            return self._reading(path) if mode == "rb" else _OutputFile(self._store.create(path), path, self._write)

    def _reading(self, path: str) -> _Reading:
        with self._knowing:
            known = self._known.get(path)
        file = None
        if known is None:
            file = self._store.open(path)
            known = _Known(size=file.seek(0, SEEK_END))
            with self._knowing:
                known = self._known.setdefault(path, known)
        return _Reading(file, partial(self._store.open, path), known, path, self._read)


class _Reading:
    """An open file for several threads at a time, each with its own position.

    DuckDB reads parts of one file in parallel, each with a seek and a read. Other threads may come between the two calls.

    Args:
        file: The store's file; None until a read needs it.
    """

    def __init__(self, file: IO[bytes] | None, open_file: Callable[[], IO[bytes]], known: _Known, path: str, pace: Pace) -> None:
        self._opened, self._open_file, self._known, self._path, self._pace = file, open_file, known, path, pace
        self._place, self._lock = local(), Lock()

    @property
    def _file(self) -> IO[bytes]:
        with self._lock:
            if self._opened is None:
                self._opened = self._open_file()
            return self._opened

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        begins = {SEEK_SET: 0, SEEK_CUR: self.tell(), SEEK_END: self._known.size}[whence]
        self._place.here = begins + offset
        return self.tell()

    def tell(self) -> int:
        return int(getattr(self._place, "here", 0))

    def read(self, size: int = -1) -> bytes:
        """Return exactly the requested bytes, or the bytes to the end.

        DuckDB would treat a shorter result as complete, and use random memory for the rest.
        """
        here = self.tell()
        wanted = max(0, self._known.size - here if size < 0 else min(size, self._known.size - here))
        found = self._known.at(here, wanted)
        if found is None:
            found = self._fetched(here, wanted)
            self._known.learn(here, found)
        self._place.here = here + wanted
        return found

    def _fetched(self, here: int, wanted: int) -> bytes:
        found = b""
        with _named_errors(self._path, "read"):
            while len(found) < wanted:
                part = self._read_at(here + len(found), wanted - len(found))
                if not part:
                    raise OSError(f"of {wanted} bytes from {here} on came {len(found)}")
                found = found + part if found else part
        self._pace.wait(len(found))
        return found

    def _read_at(self, place: int, size: int) -> bytes:
        file = self._file
        # PyArrow's files have `read_at`, which allows any number of threads at a time.
        at_once = getattr(file, "read_at", None)
        if at_once is not None:
            return bytes(at_once(size, place))
        with self._lock:
            file.seek(place)
            return bytes(file.read(size))

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


class _OutputFile:
    """A new file, open for writing."""

    def __init__(self, file: IO[bytes], path: str, pace: Pace) -> None:
        self._file, self._path, self._pace = file, path, pace

    def write(self, content: bytes) -> int:
        self._pace.wait(len(content))
        with _named_errors(self._path, "write"):
            return int(self._file.write(content))

    def close(self) -> None:
        """Close the file. An object of a store exists only after this call."""
        with _named_errors(self._path, "write"):
            self._file.close()

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


# The text of a `LakeFiles` error. DuckDB keeps only the text of a Python error, so the text carries every detail.
_FAILED = re.compile(r"a file of the lake failed: (\[.*\])")


@contextmanager
def _named_errors(path: str, doing: Literal["read", "write"]) -> Iterator[None]:
    try:
        yield
    except (OSError, *TORN) as error:
        number = ENOENT if isinstance(error, FileNotFoundError) else error.errno if isinstance(error, OSError) else None
        content = [path, doing, reason_of(error), number]
        raise OSError(f"a file of the lake failed: {json.dumps(content)}") from error


def parse_failure(text: str) -> LifecycleError | None:
    """Return our error for a text of DuckDB; None if the text is about no file of `LakeFiles`."""
    match = _FAILED.search(text)
    if match is None:
        return None
    path, doing, reason, number = json.loads(match[1])
    if doing == "write":
        return storage_failure(OSError(number or 0, reason), path) or storage_refused(path, reason)
    return FileLost(path, "it is not there") if number == ENOENT else FileUnreadable(path, reason)
