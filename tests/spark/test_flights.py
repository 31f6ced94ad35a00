"""The demo's data: real flights, keyed by aircraft, moved to end on a given day, and landed once."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from pyspark.sql import functions as F
from tests.effort import hunt
from tests.spark.lake import Lake
from tests.spark.landing import Landing

from lifecycle_local.demo_data import ROWS, ROWS_WITHOUT_KEY, export_flights
from message_lifecycle.model.instants import from_datetime
from message_lifecycle.sources.mapping import FieldMapping
from message_lifecycle.stores.iceberg.session import sql_table

pytestmark = pytest.mark.spark


@hunt
def test_the_flights_land_once_and_end_on_the_day(lake: Lake, tmp_path: Path) -> None:
    landing = Landing(lake, tmp_path)
    topic = landing.topic(partitions=2, segment_size_bytes=4_000_000)
    folder = export_flights(tmp_path / "flights")
    mapping = FieldMapping(key="tailnum", append_time="time_hour")
    result = landing.take(topic, folder, mapping, shift_to=date(2026, 11, 21))
    assert (result.rows, result.quarantined, result.unknown_times, len(result.files)) == (ROWS, {}, 0, 4)
    assert sum(result.end_offsets.values()) == ROWS
    log = landing.lake.log(topic)
    assert sum(segment.rows for segment in log.segments) == ROWS
    assert len(log.segments) == result.segments == len({(s.partition, s.base_offset) for s in log.segments}) > 20
    assert all(len(segment.files) == 1 for segment in log.segments)
    table = lake.session.table(sql_table(topic))
    found = table.agg(
        F.count_if(F.col("key").isNull()),
        F.max(F.unix_micros("append_time")),
        F.countDistinct("partition", "offset"),
        F.countDistinct(F.col("key")),
    ).collect()[0]
    assert tuple(found) == (ROWS_WITHOUT_KEY, from_datetime(datetime(2026, 11, 21, 4, tzinfo=UTC)), ROWS, 4043)
    assert export_flights(tmp_path / "flights") == folder
    again = landing.take(topic, folder, mapping, shift_to=date(2026, 11, 22))
    assert (again.rows, again.files_before, again.end_offsets) == (0, 4, result.end_offsets)
