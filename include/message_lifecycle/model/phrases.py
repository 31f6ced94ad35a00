"""Parts of sentences for people: numbers with the things that they count, and the beginnings of ids."""

from __future__ import annotations

SHORT = 12
"""So many characters of an id are enough to name it. Commands accept the beginning of an id."""


def amount(number: int | None, things: str) -> str:
    """Return `1 message`, `1,200 messages`, or `unknown messages`. `things` is a regular plural."""
    if number is None:
        return f"unknown {things}"
    return f"1 {things.removesuffix('s')}" if number == 1 else f"{number:,} {things}"


def short(identity: str) -> str:
    """Return the beginning of an id."""
    return identity[:SHORT]
