"""Offsets as text: searched and joined without reading each of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_lifecycle.app.views.plans import plan_view
from message_lifecycle.model import change, message, plan_content
from message_lifecycle.model import plan as plans
from message_lifecycle.model.change import RemoveRows
from message_lifecycle.model.message import (
    highest_offset,
    is_offset_in_ranges,
    join_ranges_texts,
    lowest_offset,
    offsets_of,
    parse_ranges_text,
    ranges_text,
)
from message_lifecycle.stores.iceberg.data_files import is_named
from tests.ledgers import plan_of

SETS = st.sets(st.integers(0, 60), min_size=1)


@given(SETS)
def test_a_search_finds_exactly_the_offsets_that_are_named(offsets: set[int]) -> None:
    text = ranges_text(sorted(offsets))
    assert {offset for offset in range(-1, 62) if is_offset_in_ranges(text, offset)} == offsets
    assert (lowest_offset(text), highest_offset(text)) == (min(offsets), max(offsets))


def test_no_offset_is_among_none() -> None:
    assert not is_offset_in_ranges("", 0)
    assert is_named(np.array([0, 1]), "").tolist() == [False, False]


@given(SETS, st.lists(st.integers(0, 62)), st.sampled_from([0, 2**63 - 64]))
def test_each_offset_of_a_file_is_found_in_a_text(named: set[int], file: list[int], first: int) -> None:
    text = ranges_text(first + offset for offset in sorted(named))
    offsets = first + np.array(file, np.int64)
    assert is_named(offsets, text).tolist() == [offset in named for offset in file]


@pytest.mark.parametrize("text", ["3,", "3-", "3 4", "x", "3;4", "3-4-5", "-3-4"])
def test_a_damaged_text_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        is_named(np.array([3, 4]), text)


@given(st.lists(SETS, max_size=4))
def test_joined_texts_name_what_each_of_them_names(sets: list[set[int]]) -> None:
    joined = join_ranges_texts(ranges_text(sorted(offsets)) for offsets in sets)
    assert joined == ranges_text(sorted(set().union(*sets)))


@given(SETS, st.sets(st.integers(0, 60)))
def test_texts_one_behind_the_other_are_joined_as_one(offsets: set[int], cuts: set[int]) -> None:
    """As the files of a partition lie: nothing overlaps, and neighbours may meet."""
    edges = [0, *sorted(cuts), 61]
    parts = [[offset for offset in sorted(offsets) if first <= offset < end] for first, end in pairwise(edges)]
    assert join_ranges_texts(map(ranges_text, parts)) == ranges_text(sorted(offsets))


def test_the_view_of_a_plan_and_the_search_for_a_message_read_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    def counted(text: str) -> Iterator[range]:
        nonlocal read
        for run in parse_ranges_text(text):
            read += 1
            yield run

    for module in (message, change, plans, plan_content):
        monkeypatch.setattr(module, "parse_ranges_text", counted, raising=False)
    files = [range(first, first + 2_000, 2) for first in range(0, 20_000, 2_000)]
    mark = [RemoveRows(partition=0, offsets=ranges_text(rows), rows=len(rows), file=f"{rows[0]}", reason="ttl") for rows in files]
    plan = plan_of(actions=tuple(mark))
    view = plan_view(plan)
    assert [action.messages for action in view.actions] == [1_000] * 10
    assert plan.removal_at(0, 9_998) == mark[4] and plan.removal_at(0, 9_999) is None and plan.removal_at(1, 0) is None
    assert read == 0
    assert sum(1 for _ in offsets_of(mark[0].offsets)) == read == 1_000, "the count counts"
