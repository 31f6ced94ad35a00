"""An object store for the benchmarks: versitygw, which keeps objects as files of a folder, where it is on PATH or `VERSITYGW` names it; else our
own, in Python and in memory, whose CPU is then part of what is measured on a small machine.

`go install github.com/versity/versitygw/cmd/versitygw@latest` makes it. Nothing of the project needs it.
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
    """One key opens all of it: who measures has nobody to keep out. `pid`: of its process; `folder`: where each bucket is a folder."""

    uri: str
    root: Key
    pid: int
    folder: Path = field(repr=False)

    def key(self, below: str) -> Key:  # noqa: ARG002  # as of a store that gives out keys
        return self.root

    @cached_property
    def files(self) -> S3FileSystem:
        return files_at(self.uri, self.root)


def program() -> Path | None:
    """Where versitygw is; None: it is not there, and our own store serves."""
    found = shutil.which(os.environ.get(NAMED) or "versitygw")
    return None if found is None else Path(found)


def name() -> str:
    """Which store it is, for what is printed."""
    found = program()
    return "our own S3 server (Python, objects in memory)" if found is None else f"{found.name} (Go, objects are files)"


@contextmanager
def gateway(executable: Path, folder: Path, root: Key, *, port: int = 0) -> Iterator[Gateway]:
    """It serves what the folder has meanwhile. Raises RuntimeError where it does not start."""
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
        time.sleep(_POLL_SECONDS)  # it tells nobody that it listens
    raise RuntimeError(f"versitygw does not listen on port {port}")
