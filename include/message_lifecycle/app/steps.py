"""The verbs, in order: plan, stage, gate, approve, publish, verify. Each reads and writes the ledger by plan id, each can be
run by hand and again, and none decides anything itself: `operations` decides, `stores` do, `gates` judge. No verb asks which operation it
carries out: each walks the plan's changes, and asks the registry for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from message_lifecycle.app import changes, seals, sparing
from message_lifecycle.app.changes import asked_by_itself, replaced
from message_lifecycle.app.concluding import blocked_by, closing_outcome, conclude, judge, outcome_of
from message_lifecycle.app.operations.registry import Operation, Work, is_lost, is_undone, of_plan, of_work, preview
from message_lifecycle.app.services import Services
from message_lifecycle.app.witness import require_intact
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
    void_answer,
)
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Approval, GateReport, Outcome, OutcomeName, PlanRecord, Published, Staged
from message_lifecycle.model.people import person_of
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.plan_state import PLANNING, Decision, Event, Planner, PlanState, allows, not_ready
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.verdict import Withheld, decide

REPLANS = 3
"""How often a run plans again after the table changed under it, before it gives up as `starved`."""


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
    changes nothing takes no other operation's place: it is judged and closed here, and the open plan stays (DEL-3)."""
    operation = of_work(s, name, work)
    topic = operation.topic(s, name)
    if topic is not None:
        s.ledger.check(name, topic.ledger)
        require_intact(s, name)
    with s.ledger.lock(name):
        operation.prepare(s, name)
        changes.sweep(s, name)
        earlier, decision = _make_way(s, name, operation, work, as_of=as_of, run=run)
        if earlier is not None and decision is Decision.KEEP:
            s.ledger.link_run(run, earlier.plan.plan_id)
            return earlier
        if earlier is not None and decision is Decision.REFUSE:
            raise _refused(earlier, operation.is_of(earlier.plan, work))
        with sparing.refusals_recorded(s, name, operation.name, as_of, run):
            made = preview(s, name, as_of=as_of, work=work)  # again: an undo that was finished just now leaves nothing to do
        requested_by = requested_by or _requester(s, made)
        made = changes.with_second_person(made, None if requested_by is None else person_of(requested_by))
        if earlier is not None and made.is_empty and decision in (Decision.BESIDE, Decision.REPLACE_OR_BESIDE):
            return conclude(s, made, earlier, run=run, requested_by=requested_by)
        if earlier is not None and decision is Decision.BESIDE:
            raise OpenPlan(str(name), earlier.plan.plan_id, format_instant(earlier.recorded_at))
        if not made.is_empty and _was_published(s, made.plan_id):
            raise commit_lost(made.plan_id)  # a plan names the state that it was made from, and its commit is another state
        if earlier is not None and earlier.plan.plan_id != made.plan_id:
            close(s, earlier.plan, *replaced(s, earlier, by=f"plan {made.plan_id}"))
        return s.ledger.add_plan(made, run=run, requested_by=requested_by)


def _make_way(
    s: Services, name: TopicName, operation: Operation, work: Work, *, as_of: Instant, run: str | None
) -> tuple[PlanRecord | None, Decision]:
    """Return the topic's open plan, if one is left, and what `PLANNING` says of it. A plan that a dead run committed, or half committed, is
    ended here. Under the topic's lock."""
    earlier = s.ledger.open_plan(name)
    if earlier is None:
        return None, Decision.REPLACE
    if earlier.staged is None:
        changes.drop_left(s, earlier)  # half a file of it would be taken for a writer's
    if operation.is_of(earlier.plan, work):
        planner = Planner.SAME_INTERVAL if earlier.plan.as_of == as_of else Planner.SAME_WORK
    else:
        planner = Planner.YIELDING_WORK if operation.gives_way else Planner.OTHER_WORK
    decision = PLANNING[changes.standing_in_tables(s, earlier, planner, run)][planner]
    if decision is Decision.VERIFY:
        verify(s, earlier.plan.plan_id)  # a run died between its commit and its outcome
        if operation.is_of(earlier.plan, work) and earlier.plan.no_way_back:  # nothing is left to plan
            return s.ledger.record(earlier.plan.plan_id), Decision.KEEP
        return None, Decision.REPLACE
    if decision is not Decision.FINISH:
        return earlier, decision
    stuck = _finished(s, earlier)  # what comes now builds on both of its commits
    if stuck is None:
        return None, Decision.REPLACE
    decision = PLANNING[changes.standing_in_tables(s, stuck, planner, run, can_finish=False)][planner]
    if changes.is_halfway(s, stuck.plan):  # half of a plan is closed, and remembered: nothing closes beside it
        decision = {Decision.REPLACE_OR_BESIDE: Decision.REPLACE, Decision.BESIDE: Decision.REFUSE}.get(decision, decision)
    return stuck, decision


