"""Is each topic cleaned as it should be (OBL-1)? Made so that a cleaner which is green and does nothing is noticed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from message_lifecycle.app.changes import waits_for_person
from message_lifecycle.app.known import all_topics, error_of_one_topic
from message_lifecycle.app.obligations import LakeFacts, obligations_of_topic, read_lake, with_cleaner_enabled
from message_lifecycle.app.operations.registry import names_of, operation_named
from message_lifecycle.app.refused import needing_a_person, rows_in_quarantine
from message_lifecycle.app.rendering import ABSENT, Block, Count, Heading, Notes, Size, Table, View, each, source
from message_lifecycle.app.seals import broken_seal
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.app.views.past_expiry import PastExpiry, past_expiry_view
from message_lifecycle.app.views.state import HeldView, OutcomeView, find_undone, outcomes_view, when
from message_lifecycle.app.witness import require_intact
from message_lifecycle.app.wording import NO_TOPICS
from message_lifecycle.model.errors import ledger_tampered
from message_lifecycle.model.instants import MICROS_PER_SECOND, Instant, format_span, format_to_second
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.obligation import Obligation, ObligationKind, ObligationState
from message_lifecycle.model.outcome import Outcome, OutcomeName, PlanSummary
from message_lifecycle.model.phrases import amount, short
from message_lifecycle.model.plan import Held, Plan
from message_lifecycle.model.plan import Operation as OperationName
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.topic import RECORD_LOGS, origin_of

Health = Literal["failed", "asks", "overdue", "held", "fine"]
"""The states of a topic, the most urgent first. `asks`: a plan waits for a person."""
_BAD_ENDS = ("blocked", "starved", "failed")
# The search for the last removal skips plans with other outcomes, but no more than this number.
_PLANS_SEARCHED = 50
_HOLDERS_SHOWN = 5


class AmountDue(View):
    """Due messages, or due changes of documents. `since` is when the first of them became due. None: unknown."""

    messages: Count
    since: Instant | None
    for_seconds: int | None
    max_overdue: int = ABSENT


class DocumentsDue(View):
    """The documents that a plan made now would change, and how many of them get a snapshot."""

    due: Count
    snapshots_due: Count


class RanView(View):
    """The last outcome of an operation."""

    at: Instant
    outcome: OutcomeName


class ObligationView(View):
    """One kind of duty of a topic (OBL-1): how much is due, since when, and who holds the rest."""

    kind: ObligationKind
    state: ObligationState
    operation: OperationName
    due_since: Instant | None
    amount: Count | None
    unit: str
    held: tuple[HeldView, ...] = source(make=each(HeldView))
    last_run: RanView | None = source(make=lambda ran: RanView(at=ran[0], outcome=ran[1]))
    looked_at: Instant | None
    problems: Sequence[str]

    table = Table(
        columns={
            "": "state", "work": lambda one: "approval" if one.kind == "question" else one.kind, "due": lambda one: "" if one.amount is None else amount(one.amount, one.unit),
            "since": "due_since", "on hold by": lambda one: ", ".join(sorted({entry.holder for entry in one.held})),
            "last run": lambda one: f"{one.last_run.outcome} {format_to_second(one.last_run.at)}" if one.last_run else "none",
        },
        right=("due",), wrap=("on hold by",),
    )  # fmt: skip


class QuestionView(View):
    """A plan that waits for a person. `messages` is None if the plan does not remove messages of the log."""

    plan_id: str
    messages: Count | None
    since: Instant
    lapses_at: Instant
    asked_in_airflow: bool


class LastRemoval(View):
    """The newest published plan that removed messages. `at`: when its effect was verified."""

    plan_id: str
    at: Instant | None
    as_of: Instant
    messages: Count = source("expected_rows")
    undone: bool


class RefusedRows(View):
    """Rows in the quarantine, and the batches that need a person."""

    rows: Count
    batches: tuple[str, ...]


class StatusView(View):
    """One topic, judged as of now. A topic that cannot be read has only `problems`.

    Args:
        ok: False if any obligation of the topic is later than `max_overdue` (OBL-1), if its cleaner is disabled, or if its last run ended
            badly. `problems` names the reasons.
        due: The amount that the next run removes.
        overdue: The amount of the rules whose first message is due for longer than `max_overdue`.
    """

    topic: TopicName | str
    ok: bool
    problems: Sequence[str]
    as_of: Instant = ABSENT
    documents: DocumentsDue = ABSENT
    messages: Count | None = ABSENT
    bytes: Size | None = ABSENT
    due: AmountDue = ABSENT
    overdue: AmountDue = ABSENT
    held: tuple[HeldView, ...] = ABSENT
    past_expiry: PastExpiry = ABSENT
    obligations: tuple[ObligationView, ...] = ABSENT
    next_due_at: Instant | None = ABSENT
    waiting: QuestionView | None = ABSENT
    last_run: OutcomeView | None = ABSENT
    last_removal: LastRemoval | None = ABSENT
    refused: RefusedRows = ABSENT
    hidden_bytes: Size | None = ABSENT
    warnings: Sequence[str] = ABSENT

    @property
    def is_read(self) -> bool:
        return self.due is not ABSENT

    @property
    def trouble(self) -> Health:
        """The most urgent state. Problems of obligations make a topic overdue; any other problem, or work that nobody can judge, failed."""
        late = sum(len(one.problems) for one in self.obligations or () if one.kind != "unknown")
        if not self.is_read or len(self.problems) > late:
            return "failed"
        if self.waiting:
            return "asks"
        if not self.ok:
            return "overdue"
        return "held" if self.held else "fine"

    @property
    def reclaimable_bytes(self) -> Size | None:
        """The hidden bytes that a reclaim can free now. None: unknown, or the store keeps no history."""
        return next((one.amount for one in self.obligations or () if one.unit == "bytes"), None)

    @property
    def held_messages(self) -> Count | None:
        return sum(entry.messages for entry in self.held) if self.is_read else None

    @property
    def removed(self) -> str:
        if not self.last_removal:
            return "none" if self.is_read else ""
        return f"{when(self.last_removal.at)}{' (undone)' if self.last_removal.undone else ''}"

    @property
    def ended(self) -> str:
        if self.waiting:
            return "approval pending"
        return f"{self.last_run.ended} {when(self.last_run.at)}" if self.last_run else "none" if self.is_read else ""

    table = Table(
        columns={
            "": lambda one: "ok" if one.ok else "not ok", "topic": "topic", "messages": "messages", "due": "due.messages", "on hold": "held_messages",
            "past expiry": "past_expiry.messages", "hidden": "hidden_bytes", "last removal": lambda one: one.removed,
            "last run": lambda one: one.ended,
        },
        right=("messages", "due", "on hold", "past expiry", "hidden"), wrap=("topic", "last run"), wide=("past expiry", "hidden", "last removal"),
        none=NO_TOPICS,
    )  # fmt: skip

    def screen_blocks(self) -> Iterator[Block]:
        """Yield the topic's problems, notes and open obligations, or nothing if it has none."""
        notes = [*self.problems, *self._notes()] if self.is_read else self.problems
        obliged = [one for one in self.obligations or () if one.state != "idle"]
        if notes or obliged:
            yield Heading(str(self.topic))
            yield Notes(notes, style=None if self.ok else "red")
            yield ObligationView.table.of(obliged)

    def _notes(self) -> Iterator[str]:
        due, longest, waiting = self.due, format_span(self.overdue.max_overdue), self.waiting
        things = "changes" if self.documents else "messages"
        if self.overdue.messages:
            yield f"{amount(self.overdue.messages, things)} overdue, for longer than {longest} (max_overdue)"
        elif due.messages and self.documents:
            yield f"{amount(due.messages, things)} due. The next run purges them"
        elif due.messages:
            yield f"{amount(due.messages, things)} due, for {format_span(due.for_seconds)} of {longest} (max_overdue). The next run removes them"
        if self.past_expiry and self.past_expiry.text:
            yield self.past_expiry.text
        # The line of the question follows, with the command that answers it.
        others = _by_holder(held for held in self.held if not (waiting and held.holder == "open_approval"))
        for held, partitions, messages in others[:_HOLDERS_SHOWN]:
            place = f"partition{'s' if len(partitions) > 1 else ''} {', '.join(map(str, sorted(partitions)))}"
            yield f"{amount(messages, things)} of {place} on hold ({held.holder}): {held.detail}"
        if len(others) > _HOLDERS_SHOWN:
            yield f"... and {len(others) - _HOLDERS_SHOWN} more; --output json has all"
        if self.refused.rows:
            yield f"{amount(self.refused.rows, 'refused rows')} in quarantine: lifecycle quarantine list {self.topic}"
        if waiting:
            yield f"Approval pending: plan {short(waiting.plan_id)} since {when(waiting.since)}, lapses at {when(waiting.lapses_at)}"
            yield f"Approve: lifecycle approve {short(waiting.plan_id)} --by NAME --why WHY"
        yield from self.warnings


