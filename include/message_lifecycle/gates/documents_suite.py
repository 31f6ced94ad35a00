"""What staged snapshots and purges of documents are held to (SNP-4, SNP-6 to SNP-9, CNT-1, DEL-2): by proof, not by how much goes.

Frames: `documents`, one row of totals over the plan's documents, but those whose fold failed; `unproved`, one row per document that
could not be proved; `clients`, one row of what the ledger says now; `figures`, one row.
"""

from __future__ import annotations

from message_lifecycle.gates.declared import (
    FIGURES,
    Declared,
    Same,
    Suite,
    Within,
    asked,
    asks_counted,
    count,
    figure,
    rule,
    same_settings,
)
from message_lifecycle.gates.report import NAMED
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


def documents_suite(plan: Plan, staged: Staged, policy: Policy) -> Suite:
    """The suite of `operations.snapshot_with_purge`."""
    blocked = {document for document, _ in staged.documents.blocked} if staged.documents is not None else set()
    actions = [action for action in plan.documents if action.document not in blocked]
    purged = sum(rows for _, rows in staged.removed(plan))
    return (
        same_settings(policy.hash, plan.requirements.policy_hash),
        rule(
            "foldable",
            "The changes of some document of the plan can be folded.",
            "documents",
            Same(found=_folds(blocked if plan.documents and not actions else set()), wanted=_folds(set())),
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
        rule("figures", "The figures are one row.", "rows of figures", count(FIGURES, 1)),
        rule("rows_in", "There are as many changes as when it was planned.", "changes before", figure("rows_in", plan.expected.rows_in)),
        rule(
            "rows_kept",
            "Every change that does not go is still there.",
            "changes kept",
            figure("rows_kept", plan.expected.rows_in - purged),
        ),
        asks_counted(plan),
        asked("tightened", "No setting was tightened since a removal was last accepted.", plan),
    )


def _total(column: str, says: str, what: str, equals: int) -> Declared:
    return rule(column, says, what, Within(frame="documents", column=column, minimum=equals, maximum=equals))


def _folds(blocked: set[str]) -> str:
    return f"not foldable: {', '.join(sorted(blocked)[:NAMED])}" if blocked else "foldable"
