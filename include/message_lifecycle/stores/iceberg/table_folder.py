"""A table's metadata document, read directly; and the names of the files below its location."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from message_lifecycle.model.errors import FileLost, FileUnreadable, UnsafePath

# A table's metadata document, read directly: enough for names, settings and summaries, and far quicker than a table object.


Metadata = Mapping[str, Any]
"""The metadata of a table or a view as JSON, or a part of them, like a snapshot or a ref. Any program may have written them."""


def is_local(location: str) -> bool:
    """True if the location is a path or a `file:` URI."""
    return urlsplit(location).scheme in ("", "file")


def local_path(location: str) -> Path:
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(location)


def folder_at(location: str) -> str:
    """Return the location as the names of new files have it: a path if it is local."""
    return str(local_path(location)) if is_local(location) else location.rstrip("/")


# Folders whose own names are on disk.
_named: set[Path] = set()


def on_disk(location: str) -> None:
    """Flush a closed local file to disk, with its name and the names of new folders above it.

    A catalog is about to name the file, and the catalog's database survives a loss of power, so the file must survive too. Other stores
    take care of this themselves.
    """
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
            return  # without the right to read the parent folder, this process cannot have made the folder in it
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
    content: Metadata

    @classmethod
    def read(cls, location: str, file_properties: Mapping[str, str]) -> TableDocument:
        """`file_properties`: the catalog's settings for reaching files that are not local."""
        if is_local(location):
            raw = local_path(location).read_bytes()
        else:
            from pyiceberg.io import load_file_io

            with load_file_io(properties=dict(file_properties), location=location).new_input(location).open() as stream:
                raw = stream.read()
        return cls.of(location, raw)

    @classmethod
    def of(cls, location: str, raw: bytes) -> TableDocument:
        """Parse the content of the file at the location. Raises the errors in TORN."""
        content = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        _check_shape(content)
        return cls(location=location, content=content)

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

    @property
    def snapshots(self) -> Sequence[Metadata]:
        """Every snapshot that the table remembers, in the order of the document."""
        return self.content.get("snapshots") or ()

    def summaries(self) -> Iterator[Mapping[str, str]]:
        """Yield the summaries of main's snapshots, newest first, as far back as the table remembers them."""
        return (snapshot.get("summary") or {} for snapshot in self.main())

    def main_ids(self) -> Iterator[int]:
        """Yield the ids of main's snapshots, in the same order."""
        return (int(snapshot["snapshot-id"]) for snapshot in self.main())

    def main(self) -> Iterator[Metadata]:
        """Yield the snapshots of main, newest first, as far back as the table remembers them."""
        snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in self.snapshots}
        snapshot = snapshots.get(self.content.get("current-snapshot-id"))
        while snapshot is not None:
            yield snapshot
            snapshot = snapshots.get(snapshot.get("parent-snapshot-id"))

    def newest(self, key: str) -> str | None:
        """The value in the newest ancestor of main whose summary has the key."""
        return next((summary[key] for summary in self.summaries() if key in summary), None)


def _check_shape(content: object) -> None:
    """Raises ValueError for what is no metadata of a table or of a view, so that each reader may take the parts that every table has for granted."""
    if not isinstance(content, dict) or not any(isinstance(content.get(name), str) for name in ("table-uuid", "view-uuid")):
        raise ValueError("no JSON object with a table-uuid or a view-uuid")
    if not _is_text_by_text(content.get("properties") or {}):
        raise ValueError("properties are no texts by name")
    current = content.get("current-snapshot-id")
    if current is not None and type(current) is not int:
        raise ValueError(f"current-snapshot-id is {current!r}")
    for snapshot in content.get("snapshots") or ():
        if not isinstance(snapshot, dict) or type(snapshot.get("snapshot-id")) is not int:
            raise ValueError("a snapshot has no snapshot-id")
        if type(snapshot.get("parent-snapshot-id", 0)) not in (int, type(None)):
            raise ValueError(f"the parent of snapshot {snapshot['snapshot-id']} is no snapshot-id")
        if not _is_text_by_text(snapshot.get("summary") or {}):
            raise ValueError(f"the summary of snapshot {snapshot['snapshot-id']} is no texts by name")
    _check_parents({snapshot["snapshot-id"]: snapshot.get("parent-snapshot-id") for snapshot in content.get("snapshots") or ()})


def _check_parents(parents: Mapping[int, int | None]) -> None:
    """Raises ValueError for a snapshot that is its own ancestor: a walk through the history would never end."""
    seen: dict[int, int] = {}
    for start in parents:
        at: int | None = start
        while at is not None and at in parents and at not in seen:
            seen[at] = start
            at = parents[at]
        if at is not None and seen.get(at) == start:
            raise ValueError(f"snapshot {at} is an ancestor of itself")


def _is_text_by_text(found: object) -> bool:
    return isinstance(found, dict) and all(type(value) is str for value in found.values())


TORN = (ValueError, EOFError, zlib.error, gzip.BadGzipFile)
"""What reading a damaged file raises; PyArrow's errors are ValueErrors."""


def reason_of(error: Exception) -> str:
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
        raise FileLost(str(error.filename or path), reason_of(error)) from error
    except (OSError, *TORN) as error:
        raise FileUnreadable(path, reason_of(error)) from error


# Plans name data files relative to the table's location, so that a plan is the same wherever the table is.


# A path or a URI. Java writes the URI of a local file with one slash (`file:/lake/...`).
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
    """Return the part of a file's path that its name leaves out."""
    return f"{location.rstrip('/')}/"


def is_absolute(name: str) -> bool:
    """True if the file is outside the table's location, so that the name is a whole path."""
    return bool(_ABSOLUTE.match(name))


def absolute(prefix: str, name: str) -> str:
    return name if is_absolute(name) else f"{prefix}{name}"


def normalised(path: str) -> str:
    """Return one spelling for all spellings of a file's path: `file:/x`, `file:///x` and `/x` are `/x`; `s3a://b/x` is `s3://b/x`.

    The function decodes no escapes.

    Raises:
        UnsafePath: A step leads elsewhere (`.`, `..`, an empty step), so two names of one file could differ.
    """
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
    """Names files by their place within a table's location."""

    def __init__(self, location: str) -> None:
        self._prefix = location_prefix(normalised(location))
        self._as_given = location_prefix(location)

    def name(self, path: str) -> str:
        """Return the name relative to the location, or the whole path of a file outside. Raises UnsafePath."""
        if path.startswith(self._as_given):
            # Nearly every path begins like this; then only the rest can be misleading.
            name = path[len(self._as_given) :]
            if not _MISLEADING.search(name):
                return name
        return normalised(path).removeprefix(self._prefix)

    def may_contain(self, path: str) -> bool:
        """True if a path that cannot be normalised might be here, by its beginning or by steps that lead elsewhere."""
        return path.startswith((self._as_given, self._prefix)) or "/../" in path or "/./" in path
