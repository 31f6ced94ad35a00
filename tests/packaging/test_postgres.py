"""The embedded PostgreSQL: behind a password on the loopback, and back after any kind of death."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from lifecycle_local import postgres
from lifecycle_local.layout import Layout
from lifecycle_local.postgres import Address, find_place
from lifecycle_local.processes import LOOPBACK, find_process, wait_until_ended

pytestmark = pytest.mark.postgres


@pytest.fixture
def address(layout: Layout) -> Address:
    """The server, running."""
    return postgres.start(layout)


def postmaster(layout: Layout) -> int:
    return int((find_place(layout).data / "postmaster.pid").read_text(encoding="ascii").splitlines()[0])


def test_starting_twice_is_starting_once(layout: Layout, address: Address) -> None:
    pid = postmaster(layout)
    assert postgres.start(layout) == address == postgres.find_running(layout)
    assert postmaster(layout) == pid


def test_the_databases_are_there(address: Address) -> None:
    for name in postgres.DATABASES:
        with address.connect(name) as connection:
            assert connection.execute("select current_database(), current_setting('TimeZone')").fetchone() == (name, "UTC")


def test_no_password_no_entry(address: Address) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        Address(port=address.port, password="wrong").connect("ledger")


def test_the_password_is_in_one_private_file_and_no_command_line(layout: Layout, address: Address) -> None:
    assert (layout.secrets / "postgres").stat().st_mode & 0o777 == 0o600
    assert not (find_place(layout).folder / "password").exists()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                assert address.password.encode() not in (entry / "cmdline").read_bytes()


def test_it_listens_on_the_loopback_only(address: Address) -> None:
    with address.connect("postgres") as connection:
        assert connection.execute("show listen_addresses").fetchone() == (LOOPBACK,)
        assert connection.execute("show unix_socket_directories").fetchone() == ("",)


def test_it_does_not_run_as_root(layout: Layout, address: Address) -> None:
    assert Path(f"/proc/{postmaster(layout)}").stat().st_uid != 0
    assert find_place(layout).data.stat().st_mode & 0o777 == 0o700


def test_what_was_committed_outlives_a_kill(layout: Layout, address: Address) -> None:
    with address.connect("ledger") as connection:
        connection.execute("create table kept (number int)")
        for number in range(100):
            connection.execute("insert into kept values (%s)", [number])
    os.kill(postmaster(layout), signal.SIGKILL)
    with postgres.start(layout).connect("ledger") as connection:
        assert connection.execute("select count(*), sum(number) from kept").fetchone() == (100, 4950)


def test_a_port_taken_meanwhile_is_given_up(layout: Layout, address: Address) -> None:
    assert postgres.stop(layout)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((LOOPBACK, address.port))
        other.listen()
        moved = postgres.start(layout)
    assert moved.port != address.port
    assert moved.password == address.password


def test_a_number_that_another_program_got_is_neither_waited_for_nor_ended(layout: Layout, address: Address) -> None:
    assert postgres.stop(layout)
    place = find_place(layout)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]) as other:
        lock = place.data / "postmaster.pid"
        lock.write_text(f"{other.pid}\n{place.data}\n1\n{address.port}\n\n\n\n\n", encoding="ascii")
        place.give_to_server_user(lock)
        assert not postgres.stop(layout), "nothing of ours ran"
        postgres.start(layout)
        assert other.poll() is None
        other.kill()


def test_stopping_twice_is_stopping_once(layout: Layout, address: Address) -> None:
    process = find_process(postmaster(layout))
    assert process is not None
    assert postgres.stop(layout)
    assert wait_until_ended([process], 5.0) == ()
    assert not postgres.stop(layout)
    assert postgres.find_running(layout) is None
