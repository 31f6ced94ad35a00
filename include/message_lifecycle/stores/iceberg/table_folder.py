"""A table's metadata document, read as it stands; and the files below its location: listed, and removed by name."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from message_lifecycle.model.errors import FileLost, FileUnreadable, OutsideTable, UnsafePath, storage_refused

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyiceberg.io import FileIO

# A table's metadata document, read as it stands: enough for names, settings, summaries, and far quicker than a table object.


def is_local(location: str) -> bool:
    """Whether the location is a path or a `file:` URI."""
    return urlsplit(location).scheme in ("", "file")


def local_path(location: str) -> Path:
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(location)


def folder_at(location: str) -> str:
    """The same place as new files below it are named by: a path where it is local."""
    return str(local_path(location)) if is_local(location) else location.rstrip("/")


# Folders whose own names are on disk.
_named: set[Path] = set()


def on_disk(location: str) -> None:
    """Bring a closed local file to disk, its name, and the names of the folders that were made for it: a catalog is about to name it, and its
    database keeps that through a loss of power. What is not local is the store's own care."""
    if not is_local(location):
        return
    file = local_path(location)
    _sync(file)
    _sync(file.parent)
    for folder in file.parents[:-1]:
        if folder in _named:
            return
        try:
            _sync(folder.parent)
        except PermissionError:
            return  # whoever may not read a folder has not made this one in it
        _named.add(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDocument:
    """One version of a table's metadata."""

    location: str
    content: Mapping[str, Any]

    @classmethod
    def read(cls, location: str, file_properties: Mapping[str, str]) -> TableDocument:
        """`file_properties`: the catalog's settings for reaching files that are not local."""
        if is_local(location):
            raw = local_path(location).read_bytes()
        else:
            from pyiceberg.io import load_file_io

            with load_file_io(properties=dict(file_properties), location=location).new_input(location).open() as stream:
                raw = stream.read()
        return cls(location=location, content=json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw))

    @property
    def uuid(self) -> str:
        return str(self.content["table-uuid"])

    @property
    def properties(self) -> Mapping[str, str]:
        return self.content.get("properties") or {}

    @property
    def current_id(self) -> int | None:
        """The newest snapshot of main."""
        found = self.content.get("current-snapshot-id")
        return None if found is None or found == -1 else int(found)

    def summaries(self) -> Iterator[Mapping[str, str]]:
        """Of the snapshots of main, newest first, as far back as the table remembers them."""
        return (snapshot.get("summary") or {} for snapshot in self._main())

    def main_ids(self) -> Iterator[int]:
        """Of the same snapshots."""
        return (int(snapshot["snapshot-id"]) for snapshot in self._main())

    def _main(self) -> Iterator[Mapping[str, Any]]:
        snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in self.content.get("snapshots") or ()}
        snapshot = snapshots.get(self.content.get("current-snapshot-id"))
        while snapshot is not None:
            yield snapshot
            snapshot = snapshots.get(snapshot.get("parent-snapshot-id"))

    def newest(self, key: str) -> str | None:
        """The value in the newest ancestor of main whose summary has the key."""
        return next((summary[key] for summary in self.summaries() if key in summary), None)


TORN = (ValueError, EOFError, zlib.error, gzip.BadGzipFile)
"""What reading a damaged file raises; PyArrow's errors are ValueErrors."""


def said_by(error: Exception) -> str:
    """Why a file cannot be read, in words."""
    system = error.strerror if isinstance(error, OSError) else None
    return system or f"{type(error).__name__}: {error}".splitlines()[0]


@contextmanager
def reading(path: str) -> Iterator[None]:
    """A file that a table names is read in the block. Raises FileLost, FileUnreadable."""
    try:
        yield
    except FileUnreadable:
        raise
    except FileNotFoundError as error:
        raise FileLost(str(error.filename or path), said_by(error)) from error
    except (OSError, *TORN) as error:
        raise FileUnreadable(path, said_by(error)) from error


# How plans name data files: relative to the table's location, so that a plan is the same wherever the table lies.


# A path, or a URI: Java writes those of local files with one slash (`file:/lake/...`).
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<authority>[^/]*))?(?P<path>/.*)", re.DOTALL)
_MISLEADING = re.compile(r"(?:^|/)\.{0,2}(?:/|$)")
# Names of one store, by whichever library has written the path.
_ONE_SCHEME = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb", "gcs": "gs"}
_THIS_MACHINE = ("", "localhost")
_ERASED = "erased-"
ID_IN_NAMES = 16
"""So many first characters of a plan's id are in the names of files and branches that are made for it."""


