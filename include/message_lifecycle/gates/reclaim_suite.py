"""What a reclaim is held to, by a second look (DEL-7): nothing that stays loses a file, and nothing goes before its time.

Frames: `tables`, one row for each that loses something; `needed`, `missing`, `young`, `pointed`, `progress`, `outside` and `fresh`, what is
wrong, by name; `figures`, one row. No messages go, so no share of them is judged but that of the bytes that lie in the tables' folders.
"""

from __future__ import annotations

from message_lifecycle.gates.declared import (
    FIGURES,
    AllAre,
    Declared,
    RowCount,
    Suite,
    Within,
    asked,
    count,
    figure,
    limit,
    rule,
    same_settings,
)
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy


def reclaim_suite(plan: Plan, policy: Policy) -> Suite:
    listed = sum(len(removal.files) for removal in plan.file_removals)
    reachable = (
        rule("tables", "Every table that loses something was looked at.", "tables", count("tables", len(plan.expiries))),
        rule(
            "reachable",
            "Of every table something stays that can be read.",
            "tables without anything reachable",
            AllAre(frame="tables", column="reachable", value=True),
        ),
    )
    return (
        same_settings(policy.hash, plan.requirements.policy_hash),
        *(reachable if plan.expiries else (rule("tables", "No table loses anything.", "tables", count("tables", 0)),)),
        _none("needed", "No listed file is named by a snapshot, branch or tag that stays.", "listed files that are needed"),
        _none("missing", "Every file of every snapshot, branch and tag that stays is there.", "needed files that are not there"),
        _none("young", "No snapshot goes that was the newest within the undo window.", "snapshots too young to go"),
        _none("pointed", "No branch or tag that stays points at a snapshot that goes.", "branches and tags"),
        _none("progress", "The newest word of every writer, and all from its branch to it, stays.", "writers that lose their progress"),
        _none("outside", "Every listed file lies below its table's location, past no link.", "paths outside, or links"),
        _none("fresh", "No file that nothing names goes before it is old enough.", "files too young to go"),
        rule("figures", "The figures are one row.", "rows of figures", RowCount(frame=FIGURES, minimum=1, maximum=1)),
        rule(
            "snapshots",
            "As many snapshots go as planned.",
            "snapshots",
            figure("snapshots", sum(len(action.snapshots) for action in plan.expiries)),
        ),
        rule("files", "No more files go than planned.", "files that go", Within(frame=FIGURES, column="files", minimum=0, maximum=listed)),
        rule(
            "bytes",
            "No more bytes go than planned.",
            "bytes that go",
            Within(frame=FIGURES, column="bytes", minimum=0, maximum=plan.expected.removed_bytes),
        ),
        limit(
            "much_bytes",
            "No more than the allowed share of the bytes in the tables' folders goes.",
            "share of bytes that goes",
            Within(frame=FIGURES, column="fraction_bytes", minimum=None, maximum=policy.max_removed_fraction),
        ),
        asked("tightened", "The undo window was not shortened since a removal was last accepted.", plan),
    )


def _none(frame: str, says: str, what: str) -> Declared:
    return rule(frame, says, what, count(frame, 0, named="name"))
