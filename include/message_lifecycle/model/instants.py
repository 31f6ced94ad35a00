"""Points in time and spans; the lifetime that a message states itself; and rules about single messages, each the first instant at which it
holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, NewType, Protocol, assert_never

from message_lifecycle.model.errors import InvalidInstant

# Points in time and spans: integer microseconds, UTC, saturating (MSG-1, CLK-3).


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


# A message's own lifetime, as its publisher states it in a header (TTL-1 to TTL-3).
#
# Durations are read as Go's `time.ParseDuration` reads them, digit by digit and in its arithmetic: what the NATS server takes is
# taken here, what it refuses is refused, and both mean the same nanoseconds.


TTL_HEADER = "Nats-TTL"
INVALID_TTL = 10165
"""The server's code for a value that is no TTL (TTL-4)."""
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
# One number and its unit; a unit is whatever stands up to the next digit or point.
_COMPONENT = re.compile(rb"(?=[.]?[0-9])([0-9]*)(?:[.]([0-9]*))?([^.0-9]+)")
_ZERO = re.compile(rb"[-+]?0+")
_INT64_DIGITS = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTtl:
    """`duration_us` None and `never` False: the message has no TTL of its own. A duration beyond int64 saturates (CLK-3)."""

    duration_us: int | None = None
    never: bool = False


class InvalidTtl(ValueError):
    """The value breaks the grammar (TTL-1), or is zero where zero is rejected (TTL-2)."""


def parse_ttl(value: bytes, *, reject_zero: bool = False) -> OwnTtl:
    """Read the header's value: never, at least a second in microseconds, rounded up (TTL-3), or nothing for zero. Raises InvalidTtl."""
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
    """The value of the first `Nats-TTL` header; None where there is none, or nothing but spaces in it (TTL-1)."""
    value = next((content for name, content in headers if name == TTL_HEADER), None)
    return value if value and _without_leading_spaces(value) else None


def expires_at(append_time: Instant | None, ttl: OwnTtl) -> Instant | None:
    """When the message dies of its own TTL; None: never of that. An unknown time never expires (CLK-4).

    A duration that saturated gives a deadline that is never due, whatever the time it counts from (CLK-3).
    """
    if append_time is None or ttl.duration_us is None:
        return None
    return Instant(INT64_MAX) if ttl.duration_us >= INT64_MAX else deadline(append_time, ttl.duration_us)


def _without_leading_spaces(value: bytes) -> bytes:
    return value.lstrip(b" ")


def _whole_seconds_us(digits: bytes) -> int:
    # Python refuses to read thousands of digits, and what is longer than int64 saturates anyway.
    significant = digits.lstrip(b"0")
    count = int(significant) if len(significant) <= _INT64_DIGITS else INT64_MAX
    return min(count * MICROS_PER_SECOND, INT64_MAX)


def _duration_ns(text: bytes) -> int | None:
    """A Go duration in nanoseconds, negative ones too, 2**63 included; None where it is none."""
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
    """Go counts the fraction in floating point and cuts it off, and forgets digits that no longer fit in 63 bits; so must we."""
    numerator, scale = 0, 1.0
    for digit in digits:
        if numerator > INT64_MAX // 10 or (grown := numerator * 10 + digit - ord("0")) > INT64_MAX + 1:
            break
        numerator, scale = grown, scale * 10
    return int(numerator * (unit_ns / scale))


# Rules about single messages, as values: each is the first instant at which it holds (CLK-2, CLK-3); and limits, whatever the age.
#
# A rule is written once and rendered for each engine: here for one message, for columns of a file and for its bounds in
# `stores/iceberg`, and as SQL for the read view. "Holds at `as_of`" is then the same comparison everywhere, and "when will
# something be due next" is the same value. What is not known never holds: unknown keeps data.


TimeColumn = Literal["append_time", "expires_at"]
ALWAYS = Instant(INT64_MIN)
Scope = Literal["topic", "partition", "key"]
SCOPES: tuple[Scope, ...] = ("topic", "partition", "key")


