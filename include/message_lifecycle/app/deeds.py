"""Who carries a plan out: what it changes is the log, its compacted view, or both, and then the view first (PRG-1); or documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from message_lifecycle.app import archiving, deleted_reclaiming, document_deeds, document_undoing, erasing, quarantine, topic_deleting
from message_lifecycle.app.live_view import latest_view
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.verdict import Verdict

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services


def stage(s: Services, plan: Plan) -> Staged:
    """Do the work on whichever it concerns, unseen."""
    if topic_deleting.is_whole(s, plan):
        # Names are given in the commit itself; the gate judges the tables.
        return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)
    if plan.operation == "compaction":
        return s.compactor.stage(plan)
    if plan.of_documents:
        return s.document_store.stage_documents(plan)
    if plan.operation == "erasure":
        return erasing.eraser_of(s, plan.topic).stage_erasure(plan, erasing.matches_of(s, plan))
    if plan.operation == "reclaim":
        # What goes is seen by no reader, and cannot be tried: the gate judges the list itself.
        return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)
    if plan.of_quarantine:
        return quarantine.store_of(s, plan.topic).stage_quarantine(plan)
    of_view = s.compactor.stage(plan).view if plan.of_view else None
    if of_view is not None and not plan.of_log:
        return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id, view=of_view)
    staged = s.store.stage(plan)
    archiving.archive(s, plan)
    return replace(staged, view=of_view)


def evidence(s: Services, plan: Plan, staged: Staged, policy: Policy) -> Mapping[str, object]:
    if topic_deleting.is_whole(s, plan):
        return topic_deleting.evidence(s, plan)
    if plan.operation == "compaction":
        return s.compactor.evidence(plan, staged, policy)
    if plan.of_documents:
        return document_deeds.evidence(s, plan, staged, policy)
    if plan.operation == "erasure":
        return erasing.eraser_of(s, plan.topic).erasure_evidence(plan, erasing.matches_of(s, plan))
    if deleted_reclaiming.is_of_deleted(plan):
        return deleted_reclaiming.evidence(s, plan, policy)
    if plan.operation == "reclaim":
        return s.reclaimer.reclaim_evidence(plan, policy)
    if plan.of_quarantine:
        return quarantine.store_of(s, plan.topic).quarantine_evidence(plan, staged)
    of_log = archiving.evidence(s, plan, s.store.evidence(plan, staged, policy))
    return {**of_log, **s.compactor.evidence(plan, staged, policy)} if plan.of_view or plan.past_horizon else of_log


def publish(s: Services, verdict: Verdict) -> Published:
    """Of a removal the view first: were the log first and the run to die, what went from the log would live on in the view.

    Raises PlanConflict, and where another writer has removed messages from the log before the view loses any."""
    plan = verdict.plan
    if topic_deleting.is_whole(s, plan):
        return topic_deleting.publish(s, verdict)
    if plan.of_documents:
        return document_undoing.publish(s, verdict) if plan.operation == "undo" else document_deeds.publish(s, verdict)
    if plan.operation == "erasure":
        return erasing.publish(s, verdict)
    if deleted_reclaiming.is_of_deleted(plan):
        return deleted_reclaiming.publish(s, verdict)
    if plan.operation == "reclaim":
        return s.reclaimer.reclaim(verdict)
    if plan.of_quarantine:
        return quarantine.store_of(s, plan.topic).publish_quarantine(verdict, ledger=s.ledger.next_identity(plan.topic))
    if plan.operation == "compaction":
        return s.compactor.publish(verdict, ledger=s.ledger.next_identity(plan.topic))
    if archiving.archives(plan) and published(s, plan) is None:
        archiving.require(s, plan)
    if plan.view_removals:
        if plan.of_log and plan.requirements.snapshot_id is not None:
            others = s.reader.removed_by_others(s.reader.log(plan.topic), plan.requirements.snapshot_id)
            if others is None or others:
                raise PlanConflict(plan.plan_id, "another writer has removed messages from the log since it was planned")
        done = s.compactor.publish(verdict, ledger=s.ledger.next_identity(plan.topic))
        if not plan.of_log:
            return replace(done, removed=())
        latest_view(s, plan.topic)  # an older one would show what went from the view, once what hides it there has gone from the log
    if plan.view_returns:
        return _bring_back(s, verdict)
    return s.store.publish(verdict, ledger=s.ledger.next_identity(plan.topic))


def _bring_back(s: Services, verdict: Verdict) -> Published:
    """The log first: were the view first and the run to die, a key would show what a newer message, not back yet, hides (P3)."""
    plan = verdict.plan
    of_log = s.store.publish(verdict, ledger=s.ledger.next_identity(plan.topic)) if plan.of_log else None
    of_view = s.compactor.publish(verdict, ledger=s.ledger.next_identity(plan.topic))
    latest_view(s, plan.topic)  # it names the view as it was
    return replace(of_view, removed=()) if of_log is None else of_log


def begun(s: Services, plan: Plan) -> bool:
    """Whether the first of an undo's two commits is there, or all that it has: then nothing stops the other."""
    if plan.document_returns:
        return document_undoing.commits(s, plan)[0] is not None
    if plan.view_returns and plan.of_log:
        return s.reader.published(plan.topic, plan.plan_id) is not None
    return published(s, plan) is not None


