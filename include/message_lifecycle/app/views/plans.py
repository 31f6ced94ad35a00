"""A plan for a person to read: its content, its progress and its question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from message_lifecycle.app.changes import why_outdated
from message_lifecycle.app.operations.registry import is_undone, operation_named, operation_of_plan, why_not_undone
from message_lifecycle.app.rendering import ABSENT, Block, Count, Line, Notes, Number, Size, Table, View, each, source
from message_lifecycle.app.services import Services
from message_lifecycle.app.views.actions import ActionView, action_blocks, actions_of
from message_lifecycle.app.views.over_time import Ages, ages, ages_table
from message_lifecycle.app.views.state import HeldView, OutcomeView, continue_command, how_to_answer, merge_held, outcome_view, when
from message_lifecycle.app.wording import ROWS, count, reasons, share
from message_lifecycle.model.errors import LifecycleError
from message_lifecycle.model.facts import Segment
from message_lifecycle.model.instants import INT64_MAX, MICROS_PER_SECOND, Instant, format_span, format_to_second
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Check, GateReport, Judgement, PlanRecord, Staged
from message_lifecycle.model.phrases import amount, short, size
from message_lifecycle.model.plan import Operation as OperationName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.plan_content import content_digest
from message_lifecycle.model.plan_state import PlanState
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.settings import Policy

_QUESTION_PERIODS = 12
"""A question shows at most so many periods of age."""


class BoundView(View):
    """A limit that planning met: nothing at or above `stops_at` is removed. None: no limit."""

    partition: Number
    stops_at: Number | None = source("offset")
    bound: str = source("name")
    reason: str

    table = Table(
        columns={"partition": "partition", "kept from": "stops_at", "bound": "bound", "because": "reason"}, absent={"kept from": "none"}, most=ROWS,
        title="Bounds: first offset that stays, by partition",
    )  # fmt: skip


class StayingView(View):
    """Snapshots of a table that loses nothing by a reclaim, and the first reason that keeps them."""

    table_: str
    reason: str
    snapshots: Count

    table = Table(
        columns={"table": "table_", "snapshots": "snapshots", "because": "reason"}, right=("snapshots",), title="Tables that lose nothing",
    )  # fmt: skip


class FilesView(View):
    """Data files that are removed whole. The digest names them all; `names` are there on request."""

    count: Count
    digest: str
    names: Sequence[str] = ABSENT


class PlannedRemoval(View):
    """The amounts that a plan removes, and why. `messages` is None if it is unknown before the plan is staged (CNT-1)."""

    messages: Count | None
    of_messages: Count
    share: float | None
    by_reason: Mapping[str, int]
    bytes: Size | None
    of_bytes: Size | None
    byte_share: float | None
    segments: Count
    files: FilesView


class BlockedDocument(View):
    """A document that stays as it is, because its changes cannot be folded (SNP-10)."""

    document: str
    reason: str


class PlannedDocuments(View):
    """A plan's documents. `blocked` is None before the plan is staged."""

    documents: Count
    snapshots_made: Count
    snapshots_dropped: Count
    purged_documents: Count
    blocked: Sequence[BlockedDocument] | None
    snapshots_snapshot_id: Number | None


class PlanRequirements(View):
    """The state of the table and the settings that the plan was made for."""

    table_uuid: str
    snapshot_id: Number | None
    policy_hash: str
    code_version: str


class StagedRef(View):
    """The place of a plan's stage."""

    branch: str | None
    snapshot_id: Number | None


_FAILED = Table(
    columns={"check": "id", "says": "says", "found": lambda one: one.found if one.evaluated else f"not evaluated: {one.found}"},
    wrap=("says", "found"),
)


class GateView(View):
    """A gate's report."""

    gate_id: str
    at: Instant | None
    judgement: Judgement
    declared: Count
    evaluated: Count = source("evaluated_count")
    checks: Sequence[Check]
    figures: Mapping[str, int | float | None] = source(make=dict)
    took_ms: int | None

    def failed(self) -> Block:
        """Return the table of the checks that did not hold. The JSON has every check."""
        return _FAILED.of(check for check in self.checks if not check.passed)


class ApprovalView(View):
    """A person's answer to a plan, as one report of the gate judged it."""

    granted: bool
    by: str
    at: Instant
    text: str
    gate_id: str | None


class RunOfPlan(View):
    """A run that worked on a plan. `dag_id` is None if a person named the run."""

    dag_id: str | None
    run_id: str


