"""The stack's processes, their ports, and the locks on its folders.

The identity of a process is its number, its start time and the machine's boot. So we never signal another process that got the number
later. A long-lived process (component) leads a session, writes its own log, and has a record file until it has ended. A component's port is
chosen once, kept in a file, and chosen again only if another program has taken it. Only one start or stop of a stack runs at a time, and
one set-up of its tools.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

import psutil

from lifecycle_local.layout import Layout, StackBusy, component_failed, last_lines, no_free_port
from message_lifecycle.app.private_files import write_private

PROC = Path("/proc")
POLL_SECONDS = 0.1
# A first start may take minutes, and the second of two is content with what the first has done.
LOCK_SECONDS = 600.0
LOCK_POLL_SECONDS = 0.2
# Inherited by whatever a component starts: finds a Spark driver whose parents are gone.
MARK = "LIFECYCLE_PROCESS_OF"
LOOPBACK = "127.0.0.1"
# Below the range that kernels give to outgoing connections: a port of ours is not lost to one of those while we are down.
FIRST_PORT, LAST_PORT = 20000, 32000
PORT_ATTEMPTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that ran at one time: its number and when it started, in the kernel's ticks since boot."""

    pid: int
    started: int
    boot: str

    def is_alive(self) -> bool:
        """True if this very process still runs. A process that has ended and waits for its parent does not run."""
        return find_process(self.pid) == self

    def signal(self, number: int) -> None:
        """Signal it if it is still itself."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _fields(pid: int) -> list[str] | None:
    """Return the kernel's fields of the process from the state on. The name before the state may contain spaces and brackets."""
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
    """Return the process's working folder. None if the process is missing or belongs to another user."""
    try:
        return Path(psutil.Process(pid).cwd())
    except psutil.Error:
        return None


def family(root: Process) -> tuple[Process, ...]:
    """Return the process and its present descendants, also descendants that left its group or session."""
    try:
        descendants = psutil.Process(root.pid).children(recursive=True) if root.is_alive() else []
    except psutil.NoSuchProcess:
        return ()
    found = (root, *(find_process(child.pid) for child in descendants))
    return tuple(process for process in found if process is not None and process.is_alive())


def find_marked_processes(variable: str, value: str) -> tuple[Process, ...]:
    """Return processes started with this environment variable, also after the parent they descended from has ended."""
    found = []
    for candidate in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # the process has ended meanwhile, or belongs to another user
            if candidate.pid != os.getpid() and candidate.environ().get(variable) == value:
                found.append(find_process(candidate.pid))
    return tuple(process for process in found if process is not None)


def wait_until_ended(processes: Iterable[Process], seconds: float) -> tuple[Process, ...]:
    """Wait for the end of the processes. Return the processes that still run after `seconds`."""
    deadline = time.monotonic() + seconds
    left = tuple(processes)
    while left := tuple(process for process in left if process.is_alive()):
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)  # the kernel signals the end of a process only to its parent
    return left


def end_process_trees(leaders: Iterable[Process], *, polite_seconds: float) -> None:
    """End processes and their descendants.

    Every process gets its own signal. A signal to the group would miss a task of Airflow's, which leaves its parents' group. The task would
    then end only by the kill.
    """
    end_processes({member for leader in leaders for member in family(leader)}, polite_seconds=polite_seconds)


