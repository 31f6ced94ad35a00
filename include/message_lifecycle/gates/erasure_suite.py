"""What the erasure of a key is held to (DEL-2, DEL-7, CMP-8): exactly the named rows go, everywhere, and nothing else differs.

Frames: `rewritten`, one row per file that is written again; `tables`, one row per table, by a second search of what is staged;
`figures`, one row. A person is asked whatever the counts: the history ends before the undo window does.
"""

from __future__ import annotations

from message_lifecycle.gates.declared import (
    FIGURES,
    ColumnSum,
    Declared,
    Suite,
    asked,
    asks_counted,
    count,
    figure,
    rule,
    same_settings,
)
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy

_NONE_OF_TABLE = (
    ("found", "No file that any branch, tag or open undo reads holds the key.", "files with the key"),
    ("files_differ", "Beside the files that are written again none comes or goes.", "files that differ"),
    ("marks_differ", "Every row that was marked as removed still is, and no other.", "files with other marks"),
    ("refs_differ", "Every branch and tag is there, and one for each open undo.", "branches and tags that differ"),
    ("history", "No snapshot that names a file is left beside those of branches and tags.", "snapshots left"),
)


def erasure_suite(plan: Plan, policy: Policy) -> Suite:
    """The suite of `operations.erasure`; what was staged is told by its frames alone."""
    files, tables = len(plan.erased_rows), len(plan.erased_tables)
    removed = plan.expected.removed_rows
    return (
        same_settings(policy.hash, plan.requirements.policy_hash),
        rule("rewritten", "Exactly the planned files are written again.", "files", count("rewritten", files)),
        *(
            (
                rule(
                    "rewritten_rows",
                    "Exactly as many rows go as the plan names.",
                    "rows that go",
                    ColumnSum(frame="rewritten", column="rows", equals=sum(row.rows for row in plan.erased_rows)),
                ),
                _none("rewritten", "unnamed", "Every row that goes is named by the plan.", "rows not named"),
                _none("rewritten", "left", "Every row that the plan names goes.", "rows left"),
                _none("rewritten", "changed", "Every other row is as it was, in its order.", "files that differ"),
            )
            if files
            else ()
        ),
        rule("tables", "Every table of the plan was looked at.", "tables", count("tables", tables)),
        *((_none("tables", column, says, what) for column, says, what in _NONE_OF_TABLE) if tables else ()),
        rule("figures", "The figures are one row.", "rows of figures", count(FIGURES, 1)),
        rule("rows_in", "There are as many messages as when it was planned.", "messages before", figure("rows_in", plan.expected.rows_in)),
        rule(
            "rows_kept",
            "Every message that does not go is still there.",
            "messages kept",
            figure("rows_kept", plan.expected.rows_in - removed),
        ),
        asks_counted(plan),
        asked("time_travel", "Nothing is lost that could still be read back.", plan),
    )


def _none(frame: str, column: str, says: str, what: str) -> Declared:
    return rule(f"{frame}_{column}", says, what, ColumnSum(frame=frame, column=column, equals=0))
