"""The gate's evidence about single messages: removals and their reasons, and a sample of segments that expire (CLK-2 to CLK-4)."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.errors import PartlyUnavailable
from message_lifecycle.model.instants import INT64_MAX
from message_lifecycle.model.reasons import RemovalReason
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.iceberg import evidence_rows, file_tasks
from message_lifecycle.stores.iceberg.engine import Engine
from message_lifecycle.stores.iceberg.evidence_files import GOING
from message_lifecycle.stores.iceberg.evidence_rows import SAMPLE, RowEvidence
from message_lifecycle.stores.iceberg.lake_io import LakeFileIO
from tests.engines import ForeignTasks
from tests.errors import raises
from tests.evidence import AS_OF, DEAD_AT, POLICY, good, policy

Found = dict[int, tuple[bool, bool]]


def sampled(
    folder: Path, times: list[int | None], *, by: Policy = POLICY, as_of: int = AS_OF, removed: tuple[int, ...] = (), **bounds: int | None
) -> Found:
    """Offset -> (too young, outside its bounds), for messages from offset 5 on."""
    path = str(folder / "data.parquet")
    offsets = pa.array(range(5, 5 + len(times)), pa.int64())
    pq.write_table(pa.table({"offset": offsets, "append_time": pa.array(times, pa.timestamp("us", "UTC"))}), path)
    told = {"first_offset": 5, "last_offset": 4 + len(times), "newest_at": max((t for t in times if t is not None), default=0), **bounds}
    file = {"name": path, "partition": 2, "segment": 5, "rows": len(times), **told}
    vectors: Any = {path: np.array(removed, np.int64)}
    table: Any = SimpleNamespace(io=None)
    plan = replace(good().plan, as_of=as_of)
    rows = RowEvidence(table=table, plan=plan, policy=by, before=vectors, after=vectors, active={})
    found = rows.sample(pa.Table.from_pylist([file], schema=GOING))
    assert found.schema == SAMPLE
    assert {(row["partition"], row["segment"]) for row in found.to_pylist()} <= {(2, 5)}
    return {row["offset"]: (row["too_young"], row["outside_bounds"]) for row in found.to_pylist()}


def test_dead_to_the_microsecond(tmp_path: Path) -> None:
    assert sampled(tmp_path, [DEAD_AT - 1, DEAD_AT, DEAD_AT + 1]) == {5: (False, False), 6: (False, False), 7: (True, False)}


def test_what_is_unknown_is_neither_dead_nor_within_its_bounds(tmp_path: Path) -> None:
    assert sampled(tmp_path, [None, 0, 1]) == {5: (True, True), 6: (True, True), 7: (False, False)}
    assert sampled(tmp_path, [1], newest_at=None) == {5: (False, True)}
    assert sampled(tmp_path, [1], first_offset=None) == {5: (False, True)}


def test_outside_of_what_the_file_says(tmp_path: Path) -> None:
    assert sampled(tmp_path, [1, 2, 3], first_offset=6, newest_at=2) == {5: (False, True), 6: (False, False), 7: (False, True)}
    assert sampled(tmp_path, [1, 2], last_offset=5) == {5: (False, False), 6: (False, True)}


def test_a_deadline_at_the_end_of_time_is_never_due(tmp_path: Path) -> None:  # CLK-3
    assert sampled(tmp_path, [INT64_MAX - 100_000_000], as_of=INT64_MAX) == {5: (True, False)}
    assert sampled(tmp_path, [INT64_MAX - 100_000_001], as_of=INT64_MAX) == {5: (False, False)}


def test_nothing_is_dead_where_nothing_expires(tmp_path: Path) -> None:  # EXP-1, EXP-2
    assert sampled(tmp_path, [1], by=policy(message_expiry=0)) == {5: (True, False)}
    assert sampled(tmp_path, [1], by=policy(enabled=False)) == {5: (True, False)}


def test_messages_that_had_gone_before_are_no_sample(tmp_path: Path) -> None:
    assert sampled(tmp_path, [1, 2, 3], removed=(0, 2)) == {6: (False, False)}


# Single messages that a plan names, judged by this process and by tasks.


BASE = 10
KEYS = (b"a", b"b", None, b"a", b"c")
"""The keys of offsets 10 to 14 in each judged file."""
OFFSETS = pa.array(range(BASE, BASE + len(KEYS)), pa.int64())


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A file of offsets 10 to 14 to judge.

    Attributes:
        removals: Pairs of reason and offsets, as the plan names them.
        lost: The offsets that the staged change removes. None: the file is gone.
        partition: The partition of the file.
    """

    removals: tuple[tuple[RemovalReason, str], ...]
    lost: tuple[int, ...] | None
    partition: int = 0


def judge(
    folder: Path,
    files: Sequence[Judged],
    *,
    renewed: frozenset[tuple[int, int]],
    engine: Callable[[], Engine | None],
) -> tuple[list[tuple[int, int, int]], list[Any]]:
    """Return (rows, unnamed, unjustified) of each file, and the row about purged messages. The plan names each file for partition 0."""
    table: Any = SimpleNamespace(io=LakeFileIO(), location=lambda: str(folder))
    rows = {"offset": OFFSETS, "key": pa.array(KEYS, pa.binary())}
    paths = {str(folder / f"{at}.parquet"): file for at, file in enumerate(files)}
    for path in paths:
        pq.write_table(pa.table(rows), path)
    removals = [
        RemoveRows(partition=0, file=Path(path).name, offsets=named, rows=1, reason=reason)
        for path, file in paths.items()
        for reason, named in file.removals
    ]
    earlier: Any = {path: np.array([0], np.int64) for path in paths}
    later: Any = {path: np.array([0, *(offset - BASE for offset in file.lost or ())], np.int64) for path, file in paths.items()}
    places = {path: (file.partition, 0) for path, file in paths.items()}
    evidence = RowEvidence(
        table=table,
        plan=replace(good().plan, reasons=("purged", "removed")),
        policy=POLICY,
        before=earlier,
        after=later,
        active={},
        engine=engine,
        removals=removals,
        renewed=renewed,
    )
    stays = [path for path, file in paths.items() if file.lost is not None]
    evidence.judge(places, losing={path: Path(path).name for path in paths}, stays=stays, overdue=())
    found = evidence.lost(places).to_pylist()
    assert [row["partition"] for row in found] == [file.partition for file in files]
    return [(row["rows"], row["unnamed"], row["unjustified"]) for row in found], evidence.purged().to_pylist()


