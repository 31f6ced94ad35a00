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
class PeriodPassed:
    """Holds from `us` after the time in the column, that instant included. Never beyond the end of time, and never for an unknown time.

    Attributes:
        us: From 0 to INT64_MAX. A larger duration would overflow in engines.
    """

    column: TimeColumn
    us: int


@dataclass(frozen=True, slots=True)
class NeverExpires:
    """The message states that it never expires."""


@dataclass(frozen=True, slots=True)
class TimeKnown:
    """The column holds a time."""

    column: TimeColumn


@dataclass(frozen=True, slots=True)
class NotRule:
    """Negates a rule without a time, which holds always or never."""

    rule: NeverExpires | TimeKnown | AnyOfRules


@dataclass(frozen=True, slots=True)
class AnyOfRules:
    """Holds as soon as one rule holds."""

    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class AllOfRules:
    """Holds as soon as every rule holds."""

    rules: tuple[Rule, ...]


Rule = PeriodPassed | NeverExpires | TimeKnown | NotRule | AnyOfRules | AllOfRules


class AgedMessage(Protocol):
    """The fields that rules read, in microseconds. None: unknown."""

    @property
    def append_time(self) -> Instant | None: ...

    @property
    def expires_at(self) -> Instant | None: ...

    @property
    def never(self) -> bool: ...


def rule_holds_from(rule: Rule, message: AgedMessage) -> Instant | None:
    """Return the first instant at which the rule holds for the message. None if it never holds."""
    match rule:
        case PeriodPassed(column, us):
            time = _known_time(message, column)
            return None if time is None or time + us >= INT64_MAX else Instant(time + us)
        case NeverExpires():
            return ALWAYS if message.never else None
        case TimeKnown(column):
            return None if _known_time(message, column) is None else ALWAYS
        case NotRule(inner):
            return ALWAYS if rule_holds_from(inner, message) is None else None
        case AnyOfRules(rules):
            return min((found for inner in rules if (found := rule_holds_from(inner, message)) is not None), default=None)
        case AllOfRules(rules):
            begins = [rule_holds_from(inner, message) for inner in rules]
            known = [instant for instant in begins if instant is not None]
            return max(known, default=ALWAYS) if len(known) == len(begins) else None
        case never:
            assert_never(never)


def _known_time(message: AgedMessage, column: TimeColumn) -> Instant | None:
    """Return None for an unknown time.

    A zero from another writer is unknown, too (CLK-4), and so is the first instant, which engines store for unknown.
    """
    if column == "append_time":
        return None if message.append_time in (0, INT64_MIN) else message.append_time
    return None if message.expires_at == INT64_MIN else message.expires_at


def rule_holds(rule: Rule, message: AgedMessage, as_of: Instant) -> bool:
    begins = rule_holds_from(rule, message)
    return begins is not None and begins <= as_of


def predicate(rule: Rule, as_of: Instant) -> Callable[[AgedMessage], bool]:
    """Return `rule_holds` at one instant as a function, for very many messages."""
    match rule:
        case PeriodPassed(column, us):
            return _period_passed(column, min(as_of, INT64_MAX - 1) - us)
        case NeverExpires():
            return lambda message: bool(message.never)
        case TimeKnown(column):
            return lambda message: _known_time(message, column) is not None
        case NotRule(inner):
            broken = predicate(inner, as_of)
            return lambda message: not broken(message)
        case AnyOfRules((alone,)) | AllOfRules((alone,)):
            return predicate(alone, as_of)
        case AnyOfRules(rules):
            some = tuple(predicate(inner, as_of) for inner in rules)
            return lambda message: any(test(message) for test in some)
        case AllOfRules(rules):
            every = tuple(predicate(inner, as_of) for inner in rules)
            return lambda message: all(test(message) for test in every)
        case never:
            assert_never(never)


def _period_passed(column: TimeColumn, latest: int) -> Callable[[AgedMessage], bool]:
    """Return a test: the time is known and not later than `latest`."""
    if column == "append_time":

        def is_old(message: AgedMessage) -> bool:
            time = message.append_time
            return time is not None and INT64_MIN != time <= latest and time != 0

        return is_old

    def is_over(message: AgedMessage) -> bool:
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
