"""The verbs, in order: plan, stage, gate, approve, publish, verify.

Every verb reads and writes the ledger by plan id, and can be run again and by hand. No verb decides by itself: `operations` decides,
`stores` do the work, `gates` judge. No verb asks for the operation's name: a verb walks the plan's changes and asks the registry for the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from message_lifecycle.app import changes, seals, sparing
from message_lifecycle.app.changes import is_requested_by, outcome_when_replaced
from message_lifecycle.app.concluding import blocking_text, closing_outcome, conclude, judge, outcome_of
from message_lifecycle.app.operations.registry import Operation, Work, is_lost, is_undone, operation_of_plan, operation_of_work, preview
from message_lifecycle.app.services import Services
from message_lifecycle.app.witness import missing_tables, require_intact
from message_lifecycle.model.errors import (
    CompactionRunning,
    NotReady,
    OpenPlan,
    PlanConflict,
    TopicBusy,
    UnknownPlan,
    UnknownTopic,
    commit_lost,
    commit_not_on_main,
    own_request,
    tables_missing,
    void_answer,
)
from message_lifecycle.model.instants import Instant, format_to_second
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Approval, GateReport, Outcome, OutcomeName, PlanRecord, Published, Staged
from message_lifecycle.model.people import person_of
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.plan_state import PLANNING, Decision, Event, Planner, PlanState, allows_event, not_ready
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.verdict import WithheldVerdict, decide

REPLANS = 3
"""The most plans of one run. If the table changes under each of them, the run ends as `starved`."""


def plan(
    s: Services,
    name: TopicName,
    *,
    as_of: Instant,
    run: str | None = None,
    work: Work = "message_cleaner",
    requested_by: str | None = None,
) -> PlanRecord:
    """Plan one operation on a topic and record the plan, with the person who asked for it (DEL-1).

    A plan of the same work that waits for a person is returned as it is. Any other open plan gives way to the new plan. A new plan that
    changes nothing takes no other operation's place: it is judged and closed here, and the open plan stays (DEL-3).
    """
    operation = operation_of_work(s, name, work)
    topic = operation.topic(s, name)
    if topic is not None:
        s.ledger.check(name, topic.ledger)
        require_intact(s, name)
    with s.ledger.lock(name):
        operation.prepare(s, name)
        changes.sweep(s, name)
        earlier, decision = _decide_open_plan(s, name, operation, work, as_of=as_of, run=run)
        if earlier is not None and decision is Decision.KEEP:
            s.ledger.link_run(run, earlier.plan.plan_id)
            return earlier
        if earlier is not None and decision is Decision.REFUSE:
            raise _open_plan_error(earlier, operation.is_plan_for(earlier.plan, work))
        with sparing.refusals_recorded(s, name, operation.name, as_of, run):
            made = preview(s, name, as_of=as_of, work=work)  # again, because an undo that was finished just now leaves no work
        requested_by = requested_by or _requester(s, made)
        made = changes.with_second_person(made, None if requested_by is None else person_of(requested_by))
        if earlier is not None and made.is_empty and decision in (Decision.BESIDE, Decision.REPLACE_OR_BESIDE):
            return conclude(s, made, earlier, run=run, requested_by=requested_by)
        if earlier is not None and decision is Decision.BESIDE:
            raise OpenPlan(str(name), earlier.plan.plan_id, format_to_second(earlier.recorded_at))
        if not made.is_empty and _was_published(s, made.plan_id):
            raise commit_lost(made.plan_id)  # an equal plan after its own publish means that the commit was lost
        if earlier is not None and earlier.plan.plan_id != made.plan_id:
            close(s, earlier.plan, *outcome_when_replaced(s, earlier, by=f"plan {made.plan_id}"))
        return s.ledger.add_plan(made, run=run, requested_by=requested_by)


def _decide_open_plan(
    s: Services, name: TopicName, operation: Operation, work: Work, *, as_of: Instant, run: str | None
) -> tuple[PlanRecord | None, Decision]:
    """Return the topic's open plan, if one is left, with the decision of `PLANNING`. Under the topic's lock.

    A plan that a dead run committed or half committed is finished first.
    """
    earlier = s.ledger.open_plan(name)
    if earlier is None:
        return None, Decision.REPLACE
    if earlier.staged is None:
        changes.drop_leftover_stage(s, earlier)  # otherwise a part of its stage would look like another writer's file
    if operation.is_plan_for(earlier.plan, work):
        planner = Planner.SAME_INTERVAL if earlier.plan.as_of == as_of else Planner.SAME_WORK
    else:
        planner = Planner.YIELDING_WORK if operation.gives_way else Planner.OTHER_WORK
    decision = PLANNING[changes.situation_in_tables(s, earlier, planner, run)][planner]
    if decision is Decision.VERIFY:
        verify(s, earlier.plan.plan_id)  # a run died between its commit and its outcome
        if operation.is_plan_for(earlier.plan, work) and earlier.plan.is_irreversible:  # nothing is left to plan
            return s.ledger.record(earlier.plan.plan_id), Decision.KEEP
        return None, Decision.REPLACE
    if decision is not Decision.FINISH:
        return earlier, decision
    stuck = _finish_halfway_plan(s, earlier)  # the new plan builds on both of its commits
    if stuck is None:
        return None, Decision.REPLACE
    decision = PLANNING[changes.situation_in_tables(s, stuck, planner, run, can_finish=False)][planner]
    if not changes.is_halfway(s, stuck.plan):
        return stuck, decision
    # No other plan closes next to a half plan. The half plan is closed before the topic is planned: closing an undo records what it has
    # brought back, and the new plan must not remove that again.
    if decision in (Decision.REPLACE, Decision.REPLACE_OR_BESIDE):
        close(s, stuck.plan, *outcome_when_replaced(s, stuck, by="a new plan"))
        return None, Decision.REPLACE
    return stuck, Decision.REFUSE if decision is Decision.BESIDE else decision


def _open_plan_error(open_plan: PlanRecord, same: bool) -> OpenPlan | CompactionRunning:
    plan = open_plan.plan
    if same and plan.is_beside:
        return CompactionRunning(str(plan.topic), plan.plan_id)
    return OpenPlan(str(plan.topic), plan.plan_id, format_to_second(open_plan.recorded_at))


def _requester(s: Services, plan: Plan) -> str | None:
    return None if plan.erasure is None else s.ledger.erasure(plan.erasure.request_id).requested_by


def _was_published(s: Services, plan_id: str) -> bool:
    """Return True if the ledger has the plan as published and no undo has taken it back."""
    try:
        outcome = s.ledger.record(plan_id).outcome
    except UnknownPlan:
        return False
    return outcome is not None and outcome.name == "published" and s.ledger.undone_by(plan_id) is None


def _finish_halfway_plan(s: Services, record: PlanRecord) -> PlanRecord | None:
    """Finish a plan whose run died between its two commits: an undo would otherwise restore one half. Under the caller's lock.

    Returns:
        The record of a plan that cannot be finished, because another writer or a hold came between. None: it is finished.
    """
    try:
        _publish(s, record)
        verify(s, record.plan.plan_id)
    except PlanConflict:
        # Closing the plan records its commits. A half-moved topic, however, cannot be planned at all.
        _restore_moved_tables(s, record.plan)
    return s.ledger.open_plan(record.plan.topic)


def _restore_moved_tables(s: Services, plan: Plan) -> Outcome | None:
    """Bring the tables of a half-moved topic home. That completes an undo, and its outcome is returned."""
    if not operation_of_plan(plan).moves_tables:
        return None
    changes.drop(s, plan)
    return verify(s, plan.plan_id) if changes.find_published(s, plan) is not None else None


def stage(s: Services, plan_id: str) -> Staged:
    """Stage every change of the plan where no reader sees it."""
    plan = _open(s, plan_id).plan
    with _lock_for_staging(s, plan):
        record = _open(s, plan_id)
        if record.staged is not None and (not allows_event(record.state, Event.STAGE) or _must_stay(s, record)):
            return record.staged  # a second stage would differ from the judged one, and the ledger would refuse it
        staged = changes.stage_all(s, plan)
        try:
            s.ledger.record_staged(staged)
        except NotReady:
            if s.ledger.record(plan_id).state is PlanState.CLOSED:
                changes.drop(s, plan)  # the run that ended it meanwhile found no stage to drop
            raise
    return staged


def _open(s: Services, plan_id: str) -> PlanRecord:
    record = s.ledger.record(plan_id)
    if record.state is PlanState.CLOSED:
        raise _not_ready(record, Event.STAGE)
    return record


def _read_staged(s: Services, plan_id: str) -> tuple[PlanRecord, Staged]:
    record = s.ledger.record(plan_id)
    if record.state is PlanState.CLOSED or record.staged is None:
        raise _not_ready(record, Event.PASS)
    return record, record.staged


def _not_ready(record: PlanRecord, event: Event) -> NotReady:
    return not_ready(record.plan.plan_id, record.state, event, ended=None if record.outcome is None else record.outcome.name)


def _must_stay(s: Services, record: PlanRecord) -> bool:
    """Return True if the stage and its report must stay, because another run has committed a part of it."""
    return record.report is not None and changes.has_begun(s, record.plan)


@contextmanager
def _lock_for_staging(s: Services, plan: Plan) -> Iterator[None]:
    """Lock the topic. Long work next to the log only locks out work of its own kind (CMP-10)."""
    if not plan.is_beside:
        with s.ledger.lock(plan.topic):
            yield
        return
    with ExitStack() as held:
        try:
            held.enter_context(s.ledger.lock(plan.topic, wait_seconds=0, purpose=plan.operation))
        except TopicBusy as busy:
            raise CompactionRunning(str(plan.topic), plan.plan_id) from busy
        yield


def mark(s: Services, plan_id: str) -> Staged:
    """Stage the markers that the change requires, unless the topic makes no markers or the plan is empty."""
    record, staged = _read_staged(s, plan_id)
    if not may_need_markers(record.plan) or staged.markers is not None:
        return staged
    with s.ledger.lock(record.plan.topic):
        record, staged = _read_staged(s, plan_id)
        if staged.markers is None and not _must_stay(s, record):
            staged = s.stores.log.mark(record.plan, staged, Policy.from_values(record.plan.policy))
            s.ledger.record_staged(staged)
    return staged


def may_need_markers(plan: Plan) -> bool:
    """Return True if the plan may require markers."""
    return operation_of_plan(plan).marks and not plan.is_empty and Policy.from_values(plan.policy).marker_ttl_us is not None


def gate(s: Services, plan_id: str) -> GateReport:
    """Judge the stage, the newest one if another run has staged again meanwhile.

    A blocked plan is closed and its stage dropped, so readers' data stays as it was (DEL-2, DEL-3).
    """
    record, staged = _read_staged(s, plan_id)
    if record.report is not None and _must_stay(s, record):
        return record.report
    policy = Policy.from_values(record.plan.policy)
    sparing.require_known_holds(s, record.plan)
    if staged.markers is None and may_need_markers(record.plan):
        staged = mark(s, plan_id)  # another run has replaced the stage that this run had marked
    report = judge(s, record.plan, staged, policy)
    report = seals.sealed_report(s, record, staged, report)
    try:
        s.ledger.record_report(staged, report)
    except NotReady:
        if _read_staged(s, plan_id)[1] == staged:
            raise  # a person has answered, or a run publishes the plan
        return gate(s, plan_id)
    if report.judgement == "blocked":
        close(s, record.plan, "blocked", blocking_text(report), staged=staged)
    return report


def approve(s: Services, plan_id: str, *, granted: bool, by: str, text: str, gate_id: str | None = None) -> Approval:
    """Record a person's answer (DEL-3). A refusal closes the plan. A refusal keeps data, so it counts until the plan is committed.

    A plan takes one answer. Only a refusal may follow an approval. A refusal also closes an open plan that asks nobody.

    Args:
        s: The stores, the ledger and the settings.
        plan_id: The id of the plan that waits for the answer.
        granted: True: the person approves. False: the person refuses.
        by: The person who answers.
        text: The person's reason.
        gate_id: The report that the person has seen. None: the current report.

    Raises:
        OwnRequest, UnnamedPerson, MixedScripts: The plan still waits.
        AlreadyAnswered: The plan has another answer, or it is approved and committed.
        NotReady: An approval found no question, or a refusal found a plan that is committed or closed.
        TopicBusy: A refusal of a plan without a question found a run at work on the topic.
        PlanConflict: The question was asked again.
        VoidAnswer: The approval is about an older report, or settings have changed since. The plan is closed.
    """
    record = s.ledger.record(plan_id)
    standing = None if record.report is None else record.report.gate_id
    by = person_of(by)
    asks = granted and allows_event(record.state, Event.GRANT)
    # Only a question can be void: a plan that passed the gate may be published by now.
    if asks and not changes.is_committed(s, record.plan) and (why := changes.why_outdated(s, record.plan)):
        close(s, record.plan, "superseded", why)
        raise void_answer(record.plan.plan_id, why)
    if granted and is_requested_by(record, by):
        raise own_request(record.plan.plan_id, by)
    if asks:
        seals.require_sealed(s, record)
    approval = Approval(plan_id=record.plan.plan_id, granted=granted, by=by, at=s.ledger.now(), text=text, gate_id=gate_id or standing)
    if not granted and _close_unasked(s, record, by, text):
        return approval
    s.ledger.record_approval(seals.sealed_approval(s, approval))
    if not granted:
        close(s, record.plan, "refused", f"{by} refused: {text or 'no reason given'}")
    return approval


def _close_unasked(s: Services, record: PlanRecord, by: str, text: str) -> bool:
    """Close an open plan that waits for no answer, and return True. Return False if a question waits, or nothing can stop the plan any more."""
    plan_id, first = record.plan.plan_id, record.approval
    if allows_event(record.state, Event.REFUSE) or (first is not None and not first.granted):
        return False
    with s.ledger.lock(record.plan.topic):  # no run commits the plan meanwhile
        if s.ledger.record(plan_id).outcome is not None or changes.is_committed(s, record.plan) or changes.is_past_stopping(s, record.plan):
            return False
        after = "" if first is None else f" after {first.by} had approved"
        close(s, record.plan, "refused", f"{by} refused{after}: {text or 'no reason given'}")
    return True


def publish(s: Services, plan_id: str) -> Published | Outcome | None:
    """Commit each change once, under its fence.

    Returns:
        The commit, None if the plan changes nothing, or an Outcome if the plan may not be published, or not now.
    """
    record = s.ledger.record(plan_id)
    if record.outcome is not None:
        return record.outcome
    with s.ledger.lock(record.plan.topic):
        begun = changes.is_to_be_finished(
            s, record.plan
        )  # before the outcome is read: the run that finishes the plan writes the outcome and then removes its traces
        record = s.ledger.record(plan_id)
        if record.outcome is not None:
            return record.outcome  # another plan took its place while this one waited for its turn
        if begun:
            return changes.finish(s, record.plan)
        return _publish(s, record)


def _publish(s: Services, record: PlanRecord) -> Published | Outcome | None:
    """Publish under the topic's lock. Raises PlanConflict, and NotReady if no gate has judged the stage."""
    plan, operation = record.plan, operation_of_plan(record.plan)
    if record.staged is None or record.report is None or record.reported_at is None:
        raise _not_ready(record, Event.PUBLISH)
    seals.require_sealed(s, record)
    with s.topics.look():
        if not changes.is_past_stopping(s, plan):
            require_intact(s, plan.topic)
            if changes.settings_changed(s, plan):
                raise PlanConflict(plan.plan_id, "the topic's settings were changed after it was planned")
            sparing.require_known_holds(s, plan)
    verdict = decide(
        plan,
        record.staged,
        record.report,
        record.approval,
        asked_at=record.reported_at,
        now=s.ledger.now(),
        approval_ttl_us=Policy.from_values(plan.policy).approval_ttl_us,
    )
    if isinstance(verdict, WithheldVerdict):
        if verdict.outcome == "needs_approval":
            return outcome_of(plan, "needs_approval", detail=verdict.reason)
        return close(s, plan, verdict.outcome, verdict.reason)
    if changes_nothing(plan, record.staged):
        return None
    if not operation.respects_horizon(s, plan) and changes.find_published(s, plan) is None:
        raise PlanConflict(plan.plan_id, "the topic has been compacted since it was planned")
    # Another run may gate or stage without this lock. From here on the ledger refuses both.
    s.ledger.record_publishing(record.staged, record.report)
    return changes.commit(s, verdict)


