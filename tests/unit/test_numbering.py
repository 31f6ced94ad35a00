"""Numbering by blocks gives what the rule gives message by message (EXP-3, MSG-4)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from message_lifecycle.model.facts import ActiveSegment
from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant
from message_lifecycle.stores.iceberg.incoming import CutRules, Numbering, count_opened, with_places
from message_lifecycle.stores.iceberg.layout import LogSummary


@dataclass(frozen=True)
class Row:
    partition: int
    append_time: int | None
    size_bytes: int


def reference(rows: Sequence[Row], base: LogSummary, rules: CutRules) -> tuple[list[tuple[int, int]], LogSummary]:
    ends = dict(base.end_offsets)
    active = {partition: replace(segment) for partition, segment in base.active.items()}
    placed = []
    for row in rows:
        offset = ends.get(row.partition, 0)
        state = active.setdefault(row.partition, ActiveSegment(base_offset=offset))
        segment = state.add_message(
            offset=offset,
            size=row.size_bytes,
            append_time=None if row.append_time is None else Instant(row.append_time),
            limit_bytes=rules.limit_bytes,
            expiry_us=rules.expiry_us,
            max_us=rules.max_us,
            latest_allowed_time=Instant(rules.latest_allowed_time),
        )
        ends[row.partition] = offset + 1
        placed.append((offset, segment))
    return placed, LogSummary(end_offsets=ends, active=active)


def batches(rows: Sequence[Row], splits: Sequence[int]) -> Iterator[pa.RecordBatch]:
    borders = sorted({0, *splits, len(rows)})
    for start, end in pairwise(borders):
        some = rows[start:end]
        yield pa.RecordBatch.from_pydict(
            {
                "partition": pa.array([row.partition for row in some], pa.int32()),
                "append_time": pa.array([row.append_time for row in some], pa.timestamp("us", "UTC")),
                "size_bytes": pa.array([row.size_bytes for row in some], pa.int64()),
            }
        )


def number(blocks: Iterable[pa.RecordBatch], base: LogSummary, rules: CutRules) -> Iterator[pa.RecordBatch]:
    numbering = Numbering(base, rules)
    yield from (with_places(batch, *numbering.places(batch)) for batch in blocks if batch.num_rows)


def places(numbered: Iterator[pa.RecordBatch]) -> list[tuple[int, int]]:
    return [
        (offset, segment)
        for batch in numbered
        for offset, segment in zip(batch.column("offset").to_pylist(), batch.column("segment").to_pylist(), strict=True)
    ]


times = st.one_of(
    st.none(),
    st.integers(0, 60),
    st.integers(-5, 5).map(lambda seconds: seconds * 1_000_000),
    st.sampled_from([INT64_MIN, INT64_MIN + 1, -1, INT64_MAX - 10, INT64_MAX - 1, INT64_MAX]),
)
rows_of_a_log = st.lists(
    st.builds(Row, partition=st.integers(0, 2), append_time=times, size_bytes=st.sampled_from([0, 1, 2, 5, 9, 40])),
    max_size=60,
).map(lambda rows: sorted(rows, key=lambda row: row.partition))
rules = st.builds(
    CutRules,
    limit_bytes=st.sampled_from([1, 7, 20, 10**9]),
    expiry_us=st.sampled_from([0, 1, 10, 1_000_000, (2**32 - 1) * 1_000_000]),
    max_us=st.sampled_from([0, 1, 10, 1_000_000, (2**32 - 1) * 1_000_000]),
    latest_allowed_time=st.sampled_from([-1, 30, 3_000_000, INT64_MAX]),
)


@settings(max_examples=400, deadline=None)
@given(first=rows_of_a_log, second=rows_of_a_log, splits=st.lists(st.integers(0, 60), max_size=6), rules=rules)
def test_blocks_are_cut_as_single_messages_are(first: list[Row], second: list[Row], splits: list[int], rules: CutRules) -> None:
    _, base = reference(first, LogSummary(), rules)
    expected, after = reference(second, base, rules)
    inside = [split for split in splits if split < len(second)]
    assert places(number(batches(second, inside), base, rules)) == expected
    numbering = Numbering(base, rules)
    for batch in batches(second, inside) if second else ():
        numbering.places(batch)
    for partition in {row.partition for row in second}:
        assert numbering.state(partition) == (after.end_offsets[partition], after.active[partition])


def test_a_sealed_empty_active_segment_takes_the_next_message_whatever_its_size() -> None:
    base = LogSummary(end_offsets={0: 10}, active={0: ActiveSegment(base_offset=10)})
    rows = [Row(partition=0, append_time=5, size_bytes=99), Row(partition=0, append_time=5, size_bytes=1)]
    assert places(number(batches(rows, []), base, CutRules(limit_bytes=50, expiry_us=0))) == [(10, 10), (11, 11)]


def test_exact_fit_stays_in_the_segment() -> None:
    rows = [Row(partition=0, append_time=None, size_bytes=5)] * 4
    assert places(number(batches(rows, [3]), LogSummary(), CutRules(limit_bytes=10, expiry_us=0))) == [
        (0, 0),
        (1, 0),
        (2, 2),
        (3, 2),
    ]


def test_a_message_joins_at_expiry_minus_one_and_seals_at_expiry() -> None:
    rows = [Row(partition=0, append_time=at, size_bytes=1) for at in (0, 9, 19)]
    limits = CutRules(limit_bytes=100, expiry_us=10)
    assert [segment for _, segment in places(number(batches(rows, []), LogSummary(), limits))] == [0, 0, 2]


def test_a_message_joins_at_the_span_and_opens_a_segment_past_it() -> None:
    rows = [Row(partition=0, append_time=at, size_bytes=1) for at in (None, 5, 3, 15, 16, 1, 27, 26)]
    by = CutRules(limit_bytes=100, expiry_us=0, max_us=10)
    assert [segment for _, segment in places(number(batches(rows, []), LogSummary(), by))] == [0, 0, 0, 0, 4, 4, 6, 6]


@settings(max_examples=100, deadline=None)
@given(rows=rows_of_a_log, splits=st.lists(st.integers(0, 60), max_size=6), limit_bytes=st.sampled_from([1, 20, 10**9]))
def test_segments_are_counted_by_every_span_at_once(rows: list[Row], splits: list[int], limit_bytes: int) -> None:
    by = CutRules(limit_bytes=limit_bytes, expiry_us=0, max_us=1_000_000, most_opened=1)
    inside = [split for split in splits if split < len(rows)]
    counted = count_opened((batch for batch in batches(rows, inside) if batch.num_rows), LogSummary(), by)
    spans = by.by_span()
    expected = []
    for one in spans:
        placed, _ = reference(rows, LogSummary(), one)
        expected.append(sum(offset == segment for offset, segment in placed))
    assert counted == expected
    assert [one.max_us for one in spans[:3]] == [1_000_000, 2_000_000, 4_000_000]
    assert spans[-1].max_us == (2**32 - 1) * 1_000_000


def test_the_first_span_that_fits_counts_and_else_the_longest() -> None:
    by = CutRules(limit_bytes=1, expiry_us=0, max_us=60_000_000, most_opened=5)
    counts = [9] * len(by.by_span())
    assert by.fitting([9, 7, 5, *counts[3:]]).doubled_seconds == 240
    assert by.fitting([5, *counts[1:]]).doubled_seconds is None
    assert by.fitting(counts).doubled_seconds == 2**32 - 1
    assert by.doubled_seconds is None


def test_a_task_that_has_opened_too_many_goes_on_by_size_alone() -> None:
    rows = [Row(partition=0, append_time=at, size_bytes=1) for at in range(0, 100, 10)]
    by = CutRules(limit_bytes=100, expiry_us=0, max_us=5, most_opened=2)
    assert len({segment for _, segment in places(number(batches(rows, range(1, 10)), LogSummary(), by))}) == 3


def test_the_base_state_is_left_as_it_was() -> None:
    active = ActiveSegment(base_offset=0, size_bytes=3, rows=1, newest_at=Instant(1))
    base = LogSummary(end_offsets={0: 1}, active={0: active})
    rows = [Row(partition=0, append_time=2, size_bytes=1)]
    assert places(number(batches(rows, []), base, CutRules(limit_bytes=100, expiry_us=0))) == [(1, 0)]
    assert (active.rows, active.size_bytes, active.newest_at) == (1, 3, 1)
    assert places(number(iter([]), base, CutRules(limit_bytes=100, expiry_us=0))) == []


@pytest.mark.parametrize("disorder_us", [10**6, 10**12])
def test_a_million_messages_take_well_under_a_second(disorder_us: int) -> None:
    count = 1_000_000
    generator = np.random.default_rng(7)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(np.zeros(count, dtype=np.int32)),
            pa.array(np.arange(count) * 1000 + generator.integers(0, disorder_us, count)).cast(pa.timestamp("us", "UTC")),
            pa.array(generator.integers(50, 500, count)),
        ],
        names=["partition", "append_time", "size_bytes"],
    )
    took = []
    for _ in range(3):  # the machine may be busy with others
        blocks = (batch.slice(start, 10_000) for start in range(0, count, 10_000))
        began = time.process_time()
        numbered = list(number(blocks, LogSummary(), CutRules(limit_bytes=1_000_000, expiry_us=60_000_000)))
        took.append(time.process_time() - began)
    assert min(took) < 1
    assert len({segment for block in numbered for segment in np.unique(block.column("segment"))}) > 200
