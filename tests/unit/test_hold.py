"""Spared offsets against the plain question, offset by offset."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from message_lifecycle.model.hold import Spared, SparedOffsets, spared_text
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import DueRows, offsets_of, ranges_text
from message_lifecycle.stores.iceberg import due_rows
from message_lifecycle.stores.iceberg.data_files import is_named

RANGES = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 12), st.one_of(st.none(), st.integers(0, 6)), st.sampled_from(["h1", "h2"])), max_size=5
)
# A machine that does other things as well draws slowly, which says nothing of the rule.
patiently = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
OFFSETS = st.sets(st.integers(0, 20), max_size=15)


def spared_of(found: list[tuple[int, int, int | None, str]]) -> list[Spared]:
    return [
        Spared(partition=partition, first=first, last=None if more is None else first + more, holder="hold", name=name, detail=name)
        for partition, first, more, name in found
    ]


def names_at(given_: list[Spared], partition: int, offset: int) -> set[str]:
    return {s.name for s in given_ if s.partition == partition and s.first <= offset <= s.end}


@patiently
@given(RANGES, OFFSETS)
def test_offsets_are_split_as_one_by_one(ranges: list[tuple[int, int, int | None, str]], offsets: set[int]) -> None:
    given_ = spared_of(ranges)
    free, kept = SparedOffsets(given_).split(0, ranges_text(sorted(offsets)))
    assert list(offsets_of(free)) == sorted(offset for offset in offsets if not names_at(given_, 0, offset))
    told = {offset: by.name for by, text in kept for offset in offsets_of(text)}
    assert set(told) | set(offsets_of(free)) == offsets
    assert all(name in names_at(given_, 0, offset) for offset, name in told.items())
    assert len(kept) == len({by.name for by, _ in kept}), "one entry for each who spares, however many runs"


@patiently
@given(RANGES, st.integers(0, 20), st.integers(0, 5))
def test_a_range_is_touched_where_any_of_its_offsets_is(ranges: list[tuple[int, int, int | None, str]], first: int, more: int) -> None:
    given_ = spared_of(ranges)
    found = SparedOffsets(given_).find_spared(0, first, first + more)
    assert (found is not None) == any(names_at(given_, 0, offset) for offset in range(first, first + more + 1))


@patiently
@given(RANGES, OFFSETS.filter(bool), st.booleans(), st.booleans())
def test_a_file_needs_only_what_is_spared_between_its_bounds(
    ranges: list[tuple[int, int, int | None, str]], offsets: set[int], low: bool, high: bool
) -> None:
    spared, text = SparedOffsets(spared_of(ranges)), ranges_text(sorted(offsets))
    between = spared.between(0, min(offsets) if low else None, max(offsets) if high else None)
    assert between.split(0, text) == spared.split(0, text)
    assert between.split(1, text) == (text, [])


@patiently
@given(RANGES, st.integers(0, 20))
def test_a_plan_writes_down_what_is_spared_of_the_log_as_it_ends(ranges: list[tuple[int, int, int | None, str]], end: int) -> None:
    given_ = spared_of(ranges)
    written = {partition: list(offsets_of(text)) for partition, text in spared_text(given_, {0: end, 1: 3})}
    assert written.get(0, []) == [offset for offset in range(end) if names_at(given_, 0, offset)]


def test_many_runs_of_one_undone_plan_are_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One search of a file's rows for each run took three minutes of `status` where a million rows had come back."""
    searches: list[str] = []
    monkeypatch.setattr(due_rows, "is_named", lambda offsets, text: searches.append(text) or is_named(offsets, text))
    runs = [Spared(partition=0, first=at, last=at, holder="undone_plan", name="p", detail="p") for at in range(0, 2_000, 2)]
    entry = DueRows(
        partition=0, base_offset=0, file="f", reason="ttl", taken="0-1999", rows=2_000, first_offset=0, last_offset=1_999, since=Instant(5)
    )
    offsets = np.arange(2_000, dtype=np.int64)
    found = due_rows._with_free(entry, offsets, offsets + 5, SparedOffsets(runs))
    assert found.free_since == 6, "offset 1 is the first that nobody spares"
    assert len(searches) == 1
    all_spared = due_rows._with_free(entry, offsets, offsets + 5, SparedOffsets([replace(runs[0], last=None)]))
    assert all_spared == entry
