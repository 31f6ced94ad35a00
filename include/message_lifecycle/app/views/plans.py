"""A plan as a person reads it, and how far it has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from message_lifecycle.app.steps import Services
from message_lifecycle.app.views.outcomes import outcome_view
from message_lifecycle.app.views.values import View, held_view, when
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.outcome import Approval, GateReport, Staged
from message_lifecycle.model.plan import (
    Action,
    CompactPartition,
    DropSegments,
    Plan,
    RemoveRows,
    RemoveViewRows,
    SealSegment,
    SnapshotDocument,
    SweepMarkers,
)
from message_lifecycle.model.settings import Policy
from message_lifecycle.ports import PlanRecord


def plan_view(plan: Plan) -> View:
    """The plan alone, as `plan --dry-run` shows it. Files are counted and named by their digest; `Plan.selection` has them."""
    expected = plan.expected
    return {
        "plan_id": plan.plan_id,
        "topic": str(plan.topic),
        "operation": plan.operation,
        "as_of": when(plan.as_of),
        "removes": {
            **_messages(plan, None if plan.operation == "compaction" else expected.removed),
            "bytes": expected.removed_bytes,
            "of_bytes": expected.bytes_in,
            "byte_share": _share(expected.removed_bytes, expected.bytes_in),
            "segments": expected.segments,
            "files": {"count": len(plan.selection.files), "digest": plan.selection.digest},
        },
        "actions": [_action(action) for action in plan.actions],
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
            {
                "id": check.id,
                "says": check.says,
                "kind": check.kind,
                "evaluated": check.evaluated,
                "passed": check.passed,
                "found": check.found,
            }
            for check in report.checks
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
    if record.report.judgement != "needs_approval":
        return None
    return Instant(record.reported_at + Policy.of_values(record.plan.policy).approval_ttl_us)


def removal_of(record: PlanRecord) -> tuple[tuple[str, int], ...]:
    """Messages that go, by reason, as far as it is known: a compaction finds out when it is staged."""
    return record.plan.expected.removed if record.staged is None else record.staged.removed(record.plan)


def question_of(record: PlanRecord) -> str:
    """What a person is asked, in a line."""
    going = sum(count for _, count in removal_of(record))
    asked = {
        "compaction": "leave {} of {} messages out of the compacted view?",
        "snapshot_with_purge": "remove {} of {} changes of documents?",
    }
    return asked.get(record.plan.operation, "remove {} of {} messages?").format(f"{going:,}", f"{record.plan.expected.rows_in:,}")


def approval_text(record: PlanRecord) -> str:
    """What a person should know to decide, as Markdown."""
    plan, expected, going = record.plan, record.plan.expected, removal_of(record)
    limits = [check.found for check in record.report.checks if not check.passed] if record.report else []
    lines = [
        f"**{plan.topic}**: {sum(count for _, count in going):,} of {expected.rows_in:,} {things_of(plan)} would go, "
        f"{_where(plan)}, judged as of {format_instant(plan.as_of)}.",
        "",
        *(f"* why you are asked: {limit}" for limit in limits),
        *(f"* why you are asked: {ask}" for ask in plan.asks if not any(ask in limit for limit in limits)),
        *(f"* {count:,} by {reason}" for reason, count in going),
        *(f"* stays: {entry.rows:,} overdue messages of partition {entry.partition}: {entry.detail}" for entry in plan.held),
        *(f"* note: {warning}" for warning in plan.warnings),
        "",
        f"Plan `{plan.plan_id}`. {things_of(plan).capitalize()} that arrived after it was made are not touched.",
    ]  # fmt: skip
    until = waits_until(record)
    return "\n".join([*lines, *([f"The question lapses at {format_instant(until)}."] if until is not None else [])])


def _where(plan: Plan) -> str:
    if plan.operation == "compaction":
        return "from the compacted view and what is new to it; the log itself stays as it is"
    if plan.operation == "snapshot_with_purge":
        return f"of {len([action for action in plan.documents if action.purged]):,} document(s), each covered by a snapshot that is proved"
    return f"{plan.expected.segments:,} whole segment(s)"


def things_of(plan: Plan) -> str:
    """What the plan's topic holds, in a word."""
    return "changes" if plan.operation == "snapshot_with_purge" else "messages"


def _action(action: Action) -> View:
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
        case never:
            assert_never(never)


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
