"""The state of a log from metadata alone: what Spark says of it, too, and unknown where the metadata does not say."""

from __future__ import annotations

import random

import pytest
from tests.spark.lake import SECOND, Lake, Rows
from tests.spark.synthetic import Shape, append_segments

from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.session import sql_table

pytestmark = pytest.mark.spark


Place = tuple[int, int]


def same(lake: Lake, name: TopicName, latest_allowed_time: Instant | None = None) -> LogState:
    """The log's state by PyIceberg, held to what Spark says of the same table."""
    log = lake.reader.log(name, latest_allowed_time=latest_allowed_time)
    assert lake.store().log(name, latest_allowed_time=latest_allowed_time) == log
    table, files = sql_table(name), sql_table(name, metadata="files")
    engine_of_process().forget(name)
    found = {
        (row["partition"], row["segment"]): row
        for row in lake.session.sql(
            f"""
            SELECT partition.partition, partition.segment, sum(record_count) AS written, sum(file_size_in_bytes) AS size_bytes,
                   max(readable_metrics.offset.upper_bound) AS last_offset,
                   unix_micros(max(readable_metrics.append_time.upper_bound)) AS newest_at, unix_micros(min(readable_metrics.append_time.lower_bound)) AS oldest_at,
                   bool_and(coalesce(readable_metrics.append_time.null_value_count = 0 AND readable_metrics.offset.upper_bound IS NOT NULL
                                     AND unix_micros(readable_metrics.append_time.upper_bound) <> 0
                                     AND unix_micros(readable_metrics.append_time.lower_bound) <> 0, false)) AS known,
                   sort_array(collect_list(regexp_extract(file_path, '(data/.*)', 1))) AS names
            FROM {files} WHERE content = 0 GROUP BY ALL
            """
        ).collect()
    }
    times: dict[Place, list[int | None]] = {place: [] for place in found}
    for row in lake.session.sql(f"SELECT partition, segment, unix_micros(append_time) AS at FROM {table}").collect():
        times[row["partition"], row["segment"]].append(row["at"])
    assert [(s.partition, s.base_offset) for s in log.segments] == sorted(found)
    for segment in log.segments:
        row, live = found[segment.partition, segment.base_offset], times[segment.partition, segment.base_offset]
        newest = row["newest_at"] if row["known"] else None
        late = [at for at in live if at is not None and latest_allowed_time is not None and at > latest_allowed_time]
        if newest is not None and latest_allowed_time is not None and newest > latest_allowed_time:
            assert segment.late_rows == len(late)
            in_time = [at for at in live if at is not None and at <= latest_allowed_time]
            # Files that hold no late time answer by their bounds, which a removal does not change (EXP-4).
            assert (segment.newest_at or 0) >= max(in_time, default=0)
            assert segment.newest_at is None or segment.newest_at <= latest_allowed_time
        else:
            assert (segment.newest_at, segment.late_rows) == (newest, 0)
        assert segment.rows == len(live)
        assert segment.oldest_at == row["oldest_at"]
        assert segment.size_bytes == row["size_bytes"]
        assert segment.last_offset == (segment.base_offset if row["last_offset"] is None else row["last_offset"])
        assert list(segment.files) == row["names"]
    return log


def test_a_new_topic_is_an_empty_log_with_a_snapshot(lake: Lake) -> None:
    log = same(lake, lake.topic(partitions=3))
    assert (log.segments, log.end_offsets) == ((), {0: 0, 1: 0, 2: 0})
    assert log.snapshot_id is not None


