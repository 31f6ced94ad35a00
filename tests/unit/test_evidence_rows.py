"""What the gate finds in a sample of the messages that go with their segment: dead, and where their file says (CLK-2 to CLK-4)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from message_lifecycle.model.instants import INT64_MAX
from message_lifecycle.model.settings import Policy
from message_lifecycle.stores.iceberg.evidence_files import GOING
from message_lifecycle.stores.iceberg.evidence_rows import SAMPLE, RowEvidence
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