def changes_nothing(plan: Plan, staged: Staged | None) -> bool:
    """Return True if the plan is empty, or a sweep has found no missing marker."""
    markers = None if staged is None else staged.markers
    return plan.is_empty or (bool(plan.log_commit.sweep) and markers is not None and not markers.count)


def verify(s: Services, plan_id: str) -> Outcome:
    """Read the tables again, compare the effect with the plan, name overdue messages (DEL-6), and write the outcome."""
    record = s.ledger.record(plan_id)
    if record.outcome is not None:
        _require_on_main(s, record)
        return record.outcome
    plan, operation = record.plan, operation_of_plan(record.plan)
    if changes.is_to_be_finished(s, plan):
        changes.finish(s, plan)
    published = changes.find_published(s, plan)
    if published is None and (not changes_nothing(plan, record.staged) or record.report is None):
        ended = s.ledger.record(plan_id).outcome
        if ended is not None:
            return ended  # another run has written it meanwhile and removed the traces
        _require_tables(s, record, wrong=True)
        raise _not_ready(record, Event.VERIFY)
    wrong = differences(s, record, published)
    _require_tables(s, record, wrong=bool(wrong))
    if not wrong:
        operation.record_effects(s, plan, record.staged)
    after, overdue = operation.check_again(s, plan)
    wrong = [*wrong, *overdue]
    if wrong:
        return close(s, plan, "failed", "; ".join(wrong), published=published, staged=record.staged)
    done: OutcomeName = "no_op" if published is None else "published"
    outcome = close(s, plan, done, operation.detail_text(plan), published=published, after=after, staged=record.staged)
    if after is not None:
        operation.after_outcome(s, plan, after)
    return outcome


