"""The verbs, in order: plan, stage, gate, approve, publish, verify. Each reads and writes the ledger by plan id, each can be
run by hand and again, and none decides anything itself: `operations` decides, `stores` do, `gates` judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from message_lifecycle.app import deeds
from message_lifecycle.app.archiving import archives
from message_lifecycle.app.cleaning import plan_cleaning
from message_lifecycle.app.compaction_facts import compaction_facts
from message_lifecycle.app.document_facts import document_facts
from message_lifecycle.app.due_state import note_due
from message_lifecycle.app.horizons import heeds_horizon, horizons_of, readers_of
from message_lifecycle.app.live_view import keep_view, latest_view
from message_lifecycle.app.open_plans import belongs_to_another, is_compacting, waits
from message_lifecycle.app.requesting import rows_of_view
from message_lifecycle.app.verifying import accept, accept_removal, differences, overdue_without_holder
from message_lifecycle.model.backends import Backend
from message_lifecycle.model.errors import CompactionRunning, IsADocumentTopic, NotReady, OpenPlan, PlanConflict, TopicBusy
from message_lifecycle.model.facts import Facts
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Approval, GateReport, Outcome, OutcomeName, Published, Staged
from message_lifecycle.model.plan import CLEANING, MARKING, Plan
from message_lifecycle.model.request import Request
from message_lifecycle.model.settings import Policy, Value, resolve
from message_lifecycle.operations import compaction, compaction_purge, marker_sweep, requests, retention_run, snapshot_with_purge
from message_lifecycle.operations.verdict import Withheld, decide
from message_lifecycle.ports import (
    Copier,
    DocumentReader,
    DocumentStore,
    Gate,
    Groups,
    Ledger,
    MessageReader,
    MessageStore,
    PlanRecord,
    Topics,
    ViewReader,
    ViewStore,
)

REPLANS = 3
"""How often a run plans again after the table changed under it, before it gives up as `starved`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the verbs work with; made by `wiring` alone."""

    topics: Topics
    reader: MessageReader
    store: MessageStore
    copier: Copier
    views: ViewReader
    compactor: ViewStore
    documents: DocumentReader
    document_store: DocumentStore
    gate: Gate
    ledger: Ledger
    server: Mapping[str, Value]
    groups: Groups | None = None
    """Where the store knows readers of its own; None: only the ledger does."""
    backends: Mapping[TopicName, Backend] = field(default_factory=dict)
    """Topics that lie in configured backends beside the lake (see `backends`), which `topics.list` does not name."""

    def work_on(self, name: TopicName) -> Literal["message_cleaner", "retention"]:
        """What cleans a topic of messages: of a backend, retention is all there is (RET-5)."""
        return "retention" if name in self.backends else "message_cleaner"


def policy_of(s: Services, name: TopicName) -> Policy:
    """The topic's effective settings now."""
    return resolve(topic=s.topics.describe(name).settings, server=s.server)


Scheduled = Literal["message_cleaner", "retention", "marker_generation", "compaction", "purge_compacted", "snapshot_with_purge"]
Work = Request | Scheduled
"""What a plan is made for: what a person asks to have removed, or a scheduled operation."""


def scheduled(plan: Plan) -> Scheduled:
    """What to plan again for where a plan no longer fits; a person's request is not made again by itself."""
    assert plan.operation != "message_request", "requests are carried out where they are asked"
    return plan.operation


def preview(s: Services, name: TopicName, *, as_of: Instant, work: Work = "message_cleaner") -> Plan:
    """The plan as it would be, recorded nowhere."""
    policy = policy_of(s, name)
    s.ledger.check_as_of(as_of, policy.clock_skew_us)
    if work == "snapshot_with_purge":
        return snapshot_with_purge.plan(document_facts(s, name, policy, as_of=as_of), policy, as_of=as_of)
    if policy.fold is not None:
        raise IsADocumentTopic(str(name))
    if work == "compaction":
        return compaction.plan(compaction_facts(s, name, policy, as_of=as_of), policy, as_of=as_of)
    log = s.reader.log(name, late_after=Instant(as_of + policy.clock_skew_us))
    facts = Facts(log=log, consumers=tuple(readers_of(s, name)), accepted=s.ledger.accepted(name))
    if work == "purge_compacted":
        return compaction_purge.plan(facts, policy, horizons_of(s, name), as_of=as_of)
    if work == "marker_generation":
        since = s.ledger.swept(name)
        # Before the first sweep nobody has looked, and nothing is owed for what nobody can tell.
        removals = () if since is None or log.snapshot_id is None else s.reader.removed_by_others(log, since)
        return marker_sweep.plan(facts, policy, removals, as_of=as_of)
    if work == "retention":
        return retention_run.plan(facts, policy, as_of=as_of, ask=partial(s.reader.rows, log))
    if work != "message_cleaner":
        requests.check(log, work)
        found, view = s.reader.requested(log, work, as_of=as_of), s.views.view(name)
        of_view = {} if view is None else rows_of_view(s, log, view, work, found, as_of=as_of)
        return requests.plan(facts, policy, work, found, as_of=as_of, view=view, of_view=of_view)
    return plan_cleaning(s, facts, policy, as_of=as_of)


