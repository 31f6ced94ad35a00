"""Expectations as values: declared before anything is looked at, judged by whoever evaluates them (DEL-2).

Two judges evaluate the same values: `runner` by Great Expectations, `plain` over lists of rows. No test of a column holds where
there are no rows or where a value is unknown: a check that looked at nothing never passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from message_lifecycle.model.plan import Plan

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


def count(frame: str, rows: int, *, named: str | None = None) -> RowCount:
    return RowCount(frame=frame, minimum=rows, maximum=rows, named=named)


def figure(column: str, equals: int) -> Within:
    return Within(frame=FIGURES, column=column, minimum=equals, maximum=equals)


def same_settings(found: str, wanted: str) -> Declared:
    """Both hashes of a policy: what is judged by, and what the plan was made with."""
    says = "The settings judged by are those the plan was made with."
    return rule("policy", says, "hash of the settings", Same(found=found, wanted=wanted))
