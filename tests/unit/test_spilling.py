"""Work on more rows than memory holds: the results, and their order, are those of work in memory (CMP-1, CMP-2)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from message_lifecycle.model.instants import Instant
from message_lifecycle.stores.iceberg.columns import SCHEMA
from message_lifecycle.stores.iceberg.compaction import PartitionJob, Rules, kernel
from message_lifecycle.stores.iceberg.tasks import MEBIBYTE, InputFile, Resources

ROWS, FILES, GROUP_ROWS, VALUE_BYTES = 1_100_000, 2, 125_000, 48
MEMORY_BYTES = 80 * MEBIBYTE
"""Less than the rows' keys and values take."""
Longs = NDArray[np.int64]


def large_files(folder: Path, keys: Longs, chance: np.random.Generator) -> list[InputFile]:
    """Write a topic's files with these keys, in the order of their offsets; one message in twenty has no value."""
    found, rows = [], len(keys) // FILES
    for number in range(FILES):
        mine = keys[number * rows : (number + 1) * rows]
        kinds = {field.name: field.type for field in SCHEMA.as_arrow()}
        values = pa.Array.from_buffers(pa.binary(VALUE_BYTES), rows, [None, pa.py_buffer(chance.bytes(rows * VALUE_BYTES))])
        columns = {
            "partition": pa.array(np.zeros(rows), pa.int32()),
            "offset": pa.array(np.arange(number * rows, (number + 1) * rows)),
            "key": pa.array(mine).cast(pa.string()).cast(kinds["key"]),
            "value": pa.array(values.to_numpy(zero_copy_only=False), kinds["value"], mask=chance.random(rows) < 0.05),
        }
        path = folder / f"{number}.parquet"
        every = [columns.get(name, pa.nulls(rows, kind)) for name, kind in kinds.items()]
        pq.write_table(pa.table(every, names=list(kinds)), path, row_group_size=GROUP_ROWS)
        found.append(InputFile(path=str(path), size_bytes=path.stat().st_size))
    return found


@pytest.mark.parametrize("distinct", [ROWS, ROWS // 2], ids=["all keys distinct", "some keys again"])
@pytest.mark.parametrize("threads", [1, 2])
def test_kernel_writes_offsets_in_order_beyond_its_memory(threads: int, distinct: int, tmp_path: Path) -> None:
    chance = np.random.default_rng(distinct)
    keys = chance.permutation(ROWS) % distinct
    tail = large_files(tmp_path, keys, chance)
    rows_of_keys = {int(key): offset for offset, key in enumerate(keys.tolist())}
    values = np.concatenate([pq.read_table(file.path, columns=["value"])["value"].to_numpy() for file in tail])
    resources = Resources(
        spill_folder=str(tmp_path),
        threads=threads,
        memory_bytes=MEMORY_BYTES,
        file_bytes=sum(file.size_bytes for file in tail) // 3,
        sampled_offsets=ROWS // 10,
    )
    job = PartitionJob(partition=0, after=-1, through=ROWS, view=(), tail=tuple(tail), rewrite=True, whole_tail=True)
    result = kernel.compact(job, Rules(as_of=Instant(1)), resources, data_folder=str(tmp_path / "data"), run="run")
    winners = np.sort(np.array(list(rows_of_keys.values())))
    expected = winners[np.array([values[at] is not None for at in winners])]
    found = [pq.read_table(file.path, columns=["offset", "value"]) for file in result.files]
    assert len(found) > 1
    written = pa.concat_tables(found)
    assert np.array_equal(written["offset"].to_numpy(), expected)
    assert written["value"].to_pylist() == values[expected].tolist()
    assert result.removed == {
        reason: count for reason, count in (("superseded", ROWS - distinct), ("tombstoned", len(winners) - len(expected))) if count
    }
