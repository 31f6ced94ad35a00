"""Outcomes, holds and erasures as every view writes them."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from typing import Any, assert_never

from message_lifecycle.app.operations.registry import is_undone, named
from message_lifecycle.app.services import Services
from message_lifecycle.model.erasure import ErasureRequest
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.hold import HeldKey, HeldRange, HeldTopic, Hold
from message_lifecycle.model.in_values import InValues
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.plan import Held

View = dict[str, Any]


def when(instant: int | None) -> str | None:
    """ISO 8601, or None where nobody knows."""
    return None if instant is None else format_instant(instant)


def held_view(held: Iterable[Held]) -> list[View]:
    """Overdue segments that stay, each run of them with its holder (DEL-6)."""
    return [
        {
            "partition": entry.partition,
            "from": entry.first_base,
            "to": entry.last_offset,
            "messages": entry.rows,
            "overdue_since": when(entry.overdue_since),
            "holder": entry.holder,
            "detail": entry.detail,
        }
        for entry in held
    ]


def outcome_view(outcome: Outcome, at: Instant | None = None, *, undone: bool = False) -> View:
    """How a run ended for one topic; `at`: when that was recorded; `undone`: what the plan did was taken back since."""
    counts = named(outcome.operation).counts_messages
    return {
        "at": when(at),
        "topic": str(outcome.topic),
        "operation": outcome.operation,
        "outcome": outcome.name,
        "undone": undone,
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
        "messages_before": outcome.rows_in if counts else None,
        "messages_kept": outcome.rows_kept if counts else None,
        "more": outcome.more,
        "held": held_view(outcome.held),
        "warnings": list(outcome.warnings),
        "detail": outcome.detail,
    }


def runs(s: Services, name: TopicName | None = None, *, limit: int = 50) -> list[View]:
    """Of one topic, or of all."""
    return outcomes_view(s, s.ledger.history(name, limit=limit))


def outcomes_view(s: Services, found: Sequence[tuple[Instant, Outcome]]) -> list[View]:
    """Outcomes with the times of their recording, each with whether its plan is undone now."""
    undone = undone_among(s, [outcome.plan_id for _, outcome in found if outcome.plan_id is not None])
    return [outcome_view(outcome, at, undone=outcome.name == "published" and outcome.plan_id in undone) for at, outcome in found]


def undone_among(s: Services, plan_ids: Collection[str]) -> frozenset[str]:
    """Return those plans that are undone now. A plan whose topic cannot be read counts as the ledger has it."""
    return frozenset(plan_id for plan_id in s.ledger.undone_among(plan_ids) if _is_undone(s, plan_id))


def _is_undone(s: Services, plan_id: str) -> bool:
    try:
        return is_undone(s, s.ledger.record(plan_id).plan)
    except LifecycleError:
        return True


def hold_view(hold: Hold, *, keys: bool = False) -> View:
    """`keys`: with the key itself, which otherwise its digest alone stands for."""
    return {
        "hold_id": hold.hold_id,
        "topic": str(hold.topic),
        **_what(hold, keys=keys),
        "placed_by": hold.placed_by,
        "placed_at": when(hold.placed_at),
        "why": hold.why,
        "released_by": hold.released_by,
        "released_at": when(hold.released_at),
        "released_why": hold.released_why,
    }


def holds_view(s: Services, name: TopicName | None, *, released: bool = False, keys: bool = False) -> list[View]:
    """Of one topic, or of all, in the order in which they were placed."""
    return [hold_view(hold, keys=keys) for hold in s.ledger.holds(name, released=released)]


def _what(hold: Hold, *, keys: bool) -> View:
    match hold.what:
        case HeldTopic():
            return {"holds": "topic"}
        case HeldKey(key=key, digest=digest):
            shown = {"key": text_of(key)} if keys and key is not None else {}
            return {"holds": "key", "key_digest": digest, **shown}
        case HeldRange(partition=partition, first=first, last=last):
            return {"holds": "range", "partition": partition, "from": first, "to": last}
        case never:
            assert_never(never)


def text_of(content: bytes | None) -> object:
    """Bytes as scenario files write them, too."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def erasure_view(request: ErasureRequest) -> View:
    """`topics` empty: all."""
    lifted = request.lifted
    return {
        "request_id": request.request_id,
        "state": request.state,
        "detail": request.detail,
        "topics": [str(topic) for topic in request.topics],
        "forbid": request.forbid,
        "forbids": request.forbid and request.state != "refused" and lifted is None,
        "requested_by": request.requested_by,
        "why": request.why,
        "requested_at": when(request.requested_at),
        "digest": request.key.digest,
        "secret": request.key.secret,
        "lifted": None if lifted is None else {"by": lifted.by, "why": lifted.why, "at": when(lifted.at)},
        "in_values": None if request.in_values is None else in_values_view(request.in_values),
    }


def in_values_view(found: InValues) -> View:
    """Where a key was found inside values. `live`: rows among `rows` that readers see."""
    return {**asdict(found), "searched_at": when(found.searched_at)}


def erasures_view(s: Services, *, limit: int) -> list[View]:
    """Newest first."""
    return [erasure_view(request) for request in s.ledger.erasures(limit=limit)]
