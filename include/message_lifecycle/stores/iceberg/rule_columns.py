"""Rules about messages, rendered for columns of a file: the first instant at which each row is taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING, assert_never

import numpy as np
from numpy.typing import NDArray

from message_lifecycle.model.instants import INT64_MAX, INT64_MIN
from message_lifecycle.model.rules import After, Both, Either, Known, Never, Not, Rule

if TYPE_CHECKING:
    import pyarrow as pa

Longs = NDArray[np.int64]
UNKNOWN = INT64_MIN
"""A time that is not known, in `times`."""


def columns_of(rule: Rule) -> Iterator[str]:
    """Names of the columns that the rule looks at."""
    match rule:
        case After(column) | Known(column):
            yield column
        case Never():
            yield "never"
        case Not(negated):
            yield from columns_of(negated)
        case Either(rules) | Both(rules):
            for inner in rules:
                yield from columns_of(inner)
        case never:
            assert_never(never)


def begins(rule: Rule, columns: Mapping[str, NDArray[np.generic]], rows: int) -> Longs:
    """INT64_MIN: always; INT64_MAX: never. `columns`: as `times` and `flags` give them."""
    match rule:
        case After(column, us):
            found = np.asarray(columns[column], np.int64)
            never = (found == UNKNOWN) | (found >= INT64_MAX - us)
            return np.where(never, INT64_MAX, np.where(never, 0, found) + us)
        case Never():
            return np.where(columns["never"], INT64_MIN, INT64_MAX)
        case Known(column):
            return np.where(columns[column] == UNKNOWN, INT64_MAX, INT64_MIN)
        case Not(inner):
            return np.where(begins(inner, columns, rows) == INT64_MIN, INT64_MAX, INT64_MIN)
        case Either(rules):
            return reduce(np.minimum, (begins(inner, columns, rows) for inner in rules), np.full(rows, INT64_MAX))
        case Both(rules):
            return reduce(np.maximum, (begins(inner, columns, rows) for inner in rules), np.full(rows, INT64_MIN))
        case never_:
            assert_never(never_)


def times(column: pa.ChunkedArray, *, zero_is_unknown: bool) -> Longs:
    """Microseconds; unknown where there is none (CLK-4). Files of other writers may count in milliseconds, or as INT96 in nanoseconds:
    Iceberg reads both as microseconds, and taken as they stand the first would all be of 1970."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) and column.type.unit != "us":
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    found: Longs = column.cast(pa.int64()).fill_null(UNKNOWN).to_numpy()
    return np.where(found == 0, UNKNOWN, found) if zero_is_unknown else found


def flags(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = column.fill_null(False).to_numpy()
    return found