def _by_holder(held: Iterable[HeldView]) -> list[tuple[HeldView, set[int], int]]:
    """Return the first entry of each holder and detail, with the partitions and the number of messages of all its entries."""
    found: dict[tuple[str, str], tuple[HeldView, set[int], int]] = {}
    for one in held:
        first, partitions, messages = found.get((one.holder, one.detail), (one, set(), 0))
        found[one.holder, one.detail] = first, partitions | {one.partition}, messages + one.messages
    return list(found.values())


def status_blocks(found: Sequence[StatusView]) -> Iterator[Block]:
    yield StatusView.table.of(found)
    for entry in found:
        yield from entry.screen_blocks()


def status(s: Services, names: Iterable[TopicName] | None = None) -> list[StatusView]:
    """Every topic's state now. A topic that cannot be read is reported as such and hides no other."""
    with s.topics.look(), s.ledger.look():
        lake = read_lake(s)
        if names is not None:
            return [_status_or_error(s, name, lake) for name in names]
        standing = all_topics(s)
        return [*(_status_or_error(s, name, lake) for name in standing), *_deleted_topics(lake, standing)]


def _deleted_topics(lake: LakeFacts, standing: Sequence[TopicName]) -> list[StatusView]:
    """Deleted topics, of names that no topic has, whose space should have been given back long ago."""
    if lake.unknown is not None:
        unknown = f"Deleted topics are unknown: {lake.unknown.code}: {lake.unknown}"
        return [StatusView(topic="(deleted topics)", ok=False, problems=[unknown])]
    late = ((name, [problem for one in ones for problem in one.problems]) for name, ones in sorted(lake.deleted.items()))
    return [StatusView(topic=name, ok=False, problems=problems) for name, problems in late if problems and name not in standing]


