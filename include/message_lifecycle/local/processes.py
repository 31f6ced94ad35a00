"""Processes by identity, not by number: a number that was given to another process since is never signalled."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that ran at one time: its number and when it started, in the kernel's ticks since boot."""

    pid: int
    started: int
    boot: str

    def alive(self) -> bool:
        """Whether this very process still runs; one that has ended and waits to be collected does not."""
        return find_process(self.pid) == self

    def signal(self, number: int) -> None:
        """Signal it if it is still itself."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _fields(pid: int) -> list[str] | None:
    """What the kernel says of it, from the state on; the name before that may hold spaces and brackets."""
    try:
        return (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def _boot() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def find_process(pid: int) -> Process | None:
    """The process that has this number now."""
    fields = _fields(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return Process(pid=pid, started=int(fields[19]), boot=_boot())


def working_folder(pid: int) -> Path | None:
    """Where the process works, None when there is no such process or it is another user's."""
    try:
        return (PROC / str(pid) / "cwd").readlink()
    except OSError:
        return None


def _all_pids() -> Iterator[int]:
    return (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())


def family(root: Process) -> tuple[Process, ...]:
    """The process and all that descend from it now, also those that left its group or session."""
    children: dict[int, list[int]] = {}
    for pid in _all_pids():
        if fields := _fields(pid):
            children.setdefault(int(fields[1]), []).append(pid)
    found, queue = [], [root.pid] if root.alive() else []
    while queue:
        pid = queue.pop()
        if process := find_process(pid):
            found.append(process)
            queue.extend(children.get(pid, ()))
    return tuple(found)


def marked(variable: str, value: str) -> tuple[Process, ...]:
    """Processes started with this environment variable: finds what outlived the parent it descended from."""
    wanted = f"{variable}={value}".encode()
    found = []
    for pid in _all_pids():
        try:
            environment = (PROC / str(pid) / "environ").read_bytes()
        except OSError:
            continue
        if pid != os.getpid() and wanted in environment.split(b"\0") and (process := find_process(pid)):
            found.append(process)
    return tuple(found)


def wait_for_end(processes: Iterable[Process], seconds: float) -> tuple[Process, ...]:
    """Those that still run when the time is over; returns as soon as there are none."""
    deadline = time.monotonic() + seconds
    left = tuple(processes)
    while left := tuple(process for process in left if process.alive()):
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    return left


def end(leaders: Iterable[Process], *, polite_seconds: float) -> None:
    """End processes and all that descend from them.

    Each by itself, not by group: a task of Airflow's leaves its parents' group, and would hear of the end only from the kill.
    """
    end_all({member for leader in leaders for member in family(leader)}, polite_seconds=polite_seconds)


def end_all(processes: Iterable[Process], *, polite_seconds: float) -> None:
    """End these, each by its own number."""
    left = tuple(processes)
    if polite_seconds:
        for process in left:
            process.signal(signal.SIGTERM)
        left = wait_for_end(left, polite_seconds)
    for process in left:
        process.signal(signal.SIGKILL)
    wait_for_end(left, 5.0)
