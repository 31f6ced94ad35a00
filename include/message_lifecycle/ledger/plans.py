"""Plans as recorded, and their progress: planned, staged, gated, publishing, closed (DEL-1 to DEL-5).

A write is one transaction, and repeating a write changes nothing. A topic has at most one open plan. A plan's first outcome is final.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from sqlalchemy import Connection, Delete, Update, bindparam, func, select, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import from_json, plan_from_json, plan_id_of, recorded_state, to_json
from message_lifecycle.ledger.database import LedgerPart, add, add_rows, claim_topic, key_of, next_event, topic_of
from message_lifecycle.ledger.runs import link, newest_outcomes, write_outcome
from message_lifecycle.ledger.tables import FoundRow, Query
from message_lifecycle.model.errors import NotReady, OpenPlan, UnknownPlan, already_answered, ambiguous_plan, void_answer
from message_lifecycle.model.instants import Instant, format_to_second
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Approval, GateReport, Outcome, PlanRecord, PlanSummary, Staged
from message_lifecycle.model.people import person_of
from message_lifecycle.model.phrases import short
from message_lifecycle.model.plan import Operation, Plan
from message_lifecycle.model.plan_state import Event, PlanState, event_of_judgement, next_state

_plans = tables.plans
_PLAN_ID_LENGTH = 32
_PUBLISHED = ("published", "failed")
"""Outcomes of plans with commits, see `Plans.published_at`."""
_ALL_JUDGED = select(_plans.c.topic, _plans.c.plan_id).where(_plans.c.state != "closed", _plans.c.report.is_not(None))


class Plans(LedgerPart):
    """Records of plans. A whole plan may have 8 MB, so `plans` and `waiting` read no plan's document."""

    def record(self, plan_id: str) -> PlanRecord:
        """Return a plan by its id or by a unique beginning of it. Raises UnknownPlan, AmbiguousPlan."""
        whole = plan_id if len(plan_id) == _PLAN_ID_LENGTH else self._id_by_prefix(plan_id)
        found = self._load(_whole_plan(), of_plan=whole)
        if not found:
            raise UnknownPlan(plan_id)
        return found[0]

    def open_plan(self, topic: TopicName) -> PlanRecord | None:
        """Return the topic's only plan without an outcome (DEL-1)."""
        return next(iter(self._load(_whole_open_plan(), of_topic=key_of(topic))), None)

    def judged_plan(self, topic: TopicName) -> str | None:
        """Return the id of the topic's open plan if the gate has reported on it."""
        return next((str(row.plan_id) for row in self._of_topic(_ALL_JUDGED, topic)), None)

    def find_published(self, topic: TopicName, operation: Operation, as_of: Instant) -> PlanRecord | None:
        """Return the plan that the operation published for that interval.

        If a budget took several passes (`outcome.more`), return the newest.
        """
        found = self._load(_whole_published(), of_topic=key_of(topic), of_operation=operation, at=as_of)
        return next(iter(found), None)

    def planned_since(self, topic: TopicName, operations: Collection[Operation], *, published_after: Instant) -> Instant | None:
        """Return when the oldest of these operations' plans with an outcome after that time was recorded.

        See `published_at` for the outcomes.
        """
        newest = self._in_look(newest_outcomes(one_topic=False), "topic", key_of(topic))
        if newest is not None and not any(row.operation in operations and row.name in _PUBLISHED for row in newest):
            return None
        query = _since(select(func.min(_plans.c.recorded_at)), topic, operations, published_after)
        found = self._scalar(query)
        return None if found is None else Instant(found)

    def published_since(self, topic: TopicName, operations: Collection[Operation], *, published_after: Instant) -> frozenset[str]:
        """Return the ids of these operations' plans with an outcome after that time. See `published_at` for the outcomes."""
        with self._database.reading() as connection:
            return frozenset(connection.execute(_since(select(_plans.c.plan_id), topic, operations, published_after)).scalars())

    def published_at(self, plan_id: str) -> Instant | None:
        """Return when the ledger recorded the outcome of a published plan. None if the plan has no such outcome.

        The outcome is `published`, or `failed` if the verification found a difference.
        """
        outcomes = tables.outcomes
        query = (
            select(outcomes.c.recorded_at)
            .join(_plans, _plans.c.outcome_event == outcomes.c.event)
            .where(_plans.c.plan_id == plan_id, _plans.c.outcome_name.in_(_PUBLISHED))
        )
        found = self._scalar(query)
        return None if found is None else Instant(found)

    def committed_at(self, plan_id: str) -> Instant | None:
        """Return when every commit of the plan was made. None if nothing was committed, or if the run died before it recorded the time."""
        found = self._scalar(select(_plans.c.committed_at).where(_plans.c.plan_id == plan_id))
        return None if found is None else Instant(found)

    def published_after(self, topic: TopicName, plan_id: str, operation: Operation, *, or_failed: bool = False) -> Sequence[PlanRecord]:
        """Return the operation's plans that were published after that plan, oldest first.

        Args:
            topic: The topic of the plans.
            plan_id: The id of the earlier plan.
            operation: The operation of the plans.
            or_failed: Include failed plans: plans that failed before their commit, and plans whose verification found a difference.
        """
        first = select(_plans.c.outcome_event).where(_plans.c.plan_id == plan_id).scalar_subquery()
        query = _whole_plans().where(
            _plans.c.topic == key_of(topic),
            _plans.c.operation == operation,
            _plans.c.outcome_name.in_(("published", "failed") if or_failed else ("published",)),
            _plans.c.outcome_event > first,
        )
        return self._load(query.order_by(_plans.c.outcome_event))

    def plans_that_removed(self, topic: TopicName, partition: int, offset: int) -> Sequence[PlanRecord]:
        """Return published plans whose actions cover that offset, oldest first."""
        ranges = tables.plan_ranges.c
        query = (
            _whole_plans()
            .join(tables.plan_ranges, ranges.plan_id == _plans.c.plan_id)
            .where(
                ranges.topic == key_of(topic),
                ranges.partition == partition,
                ranges.last_offset >= offset,
                ranges.first_offset <= offset,
                _plans.c.outcome_name == "published",
            )
            .order_by(_plans.c.outcome_event)
        )
        # For single messages the index has only their span in a file, so the plan itself decides.
        return [record for record in self._load(query) if record.plan.removal_at(partition, offset) is not None]

    def plans(self, topic: TopicName | None = None, *, limit: int = 50) -> Sequence[PlanSummary]:
        """Return the newest plans first."""
        query = select(_plans).order_by(_plans.c.event.desc()).limit(limit)
        if topic is not None:
            query = query.where(_plans.c.topic == key_of(topic))
        return [_summary(row) for row in self._rows(query)]

    def waiting(self, operations: Collection[Operation] | None = None) -> Sequence[PlanSummary]:
        """Return plans that wait for a person's answer, the longest waiting first. `operations`: None: every operation."""
        query = (
            select(_plans)
            .where(_plans.c.state == "gated", _plans.c.judgement == "needs_approval", _plans.c.approval.is_(None))
            .order_by(_plans.c.reported_at, _plans.c.event)
        )
        if operations is not None:
            query = query.where(_plans.c.operation.in_(operations))
        return [_summary(row) for row in self._rows(query)]

    def add_plan(self, plan: Plan, *, run: str | None = None, requested_by: str | None = None) -> PlanRecord:
        """Record a plan for that run, or return the recorded plan if it exists.

        A plan that gave way (`superseded`, `lapsed`) starts again, because none of it was executed.

        Args:
            plan: The plan to record.
            run: The run that made the plan.
            requested_by: The person who asked for the plan.

        Raises OpenPlan (DEL-1), UnnamedPerson, MixedScripts.
        """
        with self._database.writing() as connection:
            claim_topic(connection, plan.topic)
            plan_id = _add(connection, plan, requested_by, at=self._database.now(connection))
            _link(connection, run, plan, plan_id, at=self._database.now(connection))
            # The caller has the plan, so the ledger does not read its document back.
            row = connection.execute(_plan_with_outcome(), {"of_plan": plan_id}).one()
        return record_of(row, plan)

    def add_closed_plan(
        self, plan: Plan, staged: Staged, report: GateReport, outcome: Outcome, *, run: str | None = None, requested_by: str | None = None
    ) -> PlanRecord:
        """Record a plan without changes together with its outcome, next to the topic's open plan (DEL-3). Return a known plan unchanged."""
        with self._database.writing() as connection:
            claim_topic(connection, plan.topic)
            at = self._database.now(connection)
            judged = {"staged": to_json(staged), "report": to_json(report), "judgement": report.judgement, "reported_at": at}
            closed = {**judged, "state": "closed", "outcome_name": outcome.name, "cleared_at": at}
            plan_id = _add(connection, plan, requested_by, at=at, **closed)
            row = connection.execute(_plan_with_outcome(), {"of_plan": plan_id}).one()
            if row.state == "closed" and row.outcome is None:
                _set(connection, row, outcome_event=write_outcome(connection, outcome, at=at))
                row = connection.execute(_plan_with_outcome(), {"of_plan": plan_id}).one()
            _link(connection, run, plan, plan_id, at=at)
        return record_of(row, plan)

    def record_staged(self, staged: Staged) -> None:
        """Record the staged change. Another staged change replaces it, and the gate must judge again.

        Raises:
            NotReady: A person has answered for the first change, or publishing has begun.
        """
        with self._database.writing() as connection:
            row = _open(connection, staged.plan_id, Event.STAGE)
            text = to_json(staged)
            if row.staged != text:
                _move(connection, row, Event.STAGE, staged=text, report=None, judgement=None, reported_at=None)

    def record_report(self, staged: Staged, report: GateReport) -> None:
        """Record the gate's report about the staged change, and its time. Repeating the report keeps the first time.

        Raises:
            NotReady: The plan is not at this step, or another run staged a change while the gate judged.
        """
        with self._database.writing() as connection:
            judged = event_of_judgement(report.judgement)
            row = _open(connection, report.plan_id, judged)
            text = to_json(report)
            if row.report == text:
                return
            _require(row, judged)
            if from_json(Staged, row.staged) != staged:
                raise NotReady(report.plan_id, _state_text(row), "the staged change that the gate has looked at")
            at = self._database.now(connection)
            _move(connection, row, judged, report=text, judgement=report.judgement, reported_at=at)

    def record_approval(self, approval: Approval) -> Approval:
        """Record a person's answer. Repeating the same answer returns the first.

        Raises:
            NotReady: No question waits.
            AlreadyAnswered: The first answer was different.
            VoidAnswer: The approval is about an older report of the gate. A refusal of an older report counts.
            UnnamedPerson, MixedScripts: The name is not valid.
        """
        approval = replace(approval, by=person_of(approval.by))
        with self._database.writing() as connection:
            row = _lock_and_read(connection, approval.plan_id)
            if row.approval is not None:
                first = from_json(Approval, row.approval)
                if (first.granted, first.by, first.text) != (approval.granted, approval.by, approval.text):
                    raise already_answered(approval.plan_id, first.granted, first.by, format_to_second(first.at))
                return first
            answered = Event.GRANT if approval.granted else Event.REFUSE
            _require(row, answered)
            standing = from_json(GateReport, row.report).gate_id
            if approval.granted and approval.gate_id not in (None, standing):
                why = f"it is about gate report {short(approval.gate_id)}, but the staged change has report {short(standing)}"
                raise void_answer(approval.plan_id, why)
            _move(connection, row, answered, approval=to_json(approval))
        return approval

    def record_publishing(self, staged: Staged, report: GateReport) -> None:
        """Record that a commit of the staged and judged change is about to start.

        From now on the stage cannot be replaced. If the run dies, only the table shows the result (DEL-4).

        Raises:
            NotReady: The ledger has another stage or report by now.
        """
        with self._database.writing() as connection:
            row = _lock_and_read(connection, staged.plan_id)
            _require(row, Event.PUBLISH)
            if (from_json(Staged, row.staged), from_json(GateReport, row.report)) != (staged, report):
                raise NotReady(staged.plan_id, _state_text(row), "the staged change that was judged")
            _move(connection, row, Event.PUBLISH)

    def record_committed(self, plan_id: str) -> None:
        """Record when every commit of the plan was made. The first time stays."""
        with self._database.writing() as connection:
            first = (_plans.c.plan_id == plan_id, _plans.c.committed_at.is_(None))
            connection.execute(update(_plans).where(*first).values(committed_at=self._database.now(connection)))

    def record_outcome(self, outcome: Outcome) -> Outcome:
        """Close the plan with its outcome. Return the first outcome, which is final (DEL-5).

        Raises:
            NotReady: The outcome is `published`, but no gate has judged the plan.
        """
        if outcome.plan_id is None:
            raise UnknownPlan("(none)")
        with self._database.writing() as connection:
            row = _lock_and_read(connection, outcome.plan_id)
            if row.outcome is not None:
                return from_json(Outcome, row.outcome)
            ending = Event.VERIFY if outcome.name == "published" else Event.END
            _require(row, ending)
            if outcome.name != "published":
                # Only a published plan explains the removal of an offset.
                connection.execute(
                    tables.plan_ranges.delete().where(tables.plan_ranges.c.topic == row.topic, tables.plan_ranges.c.plan_id == row.plan_id)
                )
            event = write_outcome(connection, outcome, at=self._database.now(connection))
            _move(connection, row, ending, outcome_name=outcome.name, outcome_event=event)
        return outcome

    def plans_with_leftover_stages(self, topic: TopicName) -> Sequence[str]:
        """Return the topic's closed plans whose stage may have leftovers, oldest first."""
        return [str(row.plan_id) for row in self._rows(_uncleared(), of_topic=key_of(topic))]

    def record_stage_cleared(self, plan_id: str) -> None:
        """Record that a closed plan's stage has no leftovers, and that nobody stages for the plan any more."""
        with self._database.writing() as connection:
            row = _lock_and_read(connection, plan_id)
            _set(connection, row, cleared_at=self._database.now(connection))

    def _load(self, query: Query, **given: object) -> list[PlanRecord]:
        return [record_of(row, plan_from_json(row.document, row.plan_id, row.text_id)) for row in self._rows(query, **given)]

    def _id_by_prefix(self, beginning: str) -> str:
        # An empty text is not a beginning, and `%` is an ordinary character.
        query = select(_plans.c.plan_id).where(_plans.c.plan_id.startswith(beginning, autoescape=True)).order_by(_plans.c.plan_id)
        found = [str(row.plan_id) for row in self._rows(query.limit(3))] if beginning else []
        if not found:
            raise UnknownPlan(beginning)
        if len(found) > 1:
            raise ambiguous_plan(beginning, tuple(found))
        return found[0]


