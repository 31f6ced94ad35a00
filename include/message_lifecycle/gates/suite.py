"""Checks as values, the judge of them in plain Python, and the report that a judge gives (DEL-2)."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Literal, assert_never

from message_lifecycle.model.errors import code_of
from message_lifecycle.model.instants import format_instant
from message_lifecycle.model.outcome import Check, GateReport, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy

# Checks are declared before anything is looked at, and judged by whoever evaluates them: `runner` by Great Expectations, `PlainGate` over
# lists of rows. No test of a column holds where there are no rows or where a value is unknown: a check that looked at nothing never passes.


Number = int | float
ShownAs = Literal["number", "instant"]
Asks = Literal["rows", "known", "in_set", "sum", "min", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCount:
    """The frame has from `minimum` to `maximum` rows (None: any number more). `named`: the column that says which rows they are."""

    frame: str
    minimum: int
    maximum: int | None
    named: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSum:
    """Whole numbers, all known, that add up to `equals`."""

    frame: str
    column: str
    equals: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """Numbers, all known, from `minimum` to `maximum` (None: no bound on that side)."""

    frame: str
    column: str
    minimum: Number | None
    maximum: Number | None
    shown_as: ShownAs = "number"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllAre:
    """Truth values, all known, each of which is `value`."""

    frame: str
    column: str
    value: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Same:
    """Two texts known without any evidence; they must be equal."""

    found: str
    wanted: str


OfFrame = RowCount | ColumnSum | Within | AllAre
OfColumn = ColumnSum | Within | AllAre
Test = OfFrame | Same


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One expectation. `says` is the rule as a sentence; `what` names the thing measured, for the finding.

    A broken `rule` blocks; a broken `limit` asks a person (DEL-2). `told`: what that person reads in place of the numbers."""

    id: str
    says: str
    what: str
    kind: Literal["rule", "limit"]
    test: Test
    told: str = ""


Suite = tuple[Declared, ...]

FIGURES = "figures"
_ASKS = "questions of the plan"


def rule(id: str, says: str, what: str, test: Test) -> Declared:
    return Declared(id=id, says=says, what=what, kind="rule", test=test)


def limit(id: str, says: str, what: str, test: Test) -> Declared:
    return Declared(id=id, says=says, what=what, kind="limit", test=test)


def asked(id: str, says: str, plan: Plan) -> Declared:
    """Each question of the plan's own is put to a person, in the plan's words. Those of documents may name one: where they stand is told."""
    told = "; ".join(plan.asks)
    if plan.of_documents:
        told = f"{len(plan.asks)} question(s) of the plan, in words: `lifecycle ledger show {plan.plan_id}`"
    none = Within(frame=FIGURES, column="asks", minimum=None, maximum=0)
    return Declared(id=id, says=says, what=_ASKS, kind="limit", test=none, told=told)


def asks_counted(plan: Plan) -> Declared:
    return rule("asks", "The plan's own questions to a person are counted.", _ASKS, figure("asks", len(plan.asks)))


def tightened(plan: Plan) -> Declared:
    return asked("tightened", "No setting was tightened since a removal was last accepted.", plan)


def comes_back(plan: Plan) -> Declared:
    """An undo is always a person's word."""
    return asked("undo", "Nothing comes back without a person's word.", plan)


def count(frame: str, rows: int, *, named: str | None = None) -> RowCount:
    return RowCount(frame=frame, minimum=rows, maximum=rows, named=named)


def total(frame: str, column: str, equals: int) -> ColumnSum:
    return ColumnSum(frame=frame, column=column, equals=equals)


def all_are(frame: str, column: str, value: bool) -> AllAre:
    return AllAre(frame=frame, column=column, value=value)


def figure(column: str, equals: int) -> Within:
    return Within(frame=FIGURES, column=column, minimum=equals, maximum=equals)


def counted(frame: str, rows: int, says: str, what: str, *of_each: Declared) -> Suite:
    """A frame's rows are counted before they are judged; `of_each` is not asked of a frame that has none."""
    return (rule(frame, says, what, count(frame, rows)), *(of_each if rows else ()))


