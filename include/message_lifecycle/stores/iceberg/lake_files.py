"""Files of any store as DuckDB reads and writes them, no faster than a rate (CMP-11): a file system of Python's that a database is given."""

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
from typing import Any, Literal

from cachetools import LRUCache
from fsspec import AbstractFileSystem

from message_lifecycle.model.errors import FileLost, FileUnreadable, LifecycleError, storage_failure, storage_refused
from message_lifecycle.stores.iceberg.table_folder import TORN, said_by
from message_lifecycle.stores.iceberg.tasks import Store

_LAKE = re.compile(r"lake[0-9a-f]*://")


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


@cache
def _protocol(_store: Store, _read_bytes_per_second: int, _write_bytes_per_second: int) -> str:
    """What names of its files begin with: the same for the same, and nothing of its settings is told by it."""
    return f"lake{token_hex(6)}"


_KNOWN_FILES, _END_BYTES = 256, 128 * 1024
"""Of one file system: of how many files it knows size and end, and how long an end may be. A gigabyte of a log has some thirty files."""


@dataclass(slots=True, kw_only=True)
class _Known:
    """What is known of a data file, which never changes: every question opens it and reads its end, for there Parquet says what is in it, and
    each would be asked of the store again. `end`: its last bytes, once they were read."""

    size: int
    end: bytes = b""

    def at(self, place: int, size: int) -> bytes | None:
        """None: the store is to be asked."""
        first = place - self.size + len(self.end)
        return self.end[first : first + size] if self.end and first >= 0 else None

    def learn(self, place: int, found: bytes) -> None:
        if len(self.end) < len(found) <= _END_BYTES and place + len(found) == self.size:
            self.end = found


class LakeFiles(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files of one store, under names that begin with `prefix`."""

    cachable = False
    """Each has a store and rates of its own."""

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

    def glob(self, path: str, **_: Any) -> list[str]:
        """A name is a name, whatever signs are in it."""
        return [self._strip_protocol(path)]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        with self._knowing:
            known = self._known.get(path)
        if known is not None:
            return {"name": path, "size": known.size, "type": "file"}
        with _telling(path, "read"):
            return {"name": path, "size": self._store.size(path), "type": "file"}

    def modified(self, path: str) -> datetime:  # noqa: ARG002  # DuckDB asks of each
        """Data files are never written twice."""
        return datetime.fromtimestamp(0, UTC)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        path = self._strip_protocol(path)
        with _telling(path, "read" if mode == "rb" else "write"):
            return self._reading(path) if mode == "rb" else _Writing(self._store.create(path), path, self._write)

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
    """An open file, for several threads at a time: DuckDB fetches parts of one file in parallel, and asks for each by a seek and a read, which
    others come between. So each thread has a place of its own. `file`: None until the store is to be asked for something."""

    def __init__(self, file: Any, open_file: Callable[[], Any], known: _Known, path: str, pace: Pace) -> None:
        self._opened, self._open_file, self._known, self._path, self._pace = file, open_file, known, path, pace
        self._place, self._lock = local(), Lock()

    @property
    def _file(self) -> Any:
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
        """All that is asked for, or to the end. DuckDB would take fewer bytes for as many, the rest from whatever was in its memory."""
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
        with _telling(self._path, "read"):
            while len(found) < wanted:
                part = self._read_at(here + len(found), wanted - len(found))
                if not part:
                    raise OSError(f"of {wanted} bytes from {here} on came {len(found)}")
                found = found + part if found else part
        self._pace.wait(len(found))
        return found

    def _read_at(self, place: int, size: int) -> bytes:
        file = self._file
        # PyArrow's files have it, and let any number of threads at a time.
        at_once = getattr(file, "read_at", None)
        if at_once is not None:
            return bytes(at_once(size, place))
        with self._lock:
            file.seek(place)
            return bytes(file.read(size))

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Writing:
    """An open file that is new."""

    def __init__(self, file: Any, path: str, pace: Pace) -> None:
        self._file, self._path, self._pace = file, path, pace

    def write(self, content: bytes) -> int:
        self._pace.wait(len(content))
        with _telling(self._path, "write"):
            return int(self._file.write(content))

    def close(self) -> None:
        """An object of a store is there from here on."""
        with _telling(self._path, "write"):
            self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


# How `LakeFiles` tells by a text, which is all that DuckDB keeps of an error of Python.
_FAILED = re.compile(r"a file of the lake failed: (\[.*\])")


@contextmanager
def _telling(path: str, doing: Literal["read", "write"]) -> Iterator[None]:
    try:
        yield
    except (OSError, *TORN) as error:
        number = ENOENT if isinstance(error, FileNotFoundError) else error.errno if isinstance(error, OSError) else None
        told = [path, doing, said_by(error), number]
        raise OSError(f"a file of the lake failed: {json.dumps(told)}") from error


def failure_told_by(text: str) -> LifecycleError | None:
    """What has failed, in our words; None: it was none of these files."""
    told = _FAILED.search(text)
    if told is None:
        return None
    path, doing, reason, number = json.loads(told[1])
    if doing == "write":
        return storage_failure(OSError(number or 0, reason), path) or storage_refused(path, reason)
    return FileLost(path, "it is not there") if number == ENOENT else FileUnreadable(path, reason)
