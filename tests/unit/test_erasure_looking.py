"""A key is found by tasks of a cluster as it is found here; and what an erasure has written again is compared a part at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from message_lifecycle.model.erasure import KeyMatch, KeySecret
from message_lifecycle.model.errors import FileUnreadable
from message_lifecycle.stores.iceberg import file_tasks
from message_lifecycle.stores.iceberg.erasure import evidence, rewrite
from message_lifecycle.stores.iceberg.erasure.looking import Looks
from message_lifecycle.stores.iceberg.erasure.rewrite import KeyRowFinder
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO
from message_lifecycle.stores.iceberg.shares import Failed
from message_lifecycle.stores.iceberg.tasks import HERE
from tests.engines import ForeignTasks
from tests.errors import raises

SECRET = KeySecret(b"s" * 32)
KEY = b"erased"


def looks(engine: Callable[[], Any] | None, key: bytes = KEY) -> Looks:
    rows_of = KeyRowFinder(KeyMatch.for_requests(SECRET, [SECRET.digests([key])]))
    return Looks(io=LakeFileIO(), store=HERE, kind="log", rows_of=rows_of, engine=engine)


def files(folder: Path, *, rows: int = 3) -> dict[str, int]:
    """Two of every three have the key, in their second row."""
    made = {}
    for at in range(2 * file_tasks.FILES_OF_TASK + 1):
        keys = [b"a%d" % at, KEY if at % 3 else b"b", b"c"][:rows]
        pq.write_table(pa.table({"offset": pa.array(range(rows)), "key": pa.array(keys, pa.binary())}), folder / f"{at}.parquet")
        made[str(folder / f"{at}.parquet")] = rows
    return made


@pytest.fixture
def tasks() -> ForeignTasks:
    return ForeignTasks()


def test_tasks_find_what_is_found_here(tmp_path: Path, tasks: ForeignTasks) -> None:
    there, here = looks(lambda: tasks), looks(None)
    rows = files(tmp_path)
    there.ahead(rows)
    here.ahead(rows)
    found = {path: there.rows(path).tolist() for path in rows}
    assert found == {path: here.rows(path).tolist() for path in rows}
    assert sorted(map(len, found.values())) == [0] * 11 + [1] * 22
    assert tasks.counts == [3]


@pytest.mark.parametrize("at_once", [1, rewrite.KEYS_AT_ONCE])
def test_tasks_search_only_files_that_may_hold_the_key(
    tmp_path: Path, tasks: ForeignTasks, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Whatever the type of the keys, and however many one question compares."""
    monkeypatch.setattr(rewrite, "KEYS_AT_ONCE", at_once)
    kinds = {"binary": pa.binary(), "large": pa.large_binary(), "text": pa.string()}
    keys = {"with": [None, b"a", KEY, None], "without": [b"erased ", None, b"", b"a"], "null": [None], "none": []}
    paths = {}
    for name, kind in kinds.items():
        for part, values in keys.items():
            path = tmp_path / f"{name}-{part}.parquet"
            pq.write_table(pa.table({"offset": pa.array(range(len(values)), pa.int64()), "key": pa.array(values, kind)}), path)
            paths[str(path)] = len(values)
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(b"PAR1 torn")
    pq.write_table(pa.table({"offset": [1]}), tmp_path / "keyless.parquet")
    every = [*paths, str(torn), str(tmp_path / "keyless.parquet")]
    found = looks(lambda: tasks)
    suspects = found.rows_of.suspects(found.io, every, "log")
    assert suspects == {str(tmp_path / f"{name}-with.parquet") for name in kinds} | {str(torn)}
    found.ahead(paths)
    assert {path for path in paths if found.rows(path).tolist() == [2]} == suspects - {str(torn)}
    assert found.rows_of.suspects(found.io, every, "quarantine") == set(every)


def test_an_error_of_the_hashing_is_not_taken_for_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([OSError("no memory for the keys")])

    def fail_once(*_: object) -> list[bytes]:
        for error in answers:
            raise error
        return []

    monkeypatch.setattr(rewrite, "KEYS_AT_ONCE", 1)
    monkeypatch.setattr(rewrite, "matching", fail_once)
    found = looks(None)
    with pytest.raises(OSError, match=r"^no memory for the keys$"):
        found.rows_of.suspects(found.io, list(files(tmp_path)), "log")


def test_a_file_that_is_gone_is_told_by_whoever_asks_for_it(tmp_path: Path, tasks: ForeignTasks) -> None:
    """Some may be: history names them. The others count."""
    rows = files(tmp_path)
    gone = str(tmp_path / "1.parquet")
    Path(gone).unlink()
    found = looks(lambda: tasks)
    found.ahead(rows)
    with raises("FileLost", match="1.parquet"):
        found.rows(gone)
    assert found.rows(str(tmp_path / "2.parquet")).tolist() == [1]


