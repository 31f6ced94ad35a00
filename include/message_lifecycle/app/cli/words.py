"""Numbers and times in words, and text made safe for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def size(number: int | None) -> str:
    """Decimal units, as disks are sold."""
    if number is None:
        return "unknown"
    value, unit = float(number), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{number} bytes" if unit == 0 else f"{value:.3g} {_UNITS[unit]}"


def share(fraction: float | None) -> str:
    """Never rounded to a false 0 % or 100 %."""
    if fraction is None:
        return "unknown"
    percent = fraction * 100
    if 0 < percent < 0.1:
        return "under 0.1 %"
    if 99.9 < percent < 100:
        return "over 99.9 %"
    return f"{percent:.1f} %"


def span(seconds: int | None) -> str:
    """The two largest units: `3 d 4 h`."""
    if seconds is None:
        return "unknown"
    parts = []
    for name, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        whole, seconds = divmod(seconds, length)
        if whole:
            parts.append(f"{whole} {name}")
    return " ".join(parts[:2]) or "0 s"


def reasons(counts: Mapping[str, int]) -> str:
    """`1,234 by expiry`; nothing for nothing."""
    return ", ".join(f"{count(number)} by {reason}" for reason, number in counts.items())


def ends(end_offsets: Mapping[int, int] | Mapping[str, int]) -> str:
    """`0:168387, 1:168389`: the next offset of each partition, spelled as `lifecycle explain` takes a message's place."""
    return ", ".join(f"{partition}:{end}" for partition, end in sorted(end_offsets.items(), key=lambda pair: int(pair[0])))


def safe(text: str) -> str:
    """Control characters written out: what a message or a person's text holds must not steer the reader's terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