class PlanView(View):
    """A plan. A recorded plan also has its progress; its page also has the runs, and the plans before and after it.

    Args:
        things: The name of the counted things (`Plan.things`).
        waits_until: When the question to a person lapses. None: no question waits.
        successor: The next plan of the operation, if this plan gave way to it.
        undo_until: The end of the time for an undo. None: no undo is possible.
        ages: What leaves and what stays by age, while the plan is open. None: it removes no segments or rows of the log.
        staying: Only for the preview of a reclaim: the snapshots of tables that lose nothing.
    """

    plan_id: str
    content_digest: str
    topic: TopicName
    operation: OperationName
    things: str
    as_of: Instant
    removes: PlannedRemoval
    takes_back: str | None
    restores: Count = source("restored_rows")
    actions: Sequence[ActionView]
    documents: PlannedDocuments | None
    bounds: tuple[BoundView, ...] = source(make=each(BoundView))
    held: tuple[HeldView, ...] = source(make=each(HeldView))
    warnings: Sequence[str]
    asks: Sequence[str]
    more: bool
    next_due_at: Instant | None
    requires: PlanRequirements = source("requirements", PlanRequirements.of)
    settings: Mapping[str, Value | None] = source("policy", dict)
    state: str = ABSENT
    recorded_at: Instant = ABSENT
    requested_by: str | None = ABSENT
    staged: StagedRef | None = ABSENT
    gate: GateView | None = ABSENT
    approval: ApprovalView | None = ABSENT
    waits_until: Instant | None = ABSENT
    outcome: OutcomeView | None = ABSENT
    runs: Sequence[RunOfPlan] = ABSENT
    successor: str | None = ABSENT
    undone: bool = ABSENT
    undone_by: str | None = ABSENT
    undo_until: Instant | None = ABSENT
    ages: Ages | None = ABSENT
    staying: Sequence[StayingView] = ABSENT

    def screen_blocks(self) -> Iterator[Block]:
        """Yield the plan, from the removal to the next command."""
        files = self.removes.files
        yield Line(f"Plan {self.plan_id}{': undone' if self.undone else ''}", style="bold")
        yield {
            "undone by": f"plan {short(self.undone_by)}" if self.undone and self.undone_by else "",
            "topic": str(self.topic),
            "operation": self.operation,
            "as of": when(self.as_of),
            "requested by": self.requested_by or "",
            "undoes": f"plan {short(self.takes_back)}" if self.takes_back else "",
            "brings back": amount(self.restores, self.things) if self.takes_back else "",
            "removes": self._removal(),
            "by reason": reasons(self.removes.by_reason),
            "size": self._size(),
            "segments": count(self.removes.segments) if self.removes.segments else "",
            "documents": self._documents(),
            "data files": f"{count(files.count)}, digest {short(files.digest)}" if files.count else "",
            "next removal": when(self.next_due_at) if self.next_due_at and not self.removes.messages else "",
            "more": "yes, in the next run" if self.more else "",
        }
        if self.documents and self.documents.blocked:
            yield Notes([f"{one.document}: {one.reason}" for one in self.documents.blocked], title="Blocked")
        yield from action_blocks(self.actions)
        yield BoundView.table.of(self.bounds)
        yield HeldView.table.of(merge_held(self.held))
        yield StayingView.table.of(self.staying or ())
        yield Notes(self.warnings, title="Warnings")
        yield Notes(self.asks, title="Approval required")
        yield Notes(files.names or (), title="Data files")
        yield ""
        yield from self._fate()

    def _removal(self) -> str:
        gone = self.removes
        if not operation_named(self.operation).counts_messages:
            return f"{size(gone.bytes)} of {size(gone.of_bytes)} for good" if self.actions else "nothing"
        if self.documents is not None:
            return f"{count(gone.messages)} of {amount(gone.of_messages, 'changes')} ({share(gone.share)})"
        if gone.messages is None:
            return f"superseded and dead messages, counted when staged, of {count(gone.of_messages)}"
        if not gone.messages:
            return f"nothing of {amount(gone.of_messages, self.things)}"
        return f"{count(gone.messages)} of {amount(gone.of_messages, self.things)} ({share(gone.share)})"

    def _size(self) -> str:
        gone = self.removes
        if not gone.messages or self.documents is not None or not operation_named(self.operation).counts_messages:
            return ""
        return f"{size(gone.bytes)} of {size(gone.of_bytes)} ({share(gone.byte_share)})"

    def _documents(self) -> str:
        found = self.documents
        if found is None:
            return ""
        blocked = f", {count(len(found.blocked))} blocked" if found.blocked else ""
        made = f"{amount(found.snapshots_made, 'snapshots')} made, {count(found.snapshots_dropped)} dropped"
        return f"{count(found.documents)}, {made}, {count(found.purged_documents)} purged{blocked}"

    def _fate(self) -> Iterator[Block]:
        """Yield how far a recorded plan has come, and the next command."""
        if self.state is ABSENT:
            yield "Dry run: nothing was recorded."
            if self.actions and operation_named(self.operation).command:
                yield f"Next: {continue_command(self.plan_id, self.operation, self.topic)}"
            return
        if self.gate is not None:
            yield f"Gate: {self.gate.judgement.replace('_', ' ')}, report {short(self.gate.gate_id)}"
            yield self.gate.failed()
        if self.approval is not None:
            answer = "Approved" if self.approval.granted else "Refused"
            yield f"{answer} by {self.approval.by} at {when(self.approval.at)}: {self.approval.text}"
        if self.outcome is not None:
            yield from self.outcome.headline()
            if self.undo_until is not ABSENT and self.undo_until is not None:
                yield ""
                yield f"Undo until {when(self.undo_until)}: lifecycle undo {short(self.plan_id)} --by NAME --why WHY"
        elif self.waits_until is not None:
            yield from how_to_answer(self.plan_id, self.operation, self.topic)
            yield f"Without an answer, the plan lapses at {when(self.waits_until)}."
        else:
            # Only the table shows whether the plan is committed. `publish` finds the commit, or makes it.
            following = {"planned": "stage", "staged": "gate"}.get(self.state, "publish")
            yield f"State: {self.state}. Next: lifecycle {following} {short(self.plan_id)}"

    def judged(self) -> Iterator[Block]:
        """Yield the gate's report: the judgement, and the checks that did not hold."""
        gate = self.gate
        assert gate is not None, "the plan was judged"
        yield Line(f"Plan {short(self.plan_id)} of {self.topic}: {gate.judgement.replace('_', ' ')}", style="bold")
        yield {
            "gate report": gate.gate_id,
            "checks": f"{gate.evaluated} of {gate.declared} evaluated",
            "passed": f"{sum(check.passed for check in gate.checks)} (--output json lists all)",
        }
        yield gate.failed()
        if gate.judgement == "needs_approval" and self.outcome is None and self.approval is None:
            yield from how_to_answer(self.plan_id, self.operation, self.topic)
        elif gate.judgement == "passed" and self.outcome is None:
            yield f"Next: lifecycle publish {short(self.plan_id)}"


