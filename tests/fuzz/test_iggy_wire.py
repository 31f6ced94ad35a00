"""A million inputs to the decoders of Iggy's layouts: `make test` runs them, `make test-fast` does with fifty thousand."""

from __future__ import annotations

import pytest

from tests.iggy import LAYOUTS, Layout, survived

INPUTS = 1_000_000


@pytest.mark.parametrize("what", LAYOUTS, ids=lambda what: what.name)
def test_a_million_inputs_are_read_whole_or_refused_by_name(what: Layout) -> None:
    share = INPUTS // len(LAYOUTS)
    assert survived(what, share, seed=2).total() == share
