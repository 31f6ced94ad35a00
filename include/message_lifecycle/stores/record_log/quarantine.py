"""Damaged lines, kept beside the log they were found in: nothing of them is lost, and each is counted once (RET-6).

One JSON object a line: `file` and `position` say where it lay, `reason` why it is no message, `line` what it says, as text or base64.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import orjson

from message_lifecycle.stores.record_log.disk import Disk, open_to_append, open_to_read
from message_lifecycle.stores.record_log.lines import Damaged, bytes_of, text_of

Place = tuple[str, int, bytes]


class Quarantine:
    """The quarantine file of one log."""

    def __init__(self, file: Path, disk: Disk) -> None:
        self._file, self._disk = file, disk
        self._seen: tuple[tuple[int, int, int], set[Place], bool] | None = None

    def held(self) -> set[Place]:
        """File, position and content of each line that is in it."""
        return self._look()[0]

    def add(self, file: str, damaged: Iterable[Damaged]) -> None:
        """Those that are not there yet; durable on return, so that the log may lose them then. Under the log's lock."""
        held, torn = self._look()
        new = [entry for entry in damaged if (file, entry.position, entry.content) not in held]
        if not new:
            return
        fresh = not self._file.exists()
        descriptor = self._disk.create(self._file) if fresh else open_to_append(self._file)
        try:
            # A line that a crash has torn stays, closed: what it was about is added again.
            content = b"\n" if torn else b""
            for entry in new:
                record = {"file": file, "position": entry.position, "reason": entry.reason, "line": text_of(entry.content)}
                content += orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
            self._disk.write(descriptor, content)
            self._disk.sync(descriptor)
        finally:
            os.close(descriptor)
        if fresh:
            self._disk.sync_folder(self._file.parent)

    def telling(self, tells: Callable[[bytes], bool]) -> int:
        """How many lines tell what `tells` looks for, torn ones among them."""
        return sum(map(tells, self._contents()))

    def erase(self, tells: Callable[[bytes], bool]) -> int:
        """Write the file anew without the lines that tell it; how many those were. On disk on return. Under the log's lock."""
        new = self._file.with_name(f"{self._file.name}.new")
        self._disk.unlink(new)  # a crash may have left it
        if not self.telling(tells):
            return 0
        gone = 0
        with open_to_read(self._file) as file:
            into = self._disk.create(new, os.fstat(file.fileno()).st_mode & 0o777)
            try:
                for line in file:
                    if tells(_content_of(line)):
                        gone += 1
                    else:
                        self._disk.write(into, line)
                self._disk.sync(into)
            finally:
                os.close(into)
        self._disk.replace(new, self._file)
        self._disk.sync_folder(self._file.parent)
        return gone

    def _contents(self) -> Iterator[bytes]:
        try:
            file = open_to_read(self._file)
        except FileNotFoundError:
            return
        with file:
            yield from map(_content_of, file)

    def _look(self) -> tuple[set[Place], bool]:
        """What is in it, and whether its last line was torn."""
        try:
            file = open_to_read(self._file)
        except FileNotFoundError:
            return set(), False
        with file:
            status = os.fstat(file.fileno())
            identity = status.st_ino, status.st_size, status.st_mtime_ns
            if self._seen is not None and self._seen[0] == identity:
                return self._seen[1], self._seen[2]
            held: set[Place] = set()
            torn = False
            for line in file:
                torn = not line.endswith(b"\n")
                place = None if torn else _place_of(line)
                if place is not None:
                    held.add(place)
        self._seen = identity, held, torn
        return held, torn


def _content_of(line: bytes) -> bytes:
    """What the damaged line said; of a torn record of one, the record itself."""
    place = _place_of(line)
    return line.rstrip(b"\n") if place is None else place[2]


def _place_of(line: bytes) -> Place | None:
    """None: a torn line of an earlier crash, of which the whole one follows."""
    try:
        record = orjson.loads(line)
        return record["file"], record["position"], bytes_of("line", record["line"]) or b""
    except (ValueError, KeyError, TypeError):
        return None