def _status_or_error(s: Services, name: TopicName, lake: LakeFacts) -> StatusView:
    try:
        with s.topics.look():
            return topic_status(s, name, lake)
    except Exception as error:  # noqa: BLE001 - the barrier of one topic
        topic_error = error_of_one_topic(s, name, error)
        return StatusView(topic=name, ok=False, problems=[f"{topic_error.code}: {topic_error}"])


def topic_status(s: Services, name: TopicName, lake: LakeFacts | None = None) -> StatusView:
    """Judge one topic as of now."""
    lake = read_lake(s) if lake is None else lake
    policy = policy_of(s, name)
    require_intact(s, name)
    work = "snapshot_with_purge" if policy.has_documents else s.work_on(name)
    would = operation_named(work).plan(s, name, with_cleaner_enabled(policy), work, as_of=lake.now)
    obliged = obligations_of_topic(s, name, policy, {work: would}, lake)
    return (
        _of_documents(s, name, policy, would, obliged, lake)
        if policy.has_documents
        else _of_messages(s, name, policy, would, obliged, lake)
    )


def _of_messages(s: Services, name: TopicName, policy: Policy, would: Plan, obliged: Sequence[Obligation], lake: LakeFacts) -> StatusView:
    now, asked = lake.now, open_question(s, lake.waiting, name)
    last = s.ledger.last(name, names_of(lambda one: one.removes))
    holder, since = _word_of_a_person(asked, last, policy, now), would.due_since
    due = _due(0 if holder else would.expected.removed_rows, None if holder else since, now)
    problems = [*(problem for one in obliged for problem in one.problems), *_tampered_records(s, name)]
    # The operations that `enabled` stops: the cleaner, the purge of compacted messages, and the sweep for markers (EXP-2).
    idle = sorted({one.kind for one in obliged if operation_named(one.operation).stops_when_disabled})
    if idle and not policy.cleaner_enabled:
        problems.append(f"The message cleaner is disabled ([message_cleaner] enabled = false). Nothing runs for: {', '.join(idle)}")
    problems += _describe_bad_end("run", last)
    problems += _describe_future_update(s, name, policy, now)
    if policy.is_compacted:
        problems += _describe_bad_end("compaction", last_compaction(s, name))
    return replace(
        _common_parts(s, name, policy, would, obliged, asked, last, problems, now),
        due=due,
        held=each(HeldView)([*would.held, *_held_by_a_person(would, since, holder)]),
        past_expiry=past_expiry_view(s, name, policy, now),
        warnings=[*would.warnings, *_unregistered(s, name)],
    )


