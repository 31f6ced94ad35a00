"""The checks of staged snapshots and purges of documents, which need proof instead of counts, and of their undo."""

from __future__ import annotations

from dataclasses import replace

from message_lifecycle.gates.plain import NAMED
from message_lifecycle.gates.suite import (
    DeclaredCheck,
    Same,
    Suite,
    Within,
    all_values_equal,
    asks_rule,
    column_sum_equals,
    figure_equals,
    figures_row_rule,
    no_errors_rule,
    nothing_else_differs,
    removal_count_checks,
    return_count_checks,
    row_count_equals,
    row_count_rules,
    rule,
    same_settings,
    tightened_limit,
    undo_limit,
)
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.phrases import amount, short
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy

_NONE_OF = (
    ("unnamed", "Exactly the planned changes are removed, and none is added.", "changes not named"),
    ("holes", "The kept changes of every document have no hole.", "documents with a hole"),
    ("ahead", "No snapshot is past its document.", "snapshots past their document"),
    ("epochs_wrong", "Exactly the documents that lose changes get the next epoch.", "documents with a wrong epoch"),
    ("uncovered", "The newest snapshot covers every removed change.", "documents that lose an uncovered change"),
    ("snapshots_unnamed", "Only the planned snapshots differ.", "snapshots not named"),
)
_NONE_OF_BOTH = (
    ("missing", "Every {} that the plan names is back.", "{}s that are missing"),
    ("unnamed", "The plan names every {} that comes back.", "{}s not named"),
    ("changed", "Every {} that comes back equals the removed one, column by column.", "{}s that differ"),
    ("lost", "No {} is removed.", "{}s removed"),
    ("twice", "No {} exists more than once.", "duplicate {}s"),
)
"""Columns of `documents` that exist for both tables: `changes_missing`, `snapshots_missing` and so on."""


def documents_suite(plan: Plan, staged: Staged, policy: Policy) -> Suite:
    """Return the checks of snapshots and purges (SNP-4, SNP-6 to SNP-9, CNT-1, DEL-2).

    Frames:
        documents: One row of totals over the plan's documents, without those whose fold failed.
        unproved: One row per document without a proof.
        clients: One row about the clients that the ledger knows now.
        figures: One row.
    """
    actions = staged.documents_of(plan)
    unfolded = set() if actions else {action.document for action in plan.snapshots_commit.documents}
    purged = sum(rows for _, rows in staged.removed(plan))
    return (
        same_settings(plan, policy),
        rule(
            "foldable",
            "The changes of some document of the plan can be folded.",
            "documents",
            Same(found=_folds(unfolded), wanted=_folds(set())),
        ),
        rule("documents", "The documents of the plan were checked.", "rows of totals", row_count_equals("documents", 1)),
        _total("planned", "Every document of the plan that can be folded was checked.", "documents", len(actions)),
        _total(
            "snapshots_made",
            "Exactly the planned snapshots are made.",
            "snapshots made",
            sum(action.snapshot is not None for action in actions),
        ),
        _total(
            "snapshots_dropped",
            "Exactly the planned snapshots are removed.",
            "snapshots removed",
            sum(len(action.dropped) for action in actions),
        ),
        _total("purged", "As many changes are removed as planned.", "changes removed", purged),
        *(_total(column, says, what, 0) for column, says, what in _NONE_OF),
        rule(
            "unproved",
            "Folding gives the newest snapshot of every document, and its present state from the kept changes.",
            "documents without a proof",
            row_count_equals("unproved", 0, named="document"),
        ),
        rule("clients", "The ledger reported the progress of clients.", "rows of totals", row_count_equals("clients", 1)),
        rule(
            "unsynced",
            "No change is removed that a client may still need.",
            "documents with a client that is behind, or without a client",
            Within(frame="clients", column="unsynced", minimum=0, maximum=0),
        ),
        *removal_count_checks(plan, "change", purged),
        _with_place_of_questions(tightened_limit(plan), plan),
    )


def _total(column: str, says: str, what: str, equals: int) -> DeclaredCheck:
    return rule(column, says, what, Within(frame="documents", column=column, minimum=equals, maximum=equals))


def _folds(unfolded: set[str]) -> str:
    return f"not foldable: {', '.join(sorted(unfolded)[:NAMED])}" if unfolded else "foldable"


def document_undo_suite(plan: Plan, policy: Policy) -> Suite:
    """Check that exactly the purged rows return unchanged, and that no other row differs (DEL-7, SNP-7).

    The returning snapshots equal the old ones byte for byte. Their creation proved them (SNP-6).

    Frames:
        documents: One row of totals over both tables.
        figures: One row.
    """
    return (
        same_settings(plan, policy),
        rule("documents", "The documents of the plan were checked.", "rows of totals", row_count_equals("documents", 1)),
        *_returned_rows_checks("change", plan.restored_rows),
        *_returned_rows_checks("snapshot", plan.restored_snapshots),
        _total("holes", "The changes of every document of the plan have no hole.", "documents with a hole", 0),
        _total("epochs_wrong", "Every document keeps its epoch.", "documents with another epoch", 0),
        *return_count_checks(plan, "change"),
        _with_place_of_questions(undo_limit(plan), plan),
    )


