"""The judge in plain Python, which is the memory store's gate and the oracle for `runner`, and the report of any judge (DEL-2).

A report holds only counts, times and shares: no value and no key of a message.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import assert_never

from message_lifecycle.gates.suite import (
    FIGURES,
    AllValuesEqual,
    ColumnSum,
    DeclaredCheck,
    Number,
    OfColumn,
    RowCount,
    Same,
    ShownAs,
    Suite,
    Within,
)
from message_lifecycle.model.errors import code_of
from message_lifecycle.model.instants import format_instant
from message_lifecycle.model.outcome import Check, GateReport, Staged
from message_lifecycle.model.plan import Plan

logger = logging.getLogger(__name__)

NAMED = 10
"""The most rows that a finding names."""

FIGURE_NAMES = (
    "rows_in",
    "rows_removed",
    "rows_kept",
    "bytes_in",
    "bytes_removed",
    "fraction_rows",
    "fraction_bytes",
    "asks",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A judge's measurement for one test. A count or a sum fills both `lowest` and `highest`. None: no value was found."""

    lowest: Number | None = None
    highest: Number | None = None
    unknown: int = 0
    wrong: int = 0
    named: tuple[str, ...] = ()
    """Names of some of the rows that should not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one expectation. "Not evaluated" and "violated" both block, but they read differently."""

    evaluated: bool
    passed: bool
    found: str


def not_evaluated(why: str) -> Finding:
    return Finding(evaluated=False, passed=False, found=f"could not be evaluated: {why}")


def failed_finding(error: BaseException) -> Finding:
    """Return a finding with the kind of the error. An engine's message may quote data and belongs in the log."""
    logger.warning("the gate could not evaluate a check", exc_info=error)
    return not_evaluated(code_of(error))


def make_finding(declared: DeclaredCheck, seen: Measurement, *, passed: bool) -> Finding:
    found = declared.text if declared.text and not passed else f"{declared.what}: {_measured_text(declared, seen)}"
    return Finding(evaluated=True, passed=passed, found=found)


def evaluate_same(declared: DeclaredCheck, test: Same) -> Finding:
    """Evaluate the one test that needs no evidence, for every judge."""
    return Finding(evaluated=True, passed=test.found == test.wanted, found=f"{declared.what}: {test.found}, expected {test.wanted}")


def _measured_text(declared: DeclaredCheck, seen: Measurement) -> str:
    test = declared.test
    unknown = f", {seen.unknown:,} unknown" if seen.unknown else ""
    match test:
        case RowCount():
            names = f" ({', '.join(seen.named)})" if seen.named else ""
            return f"{_shown(seen.highest)}{names}, expected {_range(test.minimum, test.maximum)}"
        case ColumnSum():
            return f"{_shown(seen.highest)}{unknown}, expected {test.equals:,}"
        case Within():
            # A one-sided bound is about one end, so the finding shows only this end.
            ends = [seen.highest] if test.minimum is None else [seen.lowest] if test.maximum is None else [seen.lowest, seen.highest]
            values = " to ".join(dict.fromkeys(_shown(end, test.shown_as) for end in ends))
            return f"{values}{unknown}, expected {_range(test.minimum, test.maximum, test.shown_as)}"
        case AllValuesEqual():
            return f"{seen.wrong:,}{unknown}, expected 0"
        case Same():
            return f"{test.found}, expected {test.wanted}"
        case never:
            assert_never(never)


def _range(minimum: Number | None, maximum: Number | None, shown_as: ShownAs = "number") -> str:
    low, high = _shown(minimum, shown_as), _shown(maximum, shown_as)
    if maximum is None:
        return f"at least {low}"
    if minimum is None:
        return f"at most {high}"
    return low if low == high else f"{low} to {high}"


def _shown(value: Number | None, shown_as: ShownAs = "number") -> str:
    if value is None:
        return "unknown"
    if shown_as == "share":
        return f"{100 * value:.2f}".rstrip("0").rstrip(".") + " %"
    if isinstance(value, float):
        return f"{value + 0.0:.8g}"  # minus zero is zero
    return format_instant(value) if shown_as == "instant" else f"{value:,}"


def assemble_report(
    plan: Plan,
    staged: Staged,
    suite: Suite,
    findings: Mapping[str, Finding],
    figures: Mapping[str, object],
    *,
    took_ms: int,
) -> GateReport:
    """Return one check for each declared expectation. An expectation without a finding was not evaluated."""
    checks = []
    for declared in suite:
        ended = findings.get(declared.id) or not_evaluated("the judge returned nothing for it")
        checks.append(
            Check(
                id=declared.id,
                says=declared.says,
                kind=declared.kind,
                evaluated=ended.evaluated,
                passed=ended.evaluated and ended.passed,
                found=ended.found,
            )
        )
    return GateReport(
        plan_id=plan.plan_id,
        staged_snapshot_id=staged.snapshot_id,
        declared=len(suite),
        checks=tuple(checks),
        figures=tuple((name, _number_or_none(figures.get(name))) for name in FIGURE_NAMES),
        took_ms=took_ms,
    )


