"""Files to ingest: search, names and content hashes. Also the errors of files.

A file's path below the given folder identifies it. The order of a log's messages is (path in natural order, position in the file). The
order of the file system or of the engine makes no difference (P12).
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, cast, overload

from message_lifecycle.model.errors import BadInput, InvalidSetting, storage_refused
from message_lifecycle.sources.selection import (
    ALLOWED_KINDS,
    EVERY_FILE,
    GZIP,
    ChosenFiles,
    Kind,
    PassedOver,
    Patterns,
    choose,
    source_kind,
)

AT_BITS = 48
"""The bits of a record's place in its file. The higher bits hold its file's number."""
MAX_FILES = 1 << (63 - AT_BITS)
"""The most files that one batch can order."""
_NAMED = 5
"""The most files that an error names."""
_CUTTING = frozenset("#?\t\r\n")
UTF_8 = "utf-8"
_AT_ONCE = 8 << 20
"""Bytes of one request to a store."""
_ASCII = bytes(range(128))
_NOT_THESE = ("utf-16", "utf-32", "utf-7", "unicode", "raw-unicode", "idna", "punycode", "charmap")
"""Beginnings of the names of encodings whose lines end otherwise, or that files never have."""


class Store(Protocol):
    """Access to files that are not on this machine. A store travels to executors with its files."""

    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading from its beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One file to ingest.

    Attributes:
        name: The path below the given folder.
        store: None: the file is on this machine, and on every machine that reads it.
    """

    name: str
    path: str
    kind: Kind
    size_bytes: int
    store: Store | None = None

    @property
    def is_packed(self) -> bool:
        return self.path.lower().endswith(GZIP)

    def open(self) -> IO[bytes]:
        """Open the file. Opening and reading raise StorageRefused if the store does not deliver it."""
        return Path(self.path).open("rb") if self.store is None else io.BufferedReader(_StoreFile(self.store, self.path), _AT_ONCE)

    def sha256(self) -> str:
        """Return the hash of the content, which separates an ingested file from another file of its name."""
        with self.open() as content:
            return hashlib.file_digest(cast(io.BufferedReader, content), "sha256").hexdigest()


TORN = (EOFError, zlib.error, gzip.BadGzipFile)
"""The errors of reading a truncated or damaged packed file."""