def end_processes(processes: Iterable[Process], *, polite_seconds: float) -> None:
    """End these, each by its own number."""
    left = tuple(processes)
    if polite_seconds:
        for process in left:
            process.signal(signal.SIGTERM)
        left = wait_until_ended(left, polite_seconds)
    for process in left:
        process.signal(signal.SIGKILL)
    wait_until_ended(left, 5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A process with a record file. `environment` is a digest of its variables, to notice a change."""

    name: str
    process: Process
    environment: str
    started_at: datetime


def _record(layout: Layout, name: str) -> Path:
    return layout.processes / f"{name}.json"


def _mark_of(layout: Layout, name: str) -> str:
    return f"{name} {layout.state}"


def log_file(layout: Layout, name: str) -> Path:
    """Return the file for the component's output. The file of the previous run stays next to it."""
    return layout.logs / f"{name}.log"


def digest(environment: Mapping[str, str]) -> str:
    """Return a fingerprint of variables, which does not reveal a password among them."""
    return hashlib.sha256(json.dumps(sorted(environment.items())).encode()).hexdigest()


def find_component(layout: Layout, name: str) -> Component | None:
    """The component if it runs; a number on file that another process has by now is not it."""
    file = _record(layout, name)
    if not file.is_file():
        return None
    kept = json.loads(file.read_text(encoding="utf-8"))
    process = Process(**kept["process"])
    if not process.is_alive():
        return None
    return Component(name=name, process=process, environment=kept["environment"], started_at=datetime.fromisoformat(kept["started_at"]))


def launch(layout: Layout, name: str, command: Sequence[str | Path], environment: Mapping[str, str], *, identity: str) -> Component:
    """Start it in its own session, so that a Ctrl-C at our terminal does not reach it before we stop it in order."""
    log = log_file(layout, name)
    if log.is_file():
        log.replace(log.with_suffix(".log.previous"))
    started_at = datetime.now(UTC)
    with log.open("w", encoding="utf-8") as output:
        log.chmod(0o600)
        child = subprocess.Popen(
            list(map(str, command)), env=dict(environment) | {MARK: _mark_of(layout, name)}, cwd=layout.project,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    process = find_process(child.pid) or Process(pid=child.pid, started=0, boot="")
    write_private(
        _record(layout, name),
        json.dumps({"process": asdict(process), "environment": identity, "started_at": started_at.isoformat()}) + "\n",
    )
    return Component(name=name, process=process, environment=identity, started_at=started_at)


def wait_for_match(layout: Layout, started: Component, pattern: str, *, seconds: float) -> str:
    """Wait for a match of `pattern` in the component's log, and return the match. Raises ComponentFailed if it ends or takes too long."""
    log, deadline = log_file(layout, started.name), time.monotonic() + seconds
    while not (found := re.search(pattern, log.read_text(encoding="utf-8", errors="replace"))):
        if not started.process.is_alive() or time.monotonic() > deadline:
            raise component_failed(started.name, "did not start", log, last_lines(log, 3))
        time.sleep(POLL_SECONDS)  # a log file sends no signal when it grows
    return found[0]


def stop(layout: Layout, names: Sequence[str], *, polite_seconds: float) -> None:
    """Ask all of them to end, give them that time together, then kill what is left, tasks and Spark drivers included."""
    end_process_trees([component.process for name in names if (component := find_component(layout, name))], polite_seconds=polite_seconds)
    for name in names:
        end_processes(find_marked_processes(MARK, _mark_of(layout, name)), polite_seconds=2.0)
        _record(layout, name).unlink(missing_ok=True)


def is_free(port: int) -> bool:
    """True if a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def _port_candidates() -> Iterator[int]:
    # Random, so that two clones on one machine rarely want the same.
    chance = random.SystemRandom()
    return (chance.randint(FIRST_PORT, LAST_PORT) for _ in range(PORT_ATTEMPTS))


def _kept_ports(file: Path) -> dict[str, int]:
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        return {}
    return {name: port for name, port in found.items() if isinstance(port, int)} if isinstance(found, dict) else {}


def last_port(file: Path, name: str) -> int | None:
    """The port this service was given last time, free or not."""
    return _kept_ports(file).get(name)


def choose_port(file: Path, name: str) -> int:
    """A port for a service about to start: the one it had if that is free, else a new one, written down."""
    kept = _kept_ports(file)
    had = kept.get(name)
    if had is not None and is_free(had):
        return had
    others = {port for service, port in kept.items() if service != name}
    for port in _port_candidates():
        if port not in others and is_free(port):
            write_private(file, json.dumps(kept | {name: port}, indent=2, sort_keys=True) + "\n")
            return port
    raise no_free_port(FIRST_PORT, LAST_PORT)


@contextlib.contextmanager
def hold_file_lock(file: Path, *, wait_seconds: float = LOCK_SECONDS, cancelled: Event | None = None) -> Iterator[None]:
    """Hold the lock for the block. The kernel releases the lock when its holder dies.

    Raises:
        StackBusy: The lock was not free in time, or not before `cancelled` was set. The error names the holder.
    """
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
                cancelled.wait(LOCK_POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
