"""A file of lines written anew without what goes; what stays is written byte for byte.

Lines are parsed for their place up to the last one that goes. What follows is copied as it is, and goes by no line at all.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import BinaryIO

import orjson

from message_lifecycle.model.errors import damaged_log
from message_lifecycle.stores.record_log.disk import Disk
from message_lifecycle.stores.record_log.log import Removal

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """Messages that went; `empty`: nothing was left to be written."""

    removed: int
    empty: bool


def rewrite(file: BinaryIO, into: int, disk: Disk, *, position: int, removal: Removal, damaged: Set[int]) -> Rewritten:
    """The rest of `file`, which stands at `position`, without the lines at the positions `damaged` and those that the removal names.

    Raises DamagedLog where a line is no message and not among the damaged: the file has changed since it was looked at."""
    loads, takes = orjson.loads, removal.taker()
    last_damaged = max(damaged, default=-1)
    removed = waiting = 0
    empty = True
    chunk: list[bytes] = []
    for line in file:
        here, position = position, position + len(line)
        if here in damaged:
            continue
        try:
            record = loads(line)
            goes = takes(record["partition"], record["offset"])
        except (ValueError, KeyError, TypeError) as error:
            if not line.strip():
                continue
            raise damaged_log(file.name, f"at byte {here}: {error}", "what was there when the log was looked at") from error
        if goes:
            removed += 1
            if removed == removal.rows and here > last_damaged:
                break
            continue
        chunk.append(line)
        waiting += len(line)
        if waiting >= _CHUNK_BYTES:
            disk.write(into, b"".join(chunk))
            empty, waiting = False, 0
            chunk.clear()
    last = b"\n" if not chunk else chunk[-1]
    if chunk:
        disk.write(into, b"".join(chunk))
        empty = False
    while content := file.read(_CHUNK_BYTES):
        disk.write(into, content)
        empty, last = False, content
    if not last.endswith(b"\n"):
        disk.write(into, b"\n")
    return Rewritten(removed=removed, empty=empty)