def _number_or_none(value: object) -> Number | None:
    """Return a figure. Unknown is null, never 0 (CNT-1)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


Rows = Sequence[Mapping[str, object]]


class PlainGate:
    """A Gate (see ports) for evidence that is lists of dicts."""

    def judge(self, plan: Plan, staged: Staged, suite: Suite, evidence: Mapping[str, object]) -> GateReport:
        started = perf_counter()
        findings = {declared.id: evaluate(declared, evidence) for declared in suite}
        figures = _rows(evidence, FIGURES)
        first = figures[0] if not isinstance(figures, Finding) and len(figures) == 1 else {}
        return assemble_report(plan, staged, suite, findings, first, took_ms=round((perf_counter() - started) * 1000))


def evaluate(declared: DeclaredCheck, evidence: Mapping[str, object]) -> Finding:
    """Evaluate one expectation. Never raises: an error becomes the finding "not evaluated" (DEL-2)."""
    try:
        return _evaluate(declared, evidence)
    except Exception as error:  # noqa: BLE001 - a gate fails closed, and the other findings must not be lost
        return failed_finding(error)


def _evaluate(declared: DeclaredCheck, evidence: Mapping[str, object]) -> Finding:
    test = declared.test
    if isinstance(test, Same):
        return evaluate_same(declared, test)
    rows = _rows(evidence, test.frame)
    if isinstance(rows, Finding):
        return rows
    if isinstance(test, RowCount):
        passed = len(rows) >= test.minimum and (test.maximum is None or len(rows) <= test.maximum)
        named = () if test.named is None else tuple(str(row.get(test.named)) for row in rows[:NAMED])
        return make_finding(declared, Measurement(lowest=len(rows), highest=len(rows), named=named), passed=passed)
    if any(test.column not in row for row in rows):
        return not_evaluated(f"`{test.frame}` has no column `{test.column}`")
    values = [row[test.column] for row in rows]
    known = [value for value in values if value is not None]
    odd = next((value for value in known if not _value_fits(test, value)), None)
    if odd is not None:
        return not_evaluated(f"`{test.frame}.{test.column}` is {type(odd).__name__}")
    return _judge_column(declared, test, known, unknown=len(values) - len(known))


def _rows(evidence: Mapping[str, object], frame: str) -> Rows | Finding:
    if frame not in evidence:
        return not_evaluated(f"there is no evidence `{frame}`")
    rows = evidence[frame]
    # A list can be counted and read again; an iterator would be empty for the second check.
    if not isinstance(rows, list | tuple) or not all(isinstance(row, Mapping) for row in rows):
        return not_evaluated(f"`{frame}` is not a list of rows")
    return rows


def _value_fits(test: OfColumn, value: object) -> bool:
    match test:
        case AllValuesEqual():
            return isinstance(value, bool)
        case ColumnSum():
            return isinstance(value, int) and not isinstance(value, bool)
        case Within():
            return isinstance(value, int | float) and not isinstance(value, bool)
        case never:
            assert_never(never)


def _judge_column(declared: DeclaredCheck, test: OfColumn, known: list[object], *, unknown: int) -> Finding:
    match test:
        case AllValuesEqual():
            wrong = sum(value is not test.value for value in known)
            return make_finding(declared, Measurement(unknown=unknown, wrong=wrong), passed=bool(known) and not unknown and not wrong)
        case ColumnSum():
            total = sum(value for value in known if isinstance(value, int))
            seen = Measurement(lowest=total, highest=total, unknown=unknown) if known else Measurement(unknown=unknown)
            return make_finding(declared, seen, passed=bool(known) and not unknown and total == test.equals)
        case Within():
            numbers = [value for value in known if isinstance(value, int | float)]
            # NaN is not a number. Next to a NaN, neither end is known.
            sound = numbers if all(number == number for number in numbers) else []
            inside = all(
                (test.minimum is None or number >= test.minimum) and (test.maximum is None or number <= test.maximum) for number in sound
            )
            seen = Measurement(lowest=min(sound, default=None), highest=max(sound, default=None), unknown=unknown)
            return make_finding(declared, seen, passed=bool(sound) and not unknown and inside)
        case never:
            assert_never(never)