def none_in(frame: str, column: str, says: str, what: str, *, id: str | None = None) -> Declared:
    """The column counts, in each row, what should not be there."""
    return rule(id or f"{frame}_{column}", says, what, total(frame, column, 0))


def one_row_of_figures() -> Declared:
    return rule("figures", "The figures are one row.", "rows of figures", count(FIGURES, 1))


def _rows_before(plan: Plan, what: str) -> Declared:
    return rule(
        "rows_in", f"There are as many {what}s as when it was planned.", f"{what}s before", figure("rows_in", plan.expected.rows_in)
    )


def rows_left(what: str, rows: int) -> Declared:
    """`what` a row is: a change, a message."""
    return rule("rows_kept", f"Every {what} that does not go is still there.", f"{what}s kept", figure("rows_kept", rows))


def figures_of_going(plan: Plan, what: str, removed: int) -> Suite:
    return (one_row_of_figures(), _rows_before(plan, what), rows_left(what, plan.expected.rows_in - removed), asks_counted(plan))


def figures_of_return(plan: Plan, what: str) -> Suite:
    back = plan.restored_rows
    return (
        one_row_of_figures(),
        _rows_before(plan, what),
        rule("rows_restored", f"As many {what}s come back as planned.", f"{what}s", figure("rows_restored", back)),
        rule("rows_kept", f"Every {what} that was there stays.", f"{what}s", figure("rows_kept", plan.expected.rows_in + back)),
        asks_counted(plan),
    )


def nothing_else_differs() -> Declared:
    """Frame `difference`: one row per file."""
    return rule("difference", "Beside what the plan names nothing differs.", "other files that differ", count("difference", 0))


def same_settings(plan: Plan, policy: Policy) -> Declared:
    says = "The settings judged by are those the plan was made with."
    return rule("policy", says, "hash of the settings", Same(found=policy.hash, wanted=plan.requirements.policy_hash))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is asked of Great Expectations for a check, as one expectation; checks of the same column share parts. None: no bound on that side."""

    asks: Asks
    column: str | None = None
    minimum: Number | None = None
    maximum: Number | None = None
    value: bool | None = None


def parts_of(test: Test) -> tuple[Part, ...]:
    """A check's parts, at most one of each kind. Great Expectations passes over nulls and holds vacuously over no rows, so that
    there are rows and that all values are known are parts of their own."""
    match test:
        case Same():
            return ()
        case RowCount():
            return (Part(asks="rows", minimum=test.minimum, maximum=test.maximum),)
        case AllAre():
            return (*_some_known(test), Part(asks="in_set", column=test.column, value=test.value))
        case ColumnSum():
            return (*_some_known(test), Part(asks="sum", column=test.column, minimum=test.equals, maximum=test.equals))
        case Within():
            # Both ends against both bounds: then no NaN passes, whichever end it takes.
            low, high = test.minimum, test.maximum
            ends = [Part(asks=end, column=test.column, minimum=low, maximum=high) for end in ("min", "max")]
            return (*_some_known(test), *ends)
        case never:
            assert_never(never)


def _some_known(test: OfColumn) -> tuple[Part, Part]:
    return Part(asks="rows", minimum=1), Part(asks="known", column=test.column)


def holds_suite(plan: Plan) -> Suite:
    """Nothing goes that a legal hold keeps (DEL-8), by a second look at the holds. Frame `holds`: one row.

    No checks where no hold stood when the plan was made: one that came since makes it plan again, before the gate and before the publish.
    """
    if not plan.requirements.heeded:
        return ()
    return (
        rule("holds", "The legal holds on the topic were looked at.", "looks at holds", count("holds", 1)),
        none_in(
            "holds", "unheeded", "The plan heeds every legal hold that stands.", "holds that the plan does not know", id="holds_heeded"
        ),
        none_in(
            "holds",
            "touched",
            "Nothing goes that a legal hold may keep.",
            "messages, segments or documents under a hold that go",
            id="holds_untouched",
        ),
    )


# From findings to the gate's report, and the report as JSON. Counts, times and shares only: no value or key of a message.


logger = logging.getLogger(__name__)

NAMED = 10
"""How many rows a finding names."""

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
class Seen:
    """What a judge measured for one test. A count or a sum stands in both `lowest` and `highest`; None: there was nothing."""

    lowest: Number | None = None
    highest: Number | None = None
    unknown: int = 0
    wrong: int = 0
    named: tuple[str, ...] = ()
    """Some of the rows that were counted and should not be there, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How one expectation ended. Not evaluated is not violated: both block, and they read differently."""

    evaluated: bool
    passed: bool
    found: str


def not_evaluated(why: str) -> Finding:
    return Finding(evaluated=False, passed=False, found=f"could not be evaluated: {why}")


def failed_with(error: BaseException) -> Finding:
    """Kind of error alone: an engine's message may quote data, and belongs into the log."""
    logger.warning("the gate could not evaluate a check", exc_info=error)
    return not_evaluated(code_of(error))


