"""The judge of tables: Great Expectations evaluates the declared checks.

Evidence is small: at most a row for each file. The judge computes and fetches a Spark frame once and never caches it. A cache would show a
later gate of the session the old table. Great Expectations judges each frame in memory with one validation. A result counts only for the
named part of a check. A check passes only if all its parts return without an error.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from itertools import groupby
from time import perf_counter
from types import ModuleType
from typing import TYPE_CHECKING, Any, assert_never

from message_lifecycle.gates.plain import (
    NAMED,
    Finding,
    Measurement,
    assemble_report,
    evaluate_same,
    failed_finding,
    make_finding,
    not_evaluated,
)
from message_lifecycle.gates.suite import (
    FIGURES,
    AllValuesEqual,
    Asks,
    ColumnSum,
    DeclaredCheck,
    GxExpectation,
    OfColumn,
    RowCount,
    Same,
    Suite,
    Test,
    Within,
    gx_expectations,
)
from message_lifecycle.model.outcome import GateReport, Staged
from message_lifecycle.model.plan import Plan

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from great_expectations.core.expectation_validation_result import ExpectationValidationResult

_OPTIONAL = frozenset({"boto3", "pyspark.ml", "pyspark.sql.connect"})
"""Great Expectations takes these modules only if they are installed, for tables elsewhere than in memory."""
_LATE = frozenset({"altair", "scipy.stats"})
"""Modules of Great Expectations for charts and distributions. The first use of a module loads it."""
ResultDetails = Mapping[str, Any]
"""The details of one part of a check, as Great Expectations reports them."""
logger = logging.getLogger(__name__)


class GreatExpectationsGate:
    """A Gate (see ports) for evidence that is Spark DataFrames or Arrow tables."""

    def judge(self, plan: Plan, staged: Staged, suite: Suite, evidence: Mapping[str, object]) -> GateReport:
        started = perf_counter()
        findings = {declared.id: evaluate_same(declared, declared.test) for declared in suite if isinstance(declared.test, Same)}
        figures: Mapping[str, object] = {}
        for name, group in _group_by_frame(suite):
            try:
                frame = _local(evidence.get(name))
                findings |= _validate(name, group, frame)
                if name == FIGURES and frame is not None and len(frame) == 1:
                    figures = frame.to_pylist()[0]
            except Exception as error:  # noqa: BLE001 - a gate fails closed, and the other findings must not be lost
                findings |= dict.fromkeys((declared.id for declared in group), failed_finding(error))
        took_ms = round((perf_counter() - started) * 1000)
        return assemble_report(plan, staged, suite, findings, figures, took_ms=took_ms)


def _group_by_frame(suite: Suite) -> Iterator[tuple[str, list[DeclaredCheck]]]:
    framed = [(declared.test.frame, declared) for declared in suite if not isinstance(declared.test, Same)]
    for name, group in groupby(sorted(framed, key=lambda entry: entry[0]), key=lambda entry: entry[0]):
        yield name, [declared for _, declared in group]


def _local(found: object) -> pa.Table | None:
    """Return the frame's rows as they are now. None: the value is not a frame."""
    import pyarrow as pa

    if found is None or isinstance(found, pa.Table):
        return found
    from pyspark.sql import DataFrame

    return found.toArrow() if isinstance(found, DataFrame) else None


def _validate(name: str, group: list[DeclaredCheck], frame: pa.Table | None) -> dict[str, Finding]:
    """Evaluate all checks of one frame with one validation."""
    if frame is None:
        return dict.fromkeys((declared.id for declared in group), not_evaluated(f"there is no evidence `{name}`"))
    findings = {declared.id: refusal for declared in group if (refusal := _refusal(name, declared, frame.schema))}
    judged = [declared for declared in group if declared.id not in findings]
    results = _results(dict.fromkeys(part for declared in judged for part in gx_expectations(declared.test)), frame)
    return findings | {declared.id: _finding(declared, results, _named_rows(declared.test, frame)) for declared in judged}


def _named_rows(test: Test, frame: pa.Table) -> tuple[str, ...]:
    if not isinstance(test, RowCount) or test.named is None or test.named not in frame.column_names:
        return ()
    return tuple(str(name) for name in frame[test.named].slice(0, NAMED).to_pylist())


def _refusal(name: str, declared: DeclaredCheck, schema: pa.Schema) -> Finding | None:
    """Return why a check cannot be evaluated on this frame, which differs from a broken rule. None: it can."""
    test = declared.test
    if isinstance(test, RowCount | Same):
        return None
    types = [field.type for field in schema if field.name == test.column]
    if len(types) != 1:
        return not_evaluated(f"`{name}` has {'no' if not types else 'more than one'} column `{test.column}`")
    if not _type_fits(test, types[0]):
        return not_evaluated(f"`{name}.{test.column}` is {types[0]}")
    return None


