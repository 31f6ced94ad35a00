"""Past runs, newest first."""

from __future__ import annotations

from message_lifecycle.app.services import Services
from message_lifecycle.app.views.values import View, held_view, when
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome


def outcome_view(outcome: Outcome, at: Instant | None = None) -> View:
    """How a run ended for one topic; `at`: when that was recorded."""
    return {
        "at": when(at),
        "topic": str(outcome.topic),
        "operation": outcome.operation,
        "outcome": outcome.name,
        "as_of": when(outcome.as_of),
        "plan_id": outcome.plan_id,
        "first_plan_id": outcome.first_plan_id,
        "snapshot_id": outcome.snapshot_id,
        "removed": dict(outcome.removed),
        "removed_messages": outcome.removed_rows,
        "removed_bytes": outcome.removed_bytes,
        "archived": outcome.archived,
        "restored": outcome.restored,
        "reclaimed_files": outcome.reclaimed_files,
        "reclaimed_bytes": outcome.reclaimed_bytes,
        "markers": outcome.markers,
        "cancelled_markers": outcome.cancelled_markers,
        "messages_before": None if outcome.operation == "reclaim" else outcome.rows_in,
        # No message goes with what only the past needs, and none was counted.
        "messages_kept": None if outcome.operation == "reclaim" else outcome.rows_kept,
        "more": outcome.more,
        "held": held_view(outcome.held),
        "warnings": list(outcome.warnings),
        "detail": outcome.detail,
    }


def runs(s: Services, name: TopicName | None = None, *, limit: int = 50) -> list[View]:
    """Of one topic, or of all."""
    return [outcome_view(outcome, at) for at, outcome in s.ledger.history(name, limit=limit)]
