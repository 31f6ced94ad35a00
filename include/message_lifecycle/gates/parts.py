"""What is asked of Great Expectations for each declared check. Nothing of it is imported here: that takes seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

from message_lifecycle.gates.declared import AllAre, ColumnSum, Number, OfColumn, RowCount, Same, Test, Within

Asks = Literal["rows", "known", "in_set", "sum", "min", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One expectation of Great Expectations; checks of the same column share parts. None: no bound on that side."""

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