def plan(s: Services, name: TopicName, *, as_of: Instant, run: str | None = None, work: Work = "message_cleaner") -> PlanRecord:
    """Plan and record. An open plan that waits for a person is returned as it is; any other open one gives way (DEL-1)."""
    s.ledger.check(name, s.topics.describe(name).ledger)
    with s.ledger.lock(name):
        # Altering a topic has done it; the server's settings change without us.
        keep_view(s, name)
        if work == "purge_compacted":
            latest_view(s, name)  # an older one would read past the end of what it relied on
        earlier = s.ledger.open_plan(name)
        if earlier is not None and deeds.published(s, earlier.plan) is not None:
            verify(s, earlier.plan.plan_id)  # a run died between its commit and its outcome
            earlier = None
        if earlier is not None and earlier.plan.operation == work and waits(s, earlier):
            s.ledger.link_run(run, earlier.plan.plan_id)
            return earlier
        if earlier is not None and work == "marker_generation" and waits(s, earlier):
            # The question is about the log as it stands; markers can wait for its answer.
            raise OpenPlan(str(name), earlier.plan.plan_id, format_instant(earlier.recorded_at))
        if earlier is not None and work == "compaction" == earlier.plan.operation and is_compacting(s, earlier, run):
            raise CompactionRunning(str(name), earlier.plan.plan_id)
        if earlier is not None and run is not None and belongs_to_another(s, earlier.plan.plan_id, earlier.recorded_at, run):
            raise OpenPlan(str(name), earlier.plan.plan_id, format_instant(earlier.recorded_at))
        made = preview(s, name, as_of=as_of, work=work)
        if earlier is not None and earlier.plan.plan_id != made.plan_id:
            lapsed = earlier.report is not None and earlier.report.judgement == "needs_approval"
            close(s, earlier.plan, "lapsed" if lapsed else "superseded", f"plan {made.plan_id} took its place")
        return s.ledger.add_plan(made, run=run)


def stage(s: Services, plan_id: str) -> Staged:
    """Do the work where no reader sees it."""
    record = s.ledger.record(plan_id)
    if record.outcome is not None:
        raise NotReady(plan_id, record.outcome.name, "an open plan")
    with _staging(s, record.plan):
        staged = deeds.stage(s, record.plan)
        s.ledger.record_staged(staged)
    return staged


@contextmanager
def _staging(s: Services, plan: Plan) -> Iterator[None]:
    """Compaction works for long, and beside the log: others go on meanwhile, but for another compaction (CMP-10)."""
    if plan.operation != "compaction":
        with s.ledger.lock(plan.topic):
            yield
        return
    with ExitStack() as held:
        try:
            held.enter_context(s.ledger.lock(plan.topic, wait_seconds=0, purpose="compaction"))
        except TopicBusy as busy:
            raise CompactionRunning(str(plan.topic), plan.plan_id) from busy
        yield


def mark(s: Services, plan_id: str) -> Staged:
    """Put the markers that the staged change calls for beside it; where the topic makes none, or nothing goes, all stays as it is."""
    record = s.ledger.record(plan_id)
    if record.outcome is not None or record.staged is None:
        raise NotReady(plan_id, record.outcome.name if record.outcome else record.state, "a staged, open plan")
    if not marks(record.plan) or record.staged.markers is not None:
        return record.staged
    with s.ledger.lock(record.plan.topic):
        staged = s.store.mark(record.plan, record.staged, Policy.of_values(record.plan.policy))
        s.ledger.record_staged(staged)
    return staged


def marks(plan: Plan) -> bool:
    """Whether markers are to be looked for before the gate."""
    return plan.operation in MARKING and not plan.is_empty and Policy.of_values(plan.policy).marker_ttl_us is not None


def gate(s: Services, plan_id: str) -> GateReport:
    """Judge the staged change. A blocked plan is closed and its stage dropped: readers' data is as it was (DEL-2, DEL-3)."""
    record = s.ledger.record(plan_id)
    if record.outcome is not None or record.staged is None:
        raise NotReady(plan_id, record.outcome.name if record.outcome else record.state, "a staged, open plan")
    policy = Policy.of_values(record.plan.policy)
    report = s.gate.judge(record.plan, record.staged, policy, deeds.evidence(s, record.plan, record.staged, policy))
    s.ledger.record_report(report)
    if report.judgement == "blocked":
        found = "; ".join(f"{check.id}: {check.found}" for check in report.blocking)
        detail = found or f"{len(report.checks)} of {report.declared} checks were evaluated"
        close(s, record.plan, "blocked", detail, staged=record.staged)
    return report


def approve(s: Services, plan_id: str, *, granted: bool, by: str, text: str) -> Approval:
    """Record a person's word; a refusal closes the plan (DEL-3)."""
    record = s.ledger.record(plan_id)
    approval = Approval(plan_id=record.plan.plan_id, granted=granted, by=by, at=s.ledger.now(), text=text)
    s.ledger.record_approval(approval)
    if not granted:
        close(s, record.plan, "refused", f"{by} refused: {text or 'no reason given'}")
    return approval


