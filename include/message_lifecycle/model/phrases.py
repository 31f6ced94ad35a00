"""Parts of sentences for people: numbers with the things that they count, sizes, and the beginnings of ids."""

from __future__ import annotations

SHORT = 12
"""So many characters of an id are enough to name it. Commands accept the beginning of an id."""
_SIZES = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def amount(number: int | None, things: str) -> str:
    """Return `1 message`, `1,200 messages`, or `unknown messages`. `things` is a regular plural. Bytes are written as a size."""
    if number is None:
        return f"unknown {things}"
    if things == "bytes":
        return size(number)
    return f"{number:,} {noun(number, things)}"


def noun(number: int, things: str) -> str:
    """Return the word for so many things: `message` for 1, `messages` for any other number. `things` is a regular plural."""
    return things.removesuffix("s") if number == 1 else things


def size(number: int | None) -> str:
    """Return a size in decimal units, as disks are sold."""
    if number is None:
        return "unknown"
    value, unit = float(number), 0
    while value >= 999.5 and unit < len(_SIZES) - 1:
        value, unit = value / 1000, unit + 1
    return f"{number} byte{'' if number == 1 else 's'}" if unit == 0 else f"{value:.3g} {_SIZES[unit]}"


def short(identity: str) -> str:
    """Return the beginning of an id."""
    return identity[:SHORT]