def _describe_future_update(s: Services, name: TopicName, policy: Policy, now: Instant) -> list[str]:
    """A last update in the future, until which no commit of a right clock can be made."""
    updated = s.topics.describe(name).updated_at if s.ledger.has_real_clock else None
    if updated is None or updated <= policy.latest_allowed_time(now):
        return []
    return [
        f"The table's last update is in the future: {format_to_second(updated)}. A machine with a wrong clock wrote it. "
        "Every commit before that time is refused (TableAhead)"
    ]


def _common_parts(
    s: Services,
    name: TopicName,
    policy: Policy,
    would: Plan,
    obliged: Sequence[Obligation],
    asked: PlanSummary | None,
    last: tuple[Instant, Outcome] | None,
    problems: Sequence[str],
    now: Instant,
) -> StatusView:
    """Return the parts that topics of messages and of documents have alike."""
    return StatusView(
        topic=name,
        ok=not problems,
        problems=problems,
        as_of=now,
        messages=would.expected.rows_in,
        bytes=would.expected.bytes_in,
        due=_due(would.expected.removed_rows, None, now),
        overdue=_overdue(obliged, would, policy, now),
        held=each(HeldView)(would.held),
        obligations=each(ObligationView)(obliged),
        next_due_at=would.next_due_at,
        waiting=None if asked is None else _question(s, asked, policy),
        last_run=None if last is None else outcomes_view(s, [last])[0],
        last_removal=_last_removal(s, name),
        refused=RefusedRows(rows=rows_in_quarantine(s, name), batches=tuple(one.batch_id for one in needing_a_person(s, name))),
        # A log of single records frees the space of removed records at once.
        hidden_bytes=None if s.backend_of(name) in RECORD_LOGS else s.stores.forget.hidden_bytes(name),
        warnings=would.warnings,
    )


def last_compaction(s: Services, name: TopicName) -> tuple[Instant, Outcome] | None:
    """The newest outcome of a compaction, with the time of its recording."""
    return s.ledger.last(name, ["compaction"])


def _describe_bad_end(what: str, last: tuple[Instant, Outcome] | None) -> list[str]:
    """Describe the outcome of the last run if it ended badly, because a person must see that."""
    return [] if last is None or last[1].name not in _BAD_ENDS else [f"The last {what} ended as {last[1].name}: {last[1].detail}"]


def _of_documents(s: Services, name: TopicName, policy: Policy, would: Plan, obliged: Sequence[Obligation], lake: LakeFacts) -> StatusView:
    """Return the status of a topic of documents.

    A document that cannot be folded is a problem, too, because it keeps every change until a person mends it (SNP-10).
    """
    asked = open_question(s, lake.waiting, name)
    last = s.ledger.last(name, [would.operation])
    problems = [*(problem for one in obliged for problem in one.problems), *_tampered_records(s, name)]
    problems += [*_describe_bad_end("run", last), *_describe_future_update(s, name, policy, lake.now)]
    if last is not None and last[1].plan_id is not None:
        staged = s.ledger.record(last[1].plan_id).staged
        blocked = () if staged is None or staged.documents is None else staged.documents.blocked
        problems += [f"Document {document} is blocked, and keeps every change: {reason}" for document, reason in blocked]
    due = would.snapshots_commit.documents
    return replace(
        _common_parts(s, name, policy, would, obliged, asked, last, problems, lake.now),
        documents=DocumentsDue(due=len(due), snapshots_due=sum(action.snapshot is not None for action in due)),
    )