def publish(s: Services, plan_id: str) -> Published | Outcome | None:
    """One fenced commit. None: the plan is empty, there is nothing to commit. An Outcome: it may not be published (now)."""
    record = s.ledger.record(plan_id)
    if record.outcome is not None:
        return record.outcome
    if record.staged is None or record.report is None or record.reported_at is None:
        raise NotReady(plan_id, record.state, "a plan that the gate has judged")
    plan = record.plan
    with s.ledger.lock(plan.topic):
        closed = s.ledger.record(plan_id).outcome
        if closed is not None:
            return closed  # another plan took its place while this one waited for its turn
        now_hash = policy_of(s, plan.topic).hash
        if now_hash != plan.requirements.policy_hash and deeds.published(s, plan) is None:
            raise PlanConflict(plan.plan_id, "the topic's settings were changed after it was planned")
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
        if not heeds_horizon(s, plan) and deeds.published(s, plan) is None:
            raise PlanConflict(plan.plan_id, "the topic has been compacted since it was planned")
        return deeds.publish(s, verdict)


def changes_nothing(plan: Plan, staged: Staged | None) -> bool:
    """Nothing goes, or a sweep has found that no marker is owed."""
    no_marker = staged is not None and staged.markers is not None and not staged.markers.count
    return plan.is_empty or (plan.operation == "marker_generation" and no_marker)


def verify(s: Services, plan_id: str) -> Outcome:
    """Read the table again: what went is what was planned, and what is overdue is named (DEL-6). Writes the outcome."""
    record = s.ledger.record(plan_id)
    if record.outcome is not None:
        return record.outcome
    plan = record.plan
    published = deeds.published(s, plan)
    if published is None and (not changes_nothing(plan, record.staged) or record.report is None):
        raise NotReady(plan_id, record.state, "a plan that was judged and published")
    wrong = differences(s, record, published)
    done: OutcomeName = "no_op" if published is None else "published"
    if plan.operation == "marker_generation" and plan.requirements.snapshot_id is not None and not wrong:
        s.ledger.set_swept(plan.topic, plan.requirements.snapshot_id)
    if not wrong:
        accept(s, plan, record.staged)
    if plan.operation == "compaction" and not wrong:
        keep_view(s, plan.topic)
    if plan.operation not in CLEANING:
        return close(s, plan, "failed" if wrong else done, "; ".join(wrong), published=published, staged=record.staged)
    after = preview(s, plan.topic, as_of=plan.as_of, work=scheduled(plan))
    wrong += overdue_without_holder(plan, after)
    if wrong:
        return close(s, plan, "failed", "; ".join(wrong), published=published)
    outcome = close(s, plan, done, "", published=published, after=after)
    accept_removal(s, plan)
    if plan.operation == "message_cleaner":
        note_due(s, after)
    return outcome


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
    first = s.ledger.find_published(plan.topic, plan.operation, plan.as_of) if name == "no_op" else None
    outcome = replace(
        outcome_of(plan, name, detail=detail),
        warnings=(*plan.warnings, *(staged.warnings if staged else ())),
        snapshot_id=published.snapshot_id if published else None,
        removed=published.removed if published else (),
        markers=published.markers if published else 0,
        cancelled_markers=published.cancelled_markers if published else 0,
        removed_bytes=plan.expected.removed_bytes if published else 0,
        rows_kept=plan.expected.rows_in - (sum(count for _, count in published.removed) if published else 0),
        held=after.held if after else plan.held,
        first_plan_id=first.plan.plan_id if first else None,
        archived=plan.expected.removed_rows if published and archives(plan) else 0,
    )
    recorded = s.ledger.record_outcome(outcome)
    deeds.discard(s, plan)
    return recorded


def outcome_of(plan: Plan, name: OutcomeName, *, detail: str) -> Outcome:
    return Outcome(
        name=name,
        operation=plan.operation,
        topic=plan.topic,
        as_of=plan.as_of,
        plan_id=plan.plan_id,
        rows_in=plan.expected.rows_in,
        more=plan.more,
        held=plan.held,
        warnings=plan.warnings,
        detail=detail,
    )


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
) -> Outcome:
    """All verbs for one topic. When the table changes under the plan, plan again, at the most REPLANS times."""
    rival = ""
    for _ in range(REPLANS):
        record = plan(s, name, as_of=as_of, run=run, work=work)
        if record.outcome is not None:
            return record.outcome
        try:
            return carry_out(s, record, approver)
        except PlanConflict as conflict:
            rival = f"{conflict.reason} ({conflict.rival})" if conflict.rival else conflict.reason
            close(s, record.plan, "superseded", rival)
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
        if word is not None:
            approve(s, plan_id, granted=word[0], by=word[1], text=word[2])
    result = publish(s, plan_id)
    return result if isinstance(result, Outcome) else verify(s, plan_id)
