"""One Redis server for this clone: loopback only, password only, every write on disk before its answer.

The server starts if a backend needs it, and again after any kind of death.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import redis

from lifecycle_local import processes
from lifecycle_local.layout import PRIVATE_FOLDER, Layout, last_lines, redis_broken, redis_missing, venv_bin
from lifecycle_local.processes import LOOPBACK, Component, choose_port, last_port, log_file
from message_lifecycle.app.config import REDIS_PASSWORD_FILE, REDIS_URL
from message_lifecycle.app.private_files import secret, write_private

SERVICE = "redis"
PROGRAM = "redis-server"
# XTRIM knows MINID since 6.2, and trimming by age needs MINID.
OLDEST = (6, 2)
START_SECONDS = 20.0
# Redis writes its memory to disk when it must end. Answered commands are on disk already.
STOP_SECONDS = 10.0
ANSWER_SECONDS = 5.0
POLL_SECONDS = 0.05
_VERSION = re.compile(r"\bv=([0-9]+)\.([0-9]+)")

# A log that begins as a snapshot keeps the bytes of deleted entries, even if Redis rewrites the log: an erasure could never end.
SETTINGS = f"""
bind {LOOPBACK}
protected-mode yes
daemonize no
logfile ""
save ""
appendonly yes
appendfsync always
aof-use-rdb-preamble no
maxmemory-policy noeviction
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The server's address. No text form of it shows the password."""

    port: int
    password: str = field(repr=False)

    @property
    def url(self) -> str:
        """Return the URL without the password, which clients get separately."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    def connect(self) -> redis.Redis:
        """A client that has not connected yet."""
        return redis.Redis(
            host=LOOPBACK, port=self.port, password=self.password, socket_timeout=ANSWER_SECONDS, socket_connect_timeout=ANSWER_SECONDS
        )


def _password_file(layout: Layout) -> Path:
    return layout.secrets / SERVICE


def _server_programs() -> Iterator[Path]:
    """An installed server first: a system's own is kept up to date, the one of the package is not."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder:
            yield Path(folder) / PROGRAM
    yield venv_bin() / PROGRAM


def find_server() -> Path:
    """A server that is new enough. Raises RedisMissing, which names what was found."""
    seen: dict[Path, str] = {}
    for program in _server_programs():
        if program in seen or not program.is_file():
            continue
        try:
            said = subprocess.run(
                [program, "--version"], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False, stdin=subprocess.DEVNULL
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError) as error:
            said = str(error)
        found = _VERSION.search(said)
        if found and (int(found[1]), int(found[2])) >= OLDEST:
            return program
        seen[program] = said
    raise redis_missing(".".join(map(str, OLDEST)), "; ".join(f"{program}: {said}" for program, said in seen.items()))


def _write_settings(layout: Layout, port: int) -> Path:
    """Write the server's configuration. The server reads its password only there, so that no command line shows it."""
    layout.redis.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    file = layout.redis / "redis.conf"
    folder = str(layout.redis).replace("\\", "\\\\").replace('"', '\\"')
    write_private(file, f'{SETTINGS.lstrip()}port {port}\ndir "{folder}"\nrequirepass {secret(_password_file(layout))}\n')
    return file


def _find_answering(layout: Layout) -> Address | None:
    """The address, if our server runs, has read its data and takes our password."""
    port = last_port(layout.ports_file, SERVICE)
    if port is None or processes.find_component(layout, SERVICE) is None:
        return None
    address = Address(port=port, password=secret(_password_file(layout)))
    with contextlib.suppress(redis.RedisError), contextlib.closing(address.connect()) as client:  # what does not answer is not there
        client.ping()
        return address
    return None


def find_running(layout: Layout) -> Address | None:
    """The server of this clone, if it runs; starts and changes nothing."""
    return _find_answering(layout) if _password_file(layout).is_file() else None


def start(layout: Layout) -> Address:
    """The running server of this clone; started if it does not run. Raises RedisMissing, RedisBroken."""
    address = find_running(layout)
    if address is not None:
        return address
    layout.prepare()
    stop(layout)  # a server that runs and does not answer holds the files that a new server would write
    program = find_server()
    deadline = time.monotonic() + START_SECONDS
    while True:
        # Chosen at every attempt: if someone took the port in between, the next attempt has another.
        settings = _write_settings(layout, choose_port(layout.ports_file, SERVICE))
        started = processes.launch(layout, SERVICE, [program, settings], {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}, identity="")
        address = _wait(layout, started, deadline)
        if address is not None:
            return address
        if time.monotonic() > deadline:
            stop(layout)
            raise redis_broken(
                f"did not start within {START_SECONDS:.0f} s", log_file(layout, SERVICE), last_lines(log_file(layout, SERVICE), 3)
            )


def _wait(layout: Layout, started: Component, deadline: float) -> Address | None:
    """Its address once it answers; None when it has ended, or the time has."""
    while started.process.is_alive() and time.monotonic() < deadline:
        if address := _find_answering(layout):
            return address
        time.sleep(POLL_SECONDS)  # the server sends no signal when it is ready
    return None


def environment(layout: Layout, address: Address) -> dict[str, str]:
    """Return the environment variables that hold the address and the password file of the server."""
    return {REDIS_URL: address.url, REDIS_PASSWORD_FILE: str(_password_file(layout))}


def stop(layout: Layout) -> bool:
    """Stop the server and wait until it is gone; False when it did not run."""
    if processes.find_component(layout, SERVICE) is None:
        return False
    processes.stop(layout, [SERVICE], polite_seconds=STOP_SECONDS)
    return True
