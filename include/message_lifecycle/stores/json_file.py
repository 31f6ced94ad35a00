"""A topic as one file of JSON lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from message_lifecycle.model.errors import PlanConflict, UnknownTopic, topic_exists
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.topic import Backend
from message_lifecycle.stores.record_log import Head, HeadRecord, Removal, check_place, head_line, read_head
from message_lifecycle.stores.record_log.disk import (
    WAIT_SECONDS,
    Disk,
    append_lines,
    commit,
    is_there,
    make_folder,
    make_root,
    open_to_append,
    open_to_read,
    root_of,
    stream_folder,
    streams,
    translate_disk_errors,
    writing,
)
from message_lifecycle.stores.record_log.lines import FileState, Quarantine, closing, content_of, line_of, rewrite, start_state

# One topic in one file: a first line with the log's head, then one message a line in the order of appending.
#
# An append goes to the end of the file and is durable when it returns. Everything else writes the file anew beside the old one,
# on disk before it takes the old one's name in one step: a reader has the old file or the new one, whatever dies when. The head is
# in the file, so what went and the plan that took it are one step.


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What the file held at the last look."""

    inode: int
    modified_ns: int
    first: HeadRecord
    found: FileState


class JsonFileLog:
    """RecordLog over one file."""

    def __init__(self, name: TopicName, file: Path, disk: Disk, *, wait_seconds: float) -> None:
        self._name, self._file, self._disk, self._wait_seconds = name, file, disk, wait_seconds
        self._quarantine = Quarantine(file.with_name(f"{file.name}.quarantine"), disk)
        self._seen: _Seen | None = None
        self._looking = Lock()

    def lock(self) -> AbstractContextManager[None]:
        return writing(self._file.with_name(f"{self._file.name}.lock"), str(self._name), wait_seconds=self._wait_seconds)

    def head(self) -> Head:
        seen = self._look()
        held = self._quarantine.held()
        new = sum((seen.first.source, entry.position, entry.content) not in held for entry in seen.found.damaged)
        ends, segments = dict(seen.found.ends), dict(seen.found.segments)
        return replace(seen.first.head, end_offsets=ends, segments=segments, quarantined=len(held) + new)

    def scan(self) -> tuple[int, Iterator[Message]]:
        file = self._open()
        first = read_head(file, of=self._name)
        found = start_state(first.head.partitions)
        found.position = first.size
        return first.head.generation, closing(file, found)

    def content(self, earlier: str | None = None) -> str:
        with self._open() as file:
            return content_of([(file, read_head(file, of=self._name).size)], earlier)

    def append(self, messages: Sequence[Message], head: Head) -> None:  # noqa: ARG002  # ends and segments are read off the messages
        seen = self._look()
        content = b"".join(line_of(message) for message in messages)
        with translate_disk_errors():
            self._quarantine.add(seen.first.source, seen.found.damaged)
            descriptor = open_to_append(self._file)
            try:
                # What a crash has torn off is closed, not cut: a reader may stand in it.
                append_lines(self._disk, descriptor, b"\n" + content if seen.found.open_end else content)
            finally:
                os.close(descriptor)

    def replace(self, head: Head, removal: Removal | None = None) -> None:
        seen = self._look()
        removal = removal or Removal(plan_id=None, offsets={})
        new = self._new
        damaged = frozenset(entry.position for entry in seen.found.damaged)
        with translate_disk_errors(), self._open() as file:
            first = read_head(file, of=self._name)
            self._disk.unlink(new)
            into = self._disk.create(new, os.fstat(file.fileno()).st_mode & 0o777)
            try:
                self._disk.write(into, head_line(self._name, head, written=first.written + 1))
                done = rewrite(file, into, self._disk, position=first.size, removal=removal, damaged=damaged)
                self._disk.sync(into)
            finally:
                os.close(into)
            if removal.rows not in (None, done.removed):
                self._disk.unlink(new)
                raise PlanConflict(removal.plan_id or "", f"{done.removed} of the {removal.rows} messages that it names are there")
            self._quarantine.add(seen.first.source, seen.found.damaged)
            commit(self._disk, new, self._file)

    def drop_leftovers(self) -> None:
        if os.path.lexists(self._new):
            with self.lock(), translate_disk_errors():
                self._disk.unlink(self._new)
                self._disk.sync_folder(self._new.parent)

    def count_matching(self, tells: Callable[[bytes], bool]) -> int:
        held = self._quarantine.held()
        seen = self._look()
        new = (entry for entry in seen.found.damaged if (seen.first.source, entry.position, entry.content) not in held)
        return self._quarantine.count_matching(tells) + sum(tells(entry.content) for entry in new)

    def erase_damaged_lines(self, tells: Callable[[bytes], bool]) -> None:
        if self._look().found.damaged:
            self.replace(self.head())  # into quarantine with them
        with translate_disk_errors():
            self._quarantine.erase(tells)

    @property
    def _new(self) -> Path:
        """Where a change writes the log anew; what a crash leaves there, the next change takes away as well."""
        return self._file.with_name(f"{self._file.name}.new")

    def _open(self) -> BinaryIO:
        """Raises UnknownTopic, UnsafePath."""
        try:
            return open_to_read(self._file)
        except FileNotFoundError:
            raise UnknownTopic(str(self._name)) from None

    def _look(self) -> _Seen:
        """What the file holds now; what was read before is read again only where the file is another."""
        with self._looking, self._open() as file:
            status, first, seen = os.fstat(file.fileno()), read_head(file, of=self._name), self._seen
            known = seen is not None and (seen.inode, seen.first.written) == (status.st_ino, first.written)
            if seen is not None and known and (seen.modified_ns, seen.found.position) == (status.st_mtime_ns, status.st_size):
                return seen
            # Only what has been added to the end needs to be read; changed in place, by a hand that is not ours, all of it.
            if seen is None or not known or status.st_size <= seen.found.position or not seen.found.is_continued_by(file):
                found = start_state(first.head.partitions)
                found.ends, found.segments, found.position = dict(first.head.end_offsets), dict(first.head.segments), first.size
                seen = _Seen(inode=status.st_ino, modified_ns=0, first=first, found=found)
            file.seek(seen.found.position)
            self._seen = None
            seen.found.read_on(file)
            seen.modified_ns = status.st_mtime_ns
            self._seen = seen
            return seen