@cache
def _plans_with_outcomes() -> Query:
    return select(_plans, tables.outcomes.c.outcome).outerjoin(tables.outcomes, tables.outcomes.c.event == _plans.c.outcome_event)


def _since(query: Query, topic: TopicName, operations: Collection[Operation], published_after: Instant) -> Query:
    """Select plans with an outcome after that time. See `published_at`."""
    outcomes = tables.outcomes
    return query.join(outcomes, _plans.c.outcome_event == outcomes.c.event).where(
        _plans.c.topic == key_of(topic),
        _plans.c.operation.in_(sorted(operations)),
        _plans.c.outcome_name.in_(_PUBLISHED),
        outcomes.c.recorded_at > published_after,
    )


@cache
def _whole_plans() -> Query:
    documents = tables.plan_documents
    return (
        _plans_with_outcomes()
        .add_columns(documents.c.document, documents.c.text_id)
        .join(documents, documents.c.plan_id == _plans.c.plan_id)
    )


@cache
def _whole_plan() -> Query:
    return _whole_plans().where(_plans.c.plan_id == bindparam("of_plan"))


@cache
def _whole_open_plan() -> Query:
    return _whole_plans().where(_plans.c.topic == bindparam("of_topic"), _plans.c.state != "closed")


@cache
def _whole_published() -> Query:
    """Select the newest plan of an operation for an interval."""
    of_interval = (
        _plans.c.topic == bindparam("of_topic"),
        _plans.c.operation == bindparam("of_operation"),
        _plans.c.as_of == bindparam("at"),
        _plans.c.outcome_name == "published",
    )
    return _whole_plans().where(*of_interval).order_by(_plans.c.outcome_event.desc()).limit(1)


