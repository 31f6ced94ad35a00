"""The walk through a plan's changes: stage them where no reader sees them, commit them, find them again in the tables (DEL-4).

Every kind of change has its store, and all stores have the same interface (`ports.ChangeStore`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from message_lifecycle.app import archiving
from message_lifecycle.app.operations.registry import Operation, operation_of_plan, stores_of
from message_lifecycle.app.services import Services
from message_lifecycle.app.topics import update_latest_view
from message_lifecycle.app.witness import note
from message_lifecycle.model.errors import PlanConflict, TopicBusy, UnknownTopic, code_of
from message_lifecycle.model.instants import Instant, seconds
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import OutcomeName, PlanRecord, Published, Staged
from message_lifecycle.model.people import is_same_person
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.plan_state import PLANNING, OpenPlanSituation, Planner, PlanState
from message_lifecycle.model.settings import Policy, changed_setting_text
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import Prepared

logger = logging.getLogger(__name__)


def stage_all(s: Services, plan: Plan) -> Staged:
    """Stage all changes where no reader sees them. Repeating it gives the same stage."""
    operation = operation_of_plan(plan)
    staged = Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)
    # An undo stages in reverse: if the view's messages are lost, it fails before the log has a stage.
    for store in reversed(stores_of(s, plan)) if operation.gives_back else stores_of(s, plan):
        made = store.stage(plan, operation.commit_context(s, plan, staged))
        staged = replace(made, view=made.view or staged.view, documents=made.documents or staged.documents)
    if plan.archives:
        archiving.archive(s, plan)  # checked again before the removal, and dropped unless the removal was made
    return staged


def commit(s: Services, verdict: Verdict) -> Published:
    """Commit each change once, under its fence, or all changes at once if the catalog can. An existing commit is found, not repeated.

    Raises PlanConflict. If the second commit raises it, the first one stays.
    """
    plan, operation = verdict.plan, operation_of_plan(verdict.plan)
    done: list[Published] = []
    with operation.writer_lock(s, plan):
        _commit_at_once(s, verdict, operation)
        for store in stores_of(s, plan):
            if store.find_published(plan) is None:
                operation.check_before_commit(s, verdict, store)
            done.append(store.publish(verdict, operation.commit_context(s, plan, verdict.staged)))
        if plan.view_return.back:
            update_latest_view(s, plan.topic)  # it still names the compacted view of before
    s.ledger.record_committed(plan.plan_id)
    note(s, plan.topic)
    return operation.combine_published(plan, done)


def _commit_at_once(s: Services, verdict: Verdict, operation: Operation) -> None:
    """Make the first commits that are ready at once. The caller then walks all changes and makes the missing commits.

    Raises PlanConflict, NoTransactions.
    """
    found = stores_of(s, verdict.plan)
    if len(found) < 2 or operation.needs_separate_commits(verdict.plan):
        return
    given = operation.commit_context(s, verdict.plan, verdict.staged)
    ready: list[Prepared] = []
    for store in found:
        prepared = store.prepare(verdict, given)
        if prepared is None:
            break  # a later commit must not exist before an earlier one
        ready.append(prepared)
    if len(ready) < 2:
        return
    for store in found[: len(ready)]:
        operation.check_before_commit(s, verdict, store)
    first, *others = ready
    first.commit_with(others)


def drop(s: Services, plan: Plan, *, ended: OutcomeName | None = None) -> None:
    """Drop the plan's stage. Commits stay.

    Args:
        s: The stores, the ledger and the settings.
        plan: The plan whose stage to drop.
        ended: The outcome of a plan that ended long ago, because the log may no longer know it.
    """
    for store in stores_of(s, plan):
        store.discard(plan)
    if plan.archives and ended not in ("published", "failed") and s.stores.log.find_published(plan) is None:
        archiving.forget(plan)


def sweep(s: Services, name: TopicName) -> None:
    """Drop leftover stages of the topic's closed plans, which a run left when it died or lost its store. Under the topic's lock.

    Stages of unknown or open plans stay: another ledger may own them, a person may still answer, or the result of a commit is unknown. A
    stage that cannot be dropped now stops no plan. The failure is logged, and the next planning of the topic tries again.
    """
    for plan_id in s.ledger.plans_with_leftover_stages(name):
        if drop_leftover_stage(s, s.ledger.record(plan_id)):
            s.ledger.record_stage_cleared(plan_id)


def drop_leftover_stage(s: Services, record: PlanRecord) -> bool:
    """Drop the leftover stage of a plan that is closed, or that was never recorded as staged. Under the topic's lock.

    Returns:
        True if the stage is gone. A failure is logged.
    """
    plan = record.plan
    try:
        with _lock_out_staging(s, plan):
            drop(s, plan, ended=None if record.outcome is None else record.outcome.name)
    except TopicBusy:  # another run stages this plan, or the next one
        logger.info("%s: what plan %s has staged is looked at with the next plan", plan.topic, plan.plan_id)
    except Exception as error:  # noqa: BLE001 - any engine or disk may raise: it is logged, and the next planning tries again
        logger.warning("%s: what plan %s has staged is not taken away yet: %s: %s", plan.topic, plan.plan_id, code_of(error), error)
    else:
        return True
    return False


@contextmanager
def _lock_out_staging(s: Services, plan: Plan) -> Iterator[None]:
    """Lock out a run that stages next to the topic's lock (CMP-10). Raises TopicBusy."""
    if not plan.is_beside:
        yield
        return
    with s.ledger.lock(plan.topic, wait_seconds=0, purpose=plan.operation):
        yield