def _require_tables(s: Services, record: PlanRecord, *, wrong: bool) -> None:
    """Return if the catalog has every table that the plan changed: an effect in a missing table is unknown, neither right nor wrong.

    Args:
        s: The stores, the ledger and the settings.
        record: The plan's record in the ledger.
        wrong: Verify has found a difference. Any missing table may be its cause.

    Raises:
        TablesMissing: The plan was published, and a table is missing since. The plan stays as it is.
    """
    plan = record.plan
    rewritten = {rewrite.table_uuid for rewrite in plan.rewrites}
    missing = [one for one in missing_tables(s, plan.topic) if wrong or one.table_uuid in rewritten]
    if missing and record.state is PlanState.PUBLISHING:
        raise tables_missing(str(plan.topic), plan.plan_id, ", ".join(map(str, missing)))


def _require_on_main(s: Services, record: PlanRecord) -> None:
    """Check that the tables have not lost the commit of a closed, published plan. An unknown state passes.

    Raises:
        LogRolledBack, LogStateLost: Another engine has changed a table of the topic.
        CommitNotOnMain: The tables go back to a time before the plan's commit.
    """
    plan, outcome = record.plan, record.outcome
    if outcome is None or outcome.name != "published" or is_undone(s, plan):
        return
    with suppress(UnknownTopic):  # the topic was deleted since
        require_intact(s, plan.topic)
        if is_lost(s, plan):
            raise commit_not_on_main(plan.plan_id, outcome.snapshot_id)