@cache
def _plan_with_outcome() -> Query:
    return _plans_with_outcomes().where(_plans.c.plan_id == bindparam("of_plan"))


@cache
def _plan_by_id() -> Query:
    return select(_plans.c.plan_id).where(_plans.c.plan_id == bindparam("of_plan"))


@cache
def _locked_plan_by_id() -> Query:
    return _plan_by_id().with_for_update()


@cache
def _open_plan_of_topic() -> Query:
    return select(_plans.c.plan_id, _plans.c.recorded_at).where(_plans.c.topic == bindparam("of_topic"), _plans.c.state != "closed")


@cache
def _uncleared() -> Query:
    closed = (_plans.c.topic == bindparam("of_topic"), _plans.c.state == "closed")
    return select(_plans.c.plan_id).where(*closed, _plans.c.cleared_at.is_(None)).order_by(_plans.c.event)


@cache
def _delete_unanswered() -> Delete:
    return _plans.delete().where(_plans.c.plan_id == bindparam("of_plan"), _plans.c.outcome_name.in_(("superseded", "lapsed")))


@cache
def _update_plan() -> Update:
    return update(_plans).where(_plans.c.plan_id == bindparam("of_plan"))


def record_of(row: FoundRow, plan: Plan) -> PlanRecord:
    return PlanRecord(
        plan=plan,
        state=recorded_state(row.state, row.judgement, row.approval),
        recorded_at=Instant(row.recorded_at),
        staged=None if row.staged is None else from_json(Staged, row.staged),
        report=None if row.report is None else from_json(GateReport, row.report),
        approval=None if row.approval is None else from_json(Approval, row.approval),
        outcome=None if row.outcome is None else from_json(Outcome, row.outcome),
        reported_at=row.reported_at,
        requested_by=row.requested_by,
    )


