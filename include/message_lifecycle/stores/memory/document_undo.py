"""Taking a purge of documents back in memory: what it took is in the versions before its commits, row by row (DEL-7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from message_lifecycle.model.change import RestoreDocument
from message_lifecycle.model.document import Change
from message_lifecycle.model.errors import undo_source_gone
from message_lifecycle.model.plan import Plan
from message_lifecycle.stores.memory.document_log import (
    Changes,
    DocumentLog,
    DocumentTable,
    SnapshotRow,
    Snapshots,
    StagedTables,
    epoch_of,
)

Rows = TypeVar("Rows", Change, SnapshotRow)
Place = tuple[str, int, bool]
"""Document, server_seq, and whether it is a row that only raises an epoch."""


def source(table: DocumentTable[Rows], plan_id: str) -> int | None:
    """The version before the plan's commit; None: its commit was the first. Raises UndoSourceGone."""
    found = table.carrying(plan_id)
    if found is None:
        raise undo_source_gone(plan_id, "the table does not know its commit any more")
    return found[0] - 1 if found[0] else None


def with_changes(log: DocumentLog, plan: Plan, rows: Changes) -> Changes:
    """`rows` with the changes that the plan names."""
    found, then = dict(rows), log.changes.rows(plan.on_changes.source_id)
    for action in plan.on_changes.documents_back:
        back = tuple(change for change in then.get(action.document, ()) if _is_named(action, change.server_seq))
        found[action.document] = (*back, *rows.get(action.document, ()))
    return found


def with_snapshots(log: DocumentLog, plan: Plan, rows: Snapshots) -> Snapshots:
    found = dict(rows)
    for action in plan.on_snapshots.documents_back:
        then = log.snapshots.rows(plan.on_snapshots.source_id).get(action.document, ())
        back = tuple(row for row in then if row.server_seq in action.snapshots and row.state is not None)
        found[action.document] = (*back, *rows.get(action.document, ()))
    return found


def evidence(log: DocumentLog, plan: Plan, before: tuple[Changes, Snapshots], after: StagedTables) -> Mapping[str, object]:
    """The frames of `gates.documents`, row by row."""
    changes = {(one.document, seq, False) for one in plan.on_changes.documents_back for seq in range(one.changes_from, one.changes_before)}
    snapshots = {(one.document, seq, False) for one in plan.on_snapshots.documents_back for seq in one.snapshots}
    then = _placed(log.snapshots.rows(plan.on_snapshots.source_id))
    documents = {one.document for one in plan.documents_back}
    rows_in, rows_kept = (sum(len(rows) for rows in table.values()) for table in (before[0], after.changes))
    return {
        "documents": [
            {
                **_totals("changes", before[0], after.changes, dict(_placed(log.changes.rows(plan.on_changes.source_id))), changes),
                **_totals("snapshots", before[1], after.snapshots, dict(then), snapshots),
                "holes": sum(_has_hole(before[0].get(document, ()), after.changes.get(document, ())) for document in documents),
                "epochs_wrong": sum(
                    epoch_of(before[1].get(document, ())) != epoch_of(after.snapshots.get(document, ()))
                    for document in before[1].keys() | after.snapshots.keys()
                ),
            }
        ],
        "figures": [
            {
                "rows_in": rows_in,
                "rows_restored": len(dict(_placed(after.changes)).keys() - dict(_placed(before[0])).keys()),
                "rows_kept": rows_kept,
                "asks": len(plan.asks),
            }
        ],
    }


def _totals(
    table: str,
    before: Mapping[str, tuple[Rows, ...]],
    after: Mapping[str, tuple[Rows, ...]],
    then: Mapping[Place, Rows],
    named: set[Place],
) -> dict[str, int]:
    placed_before, placed = _placed(before), _placed(after)
    was, now = dict(placed_before), dict(placed)
    came = now.keys() - was.keys()
    return {
        f"{table}_back": len(came & named),
        f"{table}_missing": len(named - came),
        f"{table}_unnamed": len(came - named),
        f"{table}_changed": sum(now[place] != then.get(place) for place in came)
        + sum(now[place] != was[place] for place in now.keys() & was.keys()),
        f"{table}_lost": len(was.keys() - now.keys()),
        # Two rows that only raise an epoch may stand at one place, from before.
        f"{table}_twice": len(placed) - len(now) - (len(placed_before) - len(was)),
    }


def _placed(rows: Mapping[str, tuple[Rows, ...]]) -> list[tuple[Place, Rows]]:
    return [
        ((document, row.server_seq, isinstance(row, SnapshotRow) and row.state is None), row) for document, of in rows.items() for row in of
    ]


def _has_hole(before: tuple[Change, ...], after: tuple[Change, ...]) -> bool:
    """What is there reaches without a gap up to where the document was."""
    seqs = [change.server_seq for change in after]
    return seqs != list(range(seqs[0], seqs[0] + len(seqs))) or seqs[-1:] != [change.server_seq for change in before[-1:]]


def _is_named(action: RestoreDocument, seq: int) -> bool:
    return action.changes_from <= seq < action.changes_before