class _StoreFile(io.RawIOBase):
    """A file of a store. Errors here are the store's, and the reader finds errors of the content."""

    def __init__(self, store: Store, path: str) -> None:
        self._path = path
        with self._reaching():
            self._file = store.open(path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        with self._reaching():
            found = self._file.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        with self._reaching():
            return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise storage_refused(self._path, str(error).partition("\n")[0]) from error


class Found(Sequence[InputFile]):
    """The files to ingest, in their order, and the skipped files."""

    def __init__(self, files: Sequence[InputFile], passed_over: Sequence[PassedOver]) -> None:
        self._files, self.passed_over = tuple(files), tuple(passed_over)

    @overload
    def __getitem__(self, at: int) -> InputFile: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[InputFile, ...]: ...
    def __getitem__(self, at: int | slice) -> InputFile | tuple[InputFile, ...]:
        return self._files[at]

    def __len__(self) -> int:
        return len(self._files)


def find_files(place: str | Path, patterns: Patterns = EVERY_FILE) -> Found:
    """Return the file, or every file below the folder, in natural order of their names.

    Hidden files of a folder (`.` or `_` first, as in Spark), files of an unknown kind and excluded files are skipped.

    Raises:
        NoInput: There is no such file or folder, or no file is left to ingest.
        UnreadableFile: The one named file is of an unknown kind.
    """
    root = Path(place).absolute()
    if ".." in root.parts:  # a file keeps the given name
        root = root.parent.resolve() / root.name if root.is_file() else root.resolve()
    if root.is_file():
        check_kind(str(root))
        found = choose([root.name], patterns)
    elif root.is_dir():
        found = choose((path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()), patterns)
    else:
        raise no_input(str(place), "no such file or folder")
    at = root.parent if root.is_file() else root
    return _found(str(place), found, [_local_file(name, at / name) for name in found.names])


def _local_file(name: str, path: Path) -> InputFile:
    return InputFile(name=name, path=str(path), kind=check_kind(str(path)), size_bytes=path.stat().st_size)


def files_of(place: str, listed: Iterable[tuple[str, int]], store: Store, patterns: Patterns = EVERY_FILE) -> Found:
    """Do as `find_files` for a folder in a store.

    Args:
        place: The URI of the folder or file.
        listed: The names below the folder with their sizes in bytes. The name of a single file is empty.
        store: The store of the folder.
        patterns: Patterns of the names to take.

    Raises:
        NoInput: No file is left to ingest.
        UnreadableFile: The one named file is of an unknown kind, or a path has a character that would cut a URI.
    """
    paths, sizes = dict[str, str](), dict[str, int]()
    for name, size_bytes in listed:
        path = f"{place.rstrip('/')}/{name}" if name else place
        if not name:
            check_kind(path)
        below = name or path.rpartition("/")[2]
        paths[below], sizes[below] = path, size_bytes
    chosen = choose(paths, patterns)
    for path in (paths[name] for name in chosen.names):
        if unsafe := sorted(set(path) & _CUTTING):
            raise unreadable_file(path, f"its path holds {' '.join(map(repr, unsafe))}, at which a URI is cut")
    files = [InputFile(name=n, path=paths[n], kind=check_kind(paths[n]), size_bytes=sizes[n], store=store) for n in chosen.names]
    return _found(place, chosen, files)


def _found(place: str, chosen: ChosenFiles, files: Sequence[InputFile]) -> Found:
    if files:
        return Found(files, chosen.passed_over)
    why = [f"{one.file} ({one.why})" for one in chosen.passed_over]
    shown = ", ".join(why[:_NAMED]) + (f" and {len(why) - _NAMED:,} more" if len(why) > _NAMED else "")
    raise no_input(place, f"every file is passed over: {shown}" if why else "the folder holds no file")


def check_kind(path: str) -> Kind:
    """Return the kind of the file by its name. Raises UnreadableFile."""
    kind = source_kind(path)
    if kind is None:
        raise unreadable_file(path, f"its kind is not known by its name. Allowed: {ALLOWED_KINDS}")
    return kind


def check_delimiter(given: str) -> str:
    r"""Return the delimiter. A shell passes a tabulator as `\t`. Raises InvalidSetting."""
    found = "\t" if given == "\\t" else given
    if len(found) != 1 or found in '"\r\n':
        raise InvalidSetting(where="ingest", key="--delimiter", value=given, allowed="one character, as ; or \\t, and no quote")
    return found


def check_encoding(name: str) -> str:
    """Return Python's name of the encoding. Raises InvalidSetting if it is unknown, or if its lines do not end like ASCII's."""
    try:
        found = codecs.lookup(name).name
        if not found.startswith(_NOT_THESE) and _ASCII.decode(found) == _ASCII.decode("ascii"):
            return found
    except (LookupError, ValueError):
        pass
    allowed = f"{UTF_8}, latin-1, cp1252 and others that hold ASCII as it is; convert UTF-16 and UTF-32 to UTF-8 first (iconv)"
    raise InvalidSetting(where="ingest", key="--encoding", value=name, allowed=allowed)


def no_input(path: str, reason: str) -> BadInput:
    """The path to ingest has no files."""
    return BadInput(f"nothing to ingest at {path}: {reason}.", code="NoInput")


def unreadable_file(file: str, reason: str) -> BadInput:
    """A file cannot be read at all. The batch took no row."""
    return BadInput(
        f"file {file} cannot be read: {reason}. Nothing was taken from this or any other file; mend it or move it away.",
        code="UnreadableFile",
    )


def wrong_time_unit(*, field: str, value: str, unit: str, reads_as: str | None, likely: str | None, rows: int, of: int) -> BadInput:
    """Times so far from any likely date that their unit must be another."""
    found = f"{value!r} in unit {unit!r} is {reads_as}" if reads_as else f"{value!r} was found for unit {unit!r}"
    hint = f"it looks like unit {likely!r}" if likely else "that is no date from 1990 to 2099"
    return BadInput(
        f"field {field!r}: {found}; {hint} ({rows} of {of} rows are like that). Nothing was taken. "
        "Give the right unit, or --allow-implausible-times if these times are meant.",
        code="WrongTimeUnit",
    )
