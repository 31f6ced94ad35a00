"""Checks as values (DEL-2), and the checks that several operations share.

An operation declares its checks before anyone reads data. `runner` evaluates them with Great Expectations, `plain` over lists of rows. No
test of a column passes without rows or with an unknown value, so a check without data never passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy

Number = int | float
ShownAs = Literal["number", "instant", "share"]
Asks = Literal["rows", "known", "in_set", "sum", "min", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCount:
    """The frame has from `minimum` to `maximum` rows (None: no upper bound). `named`: the column with names of rows for a finding."""

    frame: str
    minimum: int
    maximum: int | None
    named: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSum:
    """The values are known whole numbers, and their sum is `equals`."""

    frame: str
    column: str
    equals: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """The values are known numbers from `minimum` to `maximum` (None: no bound on that side)."""

    frame: str
    column: str
    minimum: Number | None
    maximum: Number | None
    shown_as: ShownAs = "number"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllValuesEqual:
    """Every value is known and equals `value`."""

    frame: str
    column: str
    value: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Same:
    """Two texts are equal. The test needs no evidence."""

    found: str
    wanted: str


OfFrame = RowCount | ColumnSum | Within | AllValuesEqual
OfColumn = ColumnSum | Within | AllValuesEqual
Test = OfFrame | Same


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredCheck:
    """One expectation. A broken `rule` blocks, a broken `limit` asks a person (DEL-2).

    Args:
        says: The rule as a sentence.
        what: The name of the measured thing in a finding.
        text: The text that the person reads in place of numbers.
    """

    id: str
    says: str
    what: str
    kind: Literal["rule", "limit"]
    test: Test
    text: str = ""


Suite = tuple[DeclaredCheck, ...]

FIGURES = "figures"
_ASKS = "reasons for approval in the plan"


def rule(id: str, says: str, what: str, test: Test) -> DeclaredCheck:
    return DeclaredCheck(id=id, says=says, what=what, kind="rule", test=test)


def limit(id: str, says: str, what: str, test: Test) -> DeclaredCheck:
    return DeclaredCheck(id=id, says=says, what=what, kind="limit", test=test)


def asks_person(id: str, says: str, plan: Plan) -> DeclaredCheck:
    """Return the check that asks a person each question of the plan."""
    none = Within(frame=FIGURES, column="asks", minimum=None, maximum=0)
    return DeclaredCheck(id=id, says=says, what=_ASKS, kind="limit", test=none, text="; ".join(plan.asks))


def asks_rule(plan: Plan) -> DeclaredCheck:
    return rule("asks", "The plan's own reasons for approval are counted.", _ASKS, figure_equals("asks", len(plan.asks)))


def tightened_limit(plan: Plan) -> DeclaredCheck:
    return asks_person("tightened", "No setting is stricter than its last approved value.", plan)


def undo_limit(plan: Plan) -> DeclaredCheck:
    """Return the check that asks a person about an undo, whatever it restores."""
    return asks_person("undo", "An undo needs approval.", plan)


def row_count_equals(frame: str, rows: int, *, named: str | None = None) -> RowCount:
    return RowCount(frame=frame, minimum=rows, maximum=rows, named=named)


def column_sum_equals(frame: str, column: str, equals: int) -> ColumnSum:
    return ColumnSum(frame=frame, column=column, equals=equals)


def all_values_equal(frame: str, column: str, value: bool) -> AllValuesEqual:
    return AllValuesEqual(frame=frame, column=column, value=value)


def figure_equals(column: str, equals: int) -> Within:
    return Within(frame=FIGURES, column=column, minimum=equals, maximum=equals)


def row_count_rules(frame: str, rows: int, says: str, what: str, *of_each: DeclaredCheck) -> Suite:
    """Return a check of the number of rows, followed by `of_each` if rows are expected."""
    return (rule(frame, says, what, row_count_equals(frame, rows)), *(of_each if rows else ()))


def no_errors_rule(frame: str, column: str, says: str, what: str, *, id: str | None = None) -> DeclaredCheck:
    """Check that a column with counts of errors is 0 in each row."""
    return rule(id or f"{frame}_{column}", says, what, column_sum_equals(frame, column, 0))


def figures_row_rule() -> DeclaredCheck:
    return rule("figures", "The figures are one row.", "rows of figures", row_count_equals(FIGURES, 1))


def _rows_before(plan: Plan, what: str) -> DeclaredCheck:
    return rule(
        "rows_in", f"There are as many {what}s as when it was planned.", f"{what}s before", figure_equals("rows_in", plan.expected.rows_in)
    )


def rows_left(what: str, rows: int) -> DeclaredCheck:
    """Check the number of remaining rows. `what`: the name of one row, like change or message."""
    return rule("rows_kept", f"Every other {what} is still there.", f"{what}s kept", figure_equals("rows_kept", rows))


def removal_count_checks(plan: Plan, what: str, removed: int) -> Suite:
    return (figures_row_rule(), _rows_before(plan, what), rows_left(what, plan.expected.rows_in - removed), asks_rule(plan))


def return_count_checks(plan: Plan, what: str) -> Suite:
    back = plan.restored_rows
    return (
        figures_row_rule(),
        _rows_before(plan, what),
        rule("rows_restored", f"As many {what}s come back as planned.", f"{what}s", figure_equals("rows_restored", back)),
        rule("rows_kept", f"Every earlier {what} stays.", f"{what}s", figure_equals("rows_kept", plan.expected.rows_in + back)),
        asks_rule(plan),
    )


def nothing_else_differs() -> DeclaredCheck:
    """Check that no other file differs. Frame `difference`: one row per file."""
    return rule("difference", "Only the planned files differ.", "other files that differ", row_count_equals("difference", 0))


def same_settings(plan: Plan, policy: Policy) -> DeclaredCheck:
    says = "The settings are the settings of the plan."
    return rule("policy", says, "hash of the settings", Same(found=policy.hash, wanted=plan.requirements.policy_hash))


@dataclass(frozen=True, slots=True, kw_only=True)
class GxExpectation:
    """One expectation of Great Expectations. Checks of the same column share parts. None: no bound on that side."""

    asks: Asks
    column: str | None = None
    minimum: Number | None = None
    maximum: Number | None = None
    value: bool | None = None


def gx_expectations(test: Test) -> tuple[GxExpectation, ...]:
    """Return the parts of a check, at most one of each kind.

    Great Expectations ignores nulls and passes without rows. Separate parts therefore require rows and known values.
    """
    match test:
        case Same():
            return ()
        case RowCount():
            return (GxExpectation(asks="rows", minimum=test.minimum, maximum=test.maximum),)
        case AllValuesEqual():
            return (*_some_known(test), GxExpectation(asks="in_set", column=test.column, value=test.value))
        case ColumnSum():
            return (*_some_known(test), GxExpectation(asks="sum", column=test.column, minimum=test.equals, maximum=test.equals))
        case Within():
            # The check compares each end with both bounds, so that no NaN passes.
            low, high = test.minimum, test.maximum
            ends = [GxExpectation(asks=end, column=test.column, minimum=low, maximum=high) for end in ("min", "max")]
            return (*_some_known(test), *ends)
        case never:
            assert_never(never)


def _some_known(test: OfColumn) -> tuple[GxExpectation, GxExpectation]:
    return GxExpectation(asks="rows", minimum=1), GxExpectation(asks="known", column=test.column)


def holds_suite(plan: Plan) -> Suite:
    """Check by a second reading of the holds that no held message leaves (DEL-8). Frame `holds`: one row.

    A plan without holds has no such checks: a later hold makes it plan again, before the gate and before the publish.
    """
    if not plan.requirements.heeded:
        return ()
    return (
        rule("holds", "The legal holds of the topic were read.", "readings of holds", row_count_equals("holds", 1)),
        no_errors_rule("holds", "unheeded", "The plan respects every active legal hold.", "holds unknown to the plan", id="holds_heeded"),
        no_errors_rule(
            "holds",
            "touched",
            "Nothing under a legal hold is removed.",
            "removed messages, segments or documents under a hold",
            id="holds_untouched",
        ),
    )
