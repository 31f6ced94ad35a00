"""Outcomes, holds and erasures as every view writes them; and whether each topic is cleaned as it should be."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from message_lifecycle.app.known import all_topics, of_it_alone
from message_lifecycle.app.operations.registry import named, names_of, preview
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.model.erasure import ErasureRequest
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.hold import HeldKey, HeldRange, HeldTopic, Hold
from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, PlanSummary
from message_lifecycle.model.plan import Held, Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.topic import origin_of

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


def outcome_view(outcome: Outcome, at: Instant | None = None) -> View:
    """How a run ended for one topic; `at`: when that was recorded."""
    counts = named(outcome.operation).counts_messages
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
        "messages_before": outcome.rows_in if counts else None,
        "messages_kept": outcome.rows_kept if counts else None,
        "more": outcome.more,
        "held": held_view(outcome.held),
        "warnings": list(outcome.warnings),
        "detail": outcome.detail,
    }


def runs(s: Services, name: TopicName | None = None, *, limit: int = 50) -> list[View]:
    """Of one topic, or of all."""
    return [outcome_view(outcome, at) for at, outcome in s.ledger.history(name, limit=limit)]


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
    }


def erasures_view(s: Services, *, limit: int) -> list[View]:
    """Newest first."""
    return [erasure_view(request) for request in s.ledger.erasures(limit=limit)]


# Is each topic cleaned as it should be? Made so that a cleaner which is green and does nothing is noticed.


_BAD_ENDS = ("blocked", "starved", "failed")
# Old plans of other ends are passed over in search of the last removal; beyond so many nobody asks any more.
_PLANS_SEARCHED = 50


def status(s: Services, names: Iterable[TopicName] | None = None) -> list[View]:
    """Every topic's state now. A topic that cannot be read is reported as such and hides no other."""
    now = s.ledger.now()
    waiting = s.ledger.waiting()
    return [_isolated(s, name, now, waiting) for name in (all_topics(s) if names is None else names)]


def _isolated(s: Services, name: TopicName, now: Instant, waiting: Sequence[PlanSummary]) -> View:
    try:
        return topic_status(s, name, now=now, waiting=waiting)
    except LifecycleError as error:
        told = of_it_alone(s, name, error)
        return {"topic": str(name), "ok": False, "problems": [f"{told.code}: {told}"]}


def topic_status(s: Services, name: TopicName, *, now: Instant, waiting: Sequence[PlanSummary] | None = None) -> View:
    """One topic judged as of `now`. `ok` is false when something is overdue for longer than `max_overdue` and nothing named
    holds it, or when the last run ended badly; `problems` says it in words."""
    policy = policy_of(s, name)
    if policy.of_documents:
        return _documents_status(s, name, policy, now, waiting)
    would = preview(s, name, as_of=now)
    asked = open_question(s.ledger.waiting() if waiting is None else waiting, name, policy, now)
    last = next(iter(s.ledger.history(name, limit=1, operations=names_of(lambda one: one.removes))), None)
    holder = _word_of_a_person(asked, last, policy, now)
    since = would.due_since
    late = since is not None and holder is None and now - since > policy.max_overdue_us
    held = [*would.held, *_held_by_a_person(would, since, holder)]
    problems = []
    if late and since is not None:
        problems.append(
            f"{would.expected.removed_rows:,} messages are overdue since {format_instant(since)}, nothing holds them, and no run removed them"
        )
    problems += _bad_end("run", last)
    if policy.is_compacted:
        problems += _bad_end("compaction", last_compaction(s, name))
    return {
        "topic": str(name),
        "ok": not problems,
        "problems": problems,
        "as_of": when(now),
        "messages": would.expected.rows_in,
        "overdue": {
            "messages": 0 if holder else would.expected.removed_rows,
            "since": None if holder else when(since),
            "for_seconds": None if holder or since is None else (now - since) // MICROS_PER_SECOND,
            "max_overdue": policy["max_overdue"],
        },
        "held": held_view(held),
        "next_due_at": when(would.next_due_at),
        "waiting": None if asked is None else _question(asked, policy),
        "last_run": None if last is None else outcome_view(last[1], last[0]),
        "last_removal": _last_removal(s, name),
        "hidden_bytes": s.stores.forget.hidden_bytes(name),
        "warnings": [*would.warnings, *_unregistered(s, name)],
    }


def last_compaction(s: Services, name: TopicName) -> tuple[Instant, Outcome] | None:
    """The newest outcome of a compaction, with the time of its recording."""
    return next(iter(s.ledger.history(name, limit=1, operations=["compaction"])), None)