@pytest.mark.parametrize("seed", range(4))
def test_generated_logs_are_read_alike(lake: Lake, seed: int) -> None:
    dice = random.Random(seed)
    name = lake.topic(partitions=2)
    end = {0: 0, 1: 0}
    for _ in range(3):
        rows = []
        for partition in dice.sample([0, 1], k=dice.choice([1, 2])):
            for _ in range(dice.randint(1, 3)):
                times = tuple(
                    dice.choice([None, 0.5, -3.0, 100.0, 2000.0]) if dice.random() < 0.4 else dice.uniform(1, 90)
                    for _ in range(dice.randint(1, 4))
                )
                rows.append(Rows(partition=partition, base=end[partition], times=times))
                end[partition] += len(times)
        lake.append(name, *rows, with_state=dice.random() < 0.7)
        if dice.random() < 0.6:
            lake.delete(name, f"offset % {dice.choice([2, 3])} = 0 AND partition = {dice.choice([0, 1])}")
    log = same(lake, name)
    assert log.end_offsets == end
    assert sum(segment.rows for segment in log.segments) == sum(1 for _ in lake.reader.messages(name))
    same(lake, name, Instant(95 * SECOND))
    same(lake, name, Instant(0))


def test_an_unknown_time_makes_the_segment_unknown(lake: Lake) -> None:
    name = lake.topic()
    lake.append(
        name, Rows(base=0, times=(1, None)), Rows(base=2, times=(None,)), Rows(base=3, times=(0.0, 5)), Rows(base=5, times=(-1.0, 5))
    )
    log = same(lake, name)
    assert [segment.newest_at for segment in log.segments] == [None, None, None, Instant(5 * SECOND)]
    assert [segment.sealed for segment in log.segments] == [True, True, True, False]


def test_a_file_without_metrics_keeps_its_segment(lake: Lake) -> None:
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1, 2)))
    for column in ("append_time", "offset"):
        lake.session.sql(f"ALTER TABLE {sql_table(name)} SET TBLPROPERTIES ('write.metadata.metrics.column.{column}' = 'none')")
    engine_of_process().forget(name)
    lake.append(name, Rows(base=2, times=(3, 4)), with_state=False)
    known, unknown = same(lake, name).segments
    assert (known.newest_at, known.last_offset) == (Instant(2 * SECOND), 1)
    assert (unknown.newest_at, unknown.last_offset) == (None, 2)


def test_another_writers_append_moves_the_end(lake: Lake) -> None:
    # MSG-4: the newest carried state is older than the newest files.
    name = lake.topic(partitions=2)
    lake.append(name, Rows(base=0, times=(1,)))
    lake.append(name, Rows(partition=1, base=0, times=(1, 2)), with_state=False)
    assert same(lake, name).end_offsets == {0: 1, 1: 2}


def test_late_times_are_read_of_their_segment_alone(lake: Lake) -> None:
    name = lake.topic()
    lake.append(name, Rows(base=0, times=(1, 100, 2)), Rows(base=3, times=(200, 300)))
    lake.append(name, Rows(base=5, times=(7, 50)))
    log = same(lake, name, Instant(60 * SECOND))
    assert [(s.newest_at, s.late_rows) for s in log.segments] == [
        (Instant(2 * SECOND), 1),
        (None, 2),
        (Instant(50 * SECOND), 0),
    ]


def test_messages_come_in_order_whatever_the_order_of_files(lake: Lake) -> None:
    name = lake.topic(partitions=2)
    lake.append(name, Rows(base=3, times=(5, None), segment=0), Rows(partition=1, base=0, times=(1, 2)))
    lake.append(name, Rows(base=0, times=(1.5, 2, 3)), Rows(base=5, times=(9,)))
    lake.delete(name, "offset = 1 AND partition = 0")
    messages = list(lake.reader.messages(name))
    assert [(m.partition, m.offset) for m in messages] == [(0, 0), (0, 2), (0, 3), (0, 4), (0, 5), (1, 0), (1, 1)]
    first = messages[0]
    assert (first.append_time, first.key, first.value, first.headers) == (Instant(1_500_000), b"k0", b"v0", (("h", b"x"),))
    assert messages[3].append_time is None
    assert [m.offset for m in lake.reader.messages(name, partition=0, start=3)] == [3, 4, 5]


def test_a_log_of_many_segments_needs_none_of_its_data(lake: Lake) -> None:
    name = lake.topic(partitions=2)
    append_segments(lake.session, name, Shape(partitions=2, segments=500))
    log = lake.store().log(name)
    assert len(log.segments) == 1000
    assert log.end_offsets == {0: 5000, 1: 5000}
    assert [segment.sealed for segment in log.segments[498:502]] == [True, False, True, True]
