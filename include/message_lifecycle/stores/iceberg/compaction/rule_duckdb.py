"""Rules about messages, rendered as DuckDB's SQL over the columns of a Parquet file.

Files hold any int64 as a time, and DuckDB's times are narrower: INT64_MAX reads as `infinity` (never due, as it stands for the end of
time), -INT64_MAX as `-infinity`, and INT64_MIN, which stands for unknown, as what lies before even that.
"""

from __future__ import annotations

from typing import assert_never

from message_lifecycle.model.instants import INT64_MAX, Instant
from message_lifecycle.model.rules import After, Both, Either, Known, Never, Not, Rule, TimeColumn

_FIRST = -9_223_372_022_400_000_000
"""The earliest microsecond that DuckDB can name."""


def instant(us: int) -> str:
    return f"make_timestamptz({us})"


def due(column: str, as_of: int) -> str:
    """Condition: the time in the column is known and has come. A time that cannot be named is taken as not come: that keeps data."""
    bound = min(as_of, INT64_MAX - 1)
    if bound >= _FIRST:
        return f"({column} <= {instant(bound)})"
    return f"({column} <= '-infinity'::TIMESTAMPTZ)" if bound >= -INT64_MAX else "false"


def holds(rule: Rule, as_of: Instant) -> str:
    """Condition: the rule holds; false, never null, where a column is null."""
    match rule:
        case After(column, us):
            return f"({_known(column)} AND {due(column, min(as_of, INT64_MAX - 1) - us)})"
        case Never():
            return "coalesce(never, false)"
        case Known(column):
            return f"({_known(column)})"
        case Not(inner):
            return f"(NOT {holds(inner, as_of)})"
        case Either(rules):
            return "(" + " OR ".join(holds(inner, as_of) for inner in rules) + ")" if rules else "false"
        case Both(rules):
            return "(" + " AND ".join(holds(inner, as_of) for inner in rules) + ")" if rules else "true"
        case never:
            assert_never(never)


def _known(column: TimeColumn) -> str:
    known = f"{column} IS NOT NULL AND {column} >= '-infinity'::TIMESTAMPTZ"
    return f"{known} AND {column} <> {instant(0)}" if column == "append_time" else known
