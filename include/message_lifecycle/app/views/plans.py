"""A plan as a person reads it, each of its actions, and how far it has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from message_lifecycle.app.operations.registry import kind_of
from message_lifecycle.app.services import Services
from message_lifecycle.app.views.values import View, held_view, outcome_view, when
from message_lifecycle.model import actions
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.outcome import Approval, GateReport, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.records import PlanRecord
from message_lifecycle.model.settings import Policy


def plan_view(plan: Plan) -> View:
    """The plan alone, as `plan --dry-run` shows it. Files are counted and named by their digest; `Plan.selection` has them."""
    expected = plan.expected
    return {
        "plan_id": plan.plan_id,
        "topic": str(plan.topic),
        "operation": plan.operation,
        "things": plan.things,
        "as_of": when(plan.as_of),
        "removes": {
            **_messages(plan, None if plan.operation == "compaction" else expected.removed),
            "bytes": expected.removed_bytes,
            "of_bytes": expected.bytes_in,
            "byte_share": _share(expected.removed_bytes, expected.bytes_in),
            "segments": expected.segments,
            "files": {"count": len(plan.selection.files), "digest": plan.selection.digest},
        },
        "takes_back": plan.parent if plan.operation == "undo" else None,
        "restores": plan.restored_rows,
        "actions": [action_view(action) for action in plan.actions],
        "documents": None if plan.operation != "snapshot_with_purge" else _documents(plan),
        "bounds": [
            {"partition": bound.partition, "stops_at": bound.offset, "bound": bound.name, "reason": bound.reason} for bound in plan.bounds
        ],
        "held": held_view(plan.held),
        "warnings": list(plan.warnings),
        "asks": list(plan.asks),
        "more": plan.more,
        "next_due_at": when(plan.next_due_at),
        "requires": {
            "table_uuid": plan.requirements.table_uuid,
            "snapshot_id": plan.requirements.snapshot_id,
            "policy_hash": plan.requirements.policy_hash,
            "code_version": plan.requirements.code_version,
        },
        "settings": dict(plan.policy),
    }


def record_view(record: PlanRecord) -> View:
    """The plan and what became of it."""
    staged, report, view = record.staged, record.report, plan_view(record.plan)
    if view["documents"] is not None and staged is not None:
        view["removes"] |= _messages(record.plan, staged.removed(record.plan))
        view["documents"] |= _staged_documents(staged)
    if record.plan.operation == "compaction" and staged is not None and staged.view is not None:
        view["removes"] |= _messages(record.plan, staged.view.removed)
    return {
        **view,
        "state": record.state,
        "recorded_at": when(record.recorded_at),
        "requested_by": record.requested_by,
        "staged": None if staged is None else {"branch": staged.branch, "snapshot_id": staged.snapshot_id},
        "gate": None if report is None else gate_view(report, record.reported_at),
        "approval": None if record.approval is None else approval_view(record.approval),
        "waits_until": when(waits_until(record)),
        "outcome": None if record.outcome is None else outcome_view(record.outcome),
    }


def plan_page(s: Services, plan_id: str) -> View:
    """By id or a unique beginning of one. Raises UnknownPlan."""
    return record_view(s.ledger.record(plan_id))


def gate_view(report: GateReport, at: Instant | None) -> View:
    return {
        "gate_id": report.gate_id,
        "at": when(at),
        "judgement": report.judgement,
        "declared": report.declared,
        "evaluated": report.evaluated,
        "checks": [
            {name: getattr(check, name) for name in ("id", "says", "kind", "evaluated", "passed", "found")} for check in report.checks
        ],
        "figures": dict(report.figures),
        "took_ms": report.took_ms,
    }


def approval_view(approval: Approval) -> View:
    return {"granted": approval.granted, "by": approval.by, "at": when(approval.at), "text": approval.text}


def waits_until(record: PlanRecord) -> Instant | None:
    """When the question to a person lapses; None: nothing is asked."""
    if record.outcome is not None or record.approval is not None or record.report is None or record.reported_at is None:
        return None
    if record.report.judgement != "needs_approval" or record.plan.is_older:
        return None
    return Instant(record.reported_at + Policy.of_values(record.plan.policy).approval_ttl_us)


def removal_of(record: PlanRecord) -> tuple[tuple[str, int], ...]:
    """Messages that go, by reason, as far as it is known: a compaction finds out when it is staged."""
    return record.plan.expected.removed if record.staged is None else record.staged.removed(record.plan)


def question_of(record: PlanRecord) -> str:
    """What a person is asked, in a line."""
    return kind_of(record.plan).question(record.plan, sum(count for _, count in removal_of(record)))


def approval_text(record: PlanRecord) -> str:
    """What a person should know to decide, as Markdown."""
    failed = [check for check in record.report.checks if not check.passed] if record.report else []
    lines, until = kind_of(record.plan).lines(record.plan, removal_of(record), failed), waits_until(record)
    return "\n".join([*lines, *([f"The question lapses at {format_instant(until)}."] if until is not None else [])])


def _documents(plan: Plan) -> View:
    """`blocked` None: not known before it is staged."""
    return {
        "documents": len(plan.documents),
        "snapshots_made": sum(action.snapshot is not None for action in plan.documents),
        "snapshots_dropped": sum(len(action.dropped) for action in plan.documents),
        "purged_documents": sum(action.purged > 0 for action in plan.documents),
        "blocked": None,
        "snapshots_snapshot_id": None if plan.snapshots is None else plan.snapshots.snapshot_id,
    }


def _staged_documents(staged: Staged) -> View:
    found = staged.documents
    if found is None:
        return {"blocked": []}
    return {
        "snapshots_made": found.made,
        "snapshots_dropped": found.dropped,
        "blocked": [{"document": document, "reason": reason} for document, reason in found.blocked],
    }


def _messages(plan: Plan, removed: Sequence[tuple[str, int]] | None) -> View:
    """How many go, and why; None: not known before it is staged (CNT-1)."""
    count = None if removed is None else sum(rows for _, rows in removed)
    return {
        "messages": count,
        "of_messages": plan.expected.rows_in,
        "share": _share(count, plan.expected.rows_in),
        "by_reason": dict(removed or ()),
    }


def _share(part: int | None, whole: int | None) -> float | None:
    if part is None or whole is None:
        return None
    return part / whole if whole else 0.0


def action_view(action: actions.Action) -> View:
    """By its kind; counts of messages, bytes where they are known, times as text."""
    return {"action": action.kind, **_action(action)}


def _action(action: actions.Action) -> View:
    match action:
        case actions.DropSegments():
            return {
                "partition": action.partition,
                "from": action.first_base,
                "to": action.last_offset,
                "segments": action.segments,
                "messages": action.rows,
                "bytes": action.size_bytes,
                "newest_at": when(action.newest_at),
                "reason": action.reason,
            }
        case actions.RemoveRows():
            return {
                "partition": action.partition,
                "from": action.first_offset,
                "to": action.last_offset,
                "segments": 0,
                "messages": action.rows,
                "bytes": None,
                "newest_at": None,
                "reason": action.reason,
            }
        case actions.SealSegment():
            return {"partition": action.partition, "from": action.base_offset, "to": action.next_offset - 1}
        case actions.CompactPartition():
            return {
                "partition": action.partition,
                "from": action.after + 1,
                "to": action.through,
                "messages": action.rows,
            }
        case actions.RemoveViewRows():
            return {"partition": action.partition, "messages": action.rows, "reason": action.reason}
        case actions.RestoreRows():
            return {
                "partition": action.partition,
                "from": action.first_offset,
                "to": action.last_offset,
                "messages": action.rows,
                "bytes": None if action.standing else action.size_bytes,
            }
        case actions.RestoreViewRows():
            return {"partition": action.partition, "messages": action.rows}
        case actions.RestoreDocument():
            return {
                "document": action.document,
                "from": action.changes_from,
                "to": action.changes_before - 1,
                "changes": action.changes,
                "snapshots": list(action.snapshots),
            }
        case actions.SweepMarkers():
            return {"snapshots": list(action.removals)}
        case actions.SnapshotDocument():
            return {
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
        case actions.EraseRows():
            return {
                "table": action.table,
                "partition": action.partition,
                "file": action.file,
                "offsets": action.offsets,
                "rows": action.rows,
                "messages": action.live,
                "reason": "erased",
            }
        case actions.EraseTable():
            return {
                "table": action.table,
                "refs": [name for name, _ in action.refs],
                "open_undo": [plan_id for plan_id, _ in action.undo],
                "snapshots": len(action.snapshots),
                "files": len(action.files),
            }
        case actions.ExpireSnapshots():
            return {
                "table": action.table or "log",
                "snapshots": list(action.snapshots),
                "refs": list(action.refs),
                "kept": dict(action.kept),
            }
        case actions.RemoveFiles():
            return {
                "table": action.table or "log",
                "role": action.role,
                "files": len(action.files),
                "bytes": action.size_bytes,
            }
        case actions.DropQuarantined():
            return {
                "file": action.file,
                "rows": action.rows,
                "size_bytes": action.size_bytes,
                "newest_at": when(action.newest_at),
                "reason": "quarantine_age",
            }
        case actions.RestoreQuarantined():
            return {
                "file": action.file,
                "rows": action.rows,
                "size_bytes": action.size_bytes,
                "newest_at": when(action.newest_at),
            }
        case actions.DeleteTable() | actions.ReturnTable():
            return {"table": action.table or "log", "rows": action.rows, "bytes": action.size_bytes}
        case actions.DropTable():
            return {"table": action.table or "log", "rows": action.rows, "location": action.location}
        case never:
            assert_never(never)
