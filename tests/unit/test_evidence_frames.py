"""Which files of those that go are read for the gate's sample."""

from __future__ import annotations

import pyarrow as pa

from message_lifecycle.stores.iceberg.evidence_files import GOING, order, sampled


def test_files_without_a_message_left_are_no_sample() -> None:
    row = {"partition": 0, "segment": 0, "first_offset": 0, "last_offset": 9, "any_kept": False, "active": False, "planned": True}
    files = [
        {**row, "name": name, "rows": rows, "newest_at": at} for at, (name, rows) in enumerate([("a", 0), ("b", 1), ("c", 2), ("d", 0)])
    ]
    assert sampled(pa.Table.from_pylist(files, schema=GOING))["name"].to_pylist() == ["b", "c"]
    assert sampled(pa.Table.from_pylist(files[:1], schema=GOING)).num_rows == 0


def test_a_segment_that_expires_but_for_some_messages_keeps_its_place_in_the_order() -> None:  # EXP-5
    nothing = GOING.empty_table()
    assert order(nothing, {(0, 5), (1, 2)}, [(0, 3), (1, 9)]).to_pylist() == [{"partition": 0, "segment": 5}]
    assert order(nothing, {(0, 5)}, [(0, 5), (0, 8)]).to_pylist() == []