@dataclass(frozen=True, slots=True)
class After:
    """From `us` after the time in the column on, that instant included; beyond the end of time never. Unknown: never.

    `us`: from 0 to INT64_MAX; spans that time itself does not have would overflow in engines."""

    column: TimeColumn
    us: int


@dataclass(frozen=True, slots=True)
class Never:
    """The message says that no age takes it."""


@dataclass(frozen=True, slots=True)
class Known:
    """The column holds a time."""

    column: TimeColumn


@dataclass(frozen=True, slots=True)
class Not:
    """Of rules without a time: those hold always or never."""

    rule: Never | Known | Either


@dataclass(frozen=True, slots=True)
class Either:
    """As soon as one holds."""

    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Both:
    """As soon as all hold."""

    rules: tuple[Rule, ...]


Rule = After | Never | Known | Not | Either | Both


class Aged(Protocol):
    """What rules look at: microseconds, None for unknown."""

    @property
    def append_time(self) -> Instant | None: ...

    @property
    def expires_at(self) -> Instant | None: ...

    @property
    def never(self) -> bool: ...


def holds_from(rule: Rule, message: Aged) -> Instant | None:
    """The first instant at which the rule holds for the message; None: it never will."""
    match rule:
        case After(column, us):
            time = _known(message, column)
            return None if time is None or time + us >= INT64_MAX else Instant(time + us)
        case Never():
            return ALWAYS if message.never else None
        case Known(column):
            return None if _known(message, column) is None else ALWAYS
        case Not(inner):
            return ALWAYS if holds_from(inner, message) is None else None
        case Either(rules):
            return min((found for inner in rules if (found := holds_from(inner, message)) is not None), default=None)
        case Both(rules):
            begins = [holds_from(inner, message) for inner in rules]
            known = [instant for instant in begins if instant is not None]
            return max(known, default=ALWAYS) if len(known) == len(begins) else None
        case never:
            assert_never(never)


def _known(message: Aged, column: TimeColumn) -> Instant | None:
    """What another writer has stored as zero is unknown, too (CLK-4); so is the first instant, by which engines mark unknown."""
    if column == "append_time":
        return None if message.append_time in (0, INT64_MIN) else message.append_time
    return None if message.expires_at == INT64_MIN else message.expires_at


def holds(rule: Rule, message: Aged, as_of: Instant) -> bool:
    begins = holds_from(rule, message)
    return begins is not None and begins <= as_of


def predicate(rule: Rule, as_of: Instant) -> Callable[[Aged], bool]:
    """`holds` at one instant as a function, for very many messages."""
    match rule:
        case After(column, us):
            return _after(column, min(as_of, INT64_MAX - 1) - us)
        case Never():
            return lambda message: bool(message.never)
        case Known(column):
            return lambda message: _known(message, column) is not None
        case Not(inner):
            broken = predicate(inner, as_of)
            return lambda message: not broken(message)
        case Either((alone,)) | Both((alone,)):
            return predicate(alone, as_of)
        case Either(rules):
            some = tuple(predicate(inner, as_of) for inner in rules)
            return lambda message: any(test(message) for test in some)
        case Both(rules):
            every = tuple(predicate(inner, as_of) for inner in rules)
            return lambda message: all(test(message) for test in every)
        case never:
            assert_never(never)


def _after(column: TimeColumn, latest: int) -> Callable[[Aged], bool]:
    """Whether the time is known, and not later than this."""
    if column == "append_time":

        def is_old(message: Aged) -> bool:
            time = message.append_time
            return time is not None and INT64_MIN != time <= latest and time != 0

        return is_old

    def is_over(message: Aged) -> bool:
        time = message.expires_at
        return time is not None and INT64_MIN != time <= latest

    return is_over


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of a log is kept, whatever its age (RET-1, RET-3, RET-4).

    `max_records` messages and `max_total_bytes` bytes (MSG-2), each at least 1 or None for no limit, of each group of the scope.

    `min_keep` 1: a group's newest message stays, also where it alone passes the limit of bytes. Messages without a key are in no
    group of the scope `key`."""

    max_records: int | None
    max_total_bytes: int | None
    min_keep: int = 0
    scope: Scope = "topic"
