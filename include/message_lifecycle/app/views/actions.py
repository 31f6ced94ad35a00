"""What a plan does, each action as a person reads it."""

from __future__ import annotations

from typing import assert_never

from message_lifecycle.app.views.values import View, when
from message_lifecycle.model.actions import (
    Action,
    CompactPartition,
    DeleteTable,
    DropQuarantined,
    DropSegments,
    DropTable,
    EraseRows,
    EraseTable,
    ExpireSnapshots,
    RemoveFiles,
    RemoveRows,
    RemoveViewRows,
    RestoreDocument,
    RestoreQuarantined,
    RestoreRows,
    RestoreViewRows,
    ReturnTable,
    SealSegment,
    SnapshotDocument,
    SweepMarkers,
)


def action_view(action: Action) -> View:
    """By its kind; counts of messages, bytes where they are known, times as text."""
    match action:
        case DropSegments():
            return {
                "action": action.kind,
                "partition": action.partition,
                "from": action.first_base,
                "to": action.last_offset,
                "segments": action.segments,
                "messages": action.rows,
                "bytes": action.size_bytes,
                "newest_at": when(action.newest_at),
                "reason": action.reason,
            }
        case RemoveRows():
            return {
                "action": action.kind,
                "partition": action.partition,
                "from": action.first_offset,
                "to": action.last_offset,
                "segments": 0,
                "messages": action.rows,
                "bytes": None,
                "newest_at": None,
                "reason": action.reason,
            }
        case SealSegment():
            return {
                "action": action.kind,
                "partition": action.partition,
                "from": action.base_offset,
                "to": action.next_offset - 1,
            }
        case CompactPartition():
            return {
                "action": action.kind,
                "partition": action.partition,
                "from": action.after + 1,
                "to": action.through,
                "messages": action.rows,
            }
        case RemoveViewRows():
            return {"action": action.kind, "partition": action.partition, "messages": action.rows, "reason": action.reason}
        case RestoreRows():
            return {
                "action": action.kind,
                "partition": action.partition,
                "from": action.first_offset,
                "to": action.last_offset,
                "messages": action.rows,
                "bytes": None if action.standing else action.size_bytes,
            }
        case RestoreViewRows():
            return {"action": action.kind, "partition": action.partition, "messages": action.rows}
        case RestoreDocument():
            return {
                "action": action.kind,
                "document": action.document,
                "from": action.changes_from,
                "to": action.changes_before - 1,
                "changes": action.changes,
                "snapshots": list(action.snapshots),
            }
        case SweepMarkers():
            return {"action": action.kind, "snapshots": list(action.removals)}
        case SnapshotDocument():
            return {
                "action": action.kind,
                "document": action.document,
                "seq": action.seq,
                "proved_from": action.after,
                "snapshot": action.snapshot,
                "epoch": action.epoch,
                "dropped_snapshots": list(action.dropped),
                "from": action.purge_from,
                "to": action.purge_before - 1,
                "changes": action.purged,
                "reason": action.reason,
                "bounds": [{"bound": name, "stops_at": stops_at} for name, stops_at in action.bounds],
            }
        case EraseRows():
            return {
                "action": action.kind,
                "table": action.table,
                "partition": action.partition,
                "file": action.file,
                "offsets": action.offsets,
                "rows": action.rows,
                "messages": action.live,
                "reason": "erased",
            }
        case EraseTable():
            return {
                "action": action.kind,
                "table": action.table,
                "refs": [name for name, _ in action.refs],
                "open_undo": [plan_id for plan_id, _ in action.undo],
                "snapshots": len(action.snapshots),
                "files": len(action.files),
            }
        case ExpireSnapshots():
            return {
                "action": action.kind,
                "table": action.table or "log",
                "snapshots": list(action.snapshots),
                "refs": list(action.refs),
                "kept": dict(action.kept),
            }
        case RemoveFiles():
            return {
                "action": action.kind,
                "table": action.table or "log",
                "role": action.role,
                "files": len(action.files),
                "bytes": action.size_bytes,
            }
        case DropQuarantined():
            return {
                "action": action.kind,
                "file": action.file,
                "rows": action.rows,
                "size_bytes": action.size_bytes,
                "newest_at": when(action.newest_at),
                "reason": "quarantine_age",
            }
        case RestoreQuarantined():
            return {
                "action": action.kind,
                "file": action.file,
                "rows": action.rows,
                "size_bytes": action.size_bytes,
                "newest_at": when(action.newest_at),
            }
        case DeleteTable() | ReturnTable():
            return {"action": action.kind, "table": action.table or "log", "rows": action.rows, "bytes": action.size_bytes}
        case DropTable():
            return {"action": action.kind, "table": action.table or "log", "rows": action.rows, "location": action.location}
        case never:
            assert_never(never)