def erased_copy(plan_id: str, number: int) -> str:
    """Name of a data file that an erasure writes in place of another, without its ending."""
    return f"{_ERASED}{plan_id[:ID_IN_NAMES]}-{number:05}"


def is_erased_copy(name: str) -> bool:
    return name.rpartition("/")[2].startswith(_ERASED)


def location_prefix(location: str) -> str:
    """What a name leaves out."""
    return f"{location.rstrip('/')}/"


def is_absolute(name: str) -> bool:
    """Whether the file lies outside of the table's location, so that its name is all of its place."""
    return bool(_ABSOLUTE.match(name))


def absolute(prefix: str, name: str) -> str:
    return name if is_absolute(name) else f"{prefix}{name}"


def normalised(path: str) -> str:
    """One spelling of a file's place: `file:/x`, `file:///x` and `/x` are `/x`; `s3a://b/x` is `s3://b/x`. Nothing is decoded.

    Raises UnsafePath for a path with a step that leads elsewhere (`.`, `..`, nothing between two slashes), for then two names of one
    file could differ."""
    found = _URI.fullmatch(path)
    if found is None:
        place = path.rstrip("/")
        steps = place
    else:
        scheme, authority, steps = found["scheme"].lower(), found["authority"] or "", found["path"].rstrip("/")
        local = scheme == "file" and authority.lower() in _THIS_MACHINE
        place = steps if local else f"{_ONE_SCHEME.get(scheme, scheme)}://{authority}{steps}"
    if any(step in ("", ".", "..") for step in steps.removeprefix("/").split("/")):
        raise UnsafePath(path, "a step that is '.', '..' or empty")
    return place


class Within:
    """Names files by where they lie within a table's location."""

    def __init__(self, location: str) -> None:
        self._prefix = location_prefix(normalised(location))
        self._as_given = location_prefix(location)

    def name(self, path: str) -> str:
        """Relative to the location; whole where the file lies outside. Raises UnsafePath."""
        if path.startswith(self._as_given):
            # As nearly every path is written; then only the rest can mislead.
            name = path[len(self._as_given) :]
            if not _MISLEADING.search(name):
                return name
        return normalised(path).removeprefix(self._prefix)

    def may_hold(self, path: str) -> bool:
        """Whether a path that cannot be normalised might lie here, by its beginning or by steps that lead elsewhere."""
        return path.startswith((self._as_given, self._prefix)) or "/../" in path or "/./" in path


# The files below a table's location: listed, and removed by name. Nothing outside of it is ever touched, and no link is followed.
#
# Hadoop keeps a checksum beside each local file, `.NAME.crc`: its own kind of deletion takes both, so what names files here may, too.


_CHECKSUM = ".crc"


class ListedFile(NamedTuple):
    """`name` relative to the table's location; `changed_at_ms` since 1970, by the file system's clock."""

    name: str
    size_bytes: int
    changed_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """`size_bytes`: as the file system told just before. `missing`: were gone already, which is success (EXP-8)."""

    files: int = 0
    missing: int = 0
    size_bytes: int = 0

    def __add__(self, other: Deleted) -> Deleted:
        return Deleted(files=self.files + other.files, missing=self.missing + other.missing, size_bytes=self.size_bytes + other.size_bytes)


def owner_of(name: str) -> str:
    """The file that a checksum is about; any other file is its own."""
    folder, _, file = name.rpartition("/")
    if not (file.startswith(".") and file.endswith(_CHECKSUM)):
        return name
    owner = file.removeprefix(".").removesuffix(_CHECKSUM)
    return f"{folder}/{owner}" if folder else owner


def with_checksums(names: Iterable[str]) -> Iterator[str]:
    """Each name, and that of the checksum that may lie beside it."""
    for name in names:
        folder, _, file = name.rpartition("/")
        yield name
        yield f"{folder}/.{file}{_CHECKSUM}" if folder else f".{file}{_CHECKSUM}"


def listed(io: FileIO, location: str) -> Iterator[ListedFile]:
    """Every file below the location. Raises UnsafePath at a link or a name that is no text, StorageRefused."""
    return _listed_here(local_path(location)) if is_local(location) else _listed_there(io, location)


