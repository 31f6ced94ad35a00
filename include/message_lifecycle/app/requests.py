"""Requests of a person about whole topics: compact now, delete a topic, remove a deleted topic for good."""

from __future__ import annotations

from message_lifecycle.app import changes, steps
from message_lifecycle.app.operations import reclaim
from message_lifecycle.app.operations.registry import Scheduled, operation_named
from message_lifecycle.app.services import Services
from message_lifecycle.app.steps import Approver
from message_lifecycle.model.errors import (
    CompactionRunning,
    LifecycleError,
    NothingDeleted,
    Unavailable,
    UnknownTopic,
    compacted_table_there,
)
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome
from message_lifecycle.model.request import DeleteTopic, ReclaimDeleted
from message_lifecycle.model.tables import DeletedTopic

# Compaction by hand: one topic, now, even if its settings do not ask for compaction (CMP-10).


_WORK: Scheduled = "compaction"


def forget_view(s: Services, name: TopicName) -> None:
    """Forget that the topic had a view, so that the next compaction takes the log for all there is.

    Raises UnknownTopic; CompactedTableThere while there is a view, CompactedTableMissing while there is a damaged one.
    """
    s.topics.describe(name)
    if s.view_of(name) is not None:
        raise compacted_table_there(str(name), f"{name.namespace}.{name.table('compacted')}")
    s.ledger.set_accepted_view(name, None)


def compact(s: Services, name: TopicName, *, as_of: Instant, approver: Approver | None = None) -> Outcome:
    """Make all steps of a compaction for one topic. A failure is recorded as an outcome, because `status` reports it (CMP-10)."""
    before = s.ledger.open_plan(name)
    try:
        return steps.run(s, name, as_of=as_of, approver=approver, work=_WORK)
    except (Unavailable, CompactionRunning):
        raise
    except LifecycleError as error:
        _note_failure(s, name, as_of, error, None if before is None else before.plan.plan_id)
        raise


def _note_failure(s: Services, name: TopicName, as_of: Instant, error: LifecycleError, before: str | None) -> None:
    """A plan that this run has made is closed, or the cleaner would wait for it; another's is left to its own run."""
    text = f"{error.code}: {error}"
    left = s.ledger.open_plan(name)
    own = left is not None and operation_named(_WORK).is_plan_for(left.plan, _WORK) and left.plan.plan_id != before
    if own and left is not None and changes.find_published(s, left.plan) is None:
        steps.close(s, left.plan, "failed", text)
    else:
        s.ledger.record_run_outcome(None, Outcome(name="failed", operation=_WORK, topic=name, as_of=as_of, detail=text))


# Requests about whole topics: delete a topic, show deleted topics, and remove a deleted topic for good (DEL-7).


def delete_topic(s: Services, name: TopicName, *, by: str, text: str) -> Outcome:
    """Make all steps of a deletion, with the requester's approval.

    If the topic was deleted before, nothing changes, and the outcome names the plan that deleted it.

    Raises:
        UnknownTopic, NotDeletable, HeldByLegalHold: The topic was not deleted.
    """
    _finish(s, name)
    try:
        s.topics.describe(name)
        word = True, by, text
        return steps.run(s, name, as_of=s.ledger.now(), approver=lambda _plan, _report: word, work=DeleteTopic(), requested_by=by)
    except UnknownTopic:
        # Another run may have deleted the topic while this one waited for the lock.
        before = next((one for one in s.stores.deletions() if one.topic == name), None)
        if before is None:
            raise
        done = s.ledger.record(before.plan_id).plan
        return Outcome(name="no_op", operation="topic_delete", topic=name, as_of=done.as_of, first_plan_id=before.plan_id)


def _finish(s: Services, name: TopicName) -> None:
    """Record the outcome of a deletion whose run died after its commit."""
    open_ = s.ledger.open_plan(name)
    if (
        open_ is not None
        and open_.plan.deleted_tables
        and s.stores.delete_tables is not None
        and s.stores.delete_tables.find_published(open_.plan) is not None
    ):
        steps.verify(s, open_.plan.plan_id)


def deleted_topics(s: Services) -> list[DeletedTopic]:
    """The newest first."""
    return [
        found
        for one in s.stores.deletions()
        if s.stores.delete_tables is not None and (found := s.stores.delete_tables.deleted(one.plan_id)) is not None
    ]


def reclaim_deleted(s: Services, plan_id: str, *, as_of: Instant, approver: Approver | None = None, by: str | None = None) -> Outcome:
    """Make all steps to remove a deleted topic for good.

    If a plan removed the topic for good before, nothing changes, and the outcome names that plan.

    Args:
        s: The stores, the ledger and the settings.
        plan_id: The plan that deleted the topic.
        as_of: Judge the undo window at this instant.
        approver: Answers questions of the gate. None: the plan then waits.
        by: The person who asks.

    Raises:
        UnknownPlan, NothingDeleted, UndoWindowOpen: There is nothing to remove now. Errors from planning are raised, too.
    """
    deletion = reclaim.find_deletion(s, plan_id)
    work = ReclaimDeleted(plan_id=deletion.plan_id)
    try:
        if reclaim.find_final_removal(s, deletion) is None:
            return steps.run(s, deletion.topic, as_of=as_of, approver=approver, work=work, requested_by=by)
    except NothingDeleted:
        if reclaim.find_final_removal(s, deletion) is None:
            raise  # otherwise another run has removed the topic meanwhile
    done = reclaim.find_final_removal(s, deletion)
    assert done is not None, "asked just now"
    return Outcome(name="no_op", operation="reclaim", topic=deletion.topic, as_of=done.plan.as_of, first_plan_id=done.plan.plan_id)
