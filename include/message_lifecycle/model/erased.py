"""What an erasure finds in a table, and what it leaves behind as evidence. No value here holds a key, or tells one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Matches = Callable[[bytes], bool]
"""Whether a key is the one that is to be erased; knows it by a keyed hash alone."""
TableKind = Literal["log", "view", "snapshots", "quarantine", "archive"]
"""What of a topic holds keys: its messages or changes, its compacted view, its documents' snapshots, and where messages are kept as records:
what was refused, what has gone. The key of a change and of a snapshot is the name of its document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFile:
    """A data file that holds the key in its bytes. `offsets`: of all its rows of the key, as `rows.ranges_text`, marked as removed or
    not; `live`: those that readers of main still see. `needed`: a ref or an open undo reads it, so it is written again; else it goes
    with the history that alone names it."""

    name: str
    partition: int
    base_offset: int
    offsets: str
    rows: int
    live: int
    size_bytes: int
    needed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInTable:
    """Where a key lies in one table, at its newest metadata.

    `refs`: every branch and tag with the snapshot it names, main among them; `undo`: plans whose undo is open, with the snapshot before
    each one's commit; `snapshots`: all that the table remembers. `clean`: nothing of the key is to be found, nor in metadata."""

    table: TableKind
    table_uuid: str
    snapshot_id: int | None
    files: tuple[HeldFile, ...]
    refs: tuple[tuple[str, int], ...]
    undo: tuple[tuple[str, int], ...]
    snapshots: tuple[int, ...]
    rows: int
    size_bytes: int
    clean: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedTable:
    """What is true of a table after an erasure: nothing found in `files_searched` data files. `gone`: names of the files that went."""

    table: TableKind
    table_uuid: str
    snapshots: tuple[int, ...]
    files_searched: int
    files_found: int
    gone: tuple[str, ...]
    committed_at: int | None
    finished_at: int | None
