"""The docs name every kind of obligation and every holder."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from message_lifecycle.model.obligation import ObligationKind
from message_lifecycle.model.plan import Holder

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "words"), [("metrics.md", ObligationKind), ("explain.md", Holder)])
def test_table_has_a_row_for_each(page: str, words: object) -> None:
    rows = [line.split("|")[1].strip() for line in (DOCS / page).read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert {f"`{word}`" for word in get_args(words)} <= set(rows)
