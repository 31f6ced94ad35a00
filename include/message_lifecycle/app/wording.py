"""How numbers, settings and contents are written, for people and in JSON."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from message_lifecycle.model.settings import Value, typed_text

NO_TOPICS = "no topics yet; `lifecycle topic create NAME` makes one"
ROWS = 20
"""A long table shows so many rows."""


def count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


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


def reasons(counts: Mapping[str, int]) -> str:
    """`1,234 by expiry`; nothing for nothing."""
    return ", ".join(f"{count(number)} by {reason}" for reason, number in counts.items())


def setting_text(value: Value | None, unit: str) -> str:
    """Return a setting's value as a person types it. A duration contains its units: `1d12h`."""
    return "unset" if value is None else typed_text(value, unit)


def unit_text(unit: str) -> str:
    """Return the unit to write next to a setting's value, or an empty text."""
    return "" if unit == "seconds" else unit


def end_offsets_text(end_offsets: Mapping[int, int]) -> str:
    """`0:168387, 1:168389`: the next offset of each partition, spelled as `lifecycle explain` takes a message's place."""
    return ", ".join(f"{partition}:{end}" for partition, end in sorted(end_offsets.items()))


def text_of(content: bytes | None) -> object:
    """Bytes as scenario files write them, too."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}
