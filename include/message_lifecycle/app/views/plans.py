"""A plan as a person reads it, each of its actions, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from message_lifecycle.app.changes import outdated
from message_lifecycle.app.operations.registry import is_undone, kind_of, of_plan
from message_lifecycle.app.rendering import Document, each
from message_lifecycle.app.services import Services
from message_lifecycle.app.views.state import HeldView, outcome_view, when
from message_lifecycle.model.change import (
    Change,
    CommitChanges,
    CommitLog,
    CommitQuarantine,
    CommitSnapshots,
    CommitView,
    Forget,
    Handlers,
    Move,
    QuarantinedFile,
    Rewrite,
    Rows,
)
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.instants import INT64_MAX, MICROS_PER_SECOND, Instant, format_instant, span
from message_lifecycle.model.outcome import Approval, GateReport, PlanRecord, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.plan_content import content_digest
from message_lifecycle.model.plan_state import PlanState
from message_lifecycle.model.settings import Policy


def plan_view(plan: Plan) -> Document:
    """The plan alone, as `plan --dry-run` shows it. Files are counted and named by their digest; `Plan.selection` has them."""
    expected = plan.expected
    return {
        "plan_id": plan.plan_id,
        "content_digest": content_digest(plan),
        "topic": str(plan.topic),
        "operation": plan.operation,
        "things": plan.things,
        "as_of": when(plan.as_of),
        "removes": {
            **_messages(plan, None if plan.on_view.compact else expected.removed),
            "bytes": expected.removed_bytes,
            "of_bytes": expected.bytes_in,
            "byte_share": _share(expected.removed_bytes, expected.bytes_in),
            "segments": expected.segments,
            "files": {"count": len(plan.selection.files), "digest": plan.selection.digest},
        },
        "takes_back": plan.takes_back,
        "restores": plan.restored_rows,
        "actions": [line for change in plan.changes for line in change_lines(change)],
        "documents": _documents(plan) if plan.of_documents and plan.takes_back is None else None,
        "bounds": [
            {"partition": bound.partition, "stops_at": bound.offset, "bound": bound.name, "reason": bound.reason} for bound in plan.bounds
        ],
        "held": each(HeldView)(plan.held),
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


def record_view(record: PlanRecord) -> Document:
    """The plan and what became of it."""
    staged, report, view = record.staged, record.report, plan_view(record.plan)
    if view["documents"] is not None and staged is not None:
        view["removes"] |= _messages(record.plan, staged.removed(record.plan))
        view["documents"] |= _staged_documents(staged)
    if record.plan.on_view.compact and staged is not None and staged.view is not None:
        view["removes"] |= _messages(record.plan, staged.view.removed)
    return {
        **view,
        "state": record.state.word,
        "recorded_at": when(record.recorded_at),
        "requested_by": record.requested_by,
        "staged": None if staged is None else {"branch": staged.branch, "snapshot_id": staged.snapshot_id},
        "gate": None if report is None else gate_view(report, record.reported_at),
        "approval": None if record.approval is None else approval_view(record.approval),
        "waits_until": when(waits_until(record)),
        "outcome": None if record.outcome is None else outcome_view(record.outcome, things=record.plan.things),
    }


def plan_page(s: Services, plan_id: str) -> Document:
    """By id or a unique beginning of one, with what came before and after it. Raises UnknownPlan."""
    record = s.ledger.record(plan_id)
    undone_by = s.ledger.undone_by(record.plan.plan_id)
    shown = record_view(record)
    if waits_until(record) is not None and (why := outdated(s, record.plan)):
        told = f"the question is void, for {why}: the next run asks again"
        shown = {**shown, "waits_until": None, "warnings": [*shown["warnings"], told]}
    return {
        **shown,
        "runs": [_run(name) for name in s.ledger.runs_of(record.plan.plan_id)],
        "successor": _successor(s, record),
        "undone": undone_by is not None and is_undone(s, record.plan),
        "undone_by": undone_by,
        "undo_until": None if undone_by is not None else when(_undo_until(s, record)),
    }


def _run(name: str) -> Document:
    """Of Airflow by its DAG; any other name is one that a person gave."""
    dag_id, slash, run_id = name.partition("/")
    return {"dag_id": dag_id if slash else None, "run_id": run_id if slash else name}


def _successor(s: Services, record: PlanRecord) -> str | None:
    """The next plan of the operation where this one gave way; None: there is none yet, or it is too long ago."""
    if record.outcome is None or record.outcome.name not in ("superseded", "lapsed"):
        return None
    of_topic = [plan.plan_id for plan in s.ledger.plans(record.plan.topic) if plan.operation == record.plan.operation]
    at = of_topic.index(record.plan.plan_id) if record.plan.plan_id in of_topic else 0
    return of_topic[at - 1] if at else None


def _undo_until(s: Services, record: PlanRecord) -> Instant | None:
    """Until when it can be taken back; None: it cannot, any more or at all."""
    published_at = s.ledger.published_at(record.plan.plan_id)
    if published_at is None or kind_of(record.plan).why_not_undone() is not None:
        return None
    try:
        policy = of_plan(s, record.plan).settings_now(s, record.plan)
    except LifecycleError:  # the topic cannot be asked: what it promised when it was planned
        policy = Policy.of_values(record.plan.policy)
    until = Instant(min(published_at + policy.undo_window_us, INT64_MAX))
    return until if s.ledger.now() < until else None


def gate_view(report: GateReport, at: Instant | None) -> Document:
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


def approval_view(approval: Approval) -> Document:
    told: Document = {"granted": approval.granted, "by": approval.by, "at": when(approval.at), "text": approval.text}
    return {**told, "gate_id": approval.gate_id}


def waits_until(record: PlanRecord) -> Instant | None:
    """When the question to a person lapses; None: nothing is asked."""
    if record.state is not PlanState.ASKED or record.reported_at is None:
        return None
    return Instant(record.reported_at + Policy.of_values(record.plan.policy).approval_ttl_us)


def removal_of(record: PlanRecord) -> tuple[tuple[str, int], ...]:
    """Messages that go, by reason, as far as it is known: a compaction finds out when it is staged."""
    return record.plan.expected.removed if record.staged is None else record.staged.removed(record.plan)


def question_of(record: PlanRecord) -> str:
    """What a person is asked, in a line."""
    return kind_of(record.plan).question(record.plan, sum(count for _, count in removal_of(record)))


def approval_text(s: Services, record: PlanRecord) -> str:
    """What a person should know to decide, as Markdown: what goes, why they are asked, until when it comes back and how, what a yes is
    about, and what happens without an answer."""
    plan, report, until = record.plan, record.report, waits_until(record)
    operation = kind_of(plan)
    failed = [check for check in report.checks if not check.passed] if report else []
    told = [("how old it is", _days(s, plan) if until is not None else ""), ("the way back", _way_back(s, plan))]
    if report is not None:
        judged = f"this plan, as gate report `{report.gate_id}` judged it; a setting that is changed before it is published makes it void"
        told.append(("a yes is about", judged))
    if until is not None:
        then = "whoever asked for it asks again" if operation.by_request else "the next run asks again"
        told.append(("without an answer", f"the question lapses at {_to_the_second(until)}: nothing is removed, and {then}"))
    # One list: where the question is shown, paragraphs stand without a space between them.
    *lines, of_which = operation.lines(plan, removal_of(record), failed)
    return "\n".join([*lines, *(f"* {what}: {text}" for what, text in told if text), of_which])


def _to_the_second(at: Instant) -> str:
    return format_instant(Instant(at - at % MICROS_PER_SECOND))


def _days(s: Services, plan: Plan) -> str:
    """Between which days lies what goes, by its segments or files; empty where it has no days of its own: what comes back, documents."""
    times: list[tuple[Instant | None, Instant | None]] = [(file.oldest_at, file.newest_at) for file in plan.on_quarantine.files]
    if plan.on_log.drop or plan.on_log.mark or plan.moved("away"):
        going = {(rows.partition, rows.base_offset) for rows in plan.on_log.mark}
        try:
            segments = s.reader.log(plan.topic).segments
        except LifecycleError as error:
            return f"cannot be told: {error.code}"
        times += [
            (one.oldest_at, one.newest_at)
            for one in segments
            if plan.moved("away") or plan.drops(one.partition, one.base_offset) or (one.partition, one.base_offset) in going
        ]
    if not times:
        return ""
    oldest, newest = [at for at, _ in times], [at for _, at in times]
    return f"the oldest is of {_day(oldest, min)}, the newest of {_day(newest, max)}, by the segments that have it"


def _day(times: Sequence[Instant | None], end: Callable[[Sequence[Instant]], Instant]) -> str:
    known = [at for at in times if at is not None]
    return format_instant(end(known)).partition("T")[0] if len(known) == len(times) else "an unknown day"


def _way_back(s: Services, plan: Plan) -> str:
    why_not = kind_of(plan).why_not_undone()
    if why_not is not None:
        return f"none: {why_not}"
    window_us = Policy.of_values(plan.policy).undo_window_us
    until = _to_the_second(Instant(min(s.ledger.now() + window_us, INT64_MAX)))
    lasts = span(window_us // MICROS_PER_SECOND)
    return f"`lifecycle undo {plan.plan_id} --by NAME --why WHY`, for {lasts} after it is published: until {until}, were that now"


def _documents(plan: Plan) -> Document:
    """`blocked` None: not known before it is staged."""
    return {
        "documents": len(plan.on_snapshots.documents),
        "snapshots_made": sum(action.snapshot is not None for action in plan.on_snapshots.documents),
        "snapshots_dropped": sum(len(action.dropped) for action in plan.on_snapshots.documents),
        "purged_documents": sum(action.purged > 0 for action in plan.on_snapshots.documents),
        "blocked": None,
        "snapshots_snapshot_id": None if plan.snapshots is None else plan.snapshots.snapshot_id,
    }


def _staged_documents(staged: Staged) -> Document:
    found = staged.documents
    if found is None:
        return {"blocked": []}
    return {
        "snapshots_made": found.made,
        "snapshots_dropped": found.dropped,
        "blocked": [{"document": document, "reason": reason} for document, reason in found.blocked],
    }


def _messages(plan: Plan, removed: Sequence[tuple[str, int]] | None) -> Document:
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


def change_lines(change: Change) -> Iterator[Document]:
    """What a change does, part by part: counts of messages, bytes where they are known, times as text."""
    return change.dispatch(_LINES)


def _of_log(change: CommitLog) -> Iterator[Document]:
    yield from (
        {"action": "seal_segment", "partition": seal.partition, "from": seal.base_offset, "to": seal.next_offset - 1}
        for seal in change.seal
    )
    for run in change.drop:
        yield {
            "action": "drop_segments",
            "partition": run.partition,
            "from": run.first_base,
            "to": run.last_offset,
            "segments": run.segments,
            "messages": run.rows,
            "bytes": run.size_bytes,
            "newest_at": when(run.newest_at),
            "reason": run.reason,
        }
    for rows in change.mark:
        yield {
            "action": "remove_rows",
            **_span(rows),
            "segments": 0,
            "messages": rows.rows,
            "bytes": None,
            "newest_at": None,
            "reason": rows.reason,
        }
    for back in change.back:
        yield {"action": "restore_rows", **_span(back), "messages": back.rows, "bytes": None if back.standing else back.size_bytes}
    if change.sweep:
        yield {"action": "sweep_markers", "snapshots": list(change.sweep)}


def _of_view(change: CommitView) -> Iterator[Document]:
    for rows in change.mark:
        yield {"action": "remove_view_rows", "partition": rows.partition, "messages": rows.rows, "reason": rows.reason}
    for back in change.back:
        yield {"action": "restore_view_rows", "partition": back.partition, "messages": back.rows}
    for part in change.compact:
        yield {
            "action": "compact_partition",
            "partition": part.partition,
            "from": part.after + 1,
            "to": part.through,
            "messages": part.rows,
        }


def _of_snapshots(change: CommitSnapshots) -> Iterator[Document]:
    for document in change.documents:
        yield {
            "action": "snapshot_document",
            "document": document.document,
            "seq": document.seq,
            "proved_from": document.after,
            "snapshot": document.snapshot,
            "epoch": document.epoch,
            "dropped_snapshots": list(document.dropped),
            "from": document.purge_from,
            "to": document.purge_before - 1,
            "changes": document.purged,
            "reason": document.reason,
            "bounds": [{"bound": name, "stops_at": stops_at} for name, stops_at in document.bounds],
        }
    yield from _of_documents_back(change)


def _of_documents_back(change: CommitSnapshots | CommitChanges) -> Iterator[Document]:
    for returning in change.documents_back:
        yield {
            "action": "restore_document",
            "document": returning.document,
            "from": returning.changes_from,
            "to": returning.changes_before - 1,
            "changes": returning.changes,
            "snapshots": list(returning.snapshots),
        }


def _of_quarantine(change: CommitQuarantine) -> Iterator[Document]:
    yield from ({"action": "drop_quarantined", **_of_file(file)} for file in change.files)
    yield from ({"action": "restore_quarantined", **_of_file(file)} for file in change.files_back)


def _span(rows: Rows) -> Document:
    return {"partition": rows.partition, "from": rows.first_offset, "to": rows.last_offset}


def _of_file(file: QuarantinedFile) -> Document:
    return {"file": file.file, "rows": file.rows, "size_bytes": file.size_bytes, "newest_at": when(file.newest_at)}


def _of_rewrite(change: Rewrite) -> Iterator[Document]:
    for rows in change.rows:
        yield {
            "action": "erase_rows",
            "table": change.table,
            "partition": rows.partition,
            "file": rows.file,
            "offsets": rows.offsets,
            "rows": rows.rows,
            "messages": rows.live,
            "reason": "erased",
        }
    yield {
        "action": "erase_table",
        "table": change.table,
        "refs": [name for name, _ in change.refs],
        "open_undo": [plan_id for plan_id, _ in change.undo],
        "snapshots": len(change.snapshots),
        "files": len(change.files),
    }


def _of_forget(change: Forget) -> Iterator[Document]:
    table = change.table or "log"
    if change.kept or change.snapshots or change.refs:
        yield {
            "action": "expire_snapshots",
            "table": table,
            "snapshots": list(change.snapshots),
            "refs": list(change.refs),
            "kept": dict(change.kept),
        }
    for removal in change.files:
        yield {
            "action": "remove_files",
            "table": table,
            "role": removal.role,
            "files": len(removal.files),
            "bytes": removal.size_bytes,
        }


_MOVES = {"away": "delete_table", "back": "return_table", "gone": "drop_table"}


def _of_move(change: Move) -> Iterator[Document]:
    for moved in change.tables:
        where = {"location": moved.location} if change.to == "gone" else {"bytes": moved.size_bytes}
        yield {"action": _MOVES[change.to], "table": moved.table or "log", "rows": moved.rows, **where}


_LINES: Handlers[Iterator[Document]] = Handlers(
    log=_of_log,
    view=_of_view,
    snapshots=_of_snapshots,
    changes=_of_documents_back,
    quarantine=_of_quarantine,
    rewrite=_of_rewrite,
    forget=_of_forget,
    move=_of_move,
)