def differences(s: Services, record: PlanRecord, published: Published | None) -> list[str]:
    """Describe all differences from the plan and the judgement (DEL-6)."""
    if published is None or record.staged is None:
        return []
    return [*operation_of_plan(record.plan).differences(s, record, published), *changes.find_unapplied(s, record.plan)]


def outcome_of_other_run(s: Services, plan: Plan) -> Outcome | None:
    """Return the outcome of a plan that another run has finished. If that run has only committed it, verify it here."""
    outcome = s.ledger.record(plan.plan_id).outcome
    if outcome is None:
        return verify(s, plan.plan_id) if changes.is_committed(s, plan) else None
    return outcome if outcome.name in ("published", "no_op", "failed") else None


def close(
    s: Services,
    plan: Plan,
    name: OutcomeName,
    detail: str,
    *,
    published: Published | None = None,
    after: Plan | None = None,
    staged: Staged | None = None,
) -> Outcome:
    """Record the outcome and forget the stage. The first outcome of a plan stands."""
    # First, because a failure here leaves the plan open, and only an open plan leads the next run to the moved tables.
    ended = _restore_moved_tables(s, plan) if published is None else None
    if ended is not None:
        return ended
    outcome = closing_outcome(s, plan, name, detail, published=published, after=after, staged=staged)
    recorded = s.ledger.record_outcome(outcome)
    changes.drop(s, plan)
    if published is not None and not plan.is_beside:  # otherwise another run may still stage for it, and the next planning checks again
        s.ledger.record_stage_cleared(plan.plan_id)
    return recorded


