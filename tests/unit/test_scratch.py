"""Scratch files keep each partition's messages, in their order, in bounded memory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.stores.iceberg import scratch
from message_lifecycle.stores.iceberg.scratch import Part, RowsFile
from message_lifecycle.stores.iceberg.tasks import HERE


def batch(partitions: list[int], first: int, value: bytes = b"") -> pa.RecordBatch:
    count = len(partitions)
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array(partitions, pa.int32()),
            "append_time": pa.array(range(first, first + count), pa.timestamp("us", "UTC")),
            "value": pa.array([value] * count, pa.binary()),
            "size_bytes": pa.array(range(first, first + count), pa.int64()),
        }
    )


@given(blocks=st.lists(st.lists(st.integers(0, 4), max_size=8), max_size=8), held=st.integers(0, 2000))
def test_each_partition_keeps_the_order_of_the_log(tmp_path_factory: pytest.TempPathFactory, blocks: list[list[int]], held: int) -> None:
    path = str(tmp_path_factory.mktemp("scratch") / "a.arrow")
    starts = [sum(map(len, blocks[:at])) for at in range(len(blocks))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scratch, "_HELD_BYTES", held)
        found = scratch.write(HERE, path, [batch(block, first) for block, first in zip(blocks, starts, strict=True)])
    every = [partition for block in blocks for partition in block]
    assert set(found) == set(every)
    assert Path(path).exists() is bool(every)
    for partition, batches in found.items():
        read = list(scratch.read(HERE, [Part(path=path, batches=batches)]))
        sizes = [size for one in read for size in one["size_bytes"].to_pylist()]
        assert sizes == [at for at, one in enumerate(every) if one == partition]
        assert batches.size_bytes == sum(sizes)
        assert {one for part in read for one in part["partition"].to_pylist()} == {partition}


def test_memory_holds_a_part_of_the_messages(tmp_path: Path) -> None:
    """A small Parquet file may hold a thousand times its size."""
    before = pa.total_allocated_bytes()
    peaks = []
    path = str(tmp_path / "a.arrow")

    def blocks() -> object:
        for first in range(0, 400, 4):
            yield batch([first % 3] * 4, first, b"x" * (1 << 20))
            peaks.append(pa.total_allocated_bytes() - before)

    found = scratch.write(HERE, path, blocks())  # type: ignore[arg-type]  # a generator of batches
    assert max(peaks) < 150 << 20
    rows = RowsFile(HERE, str(tmp_path / "a.parquet"), scratch.COLUMNS)
    for partition in sorted(found):
        for one in scratch.read(HERE, [Part(path=path, batches=found[partition])]):
            rows.add(one)
            assert pa.total_allocated_bytes() - before < 250 << 20
    assert rows.close().rows == 400