def find_published(s: Services, plan: Plan) -> Published | None:
    """Return the commit that the outcome counts, if the plan is published whole.

    For a removal the last commit is enough, because the others precede it. An undo needs every commit.
    """
    operation = operation_of_plan(plan)
    found = [store.find_published(plan) for store in (stores_of(s, plan) if operation.gives_back else stores_of(s, plan)[-1:])]
    there = [commit for commit in found if commit is not None]
    return operation.combine_published(plan, there) if there and len(there) == len(found) else None


def warnings(s: Services, plan: Plan) -> tuple[str, ...]:
    """Warn if the catalog should have made all commits at once but made only some of them."""
    several = stores_of(s, plan)
    found = [store.find_published(plan) for store in several] if len(several) > 1 else []
    if {commit.at_once for commit in found if commit is not None} != {True, False}:
        return ()
    return (
        "NotAtOnce: the catalog made one of the plan's commits without the other, though its configuration says that it makes all or none "
        "(lifecycle.atomic-transactions); what was missing has followed. Unless another run of the plan has made it, the catalog is not "
        "atomic: take the setting out.",
    )


def is_committed(s: Services, plan: Plan) -> bool:
    """Return True if the plan is committed. Files may be left to remove; `steps.verify` then removes them."""
    return find_published(s, plan) is not None or is_to_be_finished(s, plan)


def has_first(s: Services, plan: Plan) -> bool:
    """Return True if the plan's first commit exists."""
    return any(store.find_published(plan) is not None for store in stores_of(s, plan)[:1])


def is_halfway(s: Services, plan: Plan) -> bool:
    """Return True if a run has died between two commits of the plan, which must therefore be finished."""
    begun = has_first(s, plan) if len(stores_of(s, plan)) > 1 else operation_of_plan(plan).moves_tables and has_begun(s, plan)
    return plan.continues_after_crash and begun and find_published(s, plan) is None


def is_past_stopping(s: Services, plan: Plan) -> bool:
    """Return True if nothing may stop the plan any more: all of it is committed, or any part of an undo."""
    return has_begun(s, plan) if operation_of_plan(plan).gives_back else find_published(s, plan) is not None


def has_begun(s: Services, plan: Plan) -> bool:
    """Return True if any commit of the plan exists, or any of its files is removed."""
    # If the view's history no longer shows whether a compaction was committed, `ChangeStore.has_begun` returns True, so that undos refuse.
    first = plan.continues_after_crash and not plan.view_commit.compact and any(store.has_begun(plan) for store in stores_of(s, plan)[:1])
    return first or find_published(s, plan) is not None


def is_to_be_finished(s: Services, plan: Plan) -> bool:
    """Return True if the plan has started and cannot be rolled back. Any later run then finishes it."""
    return plan.is_irreversible and has_begun(s, plan)


def finish(s: Services, plan: Plan) -> Published:
    """Finish a plan that has started, without a verdict."""
    done = stores_of(s, plan)[0].finish(plan)
    s.ledger.record_committed(plan.plan_id)
    note(s, plan.topic)
    return done


def find_unapplied(s: Services, plan: Plan) -> list[str]:
    """Describe the rows that should be gone but are not, and the rows that should be back but are not."""
    return [what for store in stores_of(s, plan) for what in store.find_unapplied(plan)]


# The owner of a topic's open plan, the question to a person (DEL-1), and the reasons that end it.


UNDER_WAY_US = seconds(3_600)
"""A run closes its plans when it ends or fails. After this time its machine is gone, and any run may take the topic over. The fence in the
commit makes that safe."""


def belongs_to_another(s: Services, plan_id: str, recorded_at: Instant, run: str | None) -> bool:
    """Return True if an open plan is under way in another run: were it superseded by every interval, a slow topic would never be cleaned.

    A run by hand (None) takes any plan over, and so does everybody once the plan is UNDER_WAY_US old.
    """
    own = {entry.plan_id for entry in s.ledger.run_entries(run)} if run is not None else set()
    return plan_id not in own and s.ledger.now() < recorded_at + UNDER_WAY_US


