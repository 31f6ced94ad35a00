"""A table's metadata document, read as it stands: enough for names, settings, summaries, and far quicker than a table object."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


def is_local(location: str) -> bool:
    """Whether the location is a path or a `file:` URI."""
    return urlsplit(location).scheme in ("", "file")


def local_path(location: str) -> Path:
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(location)


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
        snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in self.content.get("snapshots") or ()}
        snapshot = snapshots.get(self.content.get("current-snapshot-id"))
        while snapshot is not None:
            yield snapshot.get("summary") or {}
            snapshot = snapshots.get(snapshot.get("parent-snapshot-id"))

    def newest(self, key: str) -> str | None:
        """The value in the newest ancestor of main whose summary has the key."""
        return next((summary[key] for summary in self.summaries() if key in summary), None)
