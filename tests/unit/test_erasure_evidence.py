"""The gate compares a rewritten file with its old file row by row, however either is cut into row groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from message_lifecycle.stores.iceberg.erasure import evidence

KEPT = np.array([True, False, True, True, True, True, True, False, True, True])
ROWS = pa.table({"offset": range(10), "value": [b"v%d" % at for at in range(10)]})


def same(folder: Path, groups: tuple[int, int], after: pa.Table) -> bool:
    for name, rows, size in (("old", ROWS, groups[0]), ("new", after, groups[1])):
        pq.write_table(rows, folder / name, row_group_size=size)
    with pq.ParquetFile(folder / "old") as old, pq.ParquetFile(folder / "new") as new:
        return evidence._same(old, KEPT, new)


@pytest.mark.parametrize("most", [3, 65_536])
@pytest.mark.parametrize("groups", [(10, 10), (3, 4), (4, 3), (1, 10), (10, 1)])
def test_row_groups_and_batches_do_not_change_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: tuple[int, int], most: int
) -> None:
    monkeypatch.setattr(evidence, "_MOST_ROWS", most)
    left = ROWS.filter(pa.array(KEPT))
    assert same(tmp_path, groups, left)
    other = left.set_column(1, "value", pa.array([*left["value"].to_pylist()[:-1], b"other"]))
    for wrong in (ROWS, left.slice(1), left.slice(0, 7), pa.concat_tables([left, left.slice(7)]), other):
        assert not same(tmp_path, groups, wrong)
