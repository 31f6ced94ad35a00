"""What taking a plan back is held to (DEL-7): exactly what it took is there again as it was, and nothing else differs.

Frames: `restored`, one row per file of which messages come back; `rows`, one per file that loses markers of the plan; `twice`, one per
message that would be there more than once; `markers_left`, one per marker of the plan that would stay; `view_returns`, where the plan took
messages from the compacted view, one row per partition of it; `difference`; `figures`, one row.
"""

from __future__ import annotations

from message_lifecycle.gates.documents import document_undo_suite
from message_lifecycle.gates.suite import (
    Suite,
    all_are,
    asks_counted,
    comes_back,
    count,
    counted,
    figure,
    none_in,
    nothing_else_differs,
    one_row_of_figures,
    rule,
    same_settings,
    total,
)
from message_lifecycle.gates.tables import quarantine_undo_suite, topic_suite
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy


def undo_suite(plan: Plan, staged: Staged, policy: Policy) -> Suite:
    """An undo is always a person's word: the last check asks for it. A topic that was deleted comes back as it went, whole, and of documents
    and of the quarantine every row."""
    if plan.moved("back"):
        return topic_suite(plan, policy)
    if plan.of_documents:
        return document_undo_suite(plan, policy)
    if plan.on_quarantine.files_back:
        return quarantine_undo_suite(plan, policy)
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
    if not plan.on_view.back:
        return ()
    partitions = len(plan.on_view.back)
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