def _type_fits(test: OfColumn, found: pa.DataType) -> bool:
    from pyarrow import types

    match test:
        case AllValuesEqual():
            return bool(types.is_boolean(found))
        case ColumnSum():
            return bool(types.is_signed_integer(found))
        case Within():
            return bool(types.is_signed_integer(found) or types.is_float32(found) or types.is_float64(found))
        case never:
            assert_never(never)


def _results(parts: Iterable[GxExpectation], frame: pa.Table) -> Mapping[GxExpectation, ExpectationValidationResult]:
    asked = list(parts)
    if not asked:
        return {}
    with _spared_import():
        from message_lifecycle.gates import engine

    return engine.validate(_to_pandas(frame, {part.column for part in asked if part.column is not None}), asked)


class _Spared(MetaPathFinder):
    """Finds modules for the import of Great Expectations, without the parts that no check of ours uses: a quarter of its CPU time."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname in _OPTIONAL:
            raise ModuleNotFoundError(f"{fullname} is left out", name=fullname)
        spec = PathFinder.find_spec(fullname, path, target) if fullname in _LATE else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


@contextmanager
def _spared_import() -> Iterator[None]:
    """Import Great Expectations in this block, for checks of tables in memory."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "False")
    spared = _Spared()
    sys.meta_path.insert(0, spared)
    try:
        yield
    finally:
        sys.meta_path.remove(spared)


def _to_pandas(frame: pa.Table, columns: Iterable[str]) -> pd.DataFrame:
    """Return the judged columns of the frame as pandas, with its number of rows."""
    import pandas as pd

    return pd.DataFrame({name: _series(frame[name]) for name in columns}, index=pd.RangeIndex(len(frame)))


def _series(column: pa.ChunkedArray) -> pd.Series[object]:
    """Return a column of pandas that separates null from NaN and keeps Python's whole numbers.

    The whole numbers of pandas overflow in sums, and become doubles when compared with a double.
    """
    import pandas as pd
    from pyarrow import types

    if types.is_signed_integer(column.type):
        return pd.Series(column.to_pylist(), dtype=object)
    nullable = pd.BooleanDtype() if types.is_boolean(column.type) else pd.Float64Dtype()
    return column.to_pandas(types_mapper=lambda _: nullable)


def _finding(declared: DeclaredCheck, results: Mapping[GxExpectation, ExpectationValidationResult], named: tuple[str, ...]) -> Finding:
    parts = gx_expectations(declared.test)
    mine: dict[Asks, ExpectationValidationResult] = {part.asks: results[part] for part in parts if part in results}
    if len(mine) != len(parts):
        return not_evaluated(f"{len(mine)} of its {len(parts)} parts came back")
    errors = [error for result in mine.values() for error in _errors(result.exception_info)]
    if errors:
        logger.warning("check %s could not be evaluated: %s", declared.id, errors[0])
        return not_evaluated("Great Expectations reported an error")
    seen = _measurement(declared.test, {asks: result.result for asks, result in mine.items()})
    # `success` is a rounded share of the rows. A single wrong row among very many must count, too.
    passed = all(result.success for result in mine.values()) and not seen.unknown and not seen.wrong
    return make_finding(declared, replace(seen, named=named), passed=passed)


def _errors(info: ResultDetails) -> Iterator[str]:
    """Return the messages of raised errors. Great Expectations gives them directly or by the id of a metric."""
    for entry in [info] if "raised_exception" in info else info.values():
        if entry["raised_exception"]:
            yield str(entry["exception_message"])


def _measurement(test: Test, results: Mapping[Asks, ResultDetails]) -> Measurement:
    match test:
        case Same():
            return Measurement()
        case RowCount():
            rows = results["rows"]["observed_value"]
            return Measurement(lowest=rows, highest=rows)
        case AllValuesEqual():
            return Measurement(unknown=_unexpected(results["known"]), wrong=_unexpected(results["in_set"]))
        case ColumnSum():
            unknown = _unexpected(results["known"])
            # The sum over no rows is 0, but it must count as unknown.
            total = results["sum"]["observed_value"] if results["rows"]["observed_value"] > unknown else None
            return Measurement(lowest=total, highest=total, unknown=unknown)
        case Within():
            lowest, highest = results["min"]["observed_value"], results["max"]["observed_value"]
            return Measurement(lowest=lowest, highest=highest, unknown=_unexpected(results["known"]))
        case never:
            assert_never(never)


def _unexpected(result: ResultDetails) -> int:
    """Return the number of unexpected values. Without rows Great Expectations returns None, and another part fails for that."""
    return result["unexpected_count"] or 0