def _bad_end(what: str, last: tuple[Instant, Outcome] | None) -> list[str]:
    """In words, how the newest of them ended, where a person must see it."""
    return [] if last is None or last[1].name not in _BAD_ENDS else [f"the last {what} ended as {last[1].name}: {last[1].detail}"]


def _documents_status(s: Services, name: TopicName, policy: Policy, now: Instant, waiting: Sequence[PlanSummary] | None) -> View:
    """A topic of documents. What can go does not wait for an hour of its own, so nothing of it is ever late; a document that cannot be
    folded is what a person must see, for nothing of it goes until somebody has mended it (SNP-10)."""
    would = preview(s, name, as_of=now, work="snapshot_with_purge")
    asked = open_question(s.ledger.waiting() if waiting is None else waiting, name, policy, now)
    last = next(iter(s.ledger.history(name, limit=1, operations=["snapshot_with_purge"])), None)
    problems = _bad_end("run", last)
    if last is not None and last[1].plan_id is not None:
        staged = s.ledger.record(last[1].plan_id).staged
        blocked = () if staged is None or staged.documents is None else staged.documents.blocked
        problems += [f"document {document} keeps every change, and gets no snapshot: {reason}" for document, reason in blocked]
    return {
        "topic": str(name),
        "ok": not problems,
        "problems": problems,
        "as_of": when(now),
        "documents": {
            "due": len(would.on_snapshots.documents),
            "snapshots_due": sum(action.snapshot is not None for action in would.on_snapshots.documents),
        },
        "messages": would.expected.rows_in,
        "overdue": {"messages": would.expected.removed_rows, "since": None, "for_seconds": None, "max_overdue": policy["max_overdue"]},
        "held": held_view(would.held),
        "next_due_at": when(would.next_due_at),
        "waiting": None if asked is None else _question(asked, policy),
        "last_run": None if last is None else outcome_view(last[1], last[0]),
        "last_removal": _last_removal(s, name),
        "hidden_bytes": s.stores.forget.hidden_bytes(name),
        "warnings": list(would.warnings),
    }


def _unregistered(s: Services, name: TopicName) -> list[str]:
    """A replica that its origin does not wait for: a person took it off, or the ledger is from before it was made."""
    origin = origin_of(name, s.topics.describe(name).settings)
    if origin is None or any(progress.kind == "replica" and progress.consumer == str(name) for progress in s.ledger.consumers(origin)):
        return []
    return [f"its origin {origin} keeps nothing for it, and no run copies into it: `lifecycle topic copy {name}` registers it again"]


def open_question(waiting: Sequence[PlanSummary], name: TopicName, policy: Policy, now: Instant) -> PlanSummary | None:
    """The plan that a person is asked about; a question that has lapsed is none."""
    for plan in waiting:
        if plan.topic == name and plan.reported_at is not None and now <= plan.reported_at + policy.approval_ttl_us:
            return plan
    return None


def _word_of_a_person(asked: PlanSummary | None, last: tuple[Instant, Outcome] | None, policy: Policy, now: Instant) -> str | None:
    """Who holds what a run would take: an open question, or a refusal that still stands."""
    if asked is not None:
        return f"plan {asked.plan_id} waits for a person's approval"
    # Without a plan it is no word on what is due: a request was refused by a rule (DEL-8).
    if last is not None and last[1].name == "refused" and last[1].plan_id is not None and now < last[1].as_of + policy.approval_ttl_us:
        return last[1].detail
    return None


def _held_by_a_person(would: Plan, since: Instant | None, holder: str | None) -> list[Held]:
    if holder is None:
        return []
    return [
        Held(partition=partition, first_base=base, last_offset=last, rows=rows, overdue_since=since, holder="open_approval", detail=holder)
        for partition, base, last, rows in (
            *((run.partition, run.first_base, run.last_offset, run.rows) for run in would.on_log.drop),
            *((one.partition, one.base_offset, one.last_offset, one.rows) for one in would.on_log.mark),
        )
    ]


def _question(asked: PlanSummary, policy: Policy) -> View:
    assert asked.reported_at is not None
    return {
        "plan_id": asked.plan_id,
        # What is no message of the log, or comes back to it, is told on the plan's own page.
        "messages": asked.expected_rows if named(asked.operation).takes_messages else None,
        "since": when(asked.reported_at),
        "lapses_at": when(Instant(asked.reported_at + policy.approval_ttl_us)),
    }


def _last_removal(s: Services, name: TopicName) -> View | None:
    for plan in s.ledger.plans(name, limit=_PLANS_SEARCHED):
        operation = named(plan.operation)
        if plan.outcome == "published" and operation.removes and not operation.gives_back:
            return {"plan_id": plan.plan_id, "at": when(plan.recorded_at), "as_of": when(plan.as_of), "messages": plan.expected_rows}
    return None
