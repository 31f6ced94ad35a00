"""The declared checks over lists of rows, in plain Python: the judge of the memory store, and the oracle for `runner`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import assert_never

from message_lifecycle.gates.report import NAMED, Finding, Seen, assemble, failed_with, finding, not_evaluated, same
from message_lifecycle.gates.suite import FIGURES, AllAre, ColumnSum, Declared, OfColumn, RowCount, Same, Suite, Within
from message_lifecycle.model.outcome import GateReport, Staged
from message_lifecycle.model.plan import Plan

Rows = Sequence[Mapping[str, object]]


class PlainGate:
    """A Gate (see ports) for evidence that is lists of dicts."""

    def judge(self, plan: Plan, staged: Staged, suite: Suite, evidence: Mapping[str, object]) -> GateReport:
        started = perf_counter()
        findings = {declared.id: evaluate(declared, evidence) for declared in suite}
        figures = _rows(evidence, FIGURES)
        first = figures[0] if not isinstance(figures, Finding) and len(figures) == 1 else {}
        return assemble(plan, staged, suite, findings, first, took_ms=round((perf_counter() - started) * 1000))


def evaluate(declared: Declared, evidence: Mapping[str, object]) -> Finding:
    """One expectation. Never raises: what cannot be evaluated is found to be so (DEL-2)."""
    try:
        return _evaluate(declared, evidence)
    except Exception as error:  # noqa: BLE001 - a gate fails closed, and the other findings must not be lost
        return failed_with(error)


def _evaluate(declared: Declared, evidence: Mapping[str, object]) -> Finding:
    test = declared.test
    if isinstance(test, Same):
        return same(declared, test)
    rows = _rows(evidence, test.frame)
    if isinstance(rows, Finding):
        return rows
    if isinstance(test, RowCount):
        passed = len(rows) >= test.minimum and (test.maximum is None or len(rows) <= test.maximum)
        named = () if test.named is None else tuple(str(row.get(test.named)) for row in rows[:NAMED])
        return finding(declared, Seen(lowest=len(rows), highest=len(rows), named=named), passed=passed)
    if any(test.column not in row for row in rows):
        return not_evaluated(f"`{test.frame}` has no column `{test.column}`")
    values = [row[test.column] for row in rows]
    known = [value for value in values if value is not None]
    odd = next((value for value in known if not _fits(test, value)), None)
    if odd is not None:
        return not_evaluated(f"`{test.frame}.{test.column}` is {type(odd).__name__}")
    return _of_column(declared, test, known, unknown=len(values) - len(known))


def _rows(evidence: Mapping[str, object], frame: str) -> Rows | Finding:
    if frame not in evidence:
        return not_evaluated(f"there is no evidence `{frame}`")
    rows = evidence[frame]
    # A list can be counted and read again; an iterator would be empty for the second check.
    if not isinstance(rows, list | tuple) or not all(isinstance(row, Mapping) for row in rows):
        return not_evaluated(f"`{frame}` is not a list of rows")
    return rows


def _fits(test: OfColumn, value: object) -> bool:
    match test:
        case AllAre():
            return isinstance(value, bool)
        case ColumnSum():
            return isinstance(value, int) and not isinstance(value, bool)
        case Within():
            return isinstance(value, int | float) and not isinstance(value, bool)
        case never:
            assert_never(never)


def _of_column(declared: Declared, test: OfColumn, known: list[object], *, unknown: int) -> Finding:
    match test:
        case AllAre():
            wrong = sum(value is not test.value for value in known)
            return finding(declared, Seen(unknown=unknown, wrong=wrong), passed=bool(known) and not unknown and not wrong)
        case ColumnSum():
            total = sum(value for value in known if isinstance(value, int))
            seen = Seen(lowest=total, highest=total, unknown=unknown) if known else Seen(unknown=unknown)
            return finding(declared, seen, passed=bool(known) and not unknown and total == test.equals)
        case Within():
            numbers = [value for value in known if isinstance(value, int | float)]
            # NaN is no number: beside one, neither end is known.
            sound = numbers if all(number == number for number in numbers) else []
            inside = all(
                (test.minimum is None or number >= test.minimum) and (test.maximum is None or number <= test.maximum) for number in sound
            )
            seen = Seen(lowest=min(sound, default=None), highest=max(sound, default=None), unknown=unknown)
            return finding(declared, seen, passed=bool(sound) and not unknown and inside)
        case never:
            assert_never(never)
