"""Deleting a whole topic and bringing it back: what the verbs of `steps` do differently for it (DEL-3, DEL-7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from message_lifecycle.app import sparing
from message_lifecycle.app.erasing import writers_waited_for
from message_lifecycle.app.frames import with_frame
from message_lifecycle.app.live_view import keep_view
from message_lifecycle.model.errors import HeldByLegalHold, LaterPlan, NameTaken, NotDeletable, UndoSourceGone, UnknownTopic
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import ReclaimDeleted, UndoPlan
from message_lifecycle.model.settings import Policy, resolve
from message_lifecycle.model.tables import DeletedTopic, Deletion
from message_lifecycle.operations import topic_delete, undo
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import Topic

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services
    from message_lifecycle.ports import TopicDeleter


_OF_UNDO = ("restored", "rows", "twice", "markers_left", "difference")
_OF_NOTHING = ("rows_in", "rows_restored", "rows_removed", "rows_kept", "asks")


def deleter_of(s: Services, name: TopicName) -> TopicDeleter:
    """Raises NotDeletable."""
    if s.deleter is None or name in s.backends:
        raise NotDeletable(str(name))
    return s.deleter


def takes_back_topic(s: Services, plan_id: str) -> bool:
    """Whether that plan deleted a topic. Raises UnknownPlan."""
    return s.ledger.record(plan_id).plan.operation == "topic_delete"


def is_whole(s: Services, plan: Plan) -> bool:
    """Whether the plan is about the topic as a whole: its deletion, or the undo of one."""
    if plan.operation != "undo":
        return plan.operation == "topic_delete"
    return plan.parent is not None and takes_back_topic(s, plan.parent)


def standing(s: Services, name: TopicName, work: object) -> Topic | None:
    """The topic; None where it was deleted and is to come back, or to go for good. Raises UnknownTopic."""
    if isinstance(work, ReclaimDeleted):
        return None
    try:
        return s.topics.describe(name)
    except UnknownTopic:
        if isinstance(work, UndoPlan) and takes_back_topic(s, work.plan_id):
            return None
        raise


def plan_deletion(s: Services, name: TopicName, policy: Policy, *, as_of: Instant) -> Plan:
    """Raises NotDeletable, HeldByLegalHold: whatever a hold names lies in the topic (DEL-8)."""
    tables = deleter_of(s, name).tables_of(name)
    holds = sparing.holds_of(s, name)
    if holds:
        raise HeldByLegalHold(str(name), None, [hold.told for hold in holds])
    readers = s.ledger.consumers(name)
    return topic_delete.plan(
        name,
        policy,
        tables,
        end_offsets={} if policy.fold is not None else s.reader.end_offsets(name),
        consumers=sorted({reader.consumer for reader in readers if reader.kind == "consumer"}),
        replicas=sorted({reader.consumer for reader in readers if reader.kind == "replica"}),
        undone=[known.plan_id for known in s.ledger.undone(name) if known.released_at is None],
        as_of=as_of,
    )


def plan_return(s: Services, work: UndoPlan, *, as_of: Instant) -> Plan:
    """The plan that brings a deleted topic back; an empty one where that was done before. Raises CannotUndo's leaves, LedgerMismatch."""
    record = s.ledger.record(work.plan_id)
    deletion, name = record.plan, record.plan.topic
    heeded = sparing.ids_of(sparing.holds_of(s, name))
    there = _uuid_of(s, name)
    before = s.ledger.undoing(deletion.plan_id)
    if before is not None:
        if there != deletion.requirements.table_uuid:
            again = s.ledger.published_after(name, deletion.plan_id, "topic_delete")
            raise LaterPlan(deletion.plan_id, again[-1].plan.plan_id if again else "(none)", "deleted the topic that had come back")
        policy = resolve(topic=s.topics.describe(name).settings, server=s.server)
        return topic_delete.plan_return(deletion, policy, None, heeded=heeded, as_of=as_of)
    found = deleted_by(s, deletion)
    policy = Policy.of_values(deletion.policy) if found is None else policy_of_deleted(s, found)
    s.ledger.check_as_of(as_of, policy.clock_skew_us)
    undo.check(
        deletion,
        outcome=None if record.outcome is None else record.outcome.name,
        published_at=s.ledger.published_at(deletion.plan_id),
        now=s.ledger.now(),
        undo_window_us=policy.undo_window_us,
        table_uuid=deletion.requirements.table_uuid,
    )
    if there is not None:
        raise NameTaken(deletion.plan_id, str(name))
    if found is None:
        raise UndoSourceGone(deletion.plan_id, "the tables of the topic are not there any more")
    s.ledger.check(name, found.ledger)
    later = s.ledger.published_after(name, deletion.plan_id, "topic_delete")
    topic_delete.check_return(deletion, (other.plan for other in later))
    return topic_delete.plan_return(deletion, policy, found, heeded=heeded, erasures=_open_erasures(s, found), as_of=as_of)


