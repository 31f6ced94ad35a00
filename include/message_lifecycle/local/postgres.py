"""One PostgreSQL server for this clone: loopback only, password only, three databases; starts again after any kind of death."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql

from message_lifecycle.local.errors import DatabaseBroken
from message_lifecycle.local.layout import Layout
from message_lifecycle.local.ports import LOOPBACK, choose_port
from message_lifecycle.local.postgres_place import PostgresPlace, find_place
from message_lifecycle.local.private_files import last_lines, secret, write_private
from message_lifecycle.local.processes import find_process, working_folder

ROLE = "lifecycle"
DATABASES = ("airflow", "lake", "ledger")
SERVICE = "postgres"
# After a kill -9 the old children hold the shared memory until they notice; measured 5 s on a loaded machine.
START_SECONDS = 30.0
STOP_SECONDS = 30
POLL_SECONDS = 0.3

SETTINGS = f"""
listen_addresses = '{LOOPBACK}'
unix_socket_directories = ''
max_connections = 200
shared_buffers = 64MB
wal_level = minimal
max_wal_senders = 0
max_wal_size = 256MB
timezone = 'UTC'
log_timezone = 'UTC'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """How to reach the server; its password shows in no representation."""

    port: int
    password: str = field(repr=False)

    def url(self, database: str) -> str:
        """For SQLAlchemy, with the one driver that serves synchronous and asynchronous engines."""
        return f"postgresql+psycopg://{ROLE}:{self.password}@{LOOPBACK}:{self.port}/{database}"

    def jdbc(self, database: str) -> str:
        """For Java; user and password are given apart."""
        return f"jdbc:postgresql://{LOOPBACK}:{self.port}/{database}"

    def connect(self, database: str) -> psycopg.Connection:
        """A connection that commits each statement."""
        return psycopg.connect(
            host=LOOPBACK, port=self.port, user=ROLE, password=self.password, dbname=database, connect_timeout=5, autocommit=True
        )


def _password_file(layout: Layout) -> Path:
    return layout.secrets / "postgres"


def _create_cluster(layout: Layout, place: PostgresPlace) -> None:
    """initdb, whole or not at all: a folder half made by a run that was killed is made anew."""
    done = place.folder / "created"
    if done.is_file():
        if not _password_file(layout).is_file():
            raise DatabaseBroken(
                f"its data is there but its password {_password_file(layout)} is gone", place.log, "put the file back, or remove the data"
            )
        return
    if place.data.exists():
        place.run("/bin/rm", "-rf", place.data)
    log = layout.logs / "postgres-tools.log"
    password = place.folder / "password"
    write_private(password, secret(_password_file(layout)) + "\n")
    place.give(password)
    try:
        status = place.run(
            "initdb", "-D", place.data, "-U", ROLE, "-A", "scram-sha-256", f"--pwfile={password}", "-E", "UTF8", "--no-locale", output=log
        )
    finally:
        password.unlink()
    if status != 0:
        raise DatabaseBroken("initdb failed", log, last_lines(log))
    with (place.data / "postgresql.conf").open("a", encoding="utf-8") as settings:
        settings.write(SETTINGS)
    done.touch(mode=0o600)


def _listed(place: PostgresPlace) -> tuple[int, int] | None:
    """Process number and port in the lock file that a server leaves in its data."""
    try:
        lines = (place.data / "postmaster.pid").read_text(encoding="ascii").splitlines()
        return int(lines[0]), int(lines[3])
    except (FileNotFoundError, ValueError, IndexError):
        return None


def _is_ours(place: PostgresPlace, pid: int) -> bool:
    # A server works in its data folder; a number that another program got since, or another clone's server, works elsewhere.
    return working_folder(pid) == place.data


def _answering(layout: Layout, place: PostgresPlace) -> Address | None:
    """The address, if our server runs and takes our password."""
    listed = _listed(place)
    if listed is None or not _is_ours(place, listed[0]):
        return None
    address = Address(port=listed[1], password=secret(_password_file(layout)))
    with contextlib.suppress(psycopg.OperationalError), address.connect("postgres"):
        return address
    return None


def _drop_stale_lock(place: PostgresPlace) -> None:
    """Remove the lock file of a dead server whose number another program has now: a new server would wait for that one for ever."""
    listed = _listed(place)
    if listed and find_process(listed[0]) and not _is_ours(place, listed[0]):
        (place.data / "postmaster.pid").unlink()


def running(layout: Layout) -> Address | None:
    """The server of this clone, if it runs; starts and changes nothing."""
    if not _password_file(layout).is_file():
        return None
    return _answering(layout, find_place(layout))


def start(layout: Layout) -> Address:
    """The running server of this clone with its databases; made and started as far as it is not."""
    place = find_place(layout)
    _create_cluster(layout, place)
    address = _answering(layout, place) or _start_server(layout, place)
    with address.connect("postgres") as connection:
        there = {row[0] for row in connection.execute("select datname from pg_database")}
        for name in DATABASES:
            if name not in there:
                connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    return address


def _start_server(layout: Layout, place: PostgresPlace) -> Address:
    deadline = time.monotonic() + START_SECONDS
    log = layout.logs / "postgres-tools.log"
    while True:
        # Chosen at every attempt: if someone took the port in between, the next attempt has another.
        port = choose_port(layout.ports_file, SERVICE)
        _drop_stale_lock(place)
        place.run("pg_ctl", "-D", place.data, "-l", place.log, "-o", f"-p {port}", "-w", "-t", "20", "start", output=log)
        if address := _answering(layout, place):
            return address
        if time.monotonic() > deadline:
            raise DatabaseBroken(f"did not start within {START_SECONDS:.0f} s", place.log, last_lines(place.log, 3) or last_lines(log, 3))
        time.sleep(POLL_SECONDS)


def stop(layout: Layout) -> bool:
    """Stop the server and wait until it is gone; False when it did not run."""
    if not _password_file(layout).is_file():
        return False
    place = find_place(layout)
    listed = _listed(place)
    if listed is None or not _is_ours(place, listed[0]):
        return False
    log = layout.logs / "postgres-tools.log"
    for mode in ("fast", "immediate"):
        if place.run("pg_ctl", "-D", place.data, "-m", mode, "-w", "-t", str(STOP_SECONDS), "stop", output=log) == 0:
            return True
    raise DatabaseBroken("did not stop", place.log, last_lines(log, 3))
