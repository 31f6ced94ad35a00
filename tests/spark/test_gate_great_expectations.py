"""Great Expectations over real DataFrames: fetched once as they are now, with the types that Spark gives them.

How it judges what was fetched needs no JVM: see tests/unit/test_gate_great_expectations.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.evidence import SCHEMAS, Case, Evidence, cell, good, nothing_goes
from tests.spark.lake import Lake, Rows

from message_lifecycle.app.operations.registry import suite_of
from message_lifecycle.gates.plain import PlainGate
from message_lifecycle.gates.runner import GreatExpectationsGate
from message_lifecycle.model.outcome import GateReport

pytestmark = pytest.mark.spark


Frames = Callable[[Evidence], dict[str, Any]]


@pytest.fixture(scope="module")
def frames(spark: Any) -> Frames:
    """Evidence as DataFrames."""

    def frame(name: str, rows: list[dict[str, Any]]) -> Any:
        columns = [column.split()[0] for column in SCHEMAS[name].split(", ")]
        return spark.createDataFrame([tuple(row[column] for column in columns) for row in rows], SCHEMAS[name])

    return lambda evidence: {name: frame(name, rows) for name, rows in evidence.items()}


def judge(case: Case, evidence: dict[str, Any]) -> GateReport:
    return GreatExpectationsGate().judge(case.plan, case.staged, suite_of(case.plan, case.staged, case.policy), evidence)


def plainly(case: Case) -> GateReport:
    return PlainGate().judge(case.plan, case.staged, suite_of(case.plan, case.staged, case.policy), case.evidence)


def unevaluated(report: GateReport) -> dict[str, str]:
    return {check.id: check.found for check in report.checks if not check.evaluated}


@pytest.mark.parametrize(
    "case",
    [
        good(),
        nothing_goes(),
        cell("going", "rows", None)(good()),
        cell("going", "rows", 2**62 + 1)(good()),
        cell("figures", "fraction_bytes", float("nan"))(good()),
        cell("left", "named", None)(good()),
    ],
    ids=["good", "nothing goes", "rows unknown", "rows beyond the exact doubles", "NaN", "truth unknown"],
)
def test_the_report_is_the_plain_gates_word_for_word(case: Case, frames: Frames) -> None:
    report, plain = judge(case, frames(case.evidence)), plainly(case)
    assert report == plain
    assert report.gate_id == plain.gate_id


def test_each_frame_is_computed_once(frames: Frames, monkeypatch: pytest.MonkeyPatch) -> None:
    case = good()
    evidence = frames(case.evidence)
    kind = type(evidence["going"])
    computed: list[str] = []

    def note(action: str) -> None:
        original = getattr(kind, action)

        def noted(frame: Any, *given: Any) -> Any:
            computed.extend(f"{name} {action}" for name, made in evidence.items() if made is frame)
            return original(frame, *given)

        monkeypatch.setattr(kind, action, noted)

    for action in ("toArrow", "toPandas", "collect", "count", "persist", "cache"):
        note(action)
    assert judge(case, evidence).judgement == "passed"
    assert sorted(computed) == sorted(f"{name} toArrow" for name in evidence)


def test_types_are_held_to_as_spark_gives_them(frames: Frames) -> None:
    case = good()
    made = frames(case.evidence)
    going = made["going"].drop("any_kept")
    for column, type_ in {"planned": "string", "active": "int", "rows": "decimal(10)", "newest_at": "timestamp"}.items():
        going = going.withColumn(column, going[column].cast(type_))
    left = made["left"].select("*", "named")
    told = unevaluated(judge(case, made | {"going": going, "left": left}))
    assert told == {
        "going_rows": "could not be evaluated: `going.rows` is decimal128(10, 0)",
        "going_expired": "could not be evaluated: `going.newest_at` is timestamp[us, tz=UTC]",
        "going_kept": "could not be evaluated: `going` has no column `any_kept`",
        "going_active": "could not be evaluated: `going.active` is int32",
        "going_planned": "could not be evaluated: `going.planned` is string",
        "left_named": "could not be evaluated: `left` has more than one column `named`",
    }


def test_evidence_whose_computation_fails(spark: Any, frames: Frames) -> None:
    case = good()
    failing = spark.range(1).selectExpr("assert_true(id > 5, 'a value of a message') is null as x", "id as partition")
    report = judge(case, frames(case.evidence) | {"difference": failing.where("x")})
    assert (set(unevaluated(report)), report.judgement) == ({"difference"}, "blocked")
    assert "a value of a message" not in str(report)


# A gate must judge what is there now.


def test_nothing_stays_in_the_cache_and_a_file_that_went_is_missed(spark: Any, frames: Frames, tmp_path: Path) -> None:
    folder = str(tmp_path / "left")
    case = good()
    for row in case.evidence["left"]:
        spark.createDataFrame([tuple(row.values())], SCHEMAS["left"]).write.mode("append").parquet(folder)
    held_before = spark.sparkContext._jsc.getPersistentRDDs().size()

    def judged() -> GateReport:
        return judge(case, frames(case.evidence) | {"left": spark.read.schema(SCHEMAS["left"]).parquet(folder)})

    assert judged().judgement == "passed"
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == held_before
    next(part for part in Path(folder).glob("part-*") if spark.read.parquet(str(part)).count()).unlink()
    assert {check.id for check in judged().checks if not check.passed} == {"left_rows"}


# On a real table.


def test_a_change_staged_on_a_table_passes_and_one_that_the_plan_does_not_tell_is_blocked(lake: Lake) -> None:
    name = lake.topic(max_removed_fraction=0.9)
    lake.append(name, Rows(base=0, times=(1, 2, 3)))
    lake.append(name, Rows(base=3, times=(4, 5)), Rows(base=5, times=(999,)))
    store, policy = lake.store(), lake.policy(name)
    plan = lake.plan(name, 1000.0)
    staged = store.stage(plan)

    evidence = store.evidence(plan, staged, policy)
    report = GreatExpectationsGate().judge(plan, staged, suite_of(plan, staged, policy), evidence)
    assert [check.found for check in report.checks if not check.passed] == []
    assert dict(report.figures)["rows_removed"] == 5

    # A plan of the first segment alone, and what was staged for both.
    less = replace(plan, selection=replace(plan.selection, files=plan.selection.files[:1]))
    told = replace(staged, plan_id=less.plan_id)
    report = GreatExpectationsGate().judge(less, told, suite_of(less, told, policy), store.evidence(less, told, policy))
    assert {"going", "going_planned", "difference"} <= {check.id for check in report.checks if not check.passed}
    assert report.judgement == "blocked"
