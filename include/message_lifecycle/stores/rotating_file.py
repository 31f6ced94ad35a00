"""A topic as a folder of files of JSON lines, of which one takes messages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from message_lifecycle.model.errors import CommitUnknown, PlanConflict, UnknownTopic, damaged_log, log_replaced, topic_exists
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.topic import Backend
from message_lifecycle.stores.record_log import Head, Removal, check_place
from message_lifecycle.stores.record_log.disk import (
    WAIT_SECONDS,
    Disk,
    append_lines,
    check_folder,
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
from message_lifecycle.stores.record_log.lines import FileState, Quarantine, content_of, line_of, rewrite, start_state
from message_lifecycle.stores.rotating_manifest import LINES, NAME, Manifest, file_name, leftovers, read_manifest, write_manifest

# One topic in a folder of files: appends go to the last one, until it has `max_bytes`; then the next one begins.
#
# The manifest names the files. New ones are on disk before it names them, old ones go after it has ceased to: so at every moment it
# describes one whole log, and what a crash leaves beside that is nobody's and goes with the next change. A removal writes anew only the
# files that lose some of their messages, and drops those that lose all.


OPEN_AT_ONCE = 256
"""Files that a reader holds open from the beginning; of a log of more, a removal meanwhile may end the read (LogReplaced)."""
_ATTEMPTS = 10
"""Each means that a removal came between the manifest and the files that it names."""


@dataclass(slots=True, kw_only=True)
class _File:
    """A file at the last look."""

    name: str
    identity: tuple[int, int]
    found: FileState


@dataclass(slots=True, kw_only=True)
class _Seen:
    """The log at the last look. All `found` of its files share what rises through the log."""

    manifest: Manifest
    start: FileState
    files: list[_File] = field(default_factory=list)


class RotatingLog:
    """RecordLog over one folder."""

    def __init__(self, name: TopicName, folder: Path, disk: Disk, *, max_bytes: int, wait_seconds: float) -> None:
        self._name, self._folder, self._disk = name, folder, disk
        self._max_bytes, self._wait_seconds = max_bytes, wait_seconds
        self._quarantine = Quarantine(folder / "quarantine.jsonl", disk)
        self._seen: _Seen | None = None
        self._looking = Lock()

    def lock(self) -> AbstractContextManager[None]:
        return writing(self._folder / "lock", str(self._name), wait_seconds=self._wait_seconds)

    def head(self) -> Head:
        seen = self._look()
        head, held = seen.manifest.head, self._quarantine.held()
        new = sum((file.name, e.position, e.content) not in held for file in seen.files for e in file.found.damaged)
        return replace(
            head,
            end_offsets={partition: max(end, seen.start.ends[partition]) for partition, end in head.end_offsets.items()},
            segments={partition: max(base, seen.start.segments[partition]) for partition, base in head.segments.items()},
            quarantined=len(held) + new,
        )

    def scan(self) -> tuple[int, Iterator[Message]]:
        for _ in range(_ATTEMPTS):
            manifest = self._manifest()
            opened: list[BinaryIO] = []
            try:
                opened += (open_to_read(self._folder / name) for name in manifest.files[:OPEN_AT_ONCE])
            except FileNotFoundError:
                for file in opened:
                    file.close()
                self._check_gone(manifest)
                continue
            return manifest.head.generation, self._messages(manifest, opened)
        raise log_replaced(str(self._name), self._manifest().head.generation, manifest.head.generation)

    def content(self, earlier: str | None = None) -> str:
        manifest = self._manifest()
        try:
            return content_of(self._each(manifest), earlier)
        except FileNotFoundError:
            self._check_gone(manifest)
            raise log_replaced(str(self._name), self._manifest().head.generation, manifest.head.generation) from None

    def _each(self, manifest: Manifest) -> Iterator[tuple[BinaryIO, int]]:
        for name in manifest.files:
            with open_to_read(self._folder / name) as file:
                yield file, 0

    def append(self, messages: Sequence[Message], head: Head) -> None:  # noqa: ARG002  # ends and segments are read off the messages
        seen = self._look()
        manifest, active = seen.manifest, seen.files[-1]
        here, following = self._split([line_of(message) for message in messages], (self._folder / active.name).stat().st_size)
        with translate_disk_errors():
            for file in seen.files:
                self._quarantine.add(file.name, file.found.damaged)
            new = self._write_new(manifest, following) if following else ()
            descriptor = open_to_append(self._folder / active.name)
            try:
                # What a crash has torn off is closed, not cut: a reader may stand in it.
                before = os.fstat(descriptor).st_size
                append_lines(self._disk, descriptor, b"\n" + here if active.found.open_end else here)
                if new:
                    after = replace(manifest, files=manifest.files + new, following=manifest.following + len(new))
                    self._name_files(after, descriptor, before)
            finally:
                os.close(descriptor)

    def replace(self, head: Head, removal: Removal | None = None) -> None:
        seen = self._look()
        manifest = seen.manifest
        with translate_disk_errors():
            self._clean(manifest)
            files, gone, rows, following = list[str](), list[str](), 0, manifest.following
            for file in seen.files:
                if removal is None or not (file.found.damaged or _touches(removal, file.found)):
                    files.append(file.name)
                    continue
                kept, removed = self._rewrite(file, file_name(following), removal)
                rows += removed
                gone.append(file.name)
                if kept:
                    files.append(file_name(following))
                following += 1
            if removal is not None and removal.rows not in (None, rows):
                self._clean(manifest)
                raise PlanConflict(removal.plan_id or "", f"{rows} of the {removal.rows} messages that it names are there")
            if not files:
                files.append(file_name(following))
                self._write(file_name(following), b"")
                following += 1
            self._disk.sync_folder(self._folder)
            for file in seen.files:
                self._quarantine.add(file.name, file.found.damaged)
            write_manifest(self._folder, replace(manifest, head=head, files=tuple(files), following=following), self._disk)
            self._drop_old([self._folder / name for name in gone])

    def drop_leftovers(self) -> None:
        if leftovers(self._folder, self._manifest()):
            with self.lock(), translate_disk_errors():
                self._clean(self._manifest())

    def count_matching(self, tells: Callable[[bytes], bool]) -> int:
        held, seen = self._quarantine.held(), self._look()
        new = (entry for file in seen.files for entry in file.found.damaged if (file.name, entry.position, entry.content) not in held)
        return self._quarantine.count_matching(tells) + sum(tells(entry.content) for entry in new)

    def erase_damaged_lines(self, tells: Callable[[bytes], bool]) -> None:
        if any(file.found.damaged for file in self._look().files):
            self.replace(self.head(), Removal(plan_id=None, offsets={}))  # into quarantine with them
        with translate_disk_errors():
            self._quarantine.erase(tells)

    def _name_files(self, after: Manifest, descriptor: int, before: int) -> None:
        """The end of a batch lies in files that the manifest is to name. Where an error leaves them unnamed, its beginning is cut off again."""
        try:
            write_manifest(self._folder, after, self._disk)
        except OSError:
            if self._manifest().files != after.files:
                self._disk.truncate(descriptor, before)
            raise

    def _split(self, lines: list[bytes], size: int) -> tuple[bytes, list[bytes]]:
        """What still goes to the file that takes messages and has this size, and what to each new one. A larger line has one of its own."""
        parts, sizes = [list[bytes]()], [size]
        for line in lines:
            if sizes[-1] and sizes[-1] + len(line) > self._max_bytes:
                parts.append([])
                sizes.append(0)
            parts[-1].append(line)
            sizes[-1] += len(line)
        return b"".join(parts[0]), [b"".join(part) for part in parts[1:]]

    def _write_new(self, manifest: Manifest, contents: list[bytes]) -> tuple[str, ...]:
        self._clean(manifest)
        names = tuple(file_name(manifest.following + at) for at in range(len(contents)))
        for name, content in zip(names, contents, strict=True):
            self._write(name, content)
        self._disk.sync_folder(self._folder)
        return names

    def _write(self, name: str, content: bytes) -> None:
        into = self._disk.create(self._folder / name)
        try:
            self._disk.write(into, content)
            self._disk.sync(into)
        finally:
            os.close(into)

    def _rewrite(self, file: _File, name: str, removal: Removal) -> tuple[bool, int]:
        """Whether anything is kept, in a file of this name then, and how many messages were removed."""
        path = self._folder / name
        damaged = frozenset(entry.position for entry in file.found.damaged)
        with open_to_read(self._folder / file.name) as old:
            into = self._disk.create(path, os.fstat(old.fileno()).st_mode & 0o777)
            try:
                done = rewrite(old, into, self._disk, position=0, removal=replace(removal, rows=None), damaged=damaged)
                self._disk.sync(into)
            finally:
                os.close(into)
        if done.empty:
            self._disk.unlink(path)
        return not done.empty, done.removed

    def _clean(self, manifest: Manifest) -> None:
        self._drop(leftovers(self._folder, manifest))

    def _drop(self, paths: Sequence[Path]) -> None:
        """What is told to be gone must not come back with the machine."""
        for path in paths:
            self._disk.unlink(path)
        if paths:
            self._disk.sync_folder(self._folder)

    def _drop_old(self, paths: Sequence[Path]) -> None:
        """Raises CommitUnknown: the change is made by then, and only its old files may still be there, or come back."""
        try:
            self._drop(paths)
        except OSError as error:
            raise CommitUnknown(f"{self._folder}: {error.strerror}", who="the disk") from error

    def _manifest(self) -> Manifest:
        """Raises UnknownTopic, DamagedLog."""
        try:
            return read_manifest(self._folder, of=self._name)
        except FileNotFoundError:
            raise UnknownTopic(str(self._name)) from None

    def _check_gone(self, manifest: Manifest) -> None:
        """That a file is missing is well where the manifest has ceased to name it. Raises DamagedLog."""
        now = self._manifest()
        lost = [name for name in now.files if not (self._folder / name).exists()]
        if lost and now.files == manifest.files:
            raise damaged_log(str(self._folder / lost[0]), "no file", "every file that the manifest names")

    def _messages(self, manifest: Manifest, opened: list[BinaryIO]) -> Iterator[Message]:
        found = start_state(manifest.head.partitions)
        try:
            for at, name in enumerate(manifest.files):
                try:
                    file = opened[at] if at < len(opened) else open_to_read(self._folder / name)
                except FileNotFoundError:
                    self._check_gone(manifest)
                    raise log_replaced(str(self._name), self._manifest().head.generation, manifest.head.generation) from None
                with file:
                    yield from _of_file(found).messages(file)
        finally:
            for file in opened:
                file.close()

    def _look(self) -> _Seen:
        """The log now; what was read before is read again only where it is not the same any more."""
        with self._looking:
            for _ in range(_ATTEMPTS):
                manifest = self._manifest()
                try:
                    self._seen = self._read_on(self._seen, manifest)
                except FileNotFoundError:
                    self._seen = None
                    self._check_gone(manifest)
                    continue
                return self._seen
            raise log_replaced(str(self._name), self._manifest().head.generation, manifest.head.generation)

    def _read_on(self, seen: _Seen | None, manifest: Manifest) -> _Seen:
        if seen is None or not self._has_only_grown(seen, manifest):
            start = start_state(manifest.head.partitions)
            seen = _Seen(manifest=manifest, start=start)
        seen.manifest = manifest
        last = max(0, len(seen.files) - 1)
        for at, name in enumerate(manifest.files[last:], start=last):
            with open_to_read(self._folder / name) as file:
                status = os.fstat(file.fileno())
                if at == len(seen.files):
                    seen.files.append(_File(name=name, identity=(0, 0), found=_of_file(seen.start)))
                of_file = seen.files[at]
                file.seek(of_file.found.position)
                of_file.found.read_on(file)
                of_file.identity = _identity(status)
        return seen

    def _has_only_grown(self, seen: _Seen, manifest: Manifest) -> bool:
        """Whether all that was read is still there, with more after it at the most."""
        if not seen.files or manifest.files[: len(seen.files)] != tuple(file.name for file in seen.files):
            return False
        *closed, active = seen.files
        if any(file.identity != _identity((self._folder / file.name).stat()) for file in closed):
            return False
        with open_to_read(self._folder / active.name) as file:
            now = _identity(os.fstat(file.fileno()))
            return now == active.identity or (now[1] > active.found.position and active.found.is_continued_by(file))


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size


def _of_file(start: FileState) -> FileState:
    """A new file's, that goes on where the log stands."""
    return FileState(ends=start.ends, segments=start.segments, last=start.last)


