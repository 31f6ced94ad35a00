"""The erasure of a document in memory: the key is its name. Every state of both tables that can be read back loses it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from message_lifecycle.model.document import Change
from message_lifecycle.model.erasure import HeldFile, KeyInTable, Matches, TableKind
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import offsets_of, ranges_text
from message_lifecycle.stores.memory import erased_rows
from message_lifecycle.stores.memory.document_log import DocumentCommit, DocumentLog, DocumentTable, SnapshotRow

Rows = TypeVar("Rows", Change, SnapshotRow)


def key_in_documents(log: DocumentLog, matches: Matches) -> list[KeyInTable]:
    """Of the changes, then of the snapshots where there are any."""
    snapshots = [_key_in("snapshots", log.snapshots, matches)] if log.snapshots.commits else []
    return [_key_in("log", log.changes, matches), *snapshots]


def evidence(log: DocumentLog, plan: Plan, matches: Matches) -> Mapping[str, object]:
    """The frames of `gates.tables`, by a second look."""
    found: dict[TableKind, list[int]] = {"log": _seqs(log.changes.commits, matches), "snapshots": _seqs(log.snapshots.commits, matches)}
    commits = {"log": len(log.changes.commits), "snapshots": len(log.snapshots.commits)}
    unnamed = {table: len(seqs) - _named(plan, table, seqs) for table, seqs in found.items()}
    before = log.changes.rows(plan.requirements.snapshot_id)
    rows_in = sum(len(rows) for rows in before.values())
    gone = sum(len(rows) for document, rows in before.items() if matches(document.encode()))
    return {
        "rewritten": [
            {"rows": len(found[table]), "unnamed": 0, "left": unnamed[table], "changed": 0, "found": 0} for table, _ in plan.erased
        ],
        "tables": [erased_rows.table_row(unnamed[action.table], commits[action.table]) for action in plan.rewrites],
        "figures": [{"rows_in": rows_in, "rows_removed": gone, "rows_kept": rows_in - gone, "bytes_in": 0, "asks": len(plan.asks)}],
    }


def erase(log: DocumentLog, plan: Plan, matches: Matches) -> None:
    """Raises PlanConflict: changes of the document came since the plan, or another plan did."""
    check(log, plan)
    since = 0 if plan.requirements.snapshot_id is None else plan.requirements.snapshot_id + 1
    for commit in log.changes.commits[since:]:
        if commit.plan_id is not None:
            raise PlanConflict(plan.plan_id, "changes were purged since it was planned", rival=commit.plan_id)
    seqs = _seqs(log.changes.commits, matches)
    if _named(plan, "log", seqs) < len(seqs):
        raise PlanConflict(plan.plan_id, "changes of the document came since it was planned")
    _take_out(log.changes, matches)
    _take_out(log.snapshots, matches)
    log.changes.commits.append(DocumentCommit(rows=log.changes.head, plan_id=plan.plan_id, removed=plan.expected.removed))
    log.staged.clear()


def check(log: DocumentLog, plan: Plan) -> None:
    """Raises PlanConflict."""
    if plan.requirements.table_uuid != log.changes.uuid:
        raise PlanConflict(plan.plan_id, "the topic is another table now")


def _take_out(table: DocumentTable[Rows], matches: Matches) -> None:
    table.commits[:] = [
        replace(commit, rows={document: rows for document, rows in commit.rows.items() if not matches(document.encode())})
        for commit in table.commits
    ]


def _key_in(kind: TableKind, table: DocumentTable[Rows], matches: Matches) -> KeyInTable:
    found, snapshot_id = _seqs(table.commits, matches), table.snapshot_id
    file = HeldFile(
        name=kind,
        partition=0,
        base_offset=0,
        offsets=ranges_text(sorted(set(found))),
        rows=len(found),
        live=len(_seqs(table.commits[-1:], matches)),
        size_bytes=0,
        needed=True,
    )
    return KeyInTable(
        table=kind,
        table_uuid=table.uuid,
        snapshot_id=snapshot_id,
        files=(file,) if found else (),
        refs=() if snapshot_id is None else (("main", snapshot_id),),
        undo=(),
        snapshots=tuple(range(len(table.commits))),
        rows=sum(len(rows) for rows in table.head.values()),
        size_bytes=0,
        clean=not found,
    )


def _seqs(commits: Iterable[DocumentCommit[Rows]], matches: Matches) -> list[int]:
    """The server_seq of each row that there ever is of the document."""
    rows = {row for commit in commits for document, rows in commit.rows.items() if matches(document.encode()) for row in rows}
    return [row.server_seq for row in rows]


def _named(plan: Plan, table: TableKind, seqs: Iterable[int]) -> int:
    """How many of the rows the plan names: they are of one document."""
    named = {seq for rows in plan.erased_of(table) for seq in offsets_of(rows.offsets)}
    return sum(seq in named for seq in seqs)
