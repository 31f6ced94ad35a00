"""Rules about single messages, as values, and limits that ignore age.

A rule's value is the first instant at which it holds (CLK-2, CLK-3). A rule is written once and rendered for each engine. The code below
renders a rule for one message. `stores/iceberg` renders it for columns of a file, for their bounds, and as SQL for the read view. "Holds at
`as_of`" is then the same comparison everywhere, and "next due at" is the same value. A rule about an unknown time never holds: unknown
keeps data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, assert_never

from message_lifecycle.model.instants import INT64_MAX, INT64_MIN, Instant

TimeColumn = Literal["append_time", "expires_at"]
ALWAYS = Instant(INT64_MIN)
Scope = Literal["topic", "partition", "key"]
SCOPES: tuple[Scope, ...] = ("topic", "partition", "key")


@dataclass(frozen=True, slots=True)
class After:
    """Holds from `us` after the time in the column, that instant included. Never beyond the end of time, and never for an unknown time.

    Attributes:
        us: From 0 to INT64_MAX. A larger duration would overflow in engines.
    """

    column: TimeColumn
    us: int


@dataclass(frozen=True, slots=True)
class Never:
    """The message states that it never expires."""


@dataclass(frozen=True, slots=True)
class Known:
    """The column holds a time."""

    column: TimeColumn


@dataclass(frozen=True, slots=True)
class Not:
    """Negates a rule without a time, which holds always or never."""

    rule: Never | Known | Either


@dataclass(frozen=True, slots=True)
class Either:
    """Holds as soon as one rule holds."""

    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Both:
    """Holds as soon as every rule holds."""

    rules: tuple[Rule, ...]


Rule = After | Never | Known | Not | Either | Both


class Aged(Protocol):
    """The fields that rules read, in microseconds. None: unknown."""

    @property
    def append_time(self) -> Instant | None: ...

    @property
    def expires_at(self) -> Instant | None: ...

    @property
    def never(self) -> bool: ...


def rule_holds_from(rule: Rule, message: Aged) -> Instant | None:
    """Return the first instant at which the rule holds for the message. None if it never holds."""
    match rule:
        case After(column, us):
            time = _known(message, column)
            return None if time is None or time + us >= INT64_MAX else Instant(time + us)
        case Never():
            return ALWAYS if message.never else None
        case Known(column):
            return None if _known(message, column) is None else ALWAYS
        case Not(inner):
            return ALWAYS if rule_holds_from(inner, message) is None else None
        case Either(rules):
            return min((found for inner in rules if (found := rule_holds_from(inner, message)) is not None), default=None)
        case Both(rules):
            begins = [rule_holds_from(inner, message) for inner in rules]
            known = [instant for instant in begins if instant is not None]
            return max(known, default=ALWAYS) if len(known) == len(begins) else None
        case never:
            assert_never(never)


def _known(message: Aged, column: TimeColumn) -> Instant | None:
    """Return None for an unknown time.

    A zero from another writer is unknown, too (CLK-4), and so is the first instant, which engines store for unknown.
    """
    if column == "append_time":
        return None if message.append_time in (0, INT64_MIN) else message.append_time
    return None if message.expires_at == INT64_MIN else message.expires_at


def rule_holds(rule: Rule, message: Aged, as_of: Instant) -> bool:
    begins = rule_holds_from(rule, message)
    return begins is not None and begins <= as_of


def predicate(rule: Rule, as_of: Instant) -> Callable[[Aged], bool]:
    """Return `rule_holds` at one instant as a function, for very many messages."""
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
    """Return a test: the time is known and not later than `latest`."""
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
    """How much of a log stays, whatever its age (RET-1, RET-3, RET-4).

    Attributes:
        max_records: The most messages of each group of the scope, at least 1. None: no limit.
        max_total_bytes: The most bytes (MSG-2) of each group of the scope, at least 1. None: no limit.
        min_keep: 1: a group's newest message stays, even if it alone exceeds the limit of bytes.
        scope: The groups. Messages without a key are in no group of the scope `key`.
    """

    max_records: int | None
    max_total_bytes: int | None
    min_keep: int = 0
    scope: Scope = "topic"
