"""A rate binds what a compaction reads and writes, and leaves it as it is (CMP-11). Time is the tests' own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from message_lifecycle.model.instants import Instant
from message_lifecycle.operations.compaction import CompactionRules
from message_lifecycle.stores.iceberg import lake_files
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.compaction import PartitionJob
from message_lifecycle.stores.iceberg.compaction.kernel import compact
from message_lifecycle.stores.iceberg.lake_files import Pace
from message_lifecycle.stores.iceberg.shares import Resources
from message_lifecycle.stores.iceberg.tasks import InputFile


class Clock:
    """Goes on by being slept."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(lake_files, "time", made)
    return made


def test_bytes_pass_at_the_rate_and_not_before(clock: Clock) -> None:
    at = Pace(100)
    at.wait(50)
    assert clock.now == 0.5
    clock.now = 10.0
    at.wait(50)
    assert clock.now == 10.0, "the rate is that of all since the first"
    at.wait(1_000)
    assert clock.now == 11.0


def test_without_a_rate_nobody_waits(clock: Clock) -> None:
    Pace(0).wait(1 << 40)
    assert clock.now == 0.0


def a_log(folder: Path) -> PartitionJob:
    rows = [
        {"partition": 0, "offset": at, "key": b"%d" % (at % 7), "value": bytes(100), "size_bytes": 101, "segment": 0} for at in range(500)
    ]
    schema = SCHEMA.as_arrow()
    columns = {field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in schema}
    columns["headers"] = pa.array([[] for _ in rows], schema.field("headers").type)
    columns["append_time"] = pa.array([at + 1 for at in range(500)], pa.int64()).cast(schema.field("append_time").type)
    pq.write_table(pa.table(columns, schema=schema), folder / "0.parquet")
    tail = (InputFile(path=str(folder / "0.parquet")),)
    return PartitionJob(partition=0, after=-1, through=499, view=(), tail=tail, rewrite=True)


@pytest.mark.parametrize("which", ["read_bytes_per_second", "write_bytes_per_second"])
def test_the_kernel_keeps_to_its_rates(tmp_path: Path, clock: Clock, which: str) -> None:
    job, rules, free = a_log(tmp_path), CompactionRules(as_of=Instant(0)), Resources(spill_folder=str(tmp_path))
    quick = compact(job, rules, free, data_folder=str(tmp_path), run="quick")
    assert clock.now == 0.0, "without rates no clock is looked at"
    paced = compact(job, rules, replace(free, **{which: 1_000}), data_folder=str(tmp_path), run="paced")
    written = sum(file.bytes for file in paced.files)
    least = written / 1_000 if which == "write_bytes_per_second" else Path(job.tail[0].path).stat().st_size / 2 / 1_000
    assert clock.now >= least > 0
    assert (paced.rows_out, paced.removed) == (quick.rows_out, quick.removed) == (7, {"superseded": 493})
    assert [pq.read_table(file.path) for file in paced.files] == [pq.read_table(file.path) for file in quick.files]
