"""The checks of changes to whole tables: erasure rewrites them, the deletion of a topic renames them, reclaim ends their history."""

from __future__ import annotations

from message_lifecycle.gates.suite import (
    FIGURES,
    DeclaredCheck,
    Suite,
    Within,
    all_values_equal,
    asks_person,
    asks_rule,
    column_sum_equals,
    figure_equals,
    figures_row_rule,
    limit,
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
from message_lifecycle.model.instants import INT64_MAX, seconds
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.quarantine import files_before_their_age

_NONE_OF_TABLE = (
    ("found", "No file of a branch, tag or open undo holds a requested key.", "files with a requested key"),
    ("files_differ", "Only the rewritten files change.", "files that differ"),
    ("marks_differ", "Exactly the rows that were marked as removed are marked.", "files with other marks"),
    ("refs_differ", "Every branch and tag exists, and one for each open undo.", "branches and tags that differ"),
    ("history", "Only the snapshots of branches and tags name files.", "snapshots left"),
)


def erasure_suite(plan: Plan, policy: Policy) -> Suite:
    """Check that exactly the named rows of a key leave every table, and that no other row differs (DEL-2, DEL-7, CMP-8).

    A person must always approve, because the history ends before the undo window does.

    Frames:
        rewritten: One row per rewritten file.
        tables: One row per table, from a second search of the stage.
        figures: One row.
    """
    rows = column_sum_equals("rewritten", "rows", sum(rows.rows for _, rows in plan.erased))
    return (
        same_settings(plan, policy),
        *row_count_rules(
            "rewritten",
            sum(1 for _ in plan.erased),
            "Exactly the planned files are rewritten.",
            "files",
            rule("rewritten_rows", "Exactly as many rows are removed as the plan names.", "rows removed", rows),
            no_errors_rule("rewritten", "unnamed", "The plan names every removed row.", "rows not named"),
            no_errors_rule("rewritten", "left", "Every row that the plan names is removed.", "rows left"),
            no_errors_rule("rewritten", "changed", "Every other row is unchanged, in its order.", "files that differ"),
        ),
        *row_count_rules(
            "tables",
            len(plan.rewrites),
            "Every table of the plan was checked.",
            "tables",
            *(no_errors_rule("tables", column, says, what) for column, says, what in _NONE_OF_TABLE),
        ),
        *removal_count_checks(plan, "message", plan.expected.removed_rows),
        asks_person("time_travel", "No readable history is lost.", plan),
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
    same, rows = all_values_equal("tables", "same", True), column_sum_equals("tables", "rows", sum(action.rows for action in moves))
    return (
        same_settings(plan, policy),
        *row_count_rules(
            "tables",
            len(moves),
            "Exactly the planned tables move.",
            "tables that move",
            rule("same", "Each table is the planned table, at its snapshot.", "other tables", same),
            rule("rows", "The tables have as many rows as planned, by a second reading.", "rows", rows),
        ),
        rule("taken", "No table exists at the target of a move.", "occupied places", row_count_equals("taken", 0)),
        figures_row_rule(),
        rule("holds_none", "The topic has no legal hold.", "legal holds", figure_equals("holds", len(plan.requirements.heeded))),
        asks_rule(plan),
        asks_person("topic", "Deleting or bringing back a topic needs approval.", plan),
    )


def reclaim_suite(plan: Plan, policy: Policy) -> Suite:
    """Check by a second reading that no remaining snapshot loses a file and that no file leaves too early (DEL-7).

    No messages leave, so the limit judges only the share of the bytes in the tables' folders.

    Frames:
        tables: One row per table that loses files or snapshots.
        needed, missing, young, pointed, progress, outside, fresh: The errors that were found, by name.
        figures: One row.
    """
    reachable, snapshots = all_values_equal("tables", "reachable", True), sum(len(action.snapshots) for action in plan.forgets)
    return (
        same_settings(plan, policy),
        *row_count_rules(
            "tables",
            len(plan.forgets),
            "Every table that loses something was checked." if plan.forgets else "No table loses anything.",
            "tables",
            rule("reachable", "Every table keeps something readable.", "tables without anything reachable", reachable),
        ),
        _no_rows_rule("needed", "No kept snapshot, branch or tag names a listed file.", "listed files still needed"),
        _no_rows_rule("missing", "Every file of every kept snapshot, branch and tag exists.", "needed files that are missing"),
        _no_rows_rule("young", "No snapshot is removed that was the newest within the undo window.", "snapshots too young to remove"),
        _no_rows_rule("pointed", "No kept branch or tag points at a removed snapshot.", "branches and tags"),
        _no_rows_rule("progress", "The newest progress of every writer is kept, with its history.", "writers that lose their progress"),
        _no_rows_rule("outside", "Every listed file is below its table's location, without a link.", "paths outside, or links"),
        _no_rows_rule("fresh", "No unnamed file is removed before it is old enough.", "files too young to remove"),
        figures_row_rule(),
        rule("snapshots", "As many snapshots are removed as planned.", "snapshots", figure_equals("snapshots", snapshots)),
        *_no_more_than_planned(plan),
        limit(
            "much_bytes",
            "The removed share of the bytes in the tables' folders is within the limit.",
            "removed share of bytes",
            Within(frame=FIGURES, column="fraction_bytes", minimum=None, maximum=policy.max_removed_fraction, shown_as="share"),
        ),
        asks_person("tightened", "The undo window is not shorter than its last approved value.", plan),
    )


def _no_rows_rule(frame: str, says: str, what: str) -> DeclaredCheck:
    return rule(frame, says, what, row_count_equals(frame, 0, named="name"))


def _no_more_than_planned(plan: Plan) -> Suite:
    most = {"files": sum(len(removal.files) for removal in plan.file_removals), "bytes": plan.expected.removed_bytes}
    return tuple(
        rule(
            column,
            f"No more {column} are removed than planned.",
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
    same = all_values_equal("tables", "same", True)
    return (
        same_settings(plan, policy),
        *row_count_rules(
            "tables",
            len(plan.dropped_tables),
            "Exactly the tables of the deleted topic are removed.",
            "tables removed",
            rule("same", "Each table is the planned table, unchanged, at its location.", "other tables", same),
            rule("window", "The undo of the topic has ended, by the ledger's clock.", "topics with an undo", figure_equals("undoable", 0)),
            rule("holds_none", "The topic has no legal hold.", "legal holds", figure_equals("holds", 0)),
        ),
        _no_rows_rule(
            "outside",
            "All files of the tables are below their locations, without a link, apart from other tables.",
            "paths outside, or links",
        ),
        _no_rows_rule("unlisted", "Every file below the tables' locations is listed.", "files left over"),
        _no_rows_rule("fresh", "No unnamed file is removed before it is old enough.", "files too young to remove"),
        figures_row_rule(),
        *_no_more_than_planned(plan),
        asks_rule(plan),
        asks_person("topic", "Removing a topic for good needs approval.", plan),
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
        *row_count_rules(
            "going",
            len(plan.selection.files) - len(early),
            "Exactly the planned files are removed.",
            "files removed",
            rule(
                "going_rows",
                "Exactly the rows of the planned files are removed.",
                "rows removed",
                column_sum_equals("going", "rows", removed - replayed),
            ),
            rule(
                "going_old",
                "Every removed row has reached its age.",
                "newest removed time",
                Within(frame="going", column="newest_at", minimum=None, maximum=newest_allowed, shown_as="instant"),
            ),
            rule("going_planned", "The plan names every removed file.", "files not named", all_values_equal("going", "planned", True)),
        ),
        *(_replayed_rows(len(early), replayed) if early else ()),
        nothing_else_differs(),
        *removal_count_checks(plan, "row", removed),
        tightened_limit(plan),
    )


def _replayed_rows(files: int, rows: int) -> Suite:
    return row_count_rules(
        "replayed",
        files,
        "Exactly the planned files are removed before their age.",
        "files removed before their age",
        rule("replayed_rows", "Exactly the rows of these files are removed.", "rows removed", column_sum_equals("replayed", "rows", rows)),
        rule("replayed_planned", "The plan names each of these files.", "files not named", all_values_equal("replayed", "planned", True)),
        rule(
            "replayed_settled",
            "Every row of these files was replayed.",
            "files of other rows",
            all_values_equal("replayed", "settled", True),
        ),
    )


def quarantine_undo_suite(plan: Plan, policy: Policy) -> Suite:
    """Check that exactly the removed files return, byte for byte.

    Frames:
        back: One row per new file: `rows`, `same` (the bytes of the file that the plan names for it), `planned`.
        difference: Other files that differ.
        figures: One row.
    """
    return (
        same_settings(plan, policy),
        *row_count_rules(
            "back",
            len(plan.quarantine_return.files),
            "As many files come back as planned.",
            "files that come back",
            rule(
                "back_rows",
                "Exactly the rows of the planned files come back.",
                "rows that come back",
                column_sum_equals("back", "rows", plan.restored_rows),
            ),
            rule(
                "back_planned", "The plan names every file that comes back.", "files not named", all_values_equal("back", "planned", True)
            ),
            rule("back_same", "Every file comes back unchanged.", "files that differ", all_values_equal("back", "same", True)),
        ),
        rule("difference", "Only the files that come back differ.", "other files that differ", row_count_equals("difference", 0)),
        *return_count_checks(plan, "row"),
        undo_limit(plan),
    )
