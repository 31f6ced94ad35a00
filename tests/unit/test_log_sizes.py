"""The size of a log after each snapshot, as its summaries state it."""

from __future__ import annotations

import pytest

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.tables import LogSize
from message_lifecycle.stores.iceberg.layout import PARENT_PLAN_ID, PLAN_ID, STAGED_PLAN_ID
from message_lifecycle.stores.iceberg.reclaiming import log_sizes
from message_lifecycle.stores.iceberg.table_folder import TableDocument


def snapshot(number: int, *, parent: int | None = None, operation: str = "append", **summary: int | str) -> dict[str, object]:
    said = {key if "." in key else key.replace("_", "-"): str(value) for key, value in summary.items()}
    return {
        "snapshot-id": number,
        "parent-snapshot-id": parent,
        "timestamp-ms": number * 1_000,
        "summary": {"operation": operation, **said},
    }


def document(*snapshots: dict[str, object], head: int) -> TableDocument:
    return TableDocument(location="", content={"snapshots": list(snapshots), "current-snapshot-id": head})


def test_sizes_follow_main_and_leave_out_rows_that_a_deletion_vector_hides() -> None:
    first = snapshot(1, total_records=10, total_files_size=100, added_records=10)
    hiding = snapshot(2, parent=1, operation="overwrite", total_records=10, total_position_deletes=4, total_files_size=110)
    stage = snapshot(3, parent=2, operation="delete", total_records=0)
    assert log_sizes(document(first, hiding, stage, head=2)) == [
        LogSize(snapshot_id=1, at=Instant(1_000_000), messages=10, bytes=100, added=10),
        LogSize(snapshot_id=2, at=Instant(2_000_000), messages=6, bytes=110, added=0),
    ]


@pytest.mark.parametrize("key", [PLAN_ID, STAGED_PLAN_ID, PARENT_PLAN_ID])
def test_messages_that_a_plan_appends_are_not_ingested(key: str) -> None:
    marker = snapshot(1, total_records=1, total_files_size=1, added_records=1, **{key: "0" * 32})
    assert [one.added for one in log_sizes(document(marker, head=1))] == [0]


@pytest.mark.parametrize(
    "summary",
    [
        {},
        {"total_records": 9},
        {"total_files_size": 9},
        {"total_records": "many", "total_files_size": 9},
        {"total_records": -1, "total_files_size": 9},
    ],
)
def test_a_snapshot_without_its_totals_or_with_damaged_ones_has_no_size(summary: dict[str, int | str]) -> None:
    known = snapshot(1, total_records=10, total_files_size=100)
    unknown = snapshot(2, parent=1, **summary)
    assert [one.snapshot_id for one in log_sizes(document(known, unknown, head=2))] == [1]


def test_a_table_without_a_snapshot_has_no_size() -> None:
    assert log_sizes(document(head=-1)) == []
