"""The file operations of the file stores, one method each, so that a test can stop between any two of them.

Nothing is open to others than its owner from its first moment on, and no link is followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from message_lifecycle.model.errors import CommitUnknown, UnsafePath, storage_full, storage_refused

_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENAMETOOLONG)


class Disk:
    """The operations that change something. `write` writes all of it; what is written is on disk only after `sync`."""

    def make_folder(self, folder: Path) -> None:
        folder.mkdir(mode=_PRIVATE_FOLDER)

    def create(self, file: Path, mode: int = _PRIVATE_FILE) -> int:
        """A new file, never an old one."""
        made = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _PRIVATE_FILE)
        if mode != _PRIVATE_FILE:
            os.fchmod(made, mode)
        return made

    def write(self, descriptor: int, content: bytes) -> None:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def sync_folder(self, folder: Path) -> None:
        """Names are as durable as files only after this."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def replace(self, new: Path, old: Path) -> None:
        new.replace(old)

    def unlink(self, file: Path) -> None:
        """A file that is not there is as good as unlinked (EXP-8)."""
        file.unlink(missing_ok=True)


@contextmanager
def named_failures() -> Iterator[None]:
    """A full disk, or one that refuses us, in words that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise storage_full(f"{error.filename or 'a log'}: {error.strerror}") from error
        if error.errno in _REFUSED:
            raise storage_refused(str(error.filename or "a log"), str(error.strerror)) from error
        raise


def open_to_read(file: Path) -> BinaryIO:
    """Raises FileNotFoundError, UnsafePath."""
    # By an opener and not by its descriptor, so that the file knows its name, which errors tell.
    return open(file, "rb", buffering=1 << 20, opener=lambda path, _flags: _plain(Path(path), os.O_RDONLY))


def open_to_append(file: Path) -> int:
    """Raises FileNotFoundError, UnsafePath."""
    return _plain(file, os.O_RDWR | os.O_APPEND)


def _plain(file: Path, flags: int) -> int:
    try:
        with named_failures():
            descriptor = os.open(file, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR):
            raise UnsafePath(str(file), "a symbolic link or a folder") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnsafePath(str(file), "no plain file")
    return descriptor


def check_folder(folder: Path) -> bool:
    """Whether it is there. Raises UnsafePath where it is anything but a folder."""
    try:
        with named_failures():
            mode = folder.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise UnsafePath(str(folder), "a symbolic link" if stat.S_ISLNK(mode) else "no folder")
    return True


def commit(disk: Disk, new: Path, place: Path) -> None:
    """The new file takes its place, which readers see from here on. Raises CommitUnknown where that may not outlast the machine."""
    disk.replace(new, place)
    try:
        disk.sync_folder(place.parent)
    except OSError as error:
        raise CommitUnknown(f"{place}: {error.strerror}", who="the disk") from error


def append_lines(disk: Disk, descriptor: int, content: bytes) -> None:
    """Whole and durable, or not there: what an error leaves of it is cut off again."""
    before = os.fstat(descriptor).st_size
    try:
        disk.write(descriptor, content)
        disk.sync(descriptor)
    except OSError:
        disk.truncate(descriptor, before)
        raise