def is_halfway(s: Services, plan: Plan) -> bool:
    """Whether of two commits, the log's and the view's, one alone is there; of an undo of documents, the changes' and the snapshots'."""
    if plan.document_returns:
        return begun(s, plan) and published(s, plan) is None
    if not (plan.of_view and plan.of_log) or published(s, plan) is not None:
        return False
    first = s.reader if plan.view_returns else s.views
    return first.published(plan.topic, plan.plan_id) is not None


def published(s: Services, plan: Plan) -> Published | None:
    """The commit that carries the plan, if all of it is there (DEL-4); what went from the log, but for a compaction."""
    if topic_deleting.is_whole(s, plan):
        return topic_deleting.deleter_of(s, plan.topic).moved(plan)
    if plan.operation == "compaction":
        return s.views.published(plan.topic, plan.plan_id)
    if plan.of_documents:
        returned = plan.operation == "undo"
        return document_undoing.published(s, plan) if returned else s.documents.documents_published(plan.topic, plan.plan_id)
    if deleted_reclaiming.is_of_deleted(plan):
        return deleted_reclaiming.reclaimer_of(s, plan.topic).dropped(plan)
    if plan.operation == "reclaim":
        return s.reclaimer.reclaimed(plan)
    if plan.of_quarantine:
        return quarantine.store_of(s, plan.topic).quarantine_published(plan.topic, plan.plan_id)
    if plan.of_view and not plan.of_log:
        done = s.views.published(plan.topic, plan.plan_id)
        return None if done is None else replace(done, removed=())
    if plan.view_returns and s.views.published(plan.topic, plan.plan_id) is None:
        return None
    return s.reader.published(plan.topic, plan.plan_id)


def committed(s: Services, plan: Plan) -> bool:
    """Whether readers see it, or cannot any more, though files may be left to remove: then `steps.verify` brings it to its end."""
    return published(s, plan) is not None or deleted_reclaiming.is_begun(s, plan)


def discard(s: Services, plan: Plan) -> None:
    if deleted_reclaiming.is_of_deleted(plan):
        deleted_reclaiming.reclaimer_of(s, plan.topic).close(plan)
        return
    if plan.operation == "reclaim" or topic_deleting.is_whole(s, plan):
        return
    if plan.of_documents:
        s.document_store.discard_documents(plan)
        return
    if plan.operation == "erasure":
        erasing.eraser_of(s, plan.topic).discard_erasure(plan)
        return
    if plan.of_quarantine:
        quarantine.store_of(s, plan.topic).discard_quarantine(plan)
        return
    if plan.operation == "compaction" or plan.of_view:
        s.compactor.discard(plan)
    if plan.operation != "compaction":
        s.store.discard(plan)
    if archiving.archives(plan) and published(s, plan) is None:
        archiving.forget(plan)
