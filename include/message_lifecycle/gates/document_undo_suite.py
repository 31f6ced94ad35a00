"""What taking back a purge of documents is held to (DEL-7, SNP-7): exactly what it took is there again as it was, and nothing else differs.

Frames: `documents`, one row of totals over both tables; `figures`, one row. That the snapshots which come back are folds of the changes
was proved when they were made (SNP-6): they are the same, byte for byte.
"""

from __future__ import annotations

from message_lifecycle.gates.declared import (
    FIGURES,
    Declared,
    Suite,
    Within,
    asked,
    asks_counted,
    count,
    figure,
    rule,
    same_settings,
)
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy

_NONE_OF = (
    ("missing", "Every {} that the plan names is there again.", "{}s that are missing"),
    ("unnamed", "Every {} that comes back is named by the plan.", "{}s not named"),
    ("changed", "Every {} that comes back is what was taken, column by column.", "{}s that differ"),
    ("lost", "No {} goes.", "{}s that go"),
    ("twice", "No {} is there more than once.", "{}s that are there twice"),
)
"""Columns of `documents`, each of both tables: `changes_missing`, `snapshots_missing` and so on."""


def document_undo_suite(plan: Plan, policy: Policy) -> Suite:
    """An undo is always a person's word: the last check asks for it."""
    return (
        same_settings(policy.hash, plan.requirements.policy_hash),
        rule("documents", "The documents of the plan were looked at.", "rows of totals", count("documents", 1)),
        *_table("change", plan.restored_rows),
        *_table("snapshot", plan.restored_snapshots),
        _total("holes", "The changes of every document of the plan have no hole.", "documents with a hole", 0),
        _total("epochs_wrong", "No document has another epoch than before.", "documents with another epoch", 0),
        rule("figures", "The figures are one row.", "rows of figures", count(FIGURES, 1)),
        rule("rows_in", "There are as many changes as when it was planned.", "changes before", figure("rows_in", plan.expected.rows_in)),
        rule("rows_restored", "As many changes come back as planned.", "changes", figure("rows_restored", plan.restored_rows)),
        rule("rows_kept", "Every change that was there stays.", "changes", figure("rows_kept", plan.expected.rows_in + plan.restored_rows)),
        asks_counted(plan),
        asked("undo", "Nothing comes back without a person's word.", plan),
    )


def _table(what: str, rows: int) -> Suite:
    counted = _total(f"{what}s_back", f"Exactly the planned {what}s come back.", f"{what}s that come back", rows)
    return (counted, *(_total(f"{what}s_{column}", says.format(what), unit.format(what), 0) for column, says, unit in _NONE_OF))


def _total(column: str, says: str, what: str, equals: int) -> Declared:
    return rule(column, says, what, Within(frame="documents", column=column, minimum=equals, maximum=equals))