def delete_files(io: FileIO, location: str, names: Iterable[str]) -> Deleted:
    """Remove exactly these, named relative to the location. A file that is not there is success; any other error stops the work.

    Raises OutsideTable for a name that is no relative path, UnsafePath where a link or no plain file is in the way, StorageRefused."""
    wanted = sorted(check_name(location, name) for name in names)
    return _delete_here(local_path(location), wanted) if is_local(location) else _delete_there(io, location, wanted)


def check_name(location: str, name: str) -> str:
    """The name. Raises OutsideTable where it is no plain relative path."""
    if is_absolute(name) or not name:
        raise OutsideTable(location, name)
    try:
        normalised(f"/{name}")
    except UnsafePath as unsafe:
        raise OutsideTable(location, name) from unsafe
    return name


def _listed_here(root: Path) -> Iterator[ListedFile]:
    folders = [(root, "")]
    while folders:
        folder, prefix = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    name = f"{prefix}{entry.name}"
                    if entry.is_symlink():
                        raise UnsafePath(_told(entry.path), "a symbolic link")
                    if _told(entry.name) != entry.name:
                        raise UnsafePath(_told(entry.path), "a name that is not UTF-8, which no plan can tell")
                    if entry.is_dir():
                        folders.append((folder / entry.name, f"{name}/"))
                        continue
                    try:
                        about = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # another process has removed it since the folder was read
                    yield ListedFile(name, about.st_size, about.st_mtime_ns // 1_000_000)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise storage_refused(str(folder), str(error.strerror)) from error


def _told(path: str) -> str:
    """As text that can be printed and stored; bytes that are no UTF-8 by their numbers."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _delete_here(root: Path, names: list[str]) -> Deleted:
    files = missing = size_bytes = 0
    opened: tuple[str, int | None] | None = None
    with ExitStack() as held:
        for name in names:
            folder, _, file = name.rpartition("/")
            if opened is None or opened[0] != folder:
                held.close()
                opened = folder, _open_folder(held, root, folder)
            at = opened[1]
            size = None if at is None else _unlink(root / name, file, at)
            if size is None:
                missing += 1
            else:
                files, size_bytes = files + 1, size_bytes + size
    return Deleted(files=files, missing=missing, size_bytes=size_bytes)


def _open_folder(held: ExitStack, root: Path, folder: str) -> int | None:
    """Step by step, so that no link on the way is followed, also one put there just now. None: it is gone."""
    at = root
    try:
        number = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        held.callback(os.close, number)
        for step in folder.split("/") if folder else ():
            at = at / step
            number = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=number)
            held.callback(os.close, number)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise UnsafePath(str(at), "a symbolic link, or no folder") from error
        raise storage_refused(str(at), str(error.strerror)) from error
    return number


def _unlink(path: Path, file: str, folder: int) -> int | None:
    try:
        about = os.stat(file, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(about.st_mode):
            raise UnsafePath(str(path), "a symbolic link, or no plain file")
        os.unlink(file, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_refused(str(path), str(error.strerror)) from error
    return about.st_size


def _listed_there(io: FileIO, location: str) -> Iterator[ListedFile]:
    from pyarrow.fs import FileSelector, FileType

    files, root = _arrow_files(io, location)
    prefix = f"{root}/"
    for found in files.get_file_info(FileSelector(root, recursive=True, allow_not_found=True)):
        if found.type == FileType.File:
            changed = found.mtime_ns
            # An unknown time is no age: the file counts as new.
            yield ListedFile(found.path.removeprefix(prefix), found.size or 0, 2**62 if changed is None else changed // 1_000_000)


def _delete_there(io: FileIO, location: str, names: list[str]) -> Deleted:
    from pyarrow.fs import FileType

    files, root = _arrow_files(io, location)
    gone = missing = size_bytes = 0
    for name in names:
        path = f"{root}/{name}"
        try:
            found = files.get_file_info([path])[0]
            if found.type == FileType.NotFound:
                missing += 1
                continue
            files.delete_file(path)
        except FileNotFoundError:
            missing += 1
        except OSError as error:
            raise storage_refused(path, str(error)) from error
        else:
            gone, size_bytes = gone + 1, size_bytes + (found.size or 0)
    return Deleted(files=gone, missing=missing, size_bytes=size_bytes)


def _arrow_files(io: FileIO, location: str) -> tuple[FileSystem, str]:
    """The object store as PyArrow reaches it by the catalog's own settings, and the location's path in it."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    reach = io if isinstance(io, PyArrowFileIO) else PyArrowFileIO(io.properties)
    scheme, authority, path = PyArrowFileIO.parse_location(location, io.properties)
    return reach.fs_by_scheme(scheme, authority), path.rstrip("/")
