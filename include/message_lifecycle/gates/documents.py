"""The checks of staged snapshots and purges of documents, which need proof instead of counts, and of their undo."""

from __future__ import annotations

from dataclasses import replace

from message_lifecycle.gates.plain import NAMED
from message_lifecycle.gates.suite import (
    Declared,
    Same,
    Suite,
    Within,
    all_are,
    asks_counted,
    comes_back,
    count,
    counted,
    figure,
    figures_of_going,
    figures_of_return,
    none_in,
    nothing_else_differs,
    one_row_of_figures,
    rule,
    same_settings,
    tightened,
    total,
)
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy

_NONE_OF = (
    ("unnamed", "Changes go that the plan names, and none comes.", "changes not named"),
    ("holes", "What is left of every document's changes has no hole.", "documents with a hole"),
    ("ahead", "No snapshot is past its document.", "snapshots past their document"),
    ("epochs_wrong", "The epoch of every document that loses changes is raised by one, and no other.", "documents with a wrong epoch"),
    ("uncovered", "No change goes that the newest snapshot does not cover.", "documents that lose an uncovered change"),
    ("snapshots_unnamed", "Beside what the plan names no snapshot differs.", "snapshots not named"),
)
_NONE_OF_BOTH = (
    ("missing", "Every {} that the plan names is there again.", "{}s that are missing"),
    ("unnamed", "Every {} that comes back is named by the plan.", "{}s not named"),
    ("changed", "Every {} that comes back is what was taken, column by column.", "{}s that differ"),
    ("lost", "No {} goes.", "{}s that go"),
    ("twice", "No {} is there more than once.", "{}s that are there twice"),
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
    unfolded = set() if actions else {action.document for action in plan.on_snapshots.documents}
    purged = sum(rows for _, rows in staged.removed(plan))
    return (
        same_settings(plan, policy),
        rule(
            "foldable",
            "The changes of some document of the plan can be folded.",
            "documents",
            Same(found=_folds(unfolded), wanted=_folds(set())),
        ),
        rule("documents", "The documents of the plan were looked at.", "rows of totals", count("documents", 1)),
        _total("planned", "Every document of the plan was looked at that could be folded.", "documents", len(actions)),
        _total(
            "snapshots_made",
            "Exactly the planned snapshots are made.",
            "snapshots made",
            sum(action.snapshot is not None for action in actions),
        ),
        _total(
            "snapshots_dropped",
            "Exactly the planned snapshots go.",
            "snapshots that go",
            sum(len(action.dropped) for action in actions),
        ),
        _total("purged", "As many changes go as planned.", "changes that go", purged),
        *(_total(column, says, what, 0) for column, says, what in _NONE_OF),
        rule(
            "unproved",
            "Folding gives the newest snapshot of every document, and from it, with what is left, the state it has.",
            "documents without a proof",
            count("unproved", 0, named="document"),
        ),
        rule("clients", "The ledger was asked how far clients are.", "rows of totals", count("clients", 1)),
        rule(
            "unsynced",
            "No change goes that a client may still need.",
            "documents that a client is behind on, or that no client has",
            Within(frame="clients", column="unsynced", minimum=0, maximum=0),
        ),
        *figures_of_going(plan, "change", purged),
        _where(tightened(plan), plan),
    )


def _total(column: str, says: str, what: str, equals: int) -> Declared:
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
        rule("documents", "The documents of the plan were looked at.", "rows of totals", count("documents", 1)),
        *_of_table("change", plan.restored_rows),
        *_of_table("snapshot", plan.restored_snapshots),
        _total("holes", "The changes of every document of the plan have no hole.", "documents with a hole", 0),
        _total("epochs_wrong", "No document has another epoch than before.", "documents with another epoch", 0),
        *figures_of_return(plan, "change"),
        _where(comes_back(plan), plan),
    )


def _where(asked: Declared, plan: Plan) -> Declared:
    """Return the check with the place of the plan's questions instead of their text, which may name a document."""
    return replace(asked, told=f"{len(plan.asks)} question(s) of the plan, in words: `lifecycle ledger show {plan.plan_id}`")


def _of_table(what: str, rows: int) -> Suite:
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
    markers, same = sum(action.rows for action in plan.on_log.mark), all_are("restored", "same", True)
    return (
        same_settings(plan, policy),
        *counted(
            "restored",
            len(plan.on_log.back),
            "Messages come back out of exactly the planned files.",
            "files that give back",
            rule(
                "restored_rows",
                "Exactly as many messages come back as the plan names.",
                "messages that come back",
                total("restored", "rows", plan.restored_rows),
            ),
            none_in("restored", "missing", "Every message that the plan names is there again.", "messages that are missing"),
            none_in("restored", "unnamed", "Every message that comes back is named by the plan.", "messages not named"),
            rule("restored_same", "What comes back is what was taken, byte for byte.", "files whose content differs", same),
        ),
        rule("twice", "No message is there more than once.", "messages that are there twice", count("twice", 0)),
        *counted(
            "rows",
            len({action.file for action in plan.on_log.mark}),
            "Markers go from exactly the planned files.",
            "files that lose markers",
            rule("rows_rows", "Exactly the markers go that the plan names.", "markers that go", total("rows", "rows", markers)),
            none_in("rows", "unnamed", "Nothing goes but the markers that the plan names.", "messages not named", id="rows_named"),
        ),
        *_view(plan),
        rule("markers_left", "No marker of what comes back stays.", "markers that stay", count("markers_left", 0)),
        nothing_else_differs(),
        one_row_of_figures(),
        rule(
            "rows_in", "The log has as many messages as when it was planned.", "messages before", figure("rows_in", plan.expected.rows_in)
        ),
        rule(
            "rows_restored",
            "As many messages come back as planned.",
            "messages that come back",
            figure("rows_restored", plan.restored_rows),
        ),
        rule("rows_removed", "As many markers go as planned.", "messages removed", figure("rows_removed", removed)),
        rule(
            "rows_kept",
            "Every message that was there stays, but for the markers.",
            "messages then",
            figure("rows_kept", plan.expected.rows_in - removed + plan.restored_rows),
        ),
        asks_counted(plan),
        comes_back(plan),
    )


_VIEW = (
    ("missing", "Every message that the plan names is in the view again.", "messages that are missing"),
    ("unnamed", "Every message that comes into the view is named by the plan.", "messages not named"),
    ("changed", "What comes into the view is what was taken from it, column by column.", "messages that differ"),
    ("lost", "The view loses nothing.", "messages that go from the view"),
    ("repeated_keys", "No key of what comes into the view is there twice.", "messages beside another of their key"),
)


def _view(plan: Plan) -> Suite:
    if not plan.to_view.back:
        return ()
    partitions = len(plan.to_view.back)
    return (
        rule("view_returns", "The view of exactly the planned partitions differs.", "partitions", count("view_returns", partitions)),
        rule(
            "view_returns_rows",
            "Exactly as many messages come into the view as the plan names.",
            "messages that come into the view",
            total("view_returns", "rows", plan.restored_view_rows),
        ),
        *(none_in("view_returns", *check) for check in _VIEW),
    )
