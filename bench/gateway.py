"""An object store for the benchmarks: versitygw, if it is on PATH or `VERSITYGW` names it, else our own store.

versitygw keeps objects as files of a folder. Our own store is in Python and in memory, so on a small machine its CPU time is part of the
measurement. `go install github.com/versity/versitygw/cmd/versitygw@latest` installs versitygw. The project itself does not need it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pyarrow.fs import S3FileSystem

from lifecycle_local.cluster import REGION, Key, files_at
from lifecycle_local.processes import LOOPBACK, is_free

NAMED = "VERSITYGW"
_START_SECONDS, _POLL_SECONDS = 20.0, 0.05
_PORTS = range(24_500, 24_600)


@dataclass(kw_only=True)
class Gateway:
    """A running versitygw. One key opens everything: a benchmark needs no protection. `pid`: its process. `folder`: has the buckets."""

    uri: str
    root: Key
    pid: int
    folder: Path = field(repr=False)

    def create_access_key(self, below: str) -> Key:  # noqa: ARG002  # as of a store that gives out keys
        return self.root

    @cached_property
    def files(self) -> S3FileSystem:
        return files_at(self.uri, self.root)


def program() -> Path | None:
    """Return the path of versitygw, or None if it is missing, and our own store serves."""
    found = shutil.which(os.environ.get(NAMED) or "versitygw")
    return None if found is None else Path(found)


def name() -> str:
    """Return the store's name as the output shows it."""
    found = program()
    return "our own S3 server (Python, objects in memory)" if found is None else f"{found.name} (Go, objects are files)"


@contextmanager
def gateway(executable: Path, folder: Path, root: Key, *, port: int = 0) -> Iterator[Gateway]:
    """Serve the folder's objects during the block. Raises RuntimeError if versitygw does not start."""
    folder.mkdir(parents=True, exist_ok=True)
    port = port or next(filter(is_free, _PORTS))
    environment = {**os.environ, "ROOT_ACCESS_KEY": root.name, "ROOT_SECRET_KEY": root.secret}
    command = [str(executable), "--port", f"{LOOPBACK}:{port}", "--region", REGION, "--quiet", "posix", str(folder)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(process, port)
        yield Gateway(uri=f"http://{LOOPBACK}:{port}", root=root, pid=process.pid, folder=folder)
    finally:
        process.terminate()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex((LOOPBACK, port)) == 0:
                return
        time.sleep(_POLL_SECONDS)  # versitygw sends no signal when it listens
    raise RuntimeError(f"versitygw does not listen on port {port}")