def plan_view(
    plan: Plan, staged: Staged | None = None, *, names: Sequence[str] = ABSENT, staying: Sequence[tuple[str, str, int]] = ABSENT
) -> PlanView:
    """Return the view of a plan without its record, as `plan --dry-run` shows it.

    Args:
        plan: The plan to show.
        staged: The staged change, if the plan was staged.
        names: The names of the files. Without them, the view has their number and digest.
        staying: For a reclaim: (kind of the table, reason, number of snapshots) of the tables that lose nothing.
    """
    removed: Sequence[tuple[str, int]] | None = plan.expected.removed
    documents = _documents(plan, staged) if plan.of_documents and plan.takes_back is None else None
    if plan.view_commit.compact:
        removed = None if staged is None or staged.view is None else staged.view.removed
    elif documents is not None and staged is not None:
        removed = staged.removed(plan)
    return PlanView.of(
        plan,
        content_digest=content_digest(plan),
        removes=_removes(plan, removed, names),
        actions=actions_of(plan.changes),
        documents=documents,
        staying=staying
        if staying is ABSENT
        else [StayingView(table_=table or "log", reason=reason, snapshots=number) for table, reason, number in staying],
    )


def _removes(plan: Plan, removed: Sequence[tuple[str, int]] | None, names: Sequence[str]) -> PlannedRemoval:
    expected, messages = plan.expected, None if removed is None else sum(rows for _, rows in removed)
    return PlannedRemoval(
        messages=messages,
        of_messages=expected.rows_in,
        share=_share(messages, expected.rows_in),
        by_reason=dict(removed or ()),
        bytes=expected.removed_bytes,
        of_bytes=expected.bytes_in,
        byte_share=_share(expected.removed_bytes, expected.bytes_in),
        segments=expected.segments,
        files=FilesView(count=len(plan.selection.files), digest=plan.selection.digest, names=names),
    )


