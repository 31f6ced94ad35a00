"""Expectations as values: declared before anything is looked at, judged by whoever evaluates them (DEL-2).

Two judges evaluate the same values: `runner` by Great Expectations, `plain` over lists of rows. No test of a column holds where
there are no rows or where a value is unknown: a check that looked at nothing never passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Number = int | float
ShownAs = Literal["number", "instant"]


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

    A broken `rule` blocks; a broken `limit` asks a person (DEL-2)."""

    id: str
    says: str
    what: str
    kind: Literal["rule", "limit"]
    test: Test


Suite = tuple[Declared, ...]

FIGURES = "figures"


def rule(id: str, says: str, what: str, test: Test) -> Declared:
    return Declared(id=id, says=says, what=what, kind="rule", test=test)


def limit(id: str, says: str, what: str, test: Test) -> Declared:
    return Declared(id=id, says=says, what=what, kind="limit", test=test)


def count(frame: str, rows: int, *, named: str | None = None) -> RowCount:
    return RowCount(frame=frame, minimum=rows, maximum=rows, named=named)


def figure(column: str, equals: int) -> Within:
    return Within(frame=FIGURES, column=column, minimum=equals, maximum=equals)
