"""The parts of a plan's changes as people and programs see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from message_lifecycle.app.rendering import ABSENT, Block, Count, Number, Size, Table, View
from message_lifecycle.app.wording import ROWS, count
from message_lifecycle.model.change import (
    Change,
    CommitLog,
    CommitSnapshots,
    CompactView,
    DropTables,
    Forget,
    Handlers,
    MovedTable,
    QuarantinedFile,
    RemoveFromView,
    RemoveRows,
    ReturnChanges,
    ReturnSnapshots,
    ReturnToLog,
    ReturnToView,
    Rewrite,
)
from message_lifecycle.model.instants import Instant

_WORDS = {
    "drop_segments": "drop",
    "seal_segment": "seal",
    "remove_rows": "remove messages",
    "remove_view_rows": "remove from the view",
    "compact_partition": "compact",
    "restore_rows": "bring back",
    "restore_view_rows": "bring back to the view",
    "erase_rows": "erase",
}


class DocumentBound(View):
    """A bound of a document's purge, and the lowest change that it keeps."""

    bound: str
    stops_at: Number


class ActionView(View):
    """One part of a change, with only the fields of its kind of action."""

    action: str
    table_: str = ABSENT
    partition: Number = ABSENT
    document: str = ABSENT
    seq: Number = ABSENT
    proved_from: Number = ABSENT
    snapshot: Number | None = ABSENT
    epoch: Number = ABSENT
    dropped_snapshots: Sequence[int] = ABSENT
    from_: Number = ABSENT
    to: Number = ABSENT
    changes: Count = ABSENT
    file: str = ABSENT
    role: str = ABSENT
    offsets: str = ABSENT
    segments: Count = ABSENT
    rows: Count = ABSENT
    messages: Count = ABSENT
    bytes: Size | None = ABSENT
    size_bytes: Size = ABSENT
    location: str = ABSENT
    newest_at: Instant | None = ABSENT
    reason: str | None = ABSENT
    refs: Sequence[str] = ABSENT
    open_undo: Sequence[str] = ABSENT
    snapshots: Sequence[int] | Count = ABSENT
    files: Count = ABSENT
    kept: Mapping[str, int] = ABSENT
    bounds: Sequence[DocumentBound] = ABSENT

    @property
    def span(self) -> str:
        """The offsets, or the changes of a document, from the first to the last."""
        return "" if self.from_ is ABSENT or (not self.changes and self.document) else f"{self.from_}..{self.to}"


_ROWS = Table(
    columns={
        "action": lambda one: _WORDS[one.action], "partition": "partition", "offsets": "span",
        "segments": lambda one: count(one.segments) if one.segments else "", "messages": "messages", "size": "bytes",
        "newest message": "newest_at",
    },
    right=("segments", "messages", "size"), most=ROWS,
)  # fmt: skip
_PAST = Table(
    columns={
        "table": "table_", "what": lambda one: f"files: {one.role}" if one.role else "snapshots",
        "number": lambda one: count(one.files if one.role else len(one.snapshots)), "size": "bytes",
        "kept": lambda one: ", ".join(f"{number} by {why}" for why, number in (one.kept or {}).items()),
    },
    right=("number", "size"), title="Removes from the tables' history",
)  # fmt: skip
_MOVED = Table(columns={"table": "table_", "rows": "rows", "size": "bytes"})
_RETURNED = Table(
    columns={"document": "document", "its changes": "span", "its snapshots": lambda one: ", ".join(map(str, one.snapshots))}, most=ROWS,
    title="Brings back",
)  # fmt: skip
_DOCUMENTS = Table(
    columns={
        "document": "document", "at": "seq", "snapshot": "snapshot", "drops snapshots": lambda one: ", ".join(map(str, one.dropped_snapshots)),
        "purges": "span", "reason": "reason", "epoch": "epoch",
        "first kept, by bound": lambda one: ", ".join(f"{bound.bound} {bound.stops_at}" for bound in one.bounds),
    },
    wrap=("document", "first kept, by bound"), most=ROWS, title="Documents",
)  # fmt: skip


def action_blocks(actions: Sequence[ActionView]) -> Iterator[Block]:
    """Yield a table for each kind of action. The title names the effect on the topic."""

    def named(*names: str) -> list[ActionView]:
        return [one for one in actions if one.action in names]

    yield _PAST.of(named("expire_snapshots", "remove_files"))
    yield replace(_MOVED, title="Deletes the topic").of(named("delete_table"))
    yield replace(_MOVED, title="Brings back the topic").of(named("return_table"))
    yield _RETURNED.of(named("restore_document"))
    yield _DOCUMENTS.of(named("snapshot_document"))
    rows = [one for one in actions if one.partition is not ABSENT]
    kinds = {one.action for one in rows}
    comes_back = kinds & {"restore_rows", "restore_view_rows"}
    title = "Brings back" if comes_back else "Compacts" if kinds == {"compact_partition"} else "Removes"
    if comes_back and comes_back != kinds:
        title = "Brings back and removes"
    yield replace(_ROWS, title=title).of(merge_neighbours(rows))


def merge_neighbours(rows: Iterable[ActionView]) -> list[ActionView]:
    """Merge rows of single messages that follow each other without a gap. A plan has one row for each data file."""
    found: list[ActionView] = []
    for one in rows:
        last = found[-1] if found else None
        if last is not None and one.action == "remove_rows" and _follows(last, one):
            found[-1] = replace(last, to=one.to, messages=last.messages + one.messages)
        else:
            found.append(one)
    return found


