"""Points in time and durations, and the lifetime that a message states.

Times are integer microseconds in UTC and saturate (MSG-1, CLK-3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
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
    """Return the microseconds of `count` whole seconds."""
    return count * MICROS_PER_SECOND


def deadline(start: Instant, duration_us: int) -> Instant:
    """Return `start + duration`, saturating at int64. A saturated deadline is never due (CLK-3)."""
    end = start + duration_us
    return Instant(end if end < INT64_MAX else INT64_MAX)  # called for very many segments, and `min` takes twice as long


def is_dead(due_at: Instant, as_of: Instant) -> bool:
    """Return True if `as_of >= due_at` (CLK-2). A saturated deadline never passes (CLK-3)."""
    return due_at < INT64_MAX and as_of >= due_at


def parse_instant(value: object) -> Instant:
    """Read ISO 8601 text (UTC if the text has no zone) or integer microseconds. Raises InvalidInstant."""
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
        return from_datetime(moment)
    raise InvalidInstant(value)


def from_datetime(moment: datetime) -> Instant:
    """Return the exact microseconds of a datetime. A naive datetime is UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return Instant((aware - _EPOCH) // _MICROSECOND)


def newest_known(times: Iterable[Instant | None]) -> Instant | None:
    """Return the latest time. None if there are no times or one is unknown: unknown keeps data (CLK-4)."""
    found = list(times)
    known = [time for time in found if time is not None]
    return max(known, default=None) if len(known) == len(found) else None


def format_instant(instant: int | None) -> str:
    """Return ISO 8601 in UTC, with microseconds only if needed.

    Returns `unknown` for None, and the number of microseconds if no calendar has the instant.
    """
    if instant is None:
        return "unknown"
    try:
        moment = _EPOCH + timedelta(microseconds=instant)
    except OverflowError:
        return f"{instant} us"
    return moment.isoformat().replace("+00:00", "Z")


def format_to_second(instant: int | None) -> str:
    """Return the instant for people: as `format_instant`, without the part below a second."""
    return format_instant(None if instant is None else instant - instant % MICROS_PER_SECOND)


# Durations as people write them. Calendar units are missing, because the length of a month depends on the month.


_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_DURATION = re.compile(r"(?=[0-9])(?:([0-9]{1,18})d)?(?:([0-9]{1,18})h)?(?:([0-9]{1,18})m)?(?:([0-9]{1,18})(?:[.]([0-9]{1,6}))?s)?")
DURATIONS = "such as 20d, 12h, 90m, 30s or 1d12h"


def parse_duration(text: str) -> int | float | None:
    """Return the seconds of a text like `20d`, `12h`, `90m`, `30s` or `1d12h`, as a float only if it has decimals. None for any other text."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    *numbers, decimals = found.groups(default="0")
    whole = sum(int(number) * length for number, (_, length) in zip(numbers, _UNITS, strict=True))
    fraction = int(decimals.ljust(6, "0"))
    return whole + fraction / MICROS_PER_SECOND if fraction else whole


def format_duration(seconds: int | float) -> str:
    """Return the duration as `parse_duration` reads it: `1d12h`, `30s`, `0s`."""
    whole, micros = divmod(round(seconds * MICROS_PER_SECOND), MICROS_PER_SECOND)
    parts = []
    for unit, length in _UNITS[:-1]:
        count, whole = divmod(whole, length)
        parts += [f"{count}{unit}"] if count else []
    last = f"{whole}.{micros:06}".rstrip("0").rstrip(".")
    return "".join([*parts, f"{last}s"] if last != "0" or not parts else parts)


def format_span(seconds: int | None) -> str:
    """Return a duration for people, by its two largest units: `3d4h`."""
    if seconds is None:
        return "unknown"
    length = next((_UNITS[at + 1][1] for at, (_, length) in enumerate(_UNITS[:-1]) if seconds >= length), 1)
    return format_duration(seconds - seconds % length)


# A message's own lifetime, which its publisher states in a header (TTL-1 to TTL-3).
#
# The parser reads durations like Go's `time.ParseDuration`, digit by digit and with its arithmetic. The parser and the NATS server accept
# and refuse the same values, and both mean the same nanoseconds.


TTL_HEADER = "Nats-TTL"
INVALID_TTL = 10165
"""The server's code for an invalid TTL (TTL-4)."""
TTL_DISABLED = 10166
"""The server's code for a TTL on a stream without the feature (TTL-4)."""

_UNIT_NS = {
    b"ns": 1,
    b"us": 1_000,
    "\u00b5s".encode(): 1_000,  # micro sign
    "\u03bcs".encode(): 1_000,  # Greek mu
    b"ms": 1_000_000,
    b"s": 1_000_000_000,
    b"m": 60_000_000_000,
    b"h": 3_600_000_000_000,
}
_SECOND_NS = _UNIT_NS[b"s"]
# One number and its unit. A unit ends at the next digit or point.
_COMPONENT = re.compile(rb"(?=[.]?[0-9])([0-9]*)(?:[.]([0-9]*))?([^.0-9]+)")
_ZERO = re.compile(rb"[-+]?0+")
_INT64_DIGITS = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTtl:
    """The TTL of a message. If `duration_us` is None and `never` is False, the message has none. A duration beyond int64 saturates (CLK-3)."""

    duration_us: int | None = None
    never: bool = False


class InvalidTtl(ValueError):
    """The value breaks the grammar (TTL-1), or is zero where zero is rejected (TTL-2)."""


def parse_ttl(value: bytes, *, reject_zero: bool = False) -> OwnTtl:
    """Read the header's value: never, a duration, or no TTL for zero. Raises InvalidTtl, also for a duration below one second (TTL-1).

    A fraction of a microsecond is rounded up, because a deadline may only be rounded later (TTL-3).
    """
    text = _without_leading_spaces(value)
    if text.lower() == b"never":
        return OwnTtl(never=True)
    duration_ns = 0 if _ZERO.fullmatch(text) else _duration_ns(text)
    if duration_ns is None:
        if not text.isdigit():
            raise InvalidTtl(value)
        return OwnTtl(duration_us=_whole_seconds_us(text))
    if duration_ns == 0:
        if reject_zero:
            raise InvalidTtl(value)
        return OwnTtl()
    if not _SECOND_NS <= duration_ns <= INT64_MAX:
        raise InvalidTtl(value)
    return OwnTtl(duration_us=-(-duration_ns // 1_000))


def ttl_header(headers: Iterable[tuple[str, bytes]]) -> bytes | None:
    """Return the value of the first `Nats-TTL` header. None if the header is missing or has only spaces (TTL-1)."""
    value = next((content for name, content in headers if name == TTL_HEADER), None)
    return value if value and _without_leading_spaces(value) else None


def expires_at(append_time: Instant | None, ttl: OwnTtl) -> Instant | None:
    """Return when the message dies of its own TTL. None if it never does. A message with an unknown time never expires (CLK-4).

    A saturated duration gives a deadline that is never due, whatever the start time (CLK-3).
    """
    if append_time is None or ttl.duration_us is None:
        return None
    return Instant(INT64_MAX) if ttl.duration_us >= INT64_MAX else deadline(append_time, ttl.duration_us)


def _without_leading_spaces(value: bytes) -> bytes:
    return value.lstrip(b" ")


def _whole_seconds_us(digits: bytes) -> int:
    # Python refuses to read thousands of digits. A number longer than int64 saturates anyway.
    significant = digits.lstrip(b"0")
    count = int(significant) if len(significant) <= _INT64_DIGITS else INT64_MAX
    return min(count * MICROS_PER_SECOND, INT64_MAX)


def _duration_ns(text: bytes) -> int | None:
    """Return a Go duration in nanoseconds, negative durations and 2**63 included. None for any other text."""
    unsigned = text[1:] if text[:1] in (b"+", b"-") else text
    total, at = 0, 0
    while at < len(unsigned):
        component = _COMPONENT.match(unsigned, at)
        if component is None:
            return None
        whole, fraction, unit = component.groups()
        unit_ns = _UNIT_NS.get(unit)
        significant = whole.lstrip(b"0")
        if unit_ns is None or len(significant) > _INT64_DIGITS:
            return None
        total += int(significant or b"0") * unit_ns + _fraction_ns(fraction or b"", unit_ns)
        if total > INT64_MAX + 1:
            return None
        at = component.end()
    if at == 0:
        return None
    return -total if text[:1] == b"-" else total


def _fraction_ns(digits: bytes, unit_ns: int) -> int:
    """Count the fraction in floating point, cut it off, and ignore digits beyond 63 bits, because Go does the same."""
    numerator, scale = 0, 1.0
    for digit in digits:
        if numerator > INT64_MAX // 10 or (grown := numerator * 10 + digit - ord("0")) > INT64_MAX + 1:
            break
        numerator, scale = grown, scale * 10
    return int(numerator * (unit_ns / scale))
