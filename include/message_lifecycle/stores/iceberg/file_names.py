"""How plans name data files: relative to the table's location, so that a plan is the same wherever the table lies."""

from __future__ import annotations

import re

from message_lifecycle.model.errors import UnsafePath

# A path, or a URI: Java writes those of local files with one slash (`file:/lake/...`).
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<authority>[^/]*))?(?P<path>/.*)", re.DOTALL)
_MISLEADING = re.compile(r"(?:^|/)\.{0,2}(?:/|$)")
# Names of one store, by whichever library has written the path.
_ONE_SCHEME = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb", "gcs": "gs"}
_THIS_MACHINE = ("", "localhost")
_ERASED = "erased-"


def erased_copy(plan_id: str, number: int) -> str:
    """Name of a data file that an erasure writes in place of another, without its ending."""
    return f"{_ERASED}{plan_id[:16]}-{number:05}"


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