def _with_place_of_questions(asked: DeclaredCheck, plan: Plan) -> DeclaredCheck:
    """Return the check with the place of the plan's questions instead of their text, which may name a document."""
    return replace(asked, text=f"{amount(len(plan.asks), 'reasons')} in the plan: `lifecycle ledger show {short(plan.plan_id)}`")


def _returned_rows_checks(what: str, rows: int) -> Suite:
    counted = _total(f"{what}s_back", f"Exactly the planned {what}s come back.", f"{what}s that come back", rows)
    return (counted, *(_total(f"{what}s_{column}", says.format(what), unit.format(what), 0) for column, says, unit in _NONE_OF_BOTH))


# The checks of an undo (DEL-7): exactly the removed rows return unchanged, and no other row differs.
#
# Frames:
#   restored      one row per file with returning messages
#   rows          one row per file that loses markers of the plan
#   twice         one row per message that would exist more than once
#   markers_left  one row per marker of the plan that would stay
#   view_returns  one row per partition of the view with returning messages
#   difference    other files that differ
#   figures       one row


def undo_suite(plan: Plan, staged: Staged, policy: Policy) -> Suite:
    """Return the checks of an undo of messages. A person must always approve."""
    removed = sum(rows for _, rows in staged.removed(plan))
    markers, same = sum(action.rows for action in plan.log_return.mark), all_values_equal("restored", "same", True)
    return (
        same_settings(plan, policy),
        *row_count_rules(
            "restored",
            len(plan.log_return.back),
            "Messages come back out of exactly the planned files.",
            "files that give back",
            rule(
                "restored_rows",
                "Exactly as many messages come back as the plan names.",
                "messages that come back",
                column_sum_equals("restored", "rows", plan.restored_rows),
            ),
            no_errors_rule("restored", "missing", "Every message that the plan names is back.", "messages that are missing"),
            no_errors_rule("restored", "unnamed", "The plan names every message that comes back.", "messages not named"),
            rule(
                "restored_same", "The messages that come back equal the removed ones, byte for byte.", "files whose content differs", same
            ),
        ),
        rule("twice", "No message exists more than once.", "duplicate messages", row_count_equals("twice", 0)),
        *row_count_rules(
            "rows",
            len({action.file for action in plan.log_return.mark}),
            "Markers are removed from exactly the planned files.",
            "files that lose markers",
            rule("rows_rows", "Exactly the planned markers are removed.", "markers removed", column_sum_equals("rows", "rows", markers)),
            no_errors_rule("rows", "unnamed", "Only the planned markers are removed.", "messages not named", id="rows_named"),
        ),
        *_view(plan),
        rule("markers_left", "No marker of a message that comes back stays.", "markers that stay", row_count_equals("markers_left", 0)),
        nothing_else_differs(),
        figures_row_rule(),
        rule(
            "rows_in",
            "The log has as many messages as when it was planned.",
            "messages before",
            figure_equals("rows_in", plan.expected.rows_in),
        ),
        rule(
            "rows_restored",
            "As many messages come back as planned.",
            "messages that come back",
            figure_equals("rows_restored", plan.restored_rows),
        ),
        rule("rows_removed", "As many markers are removed as planned.", "messages removed", figure_equals("rows_removed", removed)),
        rule(
            "rows_kept",
            "Every earlier message stays, except for the markers.",
            "messages then",
            figure_equals("rows_kept", plan.expected.rows_in - removed + plan.restored_rows),
        ),
        asks_rule(plan),
        undo_limit(plan),
    )


_VIEW = (
    ("missing", "Every message that the plan names is in the view again.", "messages that are missing"),
    ("unnamed", "The plan names every message that comes into the view.", "messages not named"),
    ("changed", "The messages that come into the view equal the removed ones, column by column.", "messages that differ"),
    ("lost", "The view loses nothing.", "messages removed from the view"),
    ("repeated_keys", "No key that comes into the view exists twice.", "second messages of a key"),
)


def _view(plan: Plan) -> Suite:
    if not plan.view_return.back:
        return ()
    partitions = len(plan.view_return.back)
    return (
        rule(
            "view_returns",
            "The view of exactly the planned partitions differs.",
            "partitions",
            row_count_equals("view_returns", partitions),
        ),
        rule(
            "view_returns_rows",
            "Exactly as many messages come into the view as the plan names.",
            "messages that come into the view",
            column_sum_equals("view_returns", "rows", plan.restored_view_rows),
        ),
        *(no_errors_rule("view_returns", *check) for check in _VIEW),
    )
