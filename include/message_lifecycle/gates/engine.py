"""Validation of one frame in memory by Great Expectations. The import takes seconds, so only a judging process does it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any, assert_never

import great_expectations as gx
import pandas as pd
from great_expectations import expectations as exported
from great_expectations.compatibility import pydantic
from great_expectations.core.batch_definition import BatchDefinition
from great_expectations.core.expectation_validation_result import ExpectationValidationResult
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.expectations.expectation import Expectation
from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

from message_lifecycle.gates.suite import GxExpectation, Number

for _chatty in ("great_expectations", "great_expectations.data_context.types.base"):  # the second sets a level of its own
    logging.getLogger(_chatty).setLevel(logging.ERROR)
_expectations: Any = exported  # Great Expectations does not export its names in a way that a type checker follows
# The gate needs counts. Examples of wrong values would put data into a report.
_RESULT_FORMAT = {"result_format": "BASIC", "partial_unexpected_count": 0}


class _ConfiguredOnce:
    """An expectation with a stored configuration.

    Great Expectations asks each expectation some sixty times for its configuration. Building it each time would be half of the cost of a
    judgement. The subclasses declare the attribute, because pydantic allows no other attributes than fields.
    """

    _configured: ExpectationConfiguration | None

    @property
    def configuration(self) -> ExpectationConfiguration:
        if self._configured is None:
            self._configured = super().configuration  # type: ignore[misc]  # of the expectation, which comes next in line
        return self._configured


class ExpectRowCount(_ConfiguredOnce, _expectations.ExpectTableRowCountToBeBetween):  # type: ignore[misc]  # a base of any type
    """Bound the number of rows."""

    _configured = pydantic.PrivateAttr(default=None)


class ExpectKnown(_ConfiguredOnce, _expectations.ExpectColumnValuesToNotBeNull):  # type: ignore[misc]  # a base of any type
    """Require known values in a column."""

    _configured = pydantic.PrivateAttr(default=None)


class ExpectInSet(_ConfiguredOnce, _expectations.ExpectColumnValuesToBeInSet):  # type: ignore[misc]  # a base of any type
    """Require values of a set in a column."""

    _configured = pydantic.PrivateAttr(default=None)


# In the declarations of Great Expectations bounds become doubles, which do not know every whole number from 2^53 on.


class ExpectExactColumnSum(_ConfiguredOnce, _expectations.ExpectColumnSumToBeBetween):  # type: ignore[misc]  # a base of any type
    """Bound a column's sum exactly."""

    _configured = pydantic.PrivateAttr(default=None)
    min_value: Number | None = None
    max_value: Number | None = None


class ExpectExactColumnMin(_ConfiguredOnce, _expectations.ExpectColumnMinToBeBetween):  # type: ignore[misc]  # a base of any type
    """Bound a column's least value exactly."""

    _configured = pydantic.PrivateAttr(default=None)
    min_value: Number | None = None
    max_value: Number | None = None


class ExpectExactColumnMax(_ConfiguredOnce, _expectations.ExpectColumnMaxToBeBetween):  # type: ignore[misc]  # a base of any type
    """Bound a column's greatest value exactly."""

    _configured = pydantic.PrivateAttr(default=None)
    min_value: Number | None = None
    max_value: Number | None = None


@cache
def _frames() -> BatchDefinition[Any]:
    """Return the one batch definition of this process, because making a context costs as much as judging.

    The context keeps only the last frame.
    """
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    return context.data_sources.add_pandas("evidence").add_dataframe_asset("frame").add_batch_definition_whole_dataframe("whole")


def validate(frame: pd.DataFrame, parts: Sequence[GxExpectation]) -> dict[GxExpectation, ExpectationValidationResult]:
    """Return the result of each part. Parts carry numbers, because the order of the results is undefined."""
    batch = _frames().get_batch({"dataframe": frame})
    suite = gx.ExpectationSuite("gate", expectations=[_expectation(part, {"part": at}) for at, part in enumerate(parts)])
    found: dict[GxExpectation, ExpectationValidationResult] = {}
    for result in batch.validate(suite, result_format=_RESULT_FORMAT).results:
        asked = result.expectation_config
        if asked and asked.meta:
            found[parts[asked.meta["part"]]] = result
    return found


def _expectation(part: GxExpectation, meta: dict[str, int]) -> Expectation:
    bounds = {"min_value": part.minimum, "max_value": part.maximum}
    match part.asks:
        case "rows":
            return ExpectRowCount(**bounds, meta=meta)
        case "known":
            return ExpectKnown(column=part.column, meta=meta)
        case "in_set":
            return ExpectInSet(column=part.column, value_set=[part.value], meta=meta)
        case "sum":
            return ExpectExactColumnSum(column=part.column, **bounds, meta=meta)
        case "min":
            return ExpectExactColumnMin(column=part.column, **bounds, meta=meta)
        case "max":
            return ExpectExactColumnMax(column=part.column, **bounds, meta=meta)
        case never:
            assert_never(never)