def record_view(record: PlanRecord, *, names: Sequence[str] = ABSENT) -> PlanView:
    """Return the plan and how far it has come. `names`: as `plan_view` takes them."""
    staged, report = record.staged, record.report
    return replace(
        plan_view(record.plan, staged, names=names),
        state=record.state.word,
        recorded_at=record.recorded_at,
        requested_by=record.requested_by,
        staged=None if staged is None else StagedRef.of(staged),
        gate=None if report is None else gate_view(report, record.reported_at),
        approval=None if record.approval is None else ApprovalView.of(record.approval),
        waits_until=waits_until(record),
        outcome=None if record.outcome is None else outcome_view(record.outcome, things=record.plan.things),
    )


def plan_page(s: Services, plan_id: str) -> PlanView:
    """Return a plan by its id or a unique beginning of the id, with its runs and the plans before and after it. Raises UnknownPlan."""
    record = s.ledger.record(plan_id)
    undone_by = s.ledger.undone_by(record.plan.plan_id)
    shown = record_view(record)
    if waits_until(record) is not None and (why := why_outdated(s, record.plan)):
        warning = f"The approval request is void: {why}. The next run asks again"
        shown = replace(shown, waits_until=None, warnings=[*shown.warnings, warning])
    return replace(
        shown,
        runs=tuple(_run(name) for name in s.ledger.runs_of(record.plan.plan_id)),
        successor=_find_successor(s, record),
        undone=undone_by is not None and is_undone(s, record.plan),
        undone_by=undone_by,
        undo_until=None if undone_by is not None else _undo_until(s, record),
        ages=_ages(s, record.plan) if record.outcome is None else None,
    )


def _run(name: str) -> RunOfPlan:
    dag_id, slash, run_id = name.partition("/")
    return RunOfPlan(dag_id=dag_id if slash else None, run_id=run_id if slash else name)


def _find_successor(s: Services, record: PlanRecord) -> str | None:
    """Return the next plan of the operation, if this plan gave way. None also if there is no next plan yet, or it is too old to find."""
    if record.outcome is None or record.outcome.name not in ("superseded", "lapsed"):
        return None
    of_topic = [plan.plan_id for plan in s.ledger.plans(record.plan.topic) if plan.operation == record.plan.operation]
    at = of_topic.index(record.plan.plan_id) if record.plan.plan_id in of_topic else 0
    return of_topic[at - 1] if at else None


def _undo_until(s: Services, record: PlanRecord) -> Instant | None:
    """Return the end of the time for an undo, or None if no undo is possible (any more)."""
    published_at = s.ledger.published_at(record.plan.plan_id)
    if published_at is None or why_not_undone(s, operation_of_plan(record.plan), record.plan.topic) is not None:
        return None
    try:
        policy = operation_of_plan(record.plan).settings_now(s, record.plan)
    except LifecycleError:  # the topic cannot be read, so use the settings in the plan
        policy = Policy.from_values(record.plan.policy)
    until = Instant(min(published_at + policy.undo_window_us, INT64_MAX))
    return until if s.ledger.now() < until else None


def gate_view(report: GateReport, at: Instant | None) -> GateView:
    return GateView.of(report, at=at)


def waits_until(record: PlanRecord) -> Instant | None:
    """Return when the question to a person lapses. None if no question waits."""
    if record.state is not PlanState.ASKED or record.reported_at is None:
        return None
    return Instant(record.reported_at + Policy.from_values(record.plan.policy).approval_ttl_us)


def removal_of(record: PlanRecord) -> tuple[tuple[str, int], ...]:
    """Messages that go, by reason, as far as it is known: a compaction finds out when it is staged."""
    return record.plan.expected.removed if record.staged is None else record.staged.removed(record.plan)


def question_of(record: PlanRecord) -> str:
    """Return the question to a person, in one line."""
    return operation_of_plan(record.plan).question(record.plan, sum(count for _, count in removal_of(record)))


