"""The file operations of the file stores, one method each, so that a test can stop between any two of them.

Files and folders are private to their owner from the first moment on, and no operation follows a link.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from message_lifecycle.model.errors import CommitUnknown, UnsafePath, log_locked, storage_failure, storage_refused
from message_lifecycle.model.names import TopicName

_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700


class Disk:
    """The changing operations. `write` writes the whole content, which is on disk only after `sync`."""

    def make_folder(self, folder: Path) -> None:
        folder.mkdir(mode=_PRIVATE_FOLDER)

    def create(self, file: Path, mode: int = _PRIVATE_FILE) -> int:
        """Create a new file, never open an old one."""
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
        """Make the names in the folder durable."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def replace(self, new: Path, old: Path) -> None:
        new.replace(old)

    def unlink(self, file: Path) -> None:
        """Delete the file. A missing file is a success (EXP-8)."""
        file.unlink(missing_ok=True)


@contextmanager
def translate_disk_errors() -> Iterator[None]:
    """Turn a full disk, or a refusing file system, into errors that say what to do."""
    try:
        yield
    except OSError as error:
        named = storage_failure(error, "a log")
        if named is None:
            raise
        raise named from error


def open_to_read(file: Path) -> BinaryIO:
    """Raises FileNotFoundError, UnsafePath."""
    # An opener keeps the file's name in the file object, and errors show the name.
    return open(file, "rb", buffering=1 << 20, opener=lambda path, _flags: _plain(Path(path), os.O_RDONLY))


def open_to_append(file: Path) -> int:
    """Raises FileNotFoundError, UnsafePath."""
    return _plain(file, os.O_RDWR | os.O_APPEND)


def _plain(file: Path, flags: int) -> int:
    try:
        with translate_disk_errors():
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
    """Return True if the folder exists. Raises UnsafePath if the path is not a folder."""
    try:
        with translate_disk_errors():
            mode = folder.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise UnsafePath(str(folder), "a symbolic link" if stat.S_ISLNK(mode) else "no folder")
    return True


def commit(disk: Disk, new: Path, place: Path) -> None:
    """Put the new file in its place, where readers see it from now on.

    Raises:
        CommitUnknown: A power failure may still undo the change.
    """
    disk.replace(new, place)
    try:
        disk.sync_folder(place.parent)
    except OSError as error:
        raise CommitUnknown(f"{place}: {error.strerror}", who="the disk") from error


def append_lines(disk: Disk, descriptor: int, content: bytes) -> None:
    """Append the whole content durably, or nothing: after an error the file is cut to its former size."""
    before = os.fstat(descriptor).st_size
    try:
        disk.write(descriptor, content)
        disk.sync(descriptor)
    except OSError:
        disk.truncate(descriptor, before)
        raise


# The places of a file store's logs: only below its root, under names that no topic can choose (NAME-1).


def root_of(given: Path) -> Path:
    """Return the root's real path, whether or not the root exists.

    The function never creates the root. A missing root may be a disk that is not mounted. A new folder in its place would look like a store
    that lost every log.

    Raises:
        UnsafePath: The path exists and is not a folder.
        StorageRefused: The system does not say what the path is.
    """
    try:
        root = given.resolve()
        if is_there(root) and not root.is_dir():
            raise UnsafePath(str(given), "no folder")
    except (NotADirectoryError, RuntimeError) as error:
        raise UnsafePath(str(given), "no folder") from error
    return root


def make_root(root: Path) -> None:
    """Create the root if it is missing, and bring its name to disk.

    Raises:
        UnsafePath: The path exists and is not a folder.
        StorageRefused: The system does not let this process create the folder.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        _bring_names_to_disk(root)
    except (FileExistsError, NotADirectoryError) as error:
        raise UnsafePath(str(root), "no folder") from error
    except OSError as error:
        raise storage_refused(str(root), str(error.strerror)) from error


def is_there(path: Path) -> bool:
    """Return True if the path exists, a broken link included.

    Raises:
        StorageRefused: The system does not answer, as for a mount that went away. Such a path is not a missing one.
    """
    try:
        with translate_disk_errors():
            path.lstat()
    except FileNotFoundError:
        return False
    return True


# Folders whose own names are on disk, as far as this process knows.
_named: set[Path] = set()


def _bring_names_to_disk(folder: Path) -> None:
    """Make the names of the folder and its parents durable.

    A process that created them may have died before this step. Without it, a power failure could lose acknowledged data below the folder.
    """
    for one in (folder, *folder.parents[:-1]):
        if one in _named:
            return
        try:
            Disk().sync_folder(one.parent)
        except PermissionError:
            return  # this process cannot have created a folder in an unreadable one
        _named.add(one)


def stream_folder(root: Path, name: TopicName) -> Path:
    """Return the stream's folder. Raises UnsafePath if it leads elsewhere."""
    folder = root / name.namespace
    check_folder(folder)
    return folder


def make_folder(folder: Path, disk: Disk) -> None:
    """Create the folder unless it exists, and make its name durable."""
    if not check_folder(folder):
        try:
            disk.make_folder(folder)
        except FileExistsError:
            check_folder(folder)
    disk.sync_folder(folder.parent)


def streams(root: Path) -> Iterator[Path]:
    """Yield the folders of streams in order, without links.

    Raises:
        StorageRefused: The root is missing or cannot be read. Which logs it holds is unknown then.
    """
    try:
        entries = os.scandir(root)
    except OSError as error:
        raise storage_refused(str(root), str(error.strerror)) from error
    with entries:
        yield from sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))


# One writer of a log at a time, in any process. The kernel releases the lock when its holder dies.


WAIT_SECONDS = 30.0
"""An append holds the lock for milliseconds, a compaction of a large log for seconds."""
_POLL_SECONDS = 0.01


@contextmanager
def writing(file: Path, topic: str, *, wait_seconds: float) -> Iterator[None]:
    """Hold the lock for the block. Raises LogLocked, which names the holder."""
    deadline = time.monotonic() + wait_seconds
    try:
        with translate_disk_errors():
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if file.is_symlink():
            raise UnsafePath(str(file), "a symbolic link") from error
        raise
    try:
        while not _taken(descriptor):
            if time.monotonic() >= deadline:
                raise log_locked(topic, os.pread(descriptor, 100, 0).decode(errors="replace").strip() or "another process", wait_seconds)
            time.sleep(_POLL_SECONDS)  # the kernel offers no wait for a lock that ends by itself
        with translate_disk_errors():
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
