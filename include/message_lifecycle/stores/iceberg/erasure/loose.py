"""Data files in a table's folder that no snapshot names, and that hold the key: what writers left that died before their commit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from message_lifecycle.model.erasure import HeldFile, KeyInTable, Matches, TableKind
from message_lifecycle.model.errors import unsupported_erasure
from message_lifecycle.model.rows import ranges_text
from message_lifecycle.stores.iceberg.erasure.held_rows import names_of, opened, rows_with
from message_lifecycle.stores.iceberg.file_names import Within, location_prefix
from message_lifecycle.stores.iceberg.table_folder import listed

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

LEFT_AFTER_MS = 259_200_000
"""Three days: longer than any task may take to commit what it has written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LooseFile:
    """`changed_at_ms`: since 1970, by the file system's clock."""

    file: HeldFile
    changed_at_ms: int


def loose_with(
    io: FileIO, document: Mapping[str, Any], named: Collection[str], matches: Matches, kind: TableKind, *, going: Collection[str] = ()
) -> tuple[LooseFile, ...]:
    """`named`: paths of all data files that any snapshot names. `going`: names of those that an erasure has to delete still; it will."""
    location = str(document["location"])
    within, found = Within(location), []
    known = {*(within.name(path) for path in named), *going}
    for file in listed(io, location):
        if not file.name.endswith(".parquet") or file.name in known:
            continue
        path = f"{location_prefix(location)}{file.name}"
        try:
            rows, offsets = _held(io, path, matches, kind)
        except FileNotFoundError:
            continue  # its writer has taken it back
        if rows == 0:
            continue
        held = HeldFile(
            name=file.name, partition=0, base_offset=0, offsets=offsets, rows=rows or 0, live=0, size_bytes=file.size_bytes, needed=False
        )
        found.append(LooseFile(file=held, changed_at_ms=file.changed_at_ms))
    return tuple(found)


def _held(io: FileIO, path: str, matches: Matches, kind: TableKind) -> tuple[int | None, str]:
    """How many rows of the file have the key, and which. None: it is torn, as a writer leaves it that died or is at it still, and cannot be
    searched: so it counts as one that holds the key."""
    import pyarrow as pa

    try:
        rows = rows_with(io, path, matches, kind)
        if not len(rows):
            return 0, ""
        with opened(io, path) as parquet:
            return len(rows), ranges_text(sorted(set(names_of(parquet, kind)[rows].tolist())))
    except pa.ArrowInvalid:
        return None, ""
    except OSError as error:
        # Arrow tells a torn file so, too; what the system itself says has a number.
        if error.errno is not None:
            raise
        return None, ""


def with_loose(table: KeyInTable, loose: Iterable[LooseFile], *, now_ms: int) -> KeyInTable:
    """With the files that go beside what history names. Raises UnsupportedErasure where one is so young that its writer may be about to
    commit it: taken away, it would be missing in the table."""
    found = tuple(loose)
    for file in found:
        if file.changed_at_ms > now_ms - LEFT_AFTER_MS:
            raise unsupported_erasure(
                f"the {table.table} ({table.table_uuid})",
                f"{file.file.name}, which no snapshot names yet, holds it or is torn, and is younger than three days: a writer may be about to commit "
                "it. Let the writer end, or come back when the file is older",
            )
    return replace(table, files=(*table.files, *(file.file for file in found)), clean=table.clean and not found)
