"""Readers' questions share a database of their process and see nothing of each other."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import duckdb
import pyarrow as pa
import pytest

from message_lifecycle.stores.iceberg import relations
from message_lifecycle.stores.iceberg.relations import database

SPILLING = "CREATE TEMP TABLE much AS SELECT range AS a, repeat('x', 100) || range AS b FROM range(500000)"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where it spills, from 16 MB on. A database of this test's own, which goes with it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(relations, "MEMORY_BYTES", 1 << 24)
    monkeypatch.setattr(relations, "_shared", None)
    yield tmp_path


def test_what_one_question_makes_no_other_sees() -> None:
    at_once = Barrier(2)

    def ask(number: int) -> list[tuple[int]]:
        with database() as connection:
            connection.register("given", pa.table({"a": [number]}))
            connection.execute("CREATE TEMP TABLE made AS FROM given; CREATE TEMP VIEW seen AS FROM made")
            at_once.wait(60)
            found = connection.execute("FROM given UNION ALL FROM made UNION ALL FROM seen").fetchall()
            at_once.wait(60)
        return found

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(ask, (1, 2))) == [[(1,)] * 3, [(2,)] * 3]
    with database() as later:
        assert later.execute("SELECT count(*) FROM duckdb_tables()").fetchall() == [(0,)]
        with pytest.raises(duckdb.CatalogException):
            later.execute("FROM seen")


def test_no_question_sets_anything_for_the_others() -> None:
    with database() as connection, pytest.raises(duckdb.InvalidInputException, match="locked"):
        connection.execute("SET disabled_optimizers = 'join_order'")


def test_the_next_question_asks_the_same_database_and_after_an_error_another() -> None:
    with database():
        first = relations._shared
    with pytest.raises(duckdb.Error), database() as connection:
        assert relations._shared is first
        connection.execute("SELECT error('damaged')")
    with database() as connection:
        assert relations._shared is not first
        assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_what_spills_goes_with_the_last_question(folder: Path) -> None:
    for _ in range(2):
        with database() as one:
            with database() as other:
                other.execute(SPILLING)
            one.execute(SPILLING)
            assert any(folder.glob("*/*"))
            assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o700}
            assert one.execute("SELECT count(*) FROM much").fetchall() == [(500_000,)]
        assert list(folder.iterdir()) == []


def test_an_answer_that_nobody_reads_to_its_end_leaves_nothing(folder: Path) -> None:
    def rows() -> Iterator[object]:
        with database() as connection:
            yield from connection.execute("FROM range(10)").fetchall()

    answer = rows()
    next(answer)
    del answer
    gc.collect()
    assert list(folder.iterdir()) == []


def test_a_folder_that_somebody_has_left_in_its_place_or_taken_away_is_no_hindrance(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with database():
        assert relations._shared is not None
    relations._shared.spill.mkdir()
    with database() as connection:
        connection.execute(SPILLING)
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", lambda *_, **__: None)  # it cannot be taken away
        with database() as connection:
            assert connection.execute("SELECT 1").fetchall() == [(1,)]
    with database() as connection:
        connection.execute(SPILLING)


TOTAL, EXPECTED = "SELECT sum(range) FROM range(10000000)", [(49_999_995_000_000,)]


def asked_by_a_fork() -> int:
    """The status of a forked process that asks, and then clears its database away as Python does at its end."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    status = 2
    signal.alarm(60)  # ends it where it hangs
    try:
        with database() as connection:
            status = int(connection.execute(TOTAL).fetchall() != EXPECTED)
        relations._shared = None
        gc.collect()
    finally:  # this process must not go on with the tests
        os._exit(status)


def test_a_forked_process_asks_by_a_database_of_its_own_and_ends() -> None:
    with database() as connection:
        assert connection.execute(TOTAL).fetchall() == EXPECTED
    assert asked_by_a_fork() == 0
    with database() as connection:
        assert connection.execute(TOTAL).fetchall() == EXPECTED


def test_a_question_goes_on_where_its_process_forks() -> None:
    with database() as connection:
        connection.execute("CREATE TEMP TABLE made AS SELECT 1 AS a")
        assert asked_by_a_fork() == 0
        assert connection.execute("FROM made").fetchall() == [(1,)]
