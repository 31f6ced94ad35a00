"""A process tree held at its boundaries: what it is about to write is told in order, and fails, or is lost, or is the last, as it is wanted."""

from __future__ import annotations

import errno
import os
import platform
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from bench.fault_point import FAULTS, Beside, Boundaries, Point, Unsynced, points_of
from bench.fault_watch import Boundary, Tree
from bench.fault_world import differences
from bench.faults import Ran, keep, note, page, results

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls are those of x86-64")
READY = b"Z\x00\x00\x00\x05I"


@contextmanager
def watched(folder: Path, work: Callable[[], int], *, database: int = 0) -> Iterator[Tree]:
    tree = Tree(folder=folder / "lake", database=database, log=folder / "log")
    (folder / "lake").mkdir()
    try:
        tree.start(work)
    except SystemExit as refused:
        pytest.skip(str(refused))
    yield tree


def write(folder: Path) -> int:
    """As a table's metadata come to be: written, brought to disk, renamed."""
    part = folder / "lake" / "part-00001.json"
    with part.open("wb", buffering=0) as file:
        file.write(b"x" * 10)
        os.fsync(file.fileno())
    part.rename(folder / "lake" / "whole.json")
    return 0


def test_what_is_written_below_the_folder_is_told_in_order_and_nothing_else(tmp_path: Path) -> None:
    def work() -> int:
        (tmp_path / "elsewhere").write_text("y")
        return write(tmp_path)

    with watched(tmp_path, work) as tree:
        told = [boundary.what for boundary in tree.boundaries()]
        assert tree.close() == 0
    assert told == ["open part-*.json", "write part-*.json", "sync part-*.json", "rename whole.json"]


def test_killed_at_a_boundary_it_has_not_come_past_it_and_neither_has_what_it_started(tmp_path: Path) -> None:
    def work() -> int:
        child = os.fork()
        if child == 0:
            signal.pause()
        (tmp_path / "pid").write_text(str(child))
        return write(tmp_path)

    with watched(tmp_path, work) as tree:
        for boundary in tree.boundaries():
            if boundary.what.startswith("rename"):
                tree.kill()
                break
        assert tree.close() == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "lake").iterdir()] == ["part-00001.json"]
    child = Path("/proc") / (tmp_path / "pid").read_text() / "stat"
    assert not child.exists() or child.read_text().rpartition(")")[2].split()[0] in "ZX"


def test_a_call_that_is_to_fail_is_not_made(tmp_path: Path) -> None:
    def work() -> int:
        try:
            return write(tmp_path)
        except OSError as error:
            return error.errno or 0

    with watched(tmp_path, work) as tree:
        for boundary in tree.boundaries():
            if boundary.what.startswith("write"):
                tree.fail(errno.ENOSPC)
        assert tree.close() == errno.ENOSPC
    assert (tmp_path / "lake" / "part-00001.json").read_bytes() == b""


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_line_breaks_before_or_after_what_was_asked_is_done(lost: str, tmp_path: Path) -> None:
    statement = b"UPDATE iceberg_tables SET x = 1\0"
    told = b"Q" + (len(statement) + 4).to_bytes(4, "big") + statement
    done: list[bytes] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            line, _ = server.accept()
            with line:
                done.append(line.recv(1000))
                line.sendall(READY)
                line.recv(1000)

        served = threading.Thread(target=serve)
        served.start()

        def work() -> int:
            with socket.create_connection(server.getsockname()) as line:
                try:
                    line.sendall(told)
                except OSError as error:
                    return error.errno or 0
                return len(line.recv(1000))

        with watched(tmp_path, work, database=server.getsockname()[1]) as tree:
            seen = []
            for boundary in tree.boundaries():
                seen.append((boundary.kind, boundary.what, boundary.writes))
                if lost == "after":
                    tree.lose_answer()
                else:
                    tree.break_line()
            assert tree.close() in ((0,) if lost == "after" else (errno.EPIPE, errno.ECONNRESET))
        served.join(10)
    assert (seen, done) == ([("catalog", "UPDATE iceberg_tables", True)], [told if lost == "after" else b""])


def test_what_goes_on_beside_is_waited_for_no_longer_than_is_said() -> None:
    reading, writing = os.pipe()
    held = Beside(lambda: os.read(reading, 1)[0], None)
    held.wait(0.05)
    os.write(writing, b"\x07")
    assert held.end() == 7


def test_a_loss_of_power_takes_what_was_not_brought_to_disk(tmp_path: Path) -> None:
    def work() -> int:
        lake = tmp_path / "lake"
        for name, synced in (("kept", True), ("torn", False)):
            with (lake / name).open("wb", buffering=0) as file:
                file.write(b"x" * 10)
                if synced:
                    os.fsync(file.fileno())
            if synced:
                folder = os.open(lake, os.O_RDONLY)
                os.fsync(folder)
                os.close(folder)
        return 0

    unsynced = Unsynced()
    with watched(tmp_path, work) as tree:
        for boundary in tree.boundaries():
            unsynced.see(boundary)
        assert tree.close() == 0
    unsynced.tear()
    assert {path.name: path.stat().st_size for path in (tmp_path / "lake").iterdir()} == {"kept": 10, "torn": 5}
    unsynced.lose()
    assert [path.name for path in (tmp_path / "lake").iterdir()] == ["kept"]


