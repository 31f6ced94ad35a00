"""Great Expectations judges as the plain gate does: the same table of breakages, random frames, and what cannot be evaluated.

The evidence is Arrow tables, as Spark's frames are once they are fetched: no JVM. Great Expectations takes seconds to import.
"""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from message_lifecycle.app.operations.registry import suite_of
from message_lifecycle.gates import runner
from message_lifecycle.gates.plain import Finding, PlainGate, evaluate
from message_lifecycle.gates.runner import GreatExpectationsGate
from message_lifecycle.gates.suite import AllValuesEqual, ColumnSum, DeclaredCheck, RowCount, Test, Within
from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.outcome import GateReport
from tests.evidence import BREAKAGES, SCHEMAS, Breakage, Case, Evidence, by_row, cell, extra, good, nothing_goes, purged, replanned

TYPES = {"int": pa.int32(), "long": pa.int64(), "double": pa.float64(), "boolean": pa.bool_(), "string": pa.string()}


def schema_of(text: str) -> pa.Schema:
    return pa.schema([(name, TYPES[kind]) for name, kind in (column.split() for column in text.split(", "))])


_MADE: dict[str, pa.Table] = {}


def frames(evidence: Evidence) -> dict[str, Any]:
    """The same rows are the same table."""

    def frame(name: str, rows: list[dict[str, Any]]) -> pa.Table:
        return _MADE.setdefault(f"{name} {rows}", pa.Table.from_pylist(rows, schema=schema_of(SCHEMAS[name])))

    return {name: frame(name, rows) for name, rows in evidence.items()}