def approval_text(s: Services, record: PlanRecord) -> str:
    """Return the facts for a person's decision, as Markdown.

    The text says what the plan removes, why it asks, how long and how an undo is possible, what an approval covers, and what happens
    without an answer.
    """
    plan, report, until = record.plan, record.report, waits_until(record)
    operation = operation_of_plan(plan)
    failed = [check for check in report.checks if not check.passed] if report else []
    facts = [("age", _days(s, plan) if until is not None else ""), ("undo", _describe_undo(s, plan))]
    if report is not None:
        facts.append(("approval covers", f"this plan and gate report `{short(report.gate_id)}`. A change of settings makes it void"))
    if until is not None:
        then = "Request it again" if operation.by_request else "The next run asks again"
        facts.append(("without an answer", f"nothing is removed, and the plan lapses at {format_to_second(until)}. {then}"))
    # Make one list, because Airflow shows the question's paragraphs without space between them.
    *lines, of_which = operation.lines(plan, removal_of(record), failed)
    by_age = _ages(s, plan, most=_QUESTION_PERIODS) if until is not None else None
    table = [] if by_age is None else ["", *ages_table(by_age)]
    return "\n".join([*lines, *(f"* {what}: {text}" for what, text in facts if text), of_which, *table])


def _ages(s: Services, plan: Plan, **given: int) -> Ages | None:
    """Return what leaves and what stays by age. None: the plan removes nothing of the log, or the log cannot be read."""
    if not (plan.log_commit.drop or plan.marked or plan.deleted_tables):
        return None
    marked = Counter[tuple[int, int]]()
    for rows in plan.marked:
        marked[rows.partition, rows.base_offset] += rows.rows

    def leaving(one: Segment) -> int:
        whole = bool(plan.deleted_tables) or plan.drops(one.partition, one.base_offset)
        return one.rows if whole else marked[one.partition, one.base_offset]

    try:
        return ages(s.reader.log(plan.topic).segments, leaving, **given)
    except LifecycleError:
        return None


def _days(s: Services, plan: Plan) -> str:
    """Return the first and last day of the removed rows, by segments or files. Empty for undos and documents, which have no such days."""
    times: list[tuple[Instant | None, Instant | None]] = [(file.oldest_at, file.newest_at) for file in plan.quarantine_commit.files]
    if plan.log_commit.drop or plan.marked or plan.deleted_tables:
        going = {(rows.partition, rows.base_offset) for rows in plan.marked}
        try:
            segments = s.reader.log(plan.topic).segments
        except LifecycleError as error:
            return f"unknown ({error.code})"
        times += [
            (one.oldest_at, one.newest_at)
            for one in segments
            if plan.deleted_tables or plan.drops(one.partition, one.base_offset) or (one.partition, one.base_offset) in going
        ]
    if not times:
        return ""
    oldest, newest = [at for at, _ in times], [at for _, at in times]
    return f"from {_day(oldest, min)} to {_day(newest, max)}, by the times of their segments"


def _day(times: Sequence[Instant | None], end: Callable[[Sequence[Instant]], Instant]) -> str:
    known = [at for at in times if at is not None]
    return format_to_second(end(known)).partition("T")[0] if len(known) == len(times) else "an unknown day"


def _describe_undo(s: Services, plan: Plan) -> str:
    why_not = why_not_undone(s, operation_of_plan(plan), plan.topic)
    if why_not is not None:
        return f"not possible: {why_not}"
    window_us = Policy.from_values(plan.policy).undo_window_us
    until = format_to_second(Instant(min(s.ledger.now() + window_us, INT64_MAX)))
    lasts = format_span(window_us // MICROS_PER_SECOND)
    return f"`lifecycle undo {short(plan.plan_id)} --by NAME --why WHY`, within {lasts} of publishing (published now: until {until})"


def _documents(plan: Plan, staged: Staged | None) -> PlannedDocuments:
    planned, found = plan.snapshots_commit.documents, None if staged is None else staged.documents
    blocked = () if found is None else tuple(BlockedDocument(document=document, reason=reason) for document, reason in found.blocked)
    return PlannedDocuments(
        documents=len(planned),
        snapshots_made=sum(action.snapshot is not None for action in planned) if found is None else found.made,
        snapshots_dropped=sum(len(action.dropped) for action in planned) if found is None else found.dropped,
        purged_documents=sum(action.purged > 0 for action in planned),
        blocked=None if staged is None else blocked,
        snapshots_snapshot_id=None if plan.snapshots is None else plan.snapshots.snapshot_id,
    )


def _share(part: int | None, whole: int | None) -> float | None:
    if part is None or whole is None:
        return None
    return part / whole if whole else 0.0
