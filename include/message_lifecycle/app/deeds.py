"""Who carries a plan out: what it changes is the log, its compacted view, or both, and then the view first (PRG-1); or documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from message_lifecycle.app import archiving, document_deeds
from message_lifecycle.app.live_view import latest_view
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.verdict import Verdict

if TYPE_CHECKING:
    from message_lifecycle.app.steps import Services


def stage(s: Services, plan: Plan) -> Staged:
    """Do the work on whichever it concerns, unseen."""
    if plan.operation == "compaction":
        return s.compactor.stage(plan)
    if plan.operation == "snapshot_with_purge":
        return s.document_store.stage_documents(plan)
    of_view = s.compactor.stage(plan).view if plan.view_removals else None
    if of_view is not None and not plan.of_log:
        return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id, view=of_view)
    staged = s.store.stage(plan)
    archiving.archive(s, plan)
    return replace(staged, view=of_view)


def evidence(s: Services, plan: Plan, staged: Staged, policy: Policy) -> Mapping[str, object]:
    if plan.operation == "compaction":
        return s.compactor.evidence(plan, staged, policy)
    if plan.operation == "snapshot_with_purge":
        return document_deeds.evidence(s, plan, staged, policy)
    of_log = archiving.evidence(s, plan, s.store.evidence(plan, staged, policy))
    return {**of_log, **s.compactor.evidence(plan, staged, policy)} if plan.view_removals or plan.past_horizon else of_log


def publish(s: Services, verdict: Verdict) -> Published:
    """The view first: were the log first and the run to die, what went from the log would live on in the view.

    Raises PlanConflict, and where another writer has removed messages from the log before the view loses any."""
    plan = verdict.plan
    if plan.operation == "snapshot_with_purge":
        return document_deeds.publish(s, verdict)
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
    return s.store.publish(verdict, ledger=s.ledger.next_identity(plan.topic))


def published(s: Services, plan: Plan) -> Published | None:
    """The commit that carries the plan, if all of it is there (DEL-4); what went from the log, but for a compaction."""
    if plan.operation == "compaction":
        return s.views.published(plan.topic, plan.plan_id)
    if plan.operation == "snapshot_with_purge":
        return s.documents.documents_published(plan.topic, plan.plan_id)
    if plan.view_removals and not plan.of_log:
        done = s.views.published(plan.topic, plan.plan_id)
        return None if done is None else replace(done, removed=())
    return s.reader.published(plan.topic, plan.plan_id)


def discard(s: Services, plan: Plan) -> None:
    if plan.operation == "snapshot_with_purge":
        s.document_store.discard_documents(plan)
        return
    if plan.operation == "compaction" or plan.view_removals:
        s.compactor.discard(plan)
    if plan.operation != "compaction":
        s.store.discard(plan)
    if archiving.archives(plan) and published(s, plan) is None:
        archiving.forget(plan)