def _refused(open_plan: PlanRecord, same: bool) -> OpenPlan | CompactionRunning:
    plan = open_plan.plan
    if same and plan.is_beside:
        return CompactionRunning(str(plan.topic), plan.plan_id)
    return OpenPlan(str(plan.topic), plan.plan_id, format_instant(open_plan.recorded_at))


def _requester(s: Services, plan: Plan) -> str | None:
    return None if plan.erasure is None else s.ledger.erasure(plan.erasure.request_id).requested_by


def _was_published(s: Services, plan_id: str) -> bool:
    """Whether the ledger knows it as published, and nobody has taken it back."""
    try:
        outcome = s.ledger.record(plan_id).outcome
    except UnknownPlan:
        return False
    return outcome is not None and outcome.name == "published" and s.ledger.undone_by(plan_id) is None


def _finished(s: Services, record: PlanRecord) -> PlanRecord | None:
    """A plan of which a run died between its two commits, brought to its end under the caller's lock: else taking it back would bring back
    one half of it. The record, where that cannot be, because another writer or a hold came between."""
    try:
        _publish(s, record)
        verify(s, record.plan.plan_id)
    except PlanConflict:
        # What is there of it is remembered when it is closed; but half of a topic is none, for whatever is planned now.
        _whole_again(s, record.plan)
    return s.ledger.open_plan(record.plan.topic)


def _whole_again(s: Services, plan: Plan) -> Outcome | None:
    """Of a topic half moved the tables are brought home. Of an undo that is all, and its outcome is written."""
    if not plan.moves_tables:
        return None
    changes.drop(s, plan)
    return verify(s, plan.plan_id) if changes.published(s, plan) is not None else None


def stage(s: Services, plan_id: str) -> Staged:
    """Make every change where no reader sees it."""
    plan = _open(s, plan_id).plan
    with _staging(s, plan):
        record = _open(s, plan_id)
        if record.staged is not None and (not allows(record.state, Event.STAGE) or _stands(s, record)):
            return record.staged  # made again, it would not be what was judged, and the ledger takes nothing else from here on
        staged = changes.make(s, plan)
        try:
            s.ledger.record_staged(staged)
        except NotReady:
            if s.ledger.record(plan_id).state is PlanState.CLOSED:
                changes.drop(s, plan)  # whoever ended it meanwhile found no stage to take away
            raise
    return staged


def _open(s: Services, plan_id: str) -> PlanRecord:
    record = s.ledger.record(plan_id)
    if record.state is PlanState.CLOSED:
        raise _not_ready(record, Event.STAGE)
    return record


def _staged(s: Services, plan_id: str) -> tuple[PlanRecord, Staged]:
    record = s.ledger.record(plan_id)
    if record.state is PlanState.CLOSED or record.staged is None:
        raise _not_ready(record, Event.PASS)
    return record, record.staged


def _not_ready(record: PlanRecord, event: Event) -> NotReady:
    return not_ready(record.plan.plan_id, record.state, event, ended=None if record.outcome is None else record.outcome.name)


def _stands(s: Services, record: PlanRecord) -> bool:
    """Whether what was staged and judged stands, because another run has committed some of it: made again it would be something else, and
    the report would go with it."""
    return record.report is not None and changes.has_begun(s, record.plan)


@contextmanager
def _staging(s: Services, plan: Plan) -> Iterator[None]:
    """What works for long and beside the log lets others go on meanwhile, but for another of its kind (CMP-10)."""
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
    """Put the markers that the staged change calls for beside it; where the topic makes none, or nothing goes, all stays as it is."""
    record, staged = _staged(s, plan_id)
    if not marks(s, record.plan) or staged.markers is not None:
        return staged
    with s.ledger.lock(record.plan.topic):
        record, staged = _staged(s, plan_id)
        if staged.markers is None and not _stands(s, record):
            staged = s.stores.log.mark(record.plan, staged, Policy.of_values(record.plan.policy))
            s.ledger.record_staged(staged)
    return staged


