"""File stores for tests: both by one name, and disks that stop, or note what they do."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from message_lifecycle.model.errors import UnknownTopic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.json_file import JsonFiles
from message_lifecycle.stores.record_log import Head, RecordLog, RecordLogs, Removal
from message_lifecycle.stores.record_log.disk import Disk
from message_lifecycle.stores.rotating_file import RotatingFiles
from message_lifecycle.stores.rotating_manifest import read_manifest

NAME = TopicName(stream="test", topic="messages")
KINDS = ("json_file", "rotating_file")
HEAD = Head(uuid="u1", partitions=1, settings={}, ledger=("l1", 1), end_offsets={0: 0}, segments={0: 0})
MAX_BYTES = 210
"""Of rotating files: about three messages each."""


def logs_of(kind: str, root: Path, *, disk: Disk | None = None, wait_seconds: float = 30.0) -> RecordLogs:
    if kind == "json_file":
        return JsonFiles(root, disk=disk, wait_seconds=wait_seconds)
    return RotatingFiles(root, max_bytes=MAX_BYTES, disk=disk, wait_seconds=wait_seconds)


def log_of(kind: str, root: Path, *, disk: Disk | None = None, wait_seconds: float = 30.0) -> RecordLog:
    """Made if it is not there."""
    logs = logs_of(kind, root, disk=disk, wait_seconds=wait_seconds)
    with suppress(UnknownTopic):
        return logs.open(NAME)
    logs.create(NAME, HEAD)
    return logs.open(NAME)


def message(offset: int) -> Message:
    return Message(partition=0, offset=offset, append_time=Instant(offset + 1), key=b"k", value=b"v%d" % offset, segment=0)


def append(log: RecordLog, count: int) -> None:
    """The next so many messages, in one batch."""
    with log.lock():
        head = log.head()
        end = head.end_offsets[0]
        log.append([message(offset) for offset in range(end, end + count)], replace(head, end_offsets={0: end + count}))


def remove(log: RecordLog, *runs: range, plan_id: str = "p1") -> None:
    """Remove the offsets once, by the plan's id, as the store does."""
    with log.lock():
        head = log.head()
        if head.commit_of(plan_id) is None:
            rows = sum(len(run) for run in runs)
            commits = head.with_commit(plan_id=plan_id, removed=(("retention_count", rows),))
            after = replace(head, generation=head.generation + 1, commits=commits)
            log.replace(after, Removal(plan_id=plan_id, offsets={0: runs}, rows=rows))


def offsets(log: RecordLog) -> list[int]:
    found = list(log.scan()[1])
    assert found == [message(m.offset) for m in found]
    return [m.offset for m in found]


def files(root: Path) -> dict[str, bytes]:
    """Everything below the root but the locks."""
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file() and not p.name.endswith("lock")}


class Crash(BaseException):
    """The machine stops here: no error handler runs."""


class WatchedDisk(Disk):
    """Tells `before` what comes before it does it."""

    def __init__(self, before: Callable[[str, object], None]) -> None:
        self._before = before

    def make_folder(self, folder: Path) -> None:
        self._before("make_folder", folder.name)
        super().make_folder(folder)

    def create(self, file: Path, mode: int = 0o600) -> int:
        self._before("create", file.name)
        return super().create(file, mode)

    def write(self, descriptor: int, content: bytes) -> None:
        self._before("write", descriptor)
        super().write(descriptor, content)

    def truncate(self, descriptor: int, size: int) -> None:
        self._before("truncate", descriptor)
        super().truncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        self._before("sync", descriptor)
        super().sync(descriptor)

    def sync_folder(self, folder: Path) -> None:
        self._before("sync_folder", folder.name)
        super().sync_folder(folder)

    def replace(self, new: Path, old: Path) -> None:
        self._before("replace", old.name)
        super().replace(new, old)

    def unlink(self, file: Path) -> None:
        self._before("unlink", file.name)
        super().unlink(file)


class CrashingDisk(WatchedDisk):
    """Stops before its operation number `at` (from 0); where that is a write and `torn` is set, half of it is done. Every other operation
    stops the same whether `torn` is set or not."""

    def __init__(self, at: int, *, torn: bool) -> None:
        super().__init__(self._count)
        self.done, self.stopped_in, self._at, self._torn = 0, "", at, torn

    def _count(self, operation: str, _about: object) -> None:
        if self.done == self._at and not (operation == "write" and self._torn):
            self.stopped_in = operation
            raise Crash
        self.done += 1

    def write(self, descriptor: int, content: bytes) -> None:
        if self.done == self._at and self._torn:
            Disk.write(self, descriptor, content[: len(content) // 2])
            raise Crash
        super().write(descriptor, content)


class FullDisk(WatchedDisk):
    """Every write fails half-way."""

    def __init__(self) -> None:
        super().__init__(lambda _operation, _about: None)

    def write(self, descriptor: int, content: bytes) -> None:
        super().write(descriptor, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")


def spoil(file: Path, line: int, text: bytes) -> None:
    """Put the text in the place of a line, counted from 0."""
    lines = file.read_bytes().split(b"\n")
    lines[line] = text
    file.write_bytes(b"\n".join(lines))


def first_file(kind: str, root: Path) -> tuple[Path, int]:
    """The file that holds the first message, and the lines before it."""
    if kind == "json_file":
        return root / "test" / "messages.jsonl", 1
    folder = root / "test" / "messages"
    return folder / read_manifest(folder).files[0], 0


def is_run(found: Sequence[int]) -> bool:
    """True if the offsets follow each other without a gap."""
    return list(found) == list(range(found[0], found[-1] + 1)) if found else True