def _follows(last: ActionView, one: ActionView) -> bool:
    same = (last.action, last.table_, last.partition, last.reason) == (one.action, one.table_, one.partition, one.reason)
    return same and one.from_ == last.to + 1


def actions_of(changes: Iterable[Change]) -> tuple[ActionView, ...]:
    return tuple(action for change in changes for action in change.dispatch(_ACTIONS))


def _log_actions(change: CommitLog) -> Iterator[ActionView]:
    for seal in change.seal:
        yield ActionView(action="seal_segment", partition=seal.partition, from_=seal.base_offset, to=seal.next_offset - 1)
    for run in change.drop:
        yield ActionView(
            action="drop_segments",
            partition=run.partition,
            from_=run.first_base,
            to=run.last_offset,
            segments=run.segments,
            messages=run.rows,
            bytes=run.size_bytes,
            newest_at=run.newest_at,
            reason=run.reason,
        )
    yield from _marks(change.mark)
    if change.sweep:
        yield ActionView(action="sweep_markers", snapshots=change.sweep)


def _marks(rows: Iterable[RemoveRows]) -> Iterator[ActionView]:
    for mark in rows:
        yield ActionView(
            action="remove_rows",
            partition=mark.partition,
            from_=mark.first_offset,
            to=mark.last_offset,
            segments=0,
            messages=mark.rows,
            bytes=None,
            newest_at=None,
            reason=mark.reason,
        )


def _log_return_actions(change: ReturnToLog) -> Iterator[ActionView]:
    yield from _marks(change.mark)
    for back in change.back:
        yield ActionView(
            action="restore_rows",
            partition=back.partition,
            from_=back.first_offset,
            to=back.last_offset,
            messages=back.rows,
            bytes=None if back.standing else back.size_bytes,
        )


def _view_removal_actions(change: RemoveFromView) -> Iterator[ActionView]:
    for rows in change.mark:
        yield ActionView(action="remove_view_rows", partition=rows.partition, messages=rows.rows, reason=rows.reason)


def _view_return_actions(change: ReturnToView) -> Iterator[ActionView]:
    for back in change.back:
        yield ActionView(action="restore_view_rows", partition=back.partition, messages=back.rows)


def _compaction_actions(change: CompactView) -> Iterator[ActionView]:
    for part in change.compact:
        yield ActionView(action="compact_partition", partition=part.partition, from_=part.after + 1, to=part.through, messages=part.rows)


def _snapshot_actions(change: CommitSnapshots) -> Iterator[ActionView]:
    for document in change.documents:
        yield ActionView.of(
            document,
            action="snapshot_document",
            proved_from=document.after,
            dropped_snapshots=document.dropped,
            from_=document.purge_from,
            to=document.purge_before - 1,
            changes=document.purged,
            bounds=tuple(DocumentBound(bound=name, stops_at=stops_at) for name, stops_at in document.bounds),
        )


def _document_return_actions(change: ReturnSnapshots | ReturnChanges) -> Iterator[ActionView]:
    for one in change.documents:
        yield ActionView.of(one, action="restore_document", from_=one.changes_from, to=one.changes_before - 1)


def _quarantine_actions(action: str, files: Iterable[QuarantinedFile]) -> Iterator[ActionView]:
    return (ActionView.of(file, action=action) for file in files)


def _rewrite_actions(change: Rewrite) -> Iterator[ActionView]:
    for rows in change.rows:
        yield ActionView(
            action="erase_rows",
            table_=change.table,
            partition=rows.partition,
            file=rows.file,
            offsets=rows.offsets,
            rows=rows.rows,
            messages=rows.live,
            reason="erased",
        )
    yield ActionView(
        action="erase_table",
        table_=change.table,
        refs=[name for name, _ in change.refs],
        open_undo=[plan_id for plan_id, _ in change.undo],
        snapshots=len(change.snapshots),
        files=len(change.files),
    )


def _reclaim_actions(change: Forget) -> Iterator[ActionView]:
    table = change.table or "log"
    if change.kept or change.snapshots or change.refs:
        yield ActionView(
            action="expire_snapshots", table_=table, snapshots=list(change.snapshots), refs=list(change.refs), kept=dict(change.kept)
        )
    for removal in change.files:
        yield ActionView(action="remove_files", table_=table, role=removal.role, files=len(removal.files), bytes=removal.size_bytes)


def _move_actions(action: str, tables: Sequence[MovedTable]) -> Iterator[ActionView]:
    return (ActionView(action=action, table_=one.table or "log", rows=one.rows, bytes=one.size_bytes) for one in tables)


def _drop_actions(change: DropTables) -> Iterator[ActionView]:
    for one in change.tables:
        yield ActionView(action="drop_table", table_=one.table or "log", rows=one.rows, location=one.location)
    for forget in change.forgets:
        yield from _reclaim_actions(forget)


_ACTIONS: Handlers[Iterator[ActionView]] = Handlers(
    log=_log_actions,
    log_return=_log_return_actions,
    view=_compaction_actions,
    view_removal=_view_removal_actions,
    view_return=_view_return_actions,
    snapshots=_snapshot_actions,
    snapshots_return=_document_return_actions,
    changes_return=_document_return_actions,
    quarantine=lambda change: _quarantine_actions("drop_quarantined", change.files),
    quarantine_return=lambda change: _quarantine_actions("restore_quarantined", change.files),
    rewrite=_rewrite_actions,
    forget=_reclaim_actions,
    delete_tables=lambda change: _move_actions("delete_table", change.tables),
    restore_tables=lambda change: _move_actions("return_table", change.tables),
    drop_tables=_drop_actions,
)
