"""Points in time and spans: integer microseconds, UTC, saturating (MSG-1, CLK-3)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NewType

from message_lifecycle.model.errors import InvalidInstant

Instant = NewType("Instant", int)
"""Microseconds since 1970-01-01T00:00:00Z; negative before it."""

MICROS_PER_SECOND = 1_000_000
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def seconds(count: int) -> int:
    """Microseconds in `count` whole seconds."""
    return count * MICROS_PER_SECOND


def deadline(start: Instant, duration_us: int) -> Instant:
    """`start + duration`, saturating at int64; a saturated deadline is never due (CLK-3)."""
    end = start + duration_us
    return Instant(end if end < INT64_MAX else INT64_MAX)  # asked for each of very many segments, where `min` takes twice as long


def is_dead(due_at: Instant, as_of: Instant) -> bool:
    """CLK-2: dead iff `as_of >= deadline`; a saturated deadline never is (CLK-3)."""
    return due_at < INT64_MAX and as_of >= due_at


def parse_instant(value: object) -> Instant:
    """Read ISO 8601 text (UTC where no zone is given) or integer microseconds. Raises InvalidInstant."""
    if isinstance(value, bool):
        raise InvalidInstant(value)
    if isinstance(value, int):
        if not INT64_MIN <= value <= INT64_MAX:
            raise InvalidInstant(value)
        return Instant(value)
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidInstant(value) from None
        return of_datetime(moment)
    raise InvalidInstant(value)


def of_datetime(moment: datetime) -> Instant:
    """Exact microseconds of a datetime; a naive one is UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return Instant((aware - _EPOCH) // _MICROSECOND)


def format_instant(instant: int | None) -> str:
    """ISO 8601 in UTC, microseconds only where there are any; `unknown` for none; the number where no calendar has it."""
    if instant is None:
        return "unknown"
    try:
        moment = _EPOCH + timedelta(microseconds=instant)
    except OverflowError:
        return f"{instant} us"
    return moment.isoformat().replace("+00:00", "Z")
