"""How single values are written in every view."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant, format_instant
from message_lifecycle.model.plan import Held

View = dict[str, Any]


def when(instant: int | None) -> str | None:
    """ISO 8601, or None where nobody knows."""
    return None if instant is None else format_instant(instant)


def seconds_between(earlier: Instant, later: Instant) -> int:
    return (later - earlier) // MICROS_PER_SECOND


def held_view(held: Iterable[Held]) -> list[View]:
    """Overdue segments that stay, each run of them with its holder (DEL-6)."""
    return [
        {
            "partition": entry.partition,
            "from": entry.first_base,
            "to": entry.last_offset,
            "messages": entry.rows,
            "overdue_since": when(entry.overdue_since),
            "holder": entry.holder,
            "detail": entry.detail,
        }
        for entry in held
    ]