@pytest.mark.parametrize(("content", "code"), [(b"PAR1 torn", "FileUnreadable"), (b"", "FileUnreadable"), (None, "FileLost")])
def test_of_a_file_that_cannot_be_read_a_task_says_what_is_said_here(
    tmp_path: Path, tasks: ForeignTasks, content: bytes | None, code: str
) -> None:
    """It may hold the key: nothing is said to be clean."""
    rows = files(tmp_path)
    damaged = tmp_path / "1.parquet"
    damaged.unlink()
    if content is not None:
        damaged.write_bytes(content)
    told = []
    for found in (looks(lambda: tasks), looks(None)):
        found.ahead(rows)
        with raises(code, match=r"1\.parquet: cannot read this file of a table", kind=FileUnreadable) as error:
            found.rows(str(damaged))
        told.append((type(error.value), error.value.filename, str(error.value)))
    assert tasks.counts
    assert told[0] == told[1]


def test_neither_key_nor_secret_is_in_what_is_printed_of_a_task(
    tmp_path: Path, tasks: ForeignTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []

    def failing(items: Sequence[object], _work: object, *, description: str) -> list[Failed]:
        printed.extend([*map(repr, items), description])
        return [Failed(kind="Lost", reason="the executor is gone.")] * len(items)

    monkeypatch.setattr(tasks, "run", failing)
    with raises("SearchFailed", match="the executor is gone"):
        looks(lambda: tasks).ahead(files(tmp_path))
    assert printed
    assert not any("ssss" in one or "erased" in one for one in printed)


# What is kept of a file, and what was written of it.


ROWS = pa.table({"offset": pa.array(range(10)), "value": pa.array([b"", None, *([b"x"] * 8)], pa.binary())})
KEPT = np.array([True, True, False, True, True, False, False, True, True, True])


def same(folder: Path, groups: tuple[int, int], after: pa.Table) -> bool:
    """Return the gate's comparison. `groups`: the rows of a row group, before and after."""
    pq.write_table(ROWS, folder / "old.parquet", row_group_size=groups[0])
    pq.write_table(after, folder / "new.parquet", row_group_size=groups[1])
    with pq.ParquetFile(folder / "old.parquet") as old, pq.ParquetFile(folder / "new.parquet") as new:
        return evidence._same(old, KEPT, new)


@pytest.mark.parametrize("most", [1, 2, 3, 65_536])
@pytest.mark.parametrize("groups", [(10, 10), (4, 3), (3, 4), (1, 10), (10, 1)])
def test_row_groups_and_the_rows_of_a_comparison_do_not_change_the_answer(
    tmp_path: Path, groups: tuple[int, int], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "_MOST_ROWS", most)
    left = ROWS.filter(pa.array(KEPT))
    values = left["value"].to_pylist()
    assert same(tmp_path, groups, left)
    assert not same(tmp_path, groups, left.slice(0, 6)), "the last row is missing"
    assert not same(tmp_path, groups, pa.concat_tables([left, left.slice(6)])), "a row too many"
    assert not same(tmp_path, groups, ROWS.slice(0, 7)), "other rows"
    for at, other in ((0, None), (1, b""), (6, b"y")):
        changed = [*values[:at], other, *values[at + 1 :]]
        assert not same(tmp_path, groups, left.set_column(1, "value", pa.array(changed, pa.binary()))), f"row {at} is another"
    assert not same(tmp_path, groups, left.cast(pa.schema([("offset", pa.int32()), ("value", pa.binary())]))), "of another type"


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_floats_are_compared_by_their_bits(tmp_path: Path, kind: pa.DataType) -> None:
    floats = np.array([np.nan, -0.0, *range(8)], np.float16)
    pq.write_table(pa.table({"value": pa.array(floats).cast(kind)}), tmp_path / "old.parquet")

    def written_again(values: list[float]) -> bool:
        pq.write_table(pa.table({"value": pa.array(np.array(values, np.float16)).cast(kind)}), tmp_path / "new.parquet")
        with pq.ParquetFile(tmp_path / "old.parquet") as old, pq.ParquetFile(tmp_path / "new.parquet") as new:
            return evidence._same(old, np.arange(10) < 3, new)

    assert written_again([np.nan, -0.0, 0.0])
    assert not written_again([np.nan, 0.0, 0.0])
    assert not written_again([1.0, -0.0, 0.0])
