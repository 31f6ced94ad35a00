"""Ours are ended to the last one, and a number alone is never enough to signal anybody; two starts of one stack never overlap; a port is
kept as long as it is free."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from lifecycle_local import processes
from lifecycle_local.layout import Layout, StackBusy
from lifecycle_local.processes import (
    FIRST_PORT,
    LAST_PORT,
    LOOPBACK,
    Process,
    choose_port,
    end_process_trees,
    end_processes,
    family,
    find_marked_processes,
    find_process,
    hold_file_lock,
    is_free,
    last_port,
    wait_until_ended,
    working_folder,
)

# A parent with a child in a session of its own, as a task's process is under Airflow's scheduler.
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
open(sys.argv[1], "w").write(str(child.pid) + "\\n")
time.sleep(100)
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True) as child:
        yield child
        child.kill()


def until(ask: Callable[[], str | None]) -> str:
    """The first answer that is not None; a test that waits longer has failed."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (answer := ask()) is not None:
            return answer
        time.sleep(0.02)
    raise AssertionError("waited for 60 s")


def identity(pid: int) -> Process:
    found = find_process(pid)
    assert found is not None
    return found


def parent_and_child(folder: Path) -> tuple[subprocess.Popen[bytes], Process]:
    report = folder / "child"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(report)], start_new_session=True)
    text = until(lambda: report.read_text() if report.is_file() and report.read_text().endswith("\n") else None)
    return parent, identity(int(text))


def test_a_process_is_more_than_its_number(sleeper: subprocess.Popen[bytes]) -> None:
    found = identity(sleeper.pid)
    assert found.is_alive()
    successor = dataclasses.replace(found, started=found.started + 1)
    assert not successor.is_alive()
    end_process_trees([successor], polite_seconds=0.0)
    end_processes([successor], polite_seconds=0.0)
    assert found.is_alive(), "an identity that does not fit was signalled"


def test_one_that_has_ended_is_not_alive_even_uncollected(sleeper: subprocess.Popen[bytes]) -> None:
    found = identity(sleeper.pid)
    sleeper.kill()
    assert wait_until_ended([found], 5.0) == ()
    assert not found.is_alive()


def test_a_family_includes_those_who_left_the_session(tmp_path: Path) -> None:
    parent, child = parent_and_child(tmp_path)
    leader = identity(parent.pid)
    assert set(family(leader)) == {leader, child}
    end_process_trees([leader], polite_seconds=2.0)
    assert not leader.is_alive()
    assert not child.is_alive()
    parent.wait()


def test_the_deaf_are_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    program = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open(sys.argv[1], 'w').write('x'); time.sleep(100)"
    child = subprocess.Popen([sys.executable, "-c", program, str(ready)], start_new_session=True)
    until(lambda: "yes" if ready.is_file() else None)
    end_process_trees([identity(child.pid)], polite_seconds=0.3)
    assert child.wait() == -9


def test_an_orphan_is_found_by_its_mark(tmp_path: Path) -> None:
    value = str(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], env=os.environ | {"LIFECYCLE_TEST_MARK": value})
    try:
        until(lambda: "found" if find_marked_processes("LIFECYCLE_TEST_MARK", value) else None)
        assert find_marked_processes("LIFECYCLE_TEST_MARK", value) == (identity(child.pid),)
        assert find_marked_processes("LIFECYCLE_TEST_MARK", value + "x") == ()
    finally:
        child.kill()
        child.wait()


def test_where_a_process_works(sleeper: subprocess.Popen[bytes]) -> None:
    assert working_folder(sleeper.pid) == Path.cwd()
    sleeper.kill()
    sleeper.wait()
    assert working_folder(sleeper.pid) is None


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = Layout(project=tmp_path, state=tmp_path / "state")
    found.prepare()
    return found


def test_a_component_is_on_file_until_it_is_stopped(layout: Layout) -> None:
    program = [sys.executable, "-c", "import time; print('started', flush=True); time.sleep(100)"]
    started = processes.launch(layout, "one", program, os.environ, identity="a")
    assert processes.find_component(layout, "one") == started
    assert started.environment == "a"
    assert processes.log_file(layout, "one").stat().st_mode & 0o777 == 0o600
    processes.stop(layout, ["one", "never started"], polite_seconds=2.0)
    assert processes.find_component(layout, "one") is None
    assert not started.process.is_alive()


def test_the_log_of_the_run_before_is_kept(layout: Layout) -> None:
    for word in ("first", "second"):
        started = processes.launch(layout, "one", [sys.executable, "-c", f"print('{word}')"], os.environ, identity="")
        wait_until_ended([started.process], 10.0)
    assert processes.log_file(layout, "one").read_text() == "second\n"
    assert processes.log_file(layout, "one").with_suffix(".log.previous").read_text() == "first\n"


def test_the_digest_tells_a_change_and_no_value() -> None:
    assert processes.digest({"a": "1"}) == processes.digest({"a": "1"}) != processes.digest({"a": "2"})
    assert "secret" not in processes.digest({"a": "secret"})


def test_the_holder_is_named(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with hold_file_lock(file), pytest.raises(StackBusy, match=r"process \d+"), hold_file_lock(file, wait_seconds=0.0):
        raise AssertionError("entered twice")


def test_it_is_free_again_afterwards_also_after_an_error(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with pytest.raises(RuntimeError), hold_file_lock(file):
        raise RuntimeError
    with hold_file_lock(file, wait_seconds=0.0):
        pass


def test_sections_do_not_overlap(tmp_path: Path) -> None:
    spans: list[tuple[float, float]] = []

    def section() -> None:
        with hold_file_lock(tmp_path / "lock"):
            start = time.monotonic()
            time.sleep(0.05)
            spans.append((start, time.monotonic()))

    threads = [threading.Thread(target=section) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans.sort()
    assert len(spans) == 4
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_a_killed_holder_releases_it(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from lifecycle_local.processes import hold_file_lock\n"
        "with hold_file_lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(100)"  # until the test kills it
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StackBusy), hold_file_lock(tmp_path / "lock", wait_seconds=0.0):
            pass
        holder.kill()
        holder.wait()
        with hold_file_lock(tmp_path / "lock", wait_seconds=0.0):
            pass


def test_a_port_is_chosen_once(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    first = choose_port(file, "postgres")
    assert FIRST_PORT <= first <= LAST_PORT
    assert choose_port(file, "postgres") == first == last_port(file, "postgres")
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_taken_port_is_replaced_and_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    postgres, airflow = choose_port(file, "postgres"), choose_port(file, "airflow")
    with socket.socket() as other:
        other.bind((LOOPBACK, postgres))
        other.listen()
        assert not is_free(postgres)
        moved = choose_port(file, "postgres")
    assert moved != postgres
    assert json.loads(file.read_text()) == {"postgres": moved, "airflow": airflow}


def test_two_services_never_share_a_port(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    assert len({choose_port(file, f"service {number}") for number in range(50)}) == 50


def test_a_broken_file_is_as_good_as_none(tmp_path: Path) -> None:
    file = tmp_path / "ports.json"
    file.write_text("{")
    assert last_port(file, "postgres") is None
    assert is_free(choose_port(file, "postgres"))