@pytest.mark.parametrize(
    ("file", "wanted", "purged"),
    [
        (Judged(removals=(("removed", "11-12"),), lost=(11, 12)), (2, 0, 0), []),
        (Judged(removals=(("removed", "11"),), lost=(11, 12, 13)), (3, 2, 0), []),
        (Judged(removals=(("purged", "11-13"),), lost=(11, 12, 13)), (3, 0, 0), [{"keys": 2, "keyless": 1}]),
        (Judged(removals=(("purged", "11"), ("removed", "14")), lost=(11, 14)), (2, 0, 0), [{"keys": 1, "keyless": 0}]),
        (Judged(removals=(("ttl", "11"),), lost=(11,)), (1, 0, 1), []),
        (Judged(removals=(("superseded", "11,13"),), lost=(11, 13)), (2, 0, 0), []),
        (Judged(removals=(("superseded", "11-13"),), lost=(11, 12, 13)), (3, 0, 1), []),
        (Judged(removals=(("superseded", "11,13"),), lost=(11, 13), partition=1), (2, 0, 2), []),
        (Judged(removals=(("retention_count", "11"),), lost=(11,)), (1, 0, 1), []),
        (Judged(removals=(), lost=(11,)), (1, 1, 0), []),
        (Judged(removals=(("purged", "11-14"),), lost=None), (4, 0, 0), [{"keys": 3, "keyless": 1}]),
        (Judged(removals=(("removed", "10-12"),), lost=None), (4, 2, 0), []),
    ],
    ids=[
        "a request",
        "lost without a name",
        "purged keys, one message without a key",
        "two requests",
        "a reason that the plan does not have",
        "older markers",
        "an older marker without a new one",
        "older markers of another partition than the file",
        "within the limits",
        "a file that the plan does not name",
        "all messages of a file that is gone",
        "some messages of a file that is gone",
    ],
)
def test_each_lost_message_needs_a_name_and_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Judged, wanted: tuple[int, int, int], purged: list[Any]
) -> None:
    """Offset 10 was removed before. Offsets 11 and 13 of partition 0 have new markers, and so have offsets before and after the file."""
    monkeypatch.setattr(file_tasks, "FILES_OF_TASK", 1)
    files, tasks = [file, Judged(removals=(), lost=())], ForeignTasks()
    renewed = frozenset((0, offset) for offset in (0, 9, 11, 13, 15, 100))
    here = judge(tmp_path, files, renewed=renewed, engine=lambda: None)
    assert here == ([wanted, (0, 0, 0)], purged)
    assert judge(tmp_path, files, renewed=renewed, engine=tasks.engine) == here
    assert tasks.counts == [2]


def test_a_task_gets_only_the_renewed_markers_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_tasks, "FILES_OF_TASK", 1)
    sizes = list[int]()

    class Weighed(ForeignTasks):
        def run(self, items: Sequence[Any], work: Callable[..., Any], *, description: str) -> list[Any]:
            sizes.extend(len(pickle.dumps(item)) for item in items)
            return super().run(items, work, description=description)

    files = [Judged(removals=(("superseded", "11"),), lost=(11,)), Judged(removals=(("superseded", "12"),), lost=(12,))]
    for renewed in (frozenset({(0, 11), (0, 12)}), frozenset((0, offset) for offset in range(10_000))):
        judge(tmp_path, files, renewed=renewed, engine=Weighed().engine)
    assert sizes[:2] == sizes[2:]


@pytest.mark.parametrize("engine", [lambda: None, ForeignTasks().engine], ids=["this process", "tasks"])
def test_an_unexpected_error_names_the_file_and_stops_one_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Callable[[], Engine | None]
) -> None:
    def broken(*_: object) -> NoReturn:
        raise ArithmeticError("no such number")

    monkeypatch.setattr(file_tasks, "FILES_OF_TASK", 1)
    monkeypatch.setattr(evidence_rows, "is_named", broken)
    files = [Judged(removals=(("removed", "11"),), lost=(11,))] * 2
    with raises("FileUnreadable", match=r"0\.parquet: .*ArithmeticError: no such number", kind=PartlyUnavailable):
        judge(tmp_path, files, renewed=frozenset(), engine=engine)


@pytest.mark.parametrize("engine", [lambda: None, ForeignTasks().engine], ids=["this process", "tasks"])
def test_a_vector_that_marks_a_row_past_the_end_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Callable[[], Any]
) -> None:
    monkeypatch.setattr(file_tasks, "FILES_OF_TASK", 1)
    files = [Judged(removals=(("removed", "99"),), lost=(99,))] * 2
    with raises("FileUnreadable", match=r"0\.parquet: .*marks row 89, and the file has 5 rows", kind=PartlyUnavailable):
        judge(tmp_path, files, renewed=frozenset(), engine=engine)
