"""The checks of changes to whole tables: erasure rewrites them, the deletion of a topic renames them, reclaim ends their history."""

from __future__ import annotations

from message_lifecycle.gates.suite import (
    FIGURES,
    Declared,
    Suite,
    Within,
    all_are,
    asked,
    asks_counted,
    comes_back,
    count,
    counted,
    figure,
    figures_of_going,
    figures_of_return,
    limit,
    none_in,
    nothing_else_differs,
    one_row_of_figures,
    rule,
    same_settings,
    tightened,
    total,
)
from message_lifecycle.model.instants import INT64_MAX, seconds
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.quarantine import files_before_their_age

_NONE_OF_TABLE = (
    ("found", "No file that any branch, tag or open undo reads holds the key.", "files with the key"),
    ("files_differ", "Beside the files that are written again none comes or goes.", "files that differ"),
    ("marks_differ", "Every row that was marked as removed still is, and no other.", "files with other marks"),
    ("refs_differ", "Every branch and tag is there, and one for each open undo.", "branches and tags that differ"),
    ("history", "No snapshot that names a file is left beside those of branches and tags.", "snapshots left"),
)


def erasure_suite(plan: Plan, policy: Policy) -> Suite:
    """Check that exactly the named rows of a key leave every table, and that no other row differs (DEL-2, DEL-7, CMP-8).

    A person must always approve, because the history ends before the undo window does.

    Frames:
        rewritten: One row per rewritten file.
        tables: One row per table, from a second search of the stage.
        figures: One row.
    """
    rows = total("rewritten", "rows", sum(rows.rows for _, rows in plan.erased))
    return (
        same_settings(plan, policy),
        *counted(
            "rewritten",
            sum(1 for _ in plan.erased),
            "Exactly the planned files are written again.",
            "files",
            rule("rewritten_rows", "Exactly as many rows go as the plan names.", "rows that go", rows),
            none_in("rewritten", "unnamed", "Every row that goes is named by the plan.", "rows not named"),
            none_in("rewritten", "left", "Every row that the plan names goes.", "rows left"),
            none_in("rewritten", "changed", "Every other row is as it was, in its order.", "files that differ"),
        ),
        *counted(
            "tables",
            len(plan.rewrites),
            "Every table of the plan was looked at.",
            "tables",
            *(none_in("tables", column, says, what) for column, says, what in _NONE_OF_TABLE),
        ),
        *figures_of_going(plan, "message", plan.expected.removed_rows),
        asked("time_travel", "Nothing is lost that could still be read back.", plan),
    )


def topic_suite(plan: Plan, policy: Policy) -> Suite:
    """Check that the deletion or the return of a topic moves exactly the plan's tables (DEL-2, DEL-3, DEL-7).

    A person must always approve.

    Frames:
        tables: One row per table that would move, with `same` (uuid, snapshot and kind as planned) and `rows`.
        taken: One row per table that occupies a place.
        figures: One row.
    """
    moves = plan.moved_tables
    same, rows = all_are("tables", "same", True), total("tables", "rows", sum(action.rows for action in moves))
    return (
        same_settings(plan, policy),
        *counted(
            "tables",
            len(moves),
            "Exactly the planned tables move.",
            "tables that move",
            rule("same", "Each of them is the table that was planned for, at its snapshot.", "tables that are others", same),
            rule("rows", "They hold as many rows as planned, by another reading.", "rows", rows),
        ),
        rule("taken", "No table has the place of one that moves.", "places that are taken", count("taken", 0)),
        one_row_of_figures(),
        rule("holds_none", "No legal hold stands on the topic.", "legal holds", figure("holds", len(plan.requirements.heeded))),
        asks_counted(plan),
        asked("topic", "No topic goes, or comes back, without a person's word.", plan),
    )


def reclaim_suite(plan: Plan, policy: Policy) -> Suite:
    """Check by a second reading that no remaining snapshot loses a file and that no file leaves too early (DEL-7).

    No messages leave, so the limit judges only the share of the bytes in the tables' folders.

    Frames:
        tables: One row per table that loses files or snapshots.
        needed, missing, young, pointed, progress, outside, fresh: The errors that were found, by name.
        figures: One row.
    """
    reachable, snapshots = all_are("tables", "reachable", True), sum(len(action.snapshots) for action in plan.forgets)
    return (
        same_settings(plan, policy),
        *counted(
            "tables",
            len(plan.forgets),
            "Every table that loses something was looked at." if plan.forgets else "No table loses anything.",
            "tables",
            rule("reachable", "Of every table something stays that can be read.", "tables without anything reachable", reachable),
        ),
        _none("needed", "No listed file is named by a snapshot, branch or tag that stays.", "listed files that are needed"),
        _none("missing", "Every file of every snapshot, branch and tag that stays is there.", "needed files that are not there"),
        _none("young", "No snapshot goes that was the newest within the undo window.", "snapshots too young to go"),
        _none("pointed", "No branch or tag that stays points at a snapshot that goes.", "branches and tags"),
        _none("progress", "The newest word of every writer, and all from its branch to it, stays.", "writers that lose their progress"),
        _none("outside", "Every listed file lies below its table's location, past no link.", "paths outside, or links"),
        _none("fresh", "No file that nothing names goes before it is old enough.", "files too young to go"),
        one_row_of_figures(),
        rule("snapshots", "As many snapshots go as planned.", "snapshots", figure("snapshots", snapshots)),
        *_no_more_than_planned(plan),
        limit(
            "much_bytes",
            "No more than the allowed share of the bytes in the tables' folders goes.",
            "share of bytes that goes",
            Within(frame=FIGURES, column="fraction_bytes", minimum=None, maximum=policy.max_removed_fraction, shown_as="share"),
        ),
        asked("tightened", "The undo window was not shortened since a removal was last accepted.", plan),
    )


