"""The tutorial's pictures show the commands of the tutorial, are small, and load nothing."""

from __future__ import annotations

import html
import re

import pytest
from docs.pictures import DOCS, draw, walk

SHOWN = [(command, picture) for command, picture in walk() if picture]


def shown_text(svg: str) -> str:
    return html.unescape("".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))).replace("\xa0", " ")


def test_tutorial_has_pictures() -> None:
    assert len(SHOWN) >= 4


@pytest.mark.parametrize(("command", "picture"), SHOWN)
def test_picture_shows_its_command(command: str, picture: str) -> None:
    svg = (DOCS / picture).read_text(encoding="utf-8")
    assert f"$ {command}" in shown_text(svg)
    assert len(svg.encode()) < 150_000
    assert "url(http" not in svg


def test_picture_keeps_the_output() -> None:
    assert "removed 3 & kept 2" in shown_text(draw("lifecycle run orders", "\x1b[33mremoved 3 & kept 2\x1b[0m\n"))