# The topics of a folder: `<stream>/<topic>.jsonl`, both encoded as catalog names are.


class JsonFiles:
    """RecordLogs of one root. `wait_seconds`: how long a writer waits for another."""

    backend: Backend = "json_file"

    def __init__(self, root: Path, *, disk: Disk | None = None, wait_seconds: float = WAIT_SECONDS) -> None:
        self._root, self._disk, self._wait_seconds = root_of(root), disk or Disk(), wait_seconds
        self._open: dict[TopicName, JsonFileLog] = {}

    def names(self) -> Sequence[TopicName]:
        """Raises DamagedLog, also where a file carries another topic's name."""
        found = []
        for folder in streams(self._root):
            for path in sorted(folder.glob("*.jsonl")):
                with open_to_read(path) as file:
                    found.append(read_head(file).topic)
                check_place(found[-1], path, own=self.file(found[-1]))
        return found

    def create(self, name: TopicName, head: Head) -> None:
        log, file = self._log(name), self.file(name)
        make_root(self._root)
        with translate_disk_errors():
            make_folder(file.parent, self._disk)
            with log.lock():
                if is_there(file):
                    raise topic_exists(str(name))
                new = file.with_name(f"{file.name}.new")
                self._disk.unlink(new)
                into = self._disk.create(new)
                try:
                    self._disk.write(into, head_line(name, head, written=1))
                    self._disk.sync(into)
                finally:
                    os.close(into)
                commit(self._disk, new, file)

    def open(self, name: TopicName) -> JsonFileLog:
        """Raises UnknownTopic where the file is missing, StorageRefused where the system does not say whether it is."""
        if not is_there(self.file(name)):
            raise UnknownTopic(str(name))
        return self._log(name)

    def file(self, name: TopicName) -> Path:
        """Where the topic's log lies, there or not."""
        return stream_folder(self._root, name) / f"{name.table()}.jsonl"

    def _log(self, name: TopicName) -> JsonFileLog:
        if name not in self._open:
            self._open[name] = JsonFileLog(name, self.file(name), self._disk, wait_seconds=self._wait_seconds)
        return self._open[name]
