"""Every page of the docs begins with its use, and reads like the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [page for page in sorted(DOCS.glob("*.md")) if not page.read_text(encoding="utf-8").startswith("<!-- generated")]
WIDTH = 140
WRITTEN = ("breakages", "faults")
"""`bench` writes these pages."""


def prose(page: Path) -> Iterator[str]:
    """Yield the lines outside of code blocks and tables."""
    code = False
    for line in page.read_text(encoding="utf-8").splitlines():
        code ^= line.lstrip().startswith("```")
        if not code and not line.startswith("|"):
            yield line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_begins_with_its_use(page: Path) -> None:
    if page.stem in ("index", "rules"):
        pytest.skip("a list of pages, and a list of rules")
    heading, empty, first, *_ = page.read_text(encoding="utf-8").splitlines()
    assert heading.startswith("# ")
    assert not empty
    assert re.match(r"(After (reading this page|this tutorial) you (can|know)|On this page you can look up) ", first), first


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_has_no_long_line_and_no_heading_of_a_relative_word(page: Path) -> None:
    assert page.stem in WRITTEN or [line for line in prose(page) if len(line) > WIDTH] == []
    assert [line for line in prose(page) if re.match(r"#+ (What|Of|That|Whoever)\b", line)] == []


def test_glossary_stays_short_enough_to_be_read() -> None:
    terms = [line for line in (DOCS / "glossary.md").read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    assert 20 <= len(terms) <= 25