def _summary(row: FoundRow) -> PlanSummary:
    return PlanSummary(
        plan_id=row.plan_id,
        operation=row.operation,
        topic=topic_of(row.topic),
        as_of=row.as_of,
        state=recorded_state(row.state, row.judgement, row.approval),
        recorded_at=row.recorded_at,
        expected_rows=row.expected_rows,
        expected_bytes=row.expected_bytes,
        judgement=row.judgement,
        reported_at=row.reported_at,
        approval=None if row.approval is None else from_json(Approval, row.approval),
        outcome=row.outcome_name,
    )


def _delete_if_unanswered(connection: Connection, plan_id: str) -> None:
    if connection.execute(_delete_unanswered(), {"of_plan": plan_id}).rowcount:
        connection.execute(tables.plan_documents.delete().where(tables.plan_documents.c.plan_id == plan_id))


def _add(connection: Connection, plan: Plan, requested_by: str | None, *, at: Instant, **closed: object) -> str:
    """Insert the plan unless the ledger has it, and return its id. Raises OpenPlan.

    Args:
        connection: A connection within a transaction.
        plan: The plan to insert.
        requested_by: The person who asked for the plan.
        at: The time of the record.
        closed: Columns of a plan that ends when it is recorded. Any other plan becomes the topic's open plan.
    """
    document = plan.to_json()
    plan_id = plan_id_of(document)
    _delete_if_unanswered(connection, plan_id)
    if connection.execute(_plan_by_id(), {"of_plan": plan_id}).first() is not None:
        return plan_id
    if not closed:
        _refuse_second(connection, plan.topic)
    add(connection, tables.plan_documents, plan_id=plan_id, document=document)
    ranges = [{"topic": key_of(plan.topic), "plan_id": plan_id, **covered._asdict()} for covered in sorted(set(ranges_of(plan)))]
    add_rows(connection, tables.plan_ranges, ranges)
    add(
        connection,
        _plans,
        plan_id=plan_id,
        topic=key_of(plan.topic),
        operation=plan.operation,
        as_of=plan.as_of,
        recorded_at=at,
        expected_rows=plan.expected.removed_rows,
        expected_bytes=plan.expected.removed_bytes,
        requested_by=None if requested_by is None else person_of(requested_by),
        event=next_event(connection),
        **({"state": "planned"} | closed),
    )
    return plan_id


