"""The effect of a plan on the content of a topic, independent of the store.

A plan's id is a hash of everything in it, with ids of tables and snapshots and names of files. Its content is what people mean by "the same
plan": for equal input it is equal in memory, on a disk and behind a catalog.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping

from message_lifecycle.model.change import (
    CommitLog,
    CommitSnapshots,
    CompactView,
    DeleteTables,
    DropTables,
    Handlers,
    QuarantinedFile,
    RemoveRows,
    RestoreRows,
    RestoreTables,
    ReturnChanges,
    ReturnSnapshots,
    ReturnToLog,
    Rewrite,
)
from message_lifecycle.model.message import join_ranges_texts, runs_text
from message_lifecycle.model.plan import Plan

Deed = tuple[str, int, str]
"""Table, partition, and the reason of a removal, or `back` for a message that returns."""


def content_digest(plan: Plan) -> str:
    """Return the hash of `content` as canonical JSON."""
    return hashlib.sha256(json.dumps(content(plan), sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:32]


def content(plan: Plan) -> Mapping[str, object]:
    """Return the operation, as-of, settings, moved offsets with reasons, documents, and counts of messages.

    Ids, snapshots and names of files are left out. So are bytes, because each store counts them in its own way.
    """
    found: dict[str, list[object]] = {}
    rows: Counter[str] = Counter()
    moved: dict[Deed, list[str]] = {}

    def add(kind: str, name: str, values: object) -> None:
        found.setdefault(f"{kind}: {name}", []).append(values)

    def log(commit: CommitLog) -> None:
        for run in commit.drop:
            moved.setdefault((commit.kind, run.partition, run.reason), []).append(runs_text([range(run.first_base, run.last_offset + 1)]))
        _remove(commit.kind, commit.mark, moved)
        for one in commit.seal:
            add(commit.kind, "seals", [one.partition, one.base_offset, one.next_offset])
        if commit.keep is not None:
            add(commit.kind, "keeps", commit.keep)

    def log_return(commit: ReturnToLog) -> None:
        _remove("log", commit.mark, moved)
        _return("log", commit.back, moved)

    def view(commit: CompactView) -> None:
        for one in commit.compact:
            add(commit.kind, "compacts", [one.partition, one.after, one.through, one.rows])

    def documents_back(commit: ReturnSnapshots | ReturnChanges) -> None:
        for one in commit.documents:
            add(commit.kind, "documents", [one.document, one.changes_from, one.changes_before, one.snapshots])

    def snapshots(commit: CommitSnapshots) -> None:
        for one in commit.documents:
            values = [one.document, one.seq, one.after, one.snapshot, one.epoch, one.dropped, one.purge_from, one.purge_before, one.reason]
            add(commit.kind, "documents", values)

    def refused(files: Iterable[QuarantinedFile], deed: str) -> None:
        rows[f"refused, that {deed}"] += sum(file.rows for file in files)

    def moves(change: DeleteTables | RestoreTables | DropTables) -> None:
        found.setdefault("moves", []).extend([change.kind, table.table, table.rows] for table in change.tables)

    handlers: Handlers[None] = Handlers(
        log=log,
        log_return=log_return,
        view=view,
        view_removal=lambda commit: _remove("view", commit.mark, moved),
        view_return=lambda commit: _return("view", commit.back, moved),
        snapshots=snapshots,
        snapshots_return=documents_back,
        changes_return=documents_back,
        quarantine=lambda commit: refused(commit.files, "go"),
        quarantine_return=lambda commit: refused(commit.files, "come back"),
        rewrite=lambda rewrite: _erase(rewrite, moved, rows),
        forget=lambda forget: found.setdefault("forgets", []).append(forget.table),
        delete_tables=moves,
        restore_tables=moves,
        drop_tables=moves,
    )
    for change in plan.changes:
        change.dispatch(handlers)
    return {
        "operation": plan.operation,
        "as_of": plan.as_of,
        "settings": dict(plan.policy),
        "tombstones_until": None if plan.view is None else plan.view.tombstones_until,
        "rows_in": plan.expected.rows_in,
        "removed": sorted(plan.expected.removed),
        "held": sorted([held.holder, held.partition, held.first_base, held.last_offset, held.rows] for held in plan.held),
        "offsets": [[*deed, join_ranges_texts(texts)] for deed, texts in sorted(moved.items())],
        "rows": rows,
        **{name: sorted(values, key=str) for name, values in found.items()},
    }


def _remove(table: str, rows: Iterable[RemoveRows], moved: dict[Deed, list[str]]) -> None:
    for marked in rows:
        moved.setdefault((table, marked.partition, marked.reason), []).append(marked.offsets)


def _return(table: str, rows: Iterable[RestoreRows], moved: dict[Deed, list[str]]) -> None:
    for back in rows:
        moved.setdefault((table, back.partition, "back"), []).append(back.offsets)


def _erase(rewrite: Rewrite, moved: dict[Deed, list[str]], rows: Counter[str]) -> None:
    for erased in rewrite.rows:
        moved.setdefault((rewrite.table, erased.partition, erased.reason), []).append(erased.offsets)
        # Rows that are not messages have no offsets, so the content has only their number.
        rows[f"erased from the {rewrite.table}"] += 0 if erased.offsets else erased.rows