_KNOWN: dict[tuple[str, tuple[DeclaredCheck, ...], int], dict[str, Finding]] = {}


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that a breakage leaves alone are validated once for the whole table, not once for each entry."""
    validate = runner._validate

    def validate_once(name: str, group: list[DeclaredCheck], frame: Any) -> dict[str, Finding]:
        if not any(frame is made for made in _MADE.values()):
            return validate(name, group, frame)
        key = (name, tuple(group), id(frame))
        if key not in _KNOWN:
            _KNOWN[key] = validate(name, group, frame)
        return _KNOWN[key]

    monkeypatch.setattr(runner, "_validate", validate_once)


def judge(case: Case, evidence: dict[str, Any] | None = None) -> GateReport:
    return GreatExpectationsGate().judge(
        case.plan, case.staged, suite_of(case.plan, case.staged, case.policy), frames(case.evidence) if evidence is None else evidence
    )


def plainly(case: Case) -> GateReport:
    return PlainGate().judge(case.plan, case.staged, suite_of(case.plan, case.staged, case.policy), case.evidence)


def failed(report: GateReport) -> set[str]:
    return {check.id for check in report.checks if not check.passed}


def unevaluated(report: GateReport) -> set[str]:
    return {check.id for check in report.checks if not check.evaluated}


def of_column(test: Test) -> DeclaredCheck:
    return DeclaredCheck(id="x", says="", what="x", kind="rule", test=test)


def found(test: Test, column: pa.Array) -> Finding:
    """Of one column `c`, as both judges find it."""
    declared = of_column(test)
    result = runner._validate("f", [declared], pa.table({"c": column}))["x"]
    assert result == evaluate(declared, {"f": [{"c": value} for value in column.to_pylist()]})
    return result


@pytest.mark.parametrize("case", [good(), by_row(files=2), purged(), nothing_goes()], ids=["good", "by row", "purged", "nothing goes"])
def test_the_report_is_the_plain_gates_word_for_word(case: Case, capfd: pytest.CaptureFixture[str]) -> None:
    report, plain = judge(case), plainly(case)
    assert report.judgement == "passed"
    assert report == plain
    assert report.gate_id == plain.gate_id
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_each_broken_rule_is_seen_by_its_checks_alone(breakage: Breakage) -> None:
    case = breakage.case
    report, plain = judge(case), plainly(case)
    assert failed(report) == breakage.fails
    assert report == plain
    assert report.gate_id == plain.gate_id


INTEGERS = st.one_of(
    st.none(),
    st.integers(-3, 3),
    st.sampled_from([2**53, 2**53 + 1, -(2**53) - 1, INT64_MAX, -(2**63)]),
)
FLOATS = st.one_of(
    st.none(),
    st.sampled_from([0.0, -0.0, 0.5, 0.25, 1e300, -1.5, 5e-324, 2.0**53, float("nan"), float("inf"), float("-inf")]),
)
BOOLEANS = st.one_of(st.none(), st.booleans(), st.just(True))
ROWS = st.one_of(st.just(0), st.integers(1, 5))
WIDTH = 4


@st.composite
def wide_frames(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]], list[DeclaredCheck]]:
    """A frame of many columns and several tests of each: one validation compares them all."""
    count = draw(ROWS)
    columns: dict[str, list[Any]] = {}
    fewest = draw(st.integers(0, 3))
    tests: list[Test] = [RowCount(frame="f", minimum=fewest, maximum=draw(st.sampled_from([None, fewest, fewest + 2])))]
    for number in range(WIDTH):
        whole = draw(st.lists(INTEGERS, min_size=count, max_size=count))
        share = draw(st.lists(FLOATS, min_size=count, max_size=count))
        truth = draw(st.lists(BOOLEANS, min_size=count, max_size=count))
        columns |= {f"i{number}": whole, f"x{number}": share, f"b{number}": truth}
        near = sum(value for value in whole if value is not None)
        tests.append(ColumnSum(frame="f", column=f"i{number}", equals=near + draw(st.sampled_from([0, 0, 0, 1]))))
        bounds = st.one_of(INTEGERS, st.sampled_from([0.0, 0.5, -2.0, 2.0**53]))
        for column in (f"i{number}", f"x{number}"):
            low, high = draw(bounds), draw(bounds)
            tests.append(Within(frame="f", column=column, minimum=-5 if low is None and high is None else low, maximum=high))
        tests.append(AllValuesEqual(frame="f", column=f"b{number}", value=draw(st.booleans())))
    schema = ", ".join(f"i{n} long, x{n} double, b{n} boolean" for n in range(WIDTH))
    rows = [{name: values[row] for name, values in columns.items()} for row in range(count)]
    return schema, rows, [DeclaredCheck(id=str(n), says="", what="x", kind="rule", test=test) for n, test in enumerate(tests)]


@settings(max_examples=20, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(made=wide_frames())
def test_both_judges_find_the_same_in_random_frames(made: tuple[str, list[dict[str, Any]], list[DeclaredCheck]]) -> None:
    schema, rows, suite = made
    frame = pa.Table.from_pylist(rows, schema=schema_of(schema))
    assert runner._validate("f", suite, frame) == {declared.id: evaluate(declared, {"f": rows}) for declared in suite}


# Whole numbers stay whole.


@pytest.mark.parametrize("off", [0, 1])
@pytest.mark.parametrize("values", [[2**53, 1], [2**53 + 1, None], [INT64_MAX, INT64_MAX, 3], [2**62] * 4 + [7], [-(2**63), -1]], ids=str)
def test_a_sum_is_exact_however_large(values: list[int | None], off: int) -> None:
    total = sum(value for value in values if value is not None)
    finding = found(ColumnSum(frame="f", column="c", equals=total + off), pa.array(values, pa.int64()))
    assert (finding.evaluated, finding.passed) == (True, not off and None not in values)
    assert f"x: {total:,}" in finding.found


@pytest.mark.parametrize("bound", [2**53, 2**53 + 1, 2**60 + 1, INT64_MAX - 1, -(2**53) - 1, 2.0**53, 2.0**62])
def test_a_bound_is_exact_to_the_one(bound: float) -> None:
    at = int(bound)
    for value, low, high in ((at, True, True), (at + 1, True, False), (at - 1, False, True)):
        column = pa.array([value], pa.int64())
        assert found(Within(frame="f", column="c", minimum=bound, maximum=None), column).passed == low
        assert found(Within(frame="f", column="c", minimum=None, maximum=bound), column).passed == high


@pytest.mark.parametrize("beyond", [0, 1, 300, 1023])
def test_the_oldest_allowed_time_is_judged_to_the_microsecond(beyond: int) -> None:
    case = replanned(as_of=Instant(INT64_MAX))(good())
    at_the_end = INT64_MAX - case.policy.message_expiry_us
    late = cell("going", "newest_at", at_the_end - 1 + beyond)(case)
    report = judge(late)
    assert report == plainly(late)
    assert ("going_expired" in failed(report)) == bool(beyond)


@pytest.mark.parametrize("type_", [pa.int8(), pa.int16(), pa.int32(), pa.int64()], ids=str)
def test_whole_numbers_of_every_width(type_: pa.DataType) -> None:
    assert found(ColumnSum(frame="f", column="c", equals=254), pa.array([127, 127], type_)).passed


def test_a_narrow_share_is_widened_as_it_is() -> None:
    assert found(Within(frame="f", column="c", minimum=0.25, maximum=0.5), pa.array([0.25, 0.5], pa.float32())).passed
    assert not found(Within(frame="f", column="c", minimum=None, maximum=0.1), pa.array([0.1], pa.float32())).passed


# A check that looked at nothing, or not at all of it, never passes.


@pytest.mark.parametrize("values", [[], [None], [None, None]], ids=str)
@pytest.mark.parametrize(
    ("test", "type_"),
    [
        (ColumnSum(frame="f", column="c", equals=0), pa.int64()),
        (Within(frame="f", column="c", minimum=None, maximum=5), pa.int64()),
        (Within(frame="f", column="c", minimum=0.0, maximum=None), pa.float64()),
        (AllValuesEqual(frame="f", column="c", value=False), pa.bool_()),
    ],
    ids=["sum", "whole", "share", "truth"],
)
def test_no_test_of_a_column_holds_where_nothing_is_known(test: Test, type_: pa.DataType, values: list[None]) -> None:
    finding = found(test, pa.array(values, type_))
    assert (finding.evaluated, finding.passed) == (True, False)


@pytest.mark.parametrize("odd", [None, float("nan")], ids=["null", "NaN"])
@pytest.mark.parametrize(("low", "high"), [(None, 1.0), (0.0, None), (0.0, 1.0)])
def test_neither_null_nor_nan_lies_within_anything(odd: float | None, low: float | None, high: float | None) -> None:
    assert not found(Within(frame="f", column="c", minimum=low, maximum=high), pa.array([0.5, odd, 0.25], pa.float64())).passed


@pytest.mark.parametrize("odd", [None, True])
def test_a_single_wrong_one_among_very_many_counts(odd: bool | None) -> None:
    finding = found(AllValuesEqual(frame="f", column="c", value=False), pa.array([False] * 100_000 + [odd], pa.bool_()))
    assert (finding.evaluated, finding.passed) == (True, False)


# What cannot be evaluated blocks, is told apart from what is violated, and loses no other finding.


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("frame", sorted(good().evidence))
def test_a_missing_frame_blocks(frame: str) -> None:
    case = good()
    report = judge(case, {name: table for name, table in frames(case.evidence).items() if name != frame})
    assert unevaluated(report) == failed(report) != set()
    assert report.judgement == "blocked"


@pytest.mark.usefixtures("remembered")
@pytest.mark.parametrize("frame", [None, 7, "text", [{"rows": 1}], iter([])], ids=lambda frame: type(frame).__name__)
def test_a_frame_that_is_none_blocks(frame: object) -> None:
    case = good()
    report = judge(case, frames(case.evidence) | {"order": frame})
    assert (unevaluated(report), failed(report), report.judgement) == ({"order"}, {"order"}, "blocked")


def test_no_evidence_at_all_blocks() -> None:
    report = judge(good(), {})
    assert (unevaluated(report) | {"policy", "markers_looked_for"}, report.judgement) == ({check.id for check in report.checks}, "blocked")


@pytest.mark.usefixtures("remembered")
def test_a_missing_column_and_one_of_another_type() -> None:
    case = good()
    going = frames(case.evidence)["going"].drop_columns(["any_kept"])
    texts = pa.array(["true"] * len(going))
    going = going.set_column(going.column_names.index("planned"), "planned", texts)
    report = judge(case, frames(case.evidence) | {"going": going})
    assert (unevaluated(report), report.judgement) == ({"going_kept", "going_planned"}, "blocked")
    told = {check.id: check.found for check in report.checks}
    assert told["going_kept"] == "could not be evaluated: `going` has no column `any_kept`"
    assert told["going_planned"] == "could not be evaluated: `going.planned` is string"


SUM, WITHIN, ARE = (
    ColumnSum(frame="f", column="c", equals=1),
    Within(frame="f", column="c", minimum=1, maximum=1),
    AllValuesEqual(frame="f", column="c", value=True),
)


@pytest.mark.parametrize(
    ("test", "column"),
    [
        *((SUM, pa.array([1.0], type_)) for type_ in (pa.float32(), pa.float64())),
        *((test, pa.array([1], type_)) for test in (SUM, WITHIN) for type_ in (pa.uint8(), pa.uint64(), pa.duration("us"))),
        *((test, pa.array([True])) for test in (SUM, WITHIN)),
        *((test, pa.array(["1"])) for test in (SUM, WITHIN, ARE)),
        *((test, pa.nulls(1)) for test in (SUM, WITHIN, ARE)),
        *((test, pa.array([Decimal(1)])) for test in (SUM, WITHIN, ARE)),
        *((test, pa.array([1]).dictionary_encode()) for test in (SUM, WITHIN, ARE)),
        (WITHIN, pa.array([0], pa.timestamp("us"))),
        (ARE, pa.array([1])),
        (ARE, pa.array([1.0])),
    ],
    ids=lambda given: str(given.type) if isinstance(given, pa.Array) else type(given).__name__,
)
def test_a_column_of_another_type_is_not_evaluated(test: Test, column: pa.Array) -> None:
    finding = runner._validate("f", [of_column(test)], pa.table({"c": column}))["x"]
    assert finding == Finding(evaluated=False, passed=False, found=f"could not be evaluated: `f.c` is {column.type}")


@pytest.mark.usefixtures("remembered")
def test_a_column_twice() -> None:
    case = good()
    left = frames(case.evidence)["left"]
    report = judge(case, frames(case.evidence) | {"left": left.append_column("named", left["named"])})
    assert (unevaluated(report), report.judgement) == ({"left_named"}, "blocked")


@pytest.mark.usefixtures("remembered")
def test_columns_that_no_check_asks_for_are_not_read() -> None:
    case = good()
    left = frames(case.evidence)["left"]
    odd = pa.array([{"key": b"a value of a message"}] * len(left))
    assert judge(case, frames(case.evidence) | {"left": left.append_column("odd", odd).append_column("odd", odd)}) == plainly(case)


def test_an_engine_that_breaks_altogether(monkeypatch: pytest.MonkeyPatch) -> None:
    case = good()

    def broken(*_: object) -> dict[str, Any]:
        raise RuntimeError("a value of a message")

    monkeypatch.setattr(runner, "_results", broken)
    report = judge(case)
    assert (unevaluated(report), report.judgement) == ({check.id for check in report.checks} - {"policy", "markers_looked_for"}, "blocked")
    assert "a value of a message" not in str(report)


def group_of(name: str) -> list[DeclaredCheck]:
    case = good()
    return dict(runner._group_by_frame(suite_of(case.plan, case.staged, case.policy)))[name]


def test_an_error_that_great_expectations_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    in_pandas = runner._to_pandas
    monkeypatch.setattr(runner, "_to_pandas", lambda frame, columns: in_pandas(frame, set(columns) - {"newest_at"}))
    findings = runner._validate("going", group_of("going"), frames(good().evidence)["going"])
    assert {id for id, finding in findings.items() if not finding.passed} == {"going_expired"}
    assert findings["going_expired"] == Finding(
        evaluated=False, passed=False, found="could not be evaluated: Great Expectations reported an error"
    )


def test_a_part_that_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    results = runner._results
    monkeypatch.setattr(runner, "_results", lambda *given: {part: result for part, result in results(*given).items() if part.asks != "max"})
    findings = runner._validate("going", group_of("going"), frames(good().evidence)["going"])
    assert {id for id, finding in findings.items() if not finding.evaluated} == {"going_expired"}


@pytest.mark.usefixtures("remembered")
def test_figures_of_two_rows_are_none() -> None:
    case = extra("figures", good().evidence["figures"][0])(good())
    report = judge(case)
    assert report == plainly(case)
    assert {value for _, value in report.figures} == {None}
    assert report.judgement == "blocked"


# What it costs.


def test_nothing_is_imported_before_something_is_judged() -> None:
    heavy = {"great_expectations", "pandas", "pyarrow", "pyspark"}
    ask = f"import sys, message_lifecycle.gates.runner; print(sorted({heavy!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_gates_process_loads_only_modules_that_a_check_uses() -> None:
    """The others can be imported later in the same process."""
    ask = """
import sys, pyarrow
from message_lifecycle.gates.runner import _results
from message_lifecycle.gates.suite import GxExpectation

wanted = [GxExpectation(asks=asks, column="n", minimum=3, maximum=3) for asks in ("sum", "min", "max")] + [GxExpectation(asks="known", column="n")]
wanted += [GxExpectation(asks="rows", minimum=1), GxExpectation(asks="in_set", column="yes", value=True)]
found = _results(wanted, pyarrow.table({"n": [3], "yes": [True]}))
spared = {"scipy.stats._stats_py", "altair.vegalite", "boto3", "pyspark.ml", "pyspark.sql.connect"}
loaded = spared & sys.modules.keys()
from scipy import stats
import altair, boto3, pyspark.ml
print(len(found), all(result.success for result in found.values()), loaded, float(stats.norm.cdf(0.0)), altair.Chart.__name__)
"""
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "6 True set() 0.5 Chart"