def _link(connection: Connection, run: str | None, plan: Plan, plan_id: str, *, at: Instant) -> None:
    if run is not None:
        link(connection, run, plan.topic, plan_id, at=at)


def _refuse_second(connection: Connection, topic: TopicName) -> None:
    other = connection.execute(_open_plan_of_topic(), {"of_topic": key_of(topic)}).first()
    if other is not None:
        raise OpenPlan(str(topic), other.plan_id, format_to_second(other.recorded_at))


def _lock_and_read(connection: Connection, plan_id: str) -> FoundRow:
    connection.execute(_locked_plan_by_id(), {"of_plan": plan_id})
    # A second statement: after waiting for the lock, it must see the outcome that the previous holder wrote.
    row = connection.execute(_plan_with_outcome(), {"of_plan": plan_id}).first()
    if row is None:
        raise UnknownPlan(plan_id)
    return row


def _open(connection: Connection, plan_id: str, event: Event) -> FoundRow:
    row = _lock_and_read(connection, plan_id)
    if row.state == PlanState.CLOSED:
        _require(row, event)
    return row


def _state_text(row: FoundRow) -> str:
    return f"closed ({row.outcome_name})" if row.state == PlanState.CLOSED else str(row.state)


def _require(row: FoundRow, event: Event) -> PlanState:
    """Return the state after the event. Raises NotReady."""
    return next_state(row.plan_id, recorded_state(row.state, row.judgement, row.approval), event, ended=_state_text(row))


def _move(connection: Connection, row: FoundRow, event: Event, **values: object) -> None:
    """Write the event's values and the state after it. Raises NotReady."""
    _set(connection, row, state=_require(row, event).word, **values)


def _set(connection: Connection, row: FoundRow, **values: object) -> None:
    connection.execute(_update_plan(), {"of_plan": row.plan_id, **values})


class CoveredOffsets(NamedTuple):
    """A span of offsets, both ends included. The action itself says which single messages it names."""

    partition: int
    first_offset: int
    last_offset: int


def ranges_of(plan: Plan) -> Iterator[CoveredOffsets]:
    """Yield the offsets that the plan's actions remove, so that `explain` finds the plan of an offset by an index.

    A span may come twice, if two files hold a message for different branches.
    """
    for run in plan.log_commit.drop:
        yield CoveredOffsets(run.partition, run.first_base, run.last_offset)
    # Erased rows of documents have no offset in the log.
    erased = () if dict(plan.policy).get("fold") is not None else plan.erased_of("log")
    for rows in (*plan.marked, *erased):
        yield CoveredOffsets(rows.partition, rows.first_offset, rows.last_offset)