def marks(s: Services, plan: Plan) -> bool:
    """Whether markers are to be looked for before the gate."""
    return of_plan(s, plan).marks and not plan.is_empty and Policy.of_values(plan.policy).marker_ttl_us is not None


def gate(s: Services, plan_id: str) -> GateReport:
    """Judge the staged change; where another run has staged it anew meanwhile, that. A blocked plan is closed and its stage dropped:
    readers' data is as it was (DEL-2, DEL-3)."""
    record, staged = _staged(s, plan_id)
    if record.report is not None and _stands(s, record):
        return record.report
    policy = Policy.of_values(record.plan.policy)
    sparing.require_heeded(s, record.plan)
    if staged.markers is None and marks(s, record.plan):
        staged = mark(s, plan_id)  # another run has staged anew what this one had marked
    report = judge(s, record.plan, staged, policy)
    report = seals.sealed_report(s, record, staged, report)
    try:
        s.ledger.record_report(staged, report)
    except NotReady:
        if _staged(s, plan_id)[1] == staged:
            raise  # a person has answered, or it is being published
        return gate(s, plan_id)
    if report.judgement == "blocked":
        close(s, record.plan, "blocked", blocked_by(report), staged=staged)
    return report


def approve(s: Services, plan_id: str, *, granted: bool, by: str, text: str, gate_id: str | None = None) -> Approval:
    """Record a person's word; a refusal closes the plan (DEL-3). `gate_id`: the report that the person was shown; None: the one that stands.

    Raises OwnRequest, UnnamedPerson and MixedScripts, and the plan still waits; PlanConflict of one that is asked again; VoidAnswer where a yes is about another report than
    the one that waits by now, or where settings were changed since, by which the plan is closed. A no keeps data, so it always stands."""
    record = s.ledger.record(plan_id)
    standing = None if record.report is None else record.report.gate_id
    by = person_of(by)
    asks = granted and allows(record.state, Event.GRANT)
    # Only a question can be void: a plan that passed the gate may be published by now.
    if asks and not changes.is_committed(s, record.plan) and (why := changes.outdated(s, record.plan)):
        close(s, record.plan, "superseded", why)
        raise void_answer(record.plan.plan_id, why)
    if granted and asked_by_itself(record, by):
        raise own_request(record.plan.plan_id, by)
    if asks:
        seals.require_sealed(s, record)
    approval = Approval(plan_id=record.plan.plan_id, granted=granted, by=by, at=s.ledger.now(), text=text, gate_id=gate_id or standing)
    s.ledger.record_approval(seals.sealed_approval(s, approval))
    if not granted:
        close(s, record.plan, "refused", f"{by} refused: {text or 'no reason given'}")
    return approval


def publish(s: Services, plan_id: str) -> Published | Outcome | None:
    """One fenced commit a change. None: the plan is empty, there is nothing to commit. An Outcome: it may not be published (now)."""
    record = s.ledger.record(plan_id)
    if record.outcome is not None:
        return record.outcome
    with s.ledger.lock(record.plan.topic):
        begun = changes.is_to_be_finished(s, record.plan)  # asked first: whoever ends it writes the outcome, and then takes the word away
        record = s.ledger.record(plan_id)
        if record.outcome is not None:
            return record.outcome  # another plan took its place while this one waited for its turn
        if begun:
            return changes.finish(s, record.plan)
        return _publish(s, record)


def _publish(s: Services, record: PlanRecord) -> Published | Outcome | None:
    """Under the topic's lock. Raises PlanConflict; NotReady where no gate has judged what is staged."""
    plan, operation = record.plan, of_plan(s, record.plan)
    if record.staged is None or record.report is None or record.reported_at is None:
        raise _not_ready(record, Event.PUBLISH)
    seals.require_sealed(s, record)
    with s.topics.look():
        if not changes.is_decided(s, plan):
            require_intact(s, plan.topic)
            if changes.settings_changed(s, plan):
                raise PlanConflict(plan.plan_id, "the topic's settings were changed after it was planned")
            sparing.require_heeded(s, plan)
    verdict = decide(
        plan,
        record.staged,
        record.report,
        record.approval,
        asked_at=record.reported_at,
        now=s.ledger.now(),
        approval_ttl_us=Policy.of_values(plan.policy).approval_ttl_us,
    )
    if isinstance(verdict, Withheld):
        if verdict.outcome == "needs_approval":
            return outcome_of(plan, "needs_approval", detail=verdict.reason)
        return close(s, plan, verdict.outcome, verdict.reason)
    if changes_nothing(plan, record.staged):
        return None
    if not operation.heeds_horizon(s, plan) and changes.published(s, plan) is None:
        raise PlanConflict(plan.plan_id, "the topic has been compacted since it was planned")
    # Another run's gate, or its stage beside the log, asks for no lock. After this word the ledger takes neither.
    s.ledger.record_publishing(record.staged, record.report)
    return changes.commit(s, verdict)


