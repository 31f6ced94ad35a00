"""How plans name data files: relative to the table's location, so that a plan is the same wherever the table lies."""

from __future__ import annotations

import re

# A path, or a URI: Java writes those of local files with one slash (`file:/lake/...`).
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")


def location_prefix(location: str) -> str:
    """What a name leaves out."""
    return f"{location.rstrip('/')}/"


def is_absolute(name: str) -> bool:
    """Whether the file lies outside of the table's location, so that its name is all of its place."""
    return bool(_ABSOLUTE.match(name))


def absolute(prefix: str, name: str) -> str:
    return name if is_absolute(name) else f"{prefix}{name}"
