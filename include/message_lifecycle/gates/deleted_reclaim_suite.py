"""What the reclaim of a deleted topic is held to, by a second look (DEL-7): all of its tables, all that lies in their folders, nothing else.

Frames: `tables`, one row for each that goes, `same` where it is the one that was planned for; `outside`, `unlisted` and `fresh`, what is
wrong, by name; `figures`, one row.
"""

from __future__ import annotations

from message_lifecycle.gates.declared import (
    FIGURES,
    AllAre,
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


def deleted_reclaim_suite(plan: Plan, policy: Policy) -> Suite:
    """It is always a person's word: the last check asks for it."""
    drops, listed = plan.dropped_tables, sum(len(removal.files) for removal in plan.file_removals)
    of_tables = (
        rule(
            "same",
            "Each of them is the table that was planned for, as it was, at its location.",
            "tables that are others",
            AllAre(frame="tables", column="same", value=True),
        ),
        rule("window", "The topic cannot be brought back any more, by the ledger's clock.", "topics that can", figure("undoable", 0)),
        rule("holds_none", "No legal hold stands on the topic.", "legal holds", figure("holds", 0)),
    )
    return (
        same_settings(policy.hash, plan.requirements.policy_hash),
        rule("tables", "Exactly the tables of the deleted topic go.", "tables that go", count("tables", len(drops))),
        *(of_tables if drops else ()),
        _none(
            "outside", "All files of the tables lie below their locations, past no link, with no other table's.", "paths outside, or links"
        ),
        _none("unlisted", "Every file below the tables' locations is listed.", "files that would be left"),
        _none("fresh", "No file that nothing names goes before it is old enough.", "files too young to go"),
        rule("figures", "The figures are one row.", "rows of figures", count(FIGURES, 1)),
        rule("files", "No more files go than planned.", "files that go", Within(frame=FIGURES, column="files", minimum=0, maximum=listed)),
        rule(
            "bytes",
            "No more bytes go than planned.",
            "bytes that go",
            Within(frame=FIGURES, column="bytes", minimum=0, maximum=plan.expected.removed_bytes),
        ),
        asks_counted(plan),
        asked("topic", "No topic goes for good without a person's word.", plan),
    )


def _none(frame: str, says: str, what: str) -> Declared:
    return rule(frame, says, what, count(frame, 0, named="name"))