def policy_of_deleted(s: Services, found: Deletion) -> Policy:
    """Its settings are kept with its tables; the server's count as they are now."""
    return resolve(topic=found.settings, server=s.server)


def undo_until(s: Services, topic: Deletion) -> Instant:
    """From then on it is not brought back any more."""
    published_at = s.ledger.published_at(topic.plan_id) or topic.deleted_at
    return Instant(published_at + policy_of_deleted(s, topic).undo_window_us)


def deleted_by(s: Services, deletion: Plan) -> DeletedTopic | None:
    return deleter_of(s, deletion.topic).deleted(deletion.plan_id)


def _open_erasures(s: Services, found: DeletedTopic) -> list[str]:
    """No erasure looks into the tables of a deleted topic, and none is done while they stand (see `erasure_requests.unreached`)."""
    return [
        request.request_id
        for request in s.ledger.erasures()
        if request.state == "requested" and (not request.topics or found.topic in request.topics)
    ]


def _uuid_of(s: Services, name: TopicName) -> str | None:
    try:
        return s.topics.describe(name).uuid
    except UnknownTopic:
        return None


def evidence(s: Services, plan: Plan) -> Mapping[str, object]:
    """The store's frames, and of the ledger how many holds stand now."""
    frames = deleter_of(s, plan.topic).moving_evidence(plan)
    if plan.is_empty:
        # Asked again, an undo is like any other of which nothing is left to do.
        return _with_figures({**frames, **dict.fromkeys(_OF_UNDO, frames["taken"])}, dict.fromkeys(_OF_NOTHING, 0))
    return _with_figures(frames, {"asks": len(plan.asks), "holds": len(sparing.holds_of(s, plan.topic))})


def _with_figures(frames: Mapping[str, object], figures: Mapping[str, int]) -> Mapping[str, object]:
    """As lists where the store's are lists."""
    if isinstance(frames["tables"], list):
        return {**frames, "figures": [dict(figures)]}
    return with_frame(frames, "figures", [figures])


def publish(s: Services, verdict: Verdict) -> Published:
    """Nothing is written to the topic meanwhile: what a writer has begun ends before, or finds no topic. Raises PlanConflict, TopicBusy."""
    plan = verdict.plan
    with writers_waited_for(s, plan.topic):
        return deleter_of(s, plan.topic).move(verdict, at=s.ledger.now())


def differences(s: Services, plan: Plan) -> list[str]:
    """What is not where the plan has brought it (DEL-6). That a topic is back is remembered first, whatever else is found."""
    deleter = deleter_of(s, plan.topic)
    if plan.returned_tables:
        assert plan.parent is not None, "an undo names what it takes back"
        s.ledger.set_undone(plan.topic, plan.parent, plan.plan_id, ())
        found = tuple(deleter.tables_of(plan.topic))
        wrong = []
    else:
        deleted = deleted_by(s, plan)
        found = () if deleted is None else deleted.tables
        wrong = [f"topic {plan.topic} is still there"] if _uuid_of(s, plan.topic) == plan.requirements.table_uuid else []
    there = {table.table: (table.table_uuid, table.rows) for table in found}
    planned = {table.table: (table.table_uuid, table.rows) for table in plan.moved_tables}
    return wrong + [
        f"table {kind or 'log'}: the plan says {planned.get(kind)}, {there.get(kind)} is there"
        for kind in sorted(planned.keys() | there.keys())
        if planned.get(kind) != there.get(kind)
    ]


def accept(s: Services, plan: Plan) -> None:
    """The views beside a topic go with its deletion, and are made anew."""
    if plan.returned_tables:
        keep_view(s, plan.topic)
