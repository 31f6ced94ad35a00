"""Rules about messages, rendered as Spark SQL for reads: as text, because a view keeps text.

Either side of a rule is written out, never negated as a whole: so each condition is true or false where a column is null, and Spark
can hand it to the scan, which then leaves out files by their bounds.
"""

from __future__ import annotations

from typing import assert_never

from message_lifecycle.model.instants import INT64_MIN
from message_lifecycle.model.rules import After, Both, Either, Known, Never, Not, Rule, TimeColumn

NOW = "unix_micros(current_timestamp())"


def holds(rule: Rule, as_of: str = NOW) -> str:
    """Condition: the rule holds. `as_of`: SQL of whole microseconds, from 0 to below INT64_MAX, in which nothing here overflows."""
    return _side(rule, as_of, holding=True)


def holds_not(rule: Rule, as_of: str = NOW) -> str:
    """The opposite of `holds`, true where a time is unknown."""
    return _side(rule, as_of, holding=False)


def _side(rule: Rule, as_of: str, *, holding: bool) -> str:
    match rule:
        case After(column, us):
            # The bound moves, not the time: a sum with a stored time could overflow, and no scan understands it.
            bound = f"timestamp_micros({as_of} - {us}L)"
            return f"({_known(column)} AND {column} <= {bound})" if holding else f"({_unknown(column)} OR {column} > {bound})"
        case Never():
            return "(never IS NOT NULL AND never)" if holding else "(never IS NULL OR NOT never)"
        case Known(column):
            return f"({_known(column)})" if holding else f"({_unknown(column)})"
        case Not(inner):
            return _side(inner, as_of, holding=not holding)
        case Either(rules):
            return _joined(rules, as_of, holding=holding, by="OR" if holding else "AND")
        case Both(rules):
            return _joined(rules, as_of, holding=holding, by="AND" if holding else "OR")
        case never:
            assert_never(never)


def _joined(rules: tuple[Rule, ...], as_of: str, *, holding: bool, by: str) -> str:
    # Of none: what leaves the others as they are.
    if not rules:
        return "true" if by == "AND" else "false"
    return "(" + f" {by} ".join(_side(inner, as_of, holding=holding) for inner in rules) + ")"


def _unknown(column: TimeColumn) -> str:
    return " OR ".join((f"{column} IS NULL", *(f"{column} = timestamp_micros({time})" for time in _unknown_times(column))))


def _known(column: TimeColumn) -> str:
    return " AND ".join((f"{column} IS NOT NULL", *(f"{column} <> timestamp_micros({time})" for time in _unknown_times(column))))


def _unknown_times(column: TimeColumn) -> tuple[str, ...]:
    # Spark reads the least number only as a text.
    first = f"bigint('{INT64_MIN}')"
    return ("0L", first) if column == "append_time" else (first,)
