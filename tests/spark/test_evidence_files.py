"""The files of a snapshot as the gate reads them, without an engine, against what Spark says of the same snapshot."""

from __future__ import annotations

from typing import Any

import pytest
from tests.spark.lake import Lake, Rows

from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.evidence_files import FILES, files_of_both
from message_lifecycle.stores.iceberg.session import sql_table

pytestmark = pytest.mark.spark

AS_SPARK_SAYS = """
    SELECT content, file_path AS name, partition.partition AS partition, partition.segment AS segment, record_count AS written,
           file_size_in_bytes AS size_bytes, spec_id, content_offset, content_size_in_bytes AS content_size, referenced_data_file AS belongs_to,
           readable_metrics.offset.lower_bound AS first_offset, readable_metrics.offset.upper_bound AS last_offset,
           unix_micros(readable_metrics.append_time.lower_bound) AS oldest_at,
           unix_micros(readable_metrics.append_time.upper_bound) AS newest_at,
           readable_metrics.append_time.null_value_count AS unknown_times,
           readable_metrics.never.upper_bound AS never, readable_metrics.never.null_value_count AS without_never,
           unix_micros(readable_metrics.expires_at.lower_bound) AS expires_from,
           readable_metrics.expires_at.null_value_count AS without_expiry
    FROM {files} VERSION AS OF {snapshot}
"""


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["content"], row["name"], row["belongs_to"] or ""))


def test_two_implementations_read_the_same(lake: Lake) -> None:
    name = lake.topic(partitions=2)
    lake.append(name, Rows(base=0, times=(1, -2, None)), Rows(base=3, times=(None,)), Rows(base=0, times=(0, 5), partition=1))
    lake.append(name, Rows(base=4, times=(6, 7, 8)), Rows(base=7, times=(9,)))
    lake.session.sql(f"UPDATE {sql_table(name)} SET never = true, expires_at = timestamp_micros(-5) WHERE offset = 4 AND partition = 0")
    lake.session.sql(f"UPDATE {sql_table(name)} SET never = false WHERE offset = 0 AND partition = 1")
    engine_of_process().forget(name)
    was = Tables().load(name).current_snapshot()
    lake.delete(name, "segment = 3")
    lake.delete(name, "offset IN (0, 5)")
    table = Tables().load(name)
    now = table.current_snapshot()
    assert was is not None
    assert now is not None

    for found, snapshot in zip(files_of_both(table, was, now), (was, now), strict=True):
        assert found.schema == FILES
        text = AS_SPARK_SAYS.format(files=sql_table(name, metadata="files"), snapshot=snapshot.snapshot_id)
        told = [row.asDict() for row in lake.session.sql(text).collect()]
        assert ordered(found.to_pylist()) == ordered(told)
        assert {row["content"] for row in told} == {0, 1}, "data files and deletion vectors"
    assert any(row["never"] for row in found.to_pylist())
    assert any(row["newest_at"] is None for row in files_of_both(table, was, was)[0].to_pylist())
