"""The limits by number and by size against the rules read message by message (RET-1 to RET-4, P5), and the walk in blocks against both."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.model.reasons import LimitReason
from message_lifecycle.model.rules import Limits
from message_lifecycle.operations.limits import GroupWalk, RankedRow, find_cuts, first_kept

LIMITS = st.builds(
    Limits,
    max_records=st.none() | st.integers(1, 12),
    max_total_bytes=st.none() | st.integers(1, 60),
    min_keep=st.sampled_from([0, 1]),
    scope=st.sampled_from(["topic", "partition", "key"]),
)
TIMES = st.none() | st.integers(-1, 3)


@st.composite
def logs(draw: st.DrawFn) -> list[RankedRow]:
    """In order of (partition, offset), with gaps."""
    rows = []
    for partition in range(draw(st.integers(1, 3))):
        for offset in sorted(draw(st.sets(st.integers(0, 40), max_size=12))):
            key = draw(st.sampled_from([None, b"", b"a", b"b"]))
            rows.append(RankedRow(partition, offset, draw(TIMES), draw(st.integers(0, 30)), key, draw(st.integers(0, 5)) == 0))
    return rows


def reasons_by_the_rules(rows: list[RankedRow], limits: Limits) -> dict[tuple[int, int], LimitReason]:
    """Quadratic, and as RET-1 to RET-4 read."""

    def newness(row: RankedRow) -> tuple[object, ...]:
        times = [
            r.append_time
            for r in rows
            if (r.partition, r.lapsed) == (row.partition, row.lapsed) and r.offset <= row.offset and r.append_time is not None
        ]
        return not row.lapsed, bool(times), max(times, default=0), row.partition, row.offset

    def together(one: RankedRow, other: RankedRow) -> bool:
        if limits.scope == "key":
            return one.key is not None and one.key == other.key
        return limits.scope == "topic" or one.partition == other.partition

    found: dict[tuple[int, int], LimitReason] = {}
    for row in rows:
        from_it_on = [r for r in rows if together(row, r) and newness(r) >= newness(row)]
        if limits.min_keep and len(from_it_on) == 1:
            continue
        if limits.max_records is not None and len(from_it_on) > limits.max_records:
            found[row.partition, row.offset] = "retention_count"
        elif limits.max_total_bytes is not None and from_it_on and sum(r.size_bytes for r in from_it_on) > limits.max_total_bytes:
            found[row.partition, row.offset] = "retention_bytes"
    return found


@given(logs(), LIMITS)
def test_the_cuts_take_what_the_rules_say(rows: list[RankedRow], limits: Limits) -> None:
    found = find_cuts(rows, limits)
    taken = {(row.partition, row.offset): reason for row in rows if (reason := found.reason(row)) is not None}
    assert taken == reasons_by_the_rules(rows, limits)


@given(logs(), LIMITS)
def test_what_is_kept_is_kept_again(rows: list[RankedRow], limits: Limits) -> None:
    """P1: where nothing is held, the same limits take nothing of what they left."""
    found = find_cuts(rows, limits)
    kept = [row for row in rows if found.reason(row) is None]
    again = find_cuts(kept, limits)
    assert [row for row in kept if again.reason(row) is not None] == []


@given(st.lists(st.integers(0, 30), max_size=30), st.lists(st.integers(1, 6), min_size=1, max_size=30), LIMITS, st.booleans())
def test_a_walk_in_blocks_cuts_where_the_rows_do(sizes: list[int], lengths: list[int], limits: Limits, told: bool) -> None:
    """However the rows are put in blocks, and where sizes are told only when they decide something."""
    kept, counted = first_kept(sizes, limits)
    wanted = ["kept" if at >= kept else "retention_count" if at < counted else "retention_bytes" for at in range(len(sizes))]
    walk, found, end = GroupWalk(limits=limits), [], len(sizes)
    for length in (*lengths, *([1] * len(sizes))):
        block = sizes[max(0, end - length) : end]
        if not block:
            break
        verdict = walk.judge_block(len(block), sum(block) if told or walk.needs_sizes else None)
        found = (_split(walk, block) if verdict is None else [verdict] * len(block)) + found
        end -= len(block)
    assert found == wanted
    assert walk.rows == len(sizes) - kept
    assert limits.max_total_bytes is None or walk.size_bytes == sum(sizes[kept:])
    passes = limits.max_total_bytes is not None and bool(sizes) and sizes[-1] > limits.max_total_bytes
    assert walk.newest_passes == passes


def _split(walk: GroupWalk, block: list[int]) -> list[str]:
    kept, counted = walk.split(block)
    return ["kept" if at >= kept else "retention_count" if at < counted else "retention_bytes" for at in range(len(block))]


@pytest.mark.parametrize(
    ("sizes", "limits", "kept"),
    [
        ([28, 29, 30], Limits(max_records=None, max_total_bytes=31), 2),
        ([28, 29, 30], Limits(max_records=None, max_total_bytes=59), 1),
        ([28, 29, 30], Limits(max_records=None, max_total_bytes=29), 3),
        ([28, 29, 30], Limits(max_records=None, max_total_bytes=29, min_keep=1), 2),
        ([5, 0, 30], Limits(max_records=None, max_total_bytes=30), 1),
        ([28, 29, 30], Limits(max_records=3, max_total_bytes=None), 0),
        ([], Limits(max_records=1, max_total_bytes=1, min_keep=1), 0),
    ],
)
def test_an_exact_fit_stays_and_the_first_that_does_not_fit_ends_it(sizes: list[int], limits: Limits, kept: int) -> None:
    assert first_kept(sizes, limits)[0] == kept


def test_groups_whose_newest_message_passes_the_limit_are_counted() -> None:
    rows = [RankedRow(0, 0, 1, 5, b"a"), RankedRow(0, 1, 2, 50, b"a"), RankedRow(0, 2, 3, 5, b"b"), RankedRow(0, 3, 4, 50, None)]
    asked = find_cuts(rows, Limits(max_records=None, max_total_bytes=10, scope="key"))
    kept = find_cuts(rows, Limits(max_records=None, max_total_bytes=10, min_keep=1, scope="key"))
    assert (asked.emptied, asked.oversized) == (1, 0)
    assert (kept.emptied, kept.oversized) == (0, 1)
    assert [kept.reason(row) for row in rows] == ["retention_bytes", None, None, None]