def _touches(removal: Removal, found: FileState) -> bool:
    return any(
        run.start <= found.bounds[partition][1] and run.stop > found.bounds[partition][0]
        for partition, runs in removal.offsets.items()
        if partition in found.bounds
        for run in runs
    )


# The topics of a folder: `<stream>/<topic>/`, both encoded as catalog names are.


MAX_BYTES = 64 * 1024 * 1024
"""Large enough that few files are open, small enough that writing one anew takes a second or two."""


class RotatingFiles:
    """RecordLogs of one root. `max_bytes`: at which a file is closed; `wait_seconds`: how long a writer waits for another."""

    backend: Backend = "rotating_file"

    def __init__(self, root: Path, *, max_bytes: int = MAX_BYTES, disk: Disk | None = None, wait_seconds: float = WAIT_SECONDS) -> None:
        self._root, self._max_bytes, self._disk, self._wait_seconds = root_of(root), max_bytes, disk or Disk(), wait_seconds
        self._open: dict[TopicName, RotatingLog] = {}

    def names(self) -> Sequence[TopicName]:
        """Raises DamagedLog, also where a manifest carries another topic's name."""
        found = []
        for stream in streams(self._root):
            for folder in streams(stream):
                # Without a manifest a crash has come before the topic was made.
                if os.path.lexists(folder / NAME):
                    found.append(read_manifest(folder).topic)
                    check_place(found[-1], folder, own=self.folder(found[-1]))
        return found

    def create(self, name: TopicName, head: Head) -> None:
        folder = self.folder(name)
        make_root(self._root)
        with translate_disk_errors():
            make_folder(folder.parent, self._disk)
            make_folder(folder, self._disk)
            with self._log(name).lock():
                if is_there(folder / NAME):
                    raise topic_exists(str(name))
                manifest = Manifest(topic=name, head=head, files=(file_name(1),), following=2)
                # A creation that died left empty files. Files with lines belong to a log that lost its manifest.
                found = sorted({*leftovers(folder, manifest), folder / file_name(1)})
                for path in found:
                    if LINES.fullmatch(path.name) and is_there(path) and path.lstat().st_size:
                        raise damaged_log(str(path), "messages, and no manifest that names their file", f"{NAME} beside them")
                for path in found:
                    self._disk.unlink(path)
                into = self._disk.create(folder / file_name(1))
                try:
                    self._disk.sync(into)
                finally:
                    os.close(into)
                self._disk.sync_folder(folder)
                write_manifest(folder, manifest, self._disk)

    def open(self, name: TopicName) -> RotatingLog:
        """Raises UnknownTopic where the manifest is missing, UnsafePath, and StorageRefused where the system does not say."""
        if not is_there(self.folder(name) / NAME):
            raise UnknownTopic(str(name))
        return self._log(name)

    def folder(self, name: TopicName) -> Path:
        """Where the topic's log lies, there or not. Raises UnsafePath."""
        folder = stream_folder(self._root, name) / name.table()
        check_folder(folder)
        return folder

    def _log(self, name: TopicName) -> RotatingLog:
        if name not in self._open:
            folder = self.folder(name)
            self._open[name] = RotatingLog(name, folder, self._disk, max_bytes=self._max_bytes, wait_seconds=self._wait_seconds)
        return self._open[name]