def situation_of_open_plan(s: Services, record: PlanRecord, run: str | None = None) -> OpenPlanSituation:
    """Return the standing of an open plan for `run`, by the ledger, the clock and the settings. The tables are not read."""
    asked = record.state is PlanState.ASKED
    if asked and not _can_be_answered(s, record):
        return OpenPlanSituation.VOID
    recent = belongs_to_another(s, record.plan.plan_id, record.recorded_at, run)
    if asked or record.approval is not None:
        return OpenPlanSituation.ASKS_LATELY if recent and run is not None else OpenPlanSituation.ASKS
    if not recent:
        return OpenPlanSituation.FREE
    return OpenPlanSituation.RECENT if run is None else OpenPlanSituation.UNDER_WAY


def situation_in_tables(
    s: Services, record: PlanRecord, planner: Planner, run: str | None, *, can_finish: bool = True
) -> OpenPlanSituation:
    """Return how an open plan stands for a run that plans. The tables come first: the ledger may not know what a dead run committed.

    Args:
        s: The stores, the ledger and the settings.
        record: The open plan's record.
        planner: The kind of planning that meets the open plan.
        run: The run that plans.
        can_finish: False after an attempt to finish a plan that has only some of its commits.
    """
    plan = record.plan
    if can_finish and is_committed(s, plan):
        return OpenPlanSituation.COMMITTED
    by_ledger = situation_of_open_plan(s, record, run)
    if can_finish and is_halfway(s, plan):
        return OpenPlanSituation.HALF_ANSWERED if by_ledger.is_question else OpenPlanSituation.HALF
    same = planner in PLANNING[OpenPlanSituation.BEGUN]
    return (
        OpenPlanSituation.BEGUN
        if same and not by_ledger.is_question and operation_of_plan(plan).resumes and has_begun(s, plan)
        else by_ledger
    )


def _can_be_answered(s: Services, record: PlanRecord) -> bool:
    """Return False if nobody answered in time, or settings were changed: the topic is asked again."""
    assert record.reported_at is not None, "a gate report has its time"
    ttl_us = Policy.from_values(record.plan.policy).approval_ttl_us
    return s.ledger.now() <= record.reported_at + ttl_us and not why_outdated(s, record.plan)


def waits_for_person(s: Services, record: PlanRecord) -> bool:
    """Return True if the gate left the plan to a person, and the question still stands or has its answer."""
    return situation_of_open_plan(s, record).is_question


def why_outdated(s: Services, plan: Plan) -> str:
    """Return why the plan can no longer be approved. Empty: it can."""
    try:
        changed = settings_changed(s, plan)
    except (UnknownTopic, PlanConflict):  # the topic is gone, so none of its settings changed
        return ""
    return f"settings were changed after it was planned: {', '.join(changed)}" if changed else ""


def settings_changed(s: Services, plan: Plan) -> tuple[str, ...]:
    """Return the settings that have changed since the plan was made, each with its old and new value in words.

    Raises:
        UnknownTopic: The topic does not exist.
        PlanConflict: The tables of a deleted topic are gone.
    """
    before, now = dict(plan.policy), operation_of_plan(plan).settings_now(s, plan)
    return tuple(changed_setting_text(name, before, now.values) for name in now.changed_since(before))


def with_second_person(plan: Plan, requested_by: str | None) -> Plan:
    """Return the plan with a question to a second person, if a person asked for it and `approver_is_not_requester` is set (DEL-3)."""
    if requested_by is None or plan.is_empty or not Policy.from_values(plan.policy).approver_is_not_requester:
        return plan
    asked = f"{requested_by} asked for it, and approver_is_not_requester is set: another person must approve it"
    return replace(plan, asks=(*plan.asks, asked))


def is_requested_by(record: PlanRecord, by: str) -> bool:
    """Return True if `by` asked for the plan, and may therefore not approve it."""
    if record.requested_by is None or not Policy.from_values(record.plan.policy).approver_is_not_requester:
        return False
    return is_same_person(by, record.requested_by)


def outcome_when_replaced(s: Services, record: PlanRecord, by: str) -> tuple[OutcomeName, str]:
    """Return the outcome, and its text, of an open plan that another plan replaces. An outdated plan does not count as unanswered."""
    if outdated := why_outdated(s, record.plan):
        return "superseded", f"{by} took its place: {outdated}"
    asked = record.state is PlanState.ASKED or record.approval is not None
    return "lapsed" if asked else "superseded", f"{by} took its place"