def _due(messages: int, since: Instant | None, now: Instant) -> AmountDue:
    return AmountDue(messages=messages, since=since, for_seconds=None if since is None else (now - since) // MICROS_PER_SECOND)


def _overdue(obliged: Sequence[Obligation], would: Plan, policy: Policy, now: Instant) -> AmountDue:
    late = [one for one in obliged if one.overdue and one.operation == would.operation]
    since = min((one.due_since for one in late if one.due_since is not None), default=None)
    return replace(_due(sum(one.overdue for one in late), since, now), max_overdue=policy.max_overdue_us // MICROS_PER_SECOND)


def _tampered_records(s: Services, name: TopicName) -> list[str]:
    """The records of the topic's open plan that somebody else has written (DEL-3)."""
    plan_id = s.ledger.judged_plan(name)
    broken = None if plan_id is None else broken_seal(s, s.ledger.record(plan_id))
    if plan_id is None or broken is None:
        return []
    error = ledger_tampered(plan_id, broken)
    return [f"{error.code}: {error}"]


def _unregistered(s: Services, name: TopicName) -> list[str]:
    """A replica that its origin does not wait for: a person took it off, or the ledger is from before it was made."""
    origin = origin_of(name, s.topics.describe(name).settings)
    if origin is None or any(progress.kind == "replica" and progress.consumer == str(name) for progress in s.ledger.consumers(origin)):
        return []
    return [f"Not registered as a replica of {origin}, so no run copies into it. Register: `lifecycle topic copy {name}`"]


def open_question(s: Services, waiting: Sequence[PlanSummary], name: TopicName) -> PlanSummary | None:
    """Return the plan that waits for a person, or None. A lapsed or void question does not wait."""
    return next((plan for plan in waiting if plan.topic == name and waits_for_person(s, s.ledger.record(plan.plan_id))), None)


def _word_of_a_person(asked: PlanSummary | None, last: tuple[Instant, Outcome] | None, policy: Policy, now: Instant) -> str | None:
    """Return the person's part in holding due messages: an open question, or a refusal that still counts."""
    if asked is not None:
        return f"plan {short(asked.plan_id)} is pending approval"
    # A refusal without a plan says nothing about due messages: a rule refused a person's request (DEL-8).
    if last is not None and last[1].name == "refused" and last[1].plan_id is not None and now < last[1].as_of + policy.approval_ttl_us:
        return last[1].detail
    return None


def _held_by_a_person(would: Plan, since: Instant | None, holder: str | None) -> list[Held]:
    if holder is None:
        return []
    return [
        Held(partition=partition, first_base=base, last_offset=last, rows=rows, overdue_since=since, holder="open_approval", detail=holder)
        for partition, base, last, rows in (
            *((run.partition, run.first_base, run.last_offset, run.rows) for run in would.log_commit.drop),
            *((one.partition, one.base_offset, one.last_offset, one.rows) for one in would.log_commit.mark),
        )
    ]


def is_asked_in_airflow(s: Services, plan_id: str) -> bool:
    """Return True if a run of Airflow works on the plan, so that its question is under Required Actions. The command's runs have no DAG."""
    return any("/" in run for run in s.ledger.runs_of(plan_id))


def _question(s: Services, asked: PlanSummary, policy: Policy) -> QuestionView:
    assert asked.reported_at is not None
    return QuestionView(
        plan_id=asked.plan_id,
        messages=asked.expected_rows if operation_named(asked.operation).takes_messages else None,
        since=asked.reported_at,
        lapses_at=Instant(asked.reported_at + policy.approval_ttl_us),
        asked_in_airflow=is_asked_in_airflow(s, asked.plan_id),
    )


def _last_removal(s: Services, name: TopicName) -> LastRemoval | None:
    removing = names_of(lambda one: one.removes and not one.gives_back)
    for plan in s.ledger.plans(name, limit=_PLANS_SEARCHED) if s.ledger.has_published(name, removing) else ():
        if plan.outcome == "published" and plan.operation in removing:
            # The plan may have waited for a person for a day before its commit, and its verification may come a day after it.
            undone = plan.plan_id in find_undone(s, [plan.plan_id])
            at = s.ledger.committed_at(plan.plan_id) or s.ledger.published_at(plan.plan_id)
            return LastRemoval.of(plan, at=at, undone=undone)
    return None
