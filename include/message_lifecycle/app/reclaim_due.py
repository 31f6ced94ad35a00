"""Which topics have space that can come back: without a JVM, by their tables' history and folders (DEL-7).

A name may have had topics that were deleted, and have another one now. One of them is taken a run: the deleted first, for they are seldom.
"""

from __future__ import annotations

from collections.abc import Iterable

from message_lifecycle.app.deleted_reclaiming import begun_plan, due_by_name, forget_ended
from message_lifecycle.app.due import Due, Questions, due_unless_hindered, judge_each
from message_lifecycle.app.previews import Work, preview
from message_lifecycle.app.services import Services
from message_lifecycle.app.sparing import holds_of
from message_lifecycle.model.errors import UnknownTopic
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Operation, Plan
from message_lifecycle.model.request import ReclaimDeleted
from message_lifecycle.model.settings import Policy

_RECLAIM: tuple[Operation, ...] = ("reclaim",)


def due_reclaims(s: Services, names: Iterable[TopicName], *, as_of: Instant, run: str | None = None) -> list[Due]:
    """Judge every topic, of messages or of documents, deleted ones too. Looking costs a walk through its history, once an interval."""
    forget_ended(s)
    questions, deleted = Questions(s), due_by_name(s)
    return judge_each(names, lambda name: _one(s, name, deleted.get(name), questions.about(name), as_of, run))


def work_on(s: Services, name: TopicName, *, as_of: Instant) -> Work:
    """What is to be reclaimed of the name."""
    deleted = due_by_name(s).get(name)
    if deleted is None or (begun_plan(s, name) is None and hindrance(s, name, deleted, as_of=as_of) is not None):
        return "reclaim"
    return deleted


def hindrance(s: Services, name: TopicName, deleted: ReclaimDeleted, *, as_of: Instant) -> str | None:
    """Why nothing of the deleted topic is to go now, in words, so that what else has its name need not wait; None: nothing is in the way."""
    holds = holds_of(s, name)
    if holds:
        return f"nothing is reclaimed: {holds[0].told}"
    for _, outcome in s.ledger.history(name, operations=_RECLAIM):
        plan = None if outcome.name != "refused" or outcome.plan_id is None else s.ledger.record(outcome.plan_id).plan
        if plan is not None and plan.parent == deleted.plan_id:
            until = Instant(outcome.as_of + Policy.of_values(plan.policy).approval_ttl_us)
            return f"a person refused; asked again after {format_instant(until)}" if as_of < until else None
    return None


def _one(s: Services, name: TopicName, deleted: ReclaimDeleted | None, question: str | None, as_of: Instant, run: str | None) -> Due:
    if question is not None:
        return Due(topic=name, due=False, reason=question)
    begun = None if deleted is None else begun_plan(s, name)
    if begun is not None:
        return Due(topic=name, due=True, reason=f"plan {begun.plan_id} has begun and is to be brought to its end")
    if deleted is not None:
        hindered = hindrance(s, name, deleted, as_of=as_of)
        if hindered is None:
            made = preview(s, name, as_of=as_of, work=deleted)
            return _judged(s, made, f"the topic that plan {deleted.plan_id} deleted cannot come back, and {_size(made)} can go", as_of, run)
        if not _stands(s, name):
            return Due(topic=name, due=False, reason=hindered)
    s.ledger.check(name, s.topics.describe(name).ledger)
    made = preview(s, name, as_of=as_of, work="reclaim")
    snapshots = sum(len(action.snapshots) for action in made.expiries)
    return _judged(s, made, f"{_size(made)} can go, with {snapshots} snapshots", as_of, run)


def _judged(s: Services, made: Plan, reason: str, as_of: Instant, run: str | None) -> Due:
    if made.is_empty:
        until = "" if made.next_due_at is None else f" before {format_instant(made.next_due_at)}"
        return Due(topic=made.topic, due=False, reason="; ".join(made.warnings) or f"no space can come back{until}")
    return due_unless_hindered(s, made, reason, as_of=as_of, run=run)


def _size(made: Plan) -> str:
    files = sum(len(removal.files) for removal in made.file_removals)
    return f"{files} files of {made.expected.removed_bytes} bytes"


def _stands(s: Services, name: TopicName) -> bool:
    try:
        s.topics.describe(name)
    except UnknownTopic:
        return False
    return True
