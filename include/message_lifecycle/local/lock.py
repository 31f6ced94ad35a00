"""One start or stop of a stack at a time, and one set-up of its tools; the kernel releases the lock when its holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from message_lifecycle.local.errors import StackBusy

# A first start may take minutes, and the second of two is content with what the first has done.
WAIT_SECONDS = 600.0
POLL_SECONDS = 0.2


@contextmanager
def only_one(file: Path, *, wait_seconds: float = WAIT_SECONDS, cancelled: Event | None = None) -> Iterator[None]:
    """Hold the lock for the block; `StackBusy` names the holder when it is not free in time, or not before `cancelled` is set."""
    cancelled = cancelled or Event()
    deadline = time.monotonic() + wait_seconds
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if cancelled.is_set() or time.monotonic() > deadline:
                    raise StackBusy(file.read_text(encoding="ascii").strip() or "unknown process", wait_seconds) from None
                cancelled.wait(POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