Approver = Callable[[Plan, GateReport], tuple[bool, str, str] | None]
"""Answers the question of the gate: (granted, by, text), or None to leave the plan waiting."""


def run(
    s: Services,
    name: TopicName,
    *,
    as_of: Instant,
    run: str | None = None,
    approver: Approver | None = None,
    work: Work = "message_cleaner",
    requested_by: str | None = None,
    planned: Callable[[PlanRecord], None] = lambda _: None,
) -> Outcome:
    """Run all verbs on one topic. If the table changes under the plan, plan again, up to REPLANS times.

    Args:
        s: The stores, the ledger and the settings.
        name: The topic.
        as_of: Judge ages at this instant.
        run: The run's id. None: no run of a schedule.
        approver: Answers questions of the gate. None: the plan then waits.
        work: The scheduled operation, or a person's request.
        requested_by: The person who asked for the plan.
        planned: Called with each plan before it is staged.
    """
    rival = ""
    for _ in range(REPLANS):
        record = plan(s, name, as_of=as_of, run=run, work=work, requested_by=requested_by)
        planned(record)
        if record.outcome is not None:
            return record.outcome
        try:
            return carry_out(s, record, approver)
        except (PlanConflict, NotReady) as conflict:
            ended = outcome_of_other_run(s, record.plan)
            if ended is not None:
                return ended
            if isinstance(conflict, NotReady):
                raise
            rival = f"{conflict.reason} ({conflict.rival})" if conflict.rival else conflict.reason
            closed = close(s, record.plan, "superseded", rival)
            if closed.name in ("published", "failed"):
                return closed
    return s.ledger.record_run_outcome(
        run,
        replace(
            outcome_of(record.plan, "starved", detail=f"planned {REPLANS} times, each time the table changed: {rival}"),
            plan_id=None,
        ),
    )


def carry_out(s: Services, record: PlanRecord, approver: Approver | None = None) -> Outcome:
    """Stage, gate, approve, publish and verify one plan. Raises PlanConflict when the table changed under it."""
    plan_id = record.plan.plan_id
    if record.report is None:
        stage(s, plan_id)
        mark(s, plan_id)
        report = gate(s, plan_id)
    else:
        report = record.report
    if report.judgement == "needs_approval" and record.approval is None and approver is not None:
        word = approver(record.plan, report)
        # An answer given in advance may be the requester's own. The plan then waits for a second person.
        if word is not None and not (word[0] and is_requested_by(record, word[1])):
            if word[0] and (why := changes.why_outdated(s, record.plan)):
                raise PlanConflict(plan_id, why)
            approve(s, plan_id, granted=word[0], by=word[1], text=word[2])
    result = publish(s, plan_id)
    return result if isinstance(result, Outcome) else verify(s, plan_id)