def test_a_loss_of_power_takes_a_rename_back(tmp_path: Path) -> None:
    def work() -> int:
        lake = tmp_path / "lake"
        with (lake / "part").open("wb", buffering=0) as file:
            file.write(b"new")
            os.fsync(file.fileno())
        (lake / "part").rename(lake / "log")
        (lake / "folder").rename(lake / "moved")
        return 0

    unsynced = Unsynced()
    with watched(tmp_path, work) as tree:
        (tmp_path / "lake" / "log").write_bytes(b"old")
        (tmp_path / "lake" / "folder").mkdir()
        for boundary in tree.boundaries():
            unsynced.see(boundary)
        assert tree.close() == 0
    unsynced.tear()
    assert (tmp_path / "lake" / "log").read_bytes() == b"new", "it was brought to disk under its first name"
    unsynced.lose()
    there = {path.name: path.is_dir() or path.read_bytes() for path in (tmp_path / "lake").iterdir()}
    assert there == {"log": b"old", "folder": True}


def of(kind: str, what: str, *, writes: bool = True, process: int = 1) -> Boundary:
    return Boundary(kind=kind, what=what, writes=writes, process=process)  # type: ignore[arg-type]  # a test's shorthand


def test_each_boundary_has_the_faults_that_it_can_have(tmp_path: Path) -> None:
    names = Boundaries()
    run = [
        of("java", "call commit"),
        of("file", "open x", process=2),
        of("catalog", "UPDATE iceberg_tables", process=2),
        of("java", "call of"),
        of("database", "SELECT lifecycle_plans", writes=False),
        of("file", "open x", process=2),
    ]
    found: dict[str, list[str]] = {}
    for point in points_of("expiry", [(names.name(boundary), boundary) for boundary in run]):
        found.setdefault(point.boundary, []).append(point.fault)
    lasts = ["kill", "second", "torn", "missing", "clock", "older", "writer"]
    assert found == {
        "java: call commit #1": [*lasts, "refused", "lost"],
        "file: open x #1": [*lasts, "full", "readonly"],
        "catalog: UPDATE iceberg_tables #1": [*lasts, "refused", "lost"],
        "java: call of #1": ["refused", "lost"],
        "database: SELECT lifecycle_plans #1": ["refused", "lost"],
        "file: open x #2": [*lasts, "full", "readonly"],
    }
    assert {*lasts, "refused", "lost", "full", "readonly", "away", "half"} == {*FAULTS}


def test_a_catalog_of_before_has_not_what_was_deleted_for_good_and_a_topic_that_goes_takes_no_writer() -> None:
    run = [("file: unlink x #1", of("file", "unlink x"))]
    assert "older" not in {point.fault for operation in ("erasure", "files_limits") for point in points_of(operation, run)}
    assert "writer" not in {point.fault for point in points_of("topic_delete", run)}


def test_what_was_run_is_kept_and_its_page_tells_points_and_differences(tmp_path: Path) -> None:
    point = Point(operation="expiry", boundary="catalog: UPDATE iceberg_tables #3", fault="lost")
    ran = [
        Ran(point=point, commit="abc", seed=1, seconds=2.0, found="rows: [1] where an undisturbed run has [2]"),
        Ran(point=Point(operation="expiry", boundary="file: open x #1", fault="kill"), commit="abc", seed=1, seconds=4.0, found="same"),
        Ran(
            point=Point(operation="limits", boundary="file: open x #1", fault="kill"),
            commit="abd",
            seed=1,
            seconds=3.0,
            found="not reached",
        ),
    ]
    keep(tmp_path / "faults.tsv", ran[:1])
    for one in ran[1:]:
        note(tmp_path / "faults.tsv", one)
    assert results(tmp_path / "faults.tsv") == {one.point: one for one in ran}
    told = page(ran)
    assert "| expiry | 1 / 0 |  |  |  |  |  | 1 / 1 |  |  |  |  |  |  | 2 / 1 | 3.0 | abc |" in told
    assert "limits" not in told
    assert f"- `{point.command}` at abc: rows: [1] where" in told


def test_how_much_a_reclaim_would_take_is_no_difference() -> None:
    assert differences({"rows": [1], "takeable": 5}, {"rows": [1], "takeable": 3}) == []
    assert differences({"rows": [1, 2]}, {"rows": [1]}) == ["rows: [1, 2] where an undisturbed run has [1]"]
    assert differences({"rows": [{"key": "a"}]}, {"rows": [{"key": "b"}]}) == ['rows[0].key: "a" where an undisturbed run has "b"']


def test_what_a_late_clock_has_written_has_its_time() -> None:
    found, undisturbed = ({"rows": [{"append_time": at, "key": "a"}]} for at in (1, 2))
    assert differences(found, undisturbed, fault="clock") == []
    blocked, ended = {"outcomes": ["reclaim blocked", "reclaim published"]}, {"outcomes": ["reclaim published"]}
    assert differences(blocked, ended, fault="away") == [], "a gate saw that the file was away"
    assert differences(blocked, ended, fault="kill")
    assert differences(found, undisturbed, fault="kill") == ["rows[0].append_time: 1 where an undisturbed run has 2"]