def finding(declared: Declared, seen: Seen, *, passed: bool) -> Finding:
    found = declared.told if declared.told and not passed else f"{declared.what}: {_seen(declared, seen)}"
    return Finding(evaluated=True, passed=passed, found=found)


def same(declared: Declared, test: Same) -> Finding:
    """The one test that needs no evidence, for every judge."""
    return Finding(evaluated=True, passed=test.found == test.wanted, found=f"{declared.what}: {test.found}, expected {test.wanted}")


def _seen(declared: Declared, seen: Seen) -> str:
    test = declared.test
    unknown = f", {seen.unknown:,} unknown" if seen.unknown else ""
    match test:
        case RowCount():
            names = f" ({', '.join(seen.named)})" if seen.named else ""
            return f"{_shown(seen.highest)}{names}, expected {_range(test.minimum, test.maximum)}"
        case ColumnSum():
            return f"{_shown(seen.highest)}{unknown}, expected {test.equals:,}"
        case Within():
            # A one-sided bound is about one end; telling both would only blur it.
            ends = [seen.highest] if test.minimum is None else [seen.lowest] if test.maximum is None else [seen.lowest, seen.highest]
            values = " to ".join(dict.fromkeys(_shown(end, test.shown_as) for end in ends))
            return f"{values}{unknown}, expected {_range(test.minimum, test.maximum, test.shown_as)}"
        case AllAre():
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
    if isinstance(value, float):
        return f"{value + 0.0:.8g}"  # minus zero is zero
    return format_instant(value) if shown_as == "instant" else f"{value:,}"


def assemble(
    plan: Plan,
    staged: Staged,
    suite: Suite,
    findings: Mapping[str, Finding],
    figures: Mapping[str, object],
    *,
    took_ms: int,
) -> GateReport:
    """One check for each expectation declared, whatever the judge returned: what it left out was not evaluated."""
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
        figures=tuple((name, _figure(figures.get(name))) for name in FIGURE_NAMES),
        took_ms=took_ms,
    )


def _figure(value: object) -> Number | None:
    """Unknown is null, never 0 (CNT-1)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def report_json(report: GateReport, plan: Plan) -> str:
    """The report for people and programs: what was judged, how, and what was found."""
    return json.dumps(
        {
            "judgement": report.judgement,
            "plan_id": report.plan_id,
            "operation": plan.operation,
            "topic": str(plan.topic),
            "as_of": format_instant(plan.as_of),
            "planned_snapshot_id": plan.requirements.snapshot_id,
            "staged_snapshot_id": report.staged_snapshot_id,
            "gate_id": report.gate_id,
            "declared": report.declared,
            "evaluated": report.evaluated,
            "took_ms": report.took_ms,
            "figures": dict(report.figures),
            "checks": [asdict(check) for check in report.checks],
            "asks": list(plan.asks),
            "warnings": list(plan.warnings),
        },
        indent=2,
        ensure_ascii=False,
        allow_nan=False,
    )


# The declared checks over lists of rows, in plain Python: the judge of the memory store, and the oracle for `runner`.


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
