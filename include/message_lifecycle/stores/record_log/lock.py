"""One writer of a log at a time, in whatever process; the kernel releases the lock when its holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from message_lifecycle.model.errors import UnsafePath, log_locked
from message_lifecycle.stores.record_log.disk import named_failures

WAIT_SECONDS = 30.0
"""An append holds the lock for milliseconds, a compaction of a large log for seconds."""
_POLL_SECONDS = 0.01


@contextmanager
def writing(file: Path, topic: str, *, wait_seconds: float) -> Iterator[None]:
    """Hold the lock for the block. Raises LogLocked, which names the holder."""
    deadline = time.monotonic() + wait_seconds
    try:
        with named_failures():
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