def changes_nothing(plan: Plan, staged: Staged | None) -> bool:
    """Whether there is nothing to commit: also where a sweep has found that no marker is owed."""
    markers = None if staged is None else staged.markers
    return plan.is_empty or (bool(plan.on_log.sweep) and markers is not None and not markers.count)


def verify(s: Services, plan_id: str) -> Outcome:
    """Read the table again: what went is what was planned, and what is overdue is named (DEL-6). Writes the outcome."""
    record = s.ledger.record(plan_id)
    if record.outcome is not None:
        _require_on_main(s, record)
        return record.outcome
    plan, operation = record.plan, of_plan(s, record.plan)
    if changes.is_to_be_finished(s, plan):
        changes.finish(s, plan)
    published = changes.published(s, plan)
    if published is None and (not changes_nothing(plan, record.staged) or record.report is None):
        ended = s.ledger.record(plan_id).outcome
        if ended is not None:
            return ended  # another run has written it meanwhile, and then taken away what told of it
        raise _not_ready(record, Event.VERIFY)
    wrong = differences(s, record, published)
    if not wrong:
        operation.settle(s, plan, record.staged)
    after, overdue = operation.look_again(s, plan)
    wrong = [*wrong, *overdue]
    if wrong:
        return close(s, plan, "failed", "; ".join(wrong), published=published, staged=record.staged)
    done: OutcomeName = "no_op" if published is None else "published"
    outcome = close(s, plan, done, operation.told(plan), published=published, after=after, staged=record.staged)
    if after is not None:
        operation.closed(s, plan, after)
    return outcome


def _require_on_main(s: Services, record: PlanRecord) -> None:
    """Return if the tables still have what a closed plan published, or nothing can say otherwise.

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
    """What is not as it was planned and judged, in words (DEL-6)."""
    if published is None or record.staged is None:
        return []
    return [*of_plan(s, record.plan).differences(s, record, published), *changes.left(s, record.plan)]


def ended_by_another(s: Services, plan: Plan) -> Outcome | None:
    """How another run, which carries out the same plan, has brought it to its end; it may have committed it, and not said so yet."""
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
    # First: should that fail, the plan stays open, by which alone the next run finds what is away.
    ended = _whole_again(s, plan) if published is None else None
    if ended is not None:
        return ended
    outcome = closing_outcome(s, plan, name, detail, published=published, after=after, staged=staged)
    recorded = s.ledger.record_outcome(outcome)
    changes.drop(s, plan)
    if published is not None and not plan.is_beside:  # else another run may stage for it still, and the next planning looks again
        s.ledger.record_cleared(plan.plan_id)
    return recorded


Approver = Callable[[Plan, GateReport], tuple[bool, str, str] | None]
"""Asked where the gate leaves it to a person: (granted, by, text), or None to leave the plan waiting."""


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
    """All verbs for one topic. When the table changes under the plan, plan again, at the most REPLANS times. `planned`: called with each
    plan before anything of it is staged."""
    rival = ""
    for _ in range(REPLANS):
        record = plan(s, name, as_of=as_of, run=run, work=work, requested_by=requested_by)
        planned(record)
        if record.outcome is not None:
            return record.outcome
        try:
            return carry_out(s, record, approver)
        except (PlanConflict, NotReady) as conflict:
            ended = ended_by_another(s, record.plan)
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
        # A word given in advance may be the requester's own; the plan then waits for another's.
        if word is not None and not (word[0] and asked_by_itself(record, word[1])):
            if word[0] and (why := changes.outdated(s, record.plan)):
                raise PlanConflict(plan_id, why)
            approve(s, plan_id, granted=word[0], by=word[1], text=word[2])
    result = publish(s, plan_id)
    return result if isinstance(result, Outcome) else verify(s, plan_id)
