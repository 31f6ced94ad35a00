"""Damage that a scenario does to files of lines, as a failing disk or a careless hand would (`corrupt`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from message_lifecycle.model.errors import InvalidScenario


def spoil(files: Iterable[Path], line: int, text: str) -> None:
    """Put `text` in the place of a line, counted from 1 through all files. Raises InvalidScenario where there is no such line."""
    left = line
    for file in files:
        lines = file.read_bytes().split(b"\n")
        if left <= len(lines) - 1:
            lines[left - 1] = text.encode()
            file.write_bytes(b"\n".join(lines))
            return
        left -= len(lines) - 1
    raise InvalidScenario("corrupt.line", line, "a line that is there")