def _none(frame: str, says: str, what: str) -> Declared:
    return rule(frame, says, what, count(frame, 0, named="name"))


def _no_more_than_planned(plan: Plan) -> Suite:
    most = {"files": sum(len(removal.files) for removal in plan.file_removals), "bytes": plan.expected.removed_bytes}
    return tuple(
        rule(
            column,
            f"No more {column} go than planned.",
            f"{column} that go",
            Within(frame=FIGURES, column=column, minimum=0, maximum=maximum),
        )
        for column, maximum in most.items()
    )


def deleted_reclaim_suite(plan: Plan, policy: Policy) -> Suite:
    """Check by a second reading that exactly the tables of a deleted topic and the files in their folders leave (DEL-7).

    A person must always approve.

    Frames:
        tables: One row per table that leaves, with `same` (it is the planned table).
        outside, unlisted, fresh: The errors that were found, by name.
        figures: One row.
    """
    same = all_are("tables", "same", True)
    return (
        same_settings(plan, policy),
        *counted(
            "tables",
            len(plan.dropped_tables),
            "Exactly the tables of the deleted topic go.",
            "tables that go",
            rule("same", "Each of them is the table that was planned for, as it was, at its location.", "tables that are others", same),
            rule("window", "The topic cannot be brought back any more, by the ledger's clock.", "topics that can", figure("undoable", 0)),
            rule("holds_none", "No legal hold stands on the topic.", "legal holds", figure("holds", 0)),
        ),
        _none(
            "outside", "All files of the tables lie below their locations, past no link, with no other table's.", "paths outside, or links"
        ),
        _none("unlisted", "Every file below the tables' locations is listed.", "files that would be left"),
        _none("fresh", "No file that nothing names goes before it is old enough.", "files too young to go"),
        one_row_of_figures(),
        *_no_more_than_planned(plan),
        asks_counted(plan),
        asked("topic", "No topic goes for good without a person's word.", plan),
    )


# The checks of removals from the quarantine (QUA-1, DEL-2), and of their undo (DEL-7).


def quarantine_suite(plan: Plan, policy: Policy) -> Suite:
    """Check that exactly the planned files leave, each of them past its age or replayed.

    Frames:
        going: One row per file that leaves, read again: `rows`, `newest_at` (the newest time of its rows), `planned`.
        difference: Other files that differ.
        replayed: One row per file that leaves before its age: `rows`, `planned`, `settled` (all its rows belong to one replayed batch).
        figures: One row.
    """
    early = files_before_their_age(plan, policy)
    removed, replayed = plan.expected.removed_rows, sum(file.rows for file in early)
    age = policy["quarantine_max_age"]
    assert isinstance(age, int), "the setting has a default"
    newest_allowed = min(plan.as_of, INT64_MAX - 1) - seconds(age)
    return (
        same_settings(plan, policy),
        *counted(
            "going",
            len(plan.selection.files) - len(early),
            "Exactly the planned files go.",
            "files that go",
            rule("going_rows", "Exactly the rows of the planned files go.", "rows that go", total("going", "rows", removed - replayed)),
            rule(
                "going_old",
                "Every row that goes has reached its age.",
                "newest time of what goes",
                Within(frame="going", column="newest_at", minimum=None, maximum=newest_allowed, shown_as="instant"),
            ),
            rule("going_planned", "Whatever goes is named by the plan.", "files not named", all_are("going", "planned", True)),
        ),
        *(_replayed_rows(len(early), replayed) if early else ()),
        nothing_else_differs(),
        *figures_of_going(plan, "row", removed),
        tightened(plan),
    )


def _replayed_rows(files: int, rows: int) -> Suite:
    return counted(
        "replayed",
        files,
        "Exactly the planned files go before their age.",
        "files that go before their age",
        rule("replayed_rows", "Exactly the rows of these files go.", "rows that go", total("replayed", "rows", rows)),
        rule("replayed_planned", "Each of these files is named by the plan.", "files not named", all_are("replayed", "planned", True)),
        rule("replayed_settled", "Every row of these files was replayed.", "files of other rows", all_are("replayed", "settled", True)),
    )


def quarantine_undo_suite(plan: Plan, policy: Policy) -> Suite:
    """Check that exactly the removed files return, byte for byte.

    Frames:
        back: One row per new file: `rows`, `same` (the bytes of the file that the plan names for it), `planned`.
        difference: Other files that differ.
        figures: One row.
    """
    rows = plan.restored_rows
    return (
        same_settings(plan, policy),
        rule("back", "As many files come back as planned.", "files that come back", count("back", len(plan.on_quarantine.files_back))),
        rule("back_rows", "Exactly the rows of the planned files come back.", "rows that come back", total("back", "rows", rows)),
        rule("back_planned", "Whatever comes back is named by the plan.", "files not named", all_are("back", "planned", True)),
        rule("back_same", "Every file comes back as it was.", "files that differ", all_are("back", "same", True)),
        rule("difference", "Beside what comes back nothing differs.", "other files that differ", count("difference", 0)),
        *figures_of_return(plan, "row"),
        comes_back(plan),
    )
