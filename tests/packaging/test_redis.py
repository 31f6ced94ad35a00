"""The embedded Redis: behind a password on the loopback, back after any kind of death, and nothing that it answered is lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from lifecycle_local import processes
from lifecycle_local import redis as server
from lifecycle_local.layout import Layout
from lifecycle_local.processes import LOOPBACK, Component, wait_until_ended
from lifecycle_local.redis import Address
from message_lifecycle.app.config import REDIS_URL, named_redis
from tests.errors import raises

pytestmark = pytest.mark.redis


@pytest.fixture
def address(layout: Layout) -> Iterator[Address]:
    """The server, running."""
    yield server.start(layout)
    server.stop(layout)


def component(layout: Layout) -> Component:
    found = processes.find_component(layout, server.SERVICE)
    assert found is not None
    return found


def test_starting_twice_is_starting_once(layout: Layout, address: Address) -> None:
    process = component(layout).process
    assert server.start(layout) == address == server.find_running(layout)
    assert component(layout).process == process


def test_it_is_new_enough_for_exact_trims(address: Address) -> None:
    with contextlib.closing(address.connect()) as client:
        for number in range(1, 201):
            client.xadd("numbers", {"n": number}, id=f"{number}-0")
        assert client.execute_command("XTRIM", "numbers", "MINID", "=", "38-0") == 37
        assert client.execute_command("XTRIM", "numbers", "MAXLEN", "=", "50") == 113
        assert client.xlen("numbers") == 50


def test_no_password_no_entry(address: Address) -> None:
    for password in (None, "wrong"):
        client = redis.Redis(host=LOOPBACK, port=address.port, password=password)
        with contextlib.closing(client), pytest.raises(redis.AuthenticationError):
            client.ping()


def test_the_password_is_in_private_files_and_no_command_line(layout: Layout, address: Address) -> None:
    for file in (layout.secrets / "redis", layout.redis / "redis.conf"):
        assert file.stat().st_mode & 0o777 == 0o600
    assert layout.redis.stat().st_mode & 0o777 == 0o700
    assert address.password not in repr(address)
    assert address.password not in address.url
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is another user's
            if entry.name.isdigit():
                assert address.password.encode() not in (entry / "cmdline").read_bytes()


def test_it_listens_on_the_loopback_only_and_writes_before_it_answers(layout: Layout, address: Address) -> None:
    with contextlib.closing(address.connect()) as client:
        told = {name: client.config_get(name)[name] for name in ("bind", "unixsocket", "appendonly", "appendfsync", "dir")}
    assert told == {"bind": LOOPBACK, "unixsocket": "", "appendonly": "yes", "appendfsync": "always", "dir": str(layout.redis)}


def test_its_log_forgets_a_deleted_entry_when_it_is_written_anew(layout: Layout, address: Address) -> None:
    """In memory the entry lies among its neighbours until they go too, and a log in the form of a snapshot takes it over as it lies there."""
    deleted = b"customer 17 of the north"
    with contextlib.closing(address.connect()) as client:
        for number, value in enumerate((b"before", deleted, b"after"), start=1):
            client.xadd("forgotten", {"k": value}, id=f"{number}-0")
        client.xdel("forgotten", "2-0")
        assert telling(layout, deleted)
        client.bgrewriteaof()
        deadline = time.monotonic() + 20
        while client.info("persistence")["aof_rewrite_in_progress"] or client.info("persistence")["aof_rewrite_scheduled"]:
            assert time.monotonic() < deadline, "the log was not written anew"
            time.sleep(0.05)  # the server tells nobody when it has ended
        client.delete("forgotten")
    assert not telling(layout, deleted)


def telling(layout: Layout, content: bytes) -> list[Path]:
    return [path for path in layout.redis.rglob("*") if path.is_file() and content in path.read_bytes()]


def test_what_was_answered_outlives_a_kill(layout: Layout, address: Address) -> None:
    with contextlib.closing(address.connect()) as client:
        client.delete("kept")
        for number in range(100):
            client.rpush("kept", number)
    process = component(layout).process
    process.signal(signal.SIGKILL)
    assert wait_until_ended([process], 5.0) == ()
    assert server.find_running(layout) is None
    with contextlib.closing(server.start(layout).connect()) as client:
        assert client.lrange("kept", 0, -1) == [str(number).encode() for number in range(100)]


def test_a_port_taken_meanwhile_is_given_up(layout: Layout, address: Address) -> None:
    assert server.stop(layout)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((LOOPBACK, address.port))
        other.listen()
        moved = server.start(layout)
    assert moved.port != address.port
    assert moved.password == address.password


def test_stopping_twice_is_stopping_once(layout: Layout, address: Address) -> None:
    process = component(layout).process
    assert server.stop(layout)
    assert not process.is_alive()
    assert not server.stop(layout)
    assert server.find_running(layout) is None


def test_an_installed_server_comes_first_if_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = _fake(tmp_path / "old", "6.0.16"), _fake(tmp_path / "new", "8.0.2")
    monkeypatch.setenv("PATH", os.pathsep.join(["", str(tmp_path / "none"), str(old.parent), str(new.parent)]))
    assert server.find_server() == new
    monkeypatch.setenv("PATH", str(old.parent))
    assert server.find_server() == server.venv_bin() / "redis-server"


def test_without_a_server_it_is_said_what_was_found_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = _fake(tmp_path, "5.0.7")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(server, "venv_bin", lambda: tmp_path / "bin")
    with raises("RedisMissing") as error:
        server.find_server()
    assert f"{old}: Redis server v=5.0.7" in str(error.value)
    assert "6.2 or newer" in str(error.value)
    shutil.rmtree(tmp_path)
    with raises("RedisMissing", match="none on PATH"):
        server.find_server()


def _fake(folder: Path, version: str) -> Path:
    """A program that says it is this version of the server."""
    folder.mkdir(exist_ok=True)
    program = folder / "redis-server"
    program.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=00000000:0 malloc=libc bits=64 build=0'\n")
    program.chmod(0o755)
    return program


def test_the_product_finds_it_by_the_environment_alone(layout: Layout, address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment(layout, address).items():
        monkeypatch.setenv(name, value)
        assert address.password not in value
    with contextlib.closing(named_redis("r").connect()) as client:
        assert client.ping()
    monkeypatch.delenv(REDIS_URL)
    with raises("BackendUnavailable", match="make up"):
        named_redis("r")
