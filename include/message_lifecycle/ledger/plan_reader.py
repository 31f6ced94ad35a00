"""Plans as they were recorded: one whole, or many without what they name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import from_json, plan_from_json
from message_lifecycle.ledger.part import Part, key_of, topic_of
from message_lifecycle.model.errors import AmbiguousPlan, UnknownPlan
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Approval, GateReport, Outcome, Staged
from message_lifecycle.model.plan import PLAN_FORMAT, Operation, Plan
from message_lifecycle.ports import PlanRecord, PlanSummary

_plans = tables.plans
_PLAN_ID_LENGTH = 32


class PlanReader(Part):
    """Everything that comes with a whole plan may be of 8 MB; `plans` and `waiting` read no plan's document."""

    def record(self, plan_id: str) -> PlanRecord:
        """By id or a unique beginning of one. Raises UnknownPlan, AmbiguousPlan."""
        with self._database.reading() as connection:
            if len(plan_id) == _PLAN_ID_LENGTH:
                found = _load(connection, _whole_plans().where(_plans.c.plan_id == plan_id))
            else:
                found = _load(connection, _whole_plans().where(_plans.c.plan_id == _by_beginning(connection, plan_id)))
        if not found:
            raise UnknownPlan(plan_id)
        return found[0]

    def open_plan(self, topic: TopicName) -> PlanRecord | None:
        """The topic's one plan that has no outcome yet (DEL-1)."""
        query = _whole_plans().where(_plans.c.topic == key_of(topic), _plans.c.state != "closed")
        with self._database.reading() as connection:
            return next(iter(_load(connection, query)), None)

    def find_published(self, topic: TopicName, operation: Operation, as_of: Instant) -> PlanRecord | None:
        """What the operation published for that interval: the newest, where a budget took several passes (`outcome.more`)."""
        query = (
            _whole_plans()
            .where(
                _plans.c.topic == key_of(topic),
                _plans.c.operation == operation,
                _plans.c.as_of == as_of,
                _plans.c.outcome_name == "published",
            )
            .order_by(_plans.c.outcome_event.desc())
            .limit(1)
        )
        with self._database.reading() as connection:
            return next(iter(_load(connection, query)), None)

    def planned_since(self, topic: TopicName, operations: Collection[Operation], *, published_after: Instant) -> Instant | None:
        """When the oldest plan of these operations was recorded whose outcome came after that time, as `published_at` tells it."""
        query = _since(select(func.min(_plans.c.recorded_at)), topic, operations, published_after)
        with self._database.reading() as connection:
            found = connection.execute(query).scalar_one_or_none()
        return None if found is None else Instant(found)

    def published_since(self, topic: TopicName, operations: Collection[Operation], *, published_after: Instant) -> frozenset[str]:
        """See `ports.PlanReader`."""
        with self._database.reading() as connection:
            return frozenset(connection.execute(_since(select(_plans.c.plan_id), topic, operations, published_after)).scalars())

    def published_at(self, plan_id: str) -> Instant | None:
        """When the outcome of a plan that was published was recorded, `failed` where something else was found after it; None: it has no
        such outcome."""
        outcomes = tables.outcomes
        query = (
            select(outcomes.c.recorded_at)
            .join(_plans, _plans.c.outcome_event == outcomes.c.event)
            .where(_plans.c.plan_id == plan_id, _plans.c.outcome_name.in_(("published", "failed")))
        )
        with self._database.reading() as connection:
            found = connection.execute(query).scalar_one_or_none()
        return None if found is None else Instant(found)

    def published_after(self, topic: TopicName, plan_id: str, operation: Operation, *, or_failed: bool = False) -> Sequence[PlanRecord]:
        """See `ports.PlanReader`."""
        first = select(_plans.c.outcome_event).where(_plans.c.plan_id == plan_id).scalar_subquery()
        query = _whole_plans().where(
            _plans.c.topic == key_of(topic),
            _plans.c.operation == operation,
            _plans.c.outcome_name.in_(("published", "failed") if or_failed else ("published",)),
            _plans.c.outcome_event > first,
        )
        with self._database.reading() as connection:
            return _load(connection, query.order_by(_plans.c.outcome_event))

    def plans_that_removed(self, topic: TopicName, partition: int, offset: int) -> Sequence[PlanRecord]:
        """Published plans whose actions cover that offset, oldest first."""
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
        with self._database.reading() as connection:
            # The index knows only the stretch of a file in which a plan takes single messages.
            return [record for record in _load(connection, query) if record.plan.taking(partition, offset) is not None]

    def plans_of_run(self, run: str) -> Sequence[PlanRecord]:
        """The run's plans, whole, in the order it met them; `run_entries` tells more about the run for less."""
        met = tables.run_topics.c
        query = _whole_plans().join(tables.run_topics, met.plan_id == _plans.c.plan_id).where(met.run_id == run).order_by(met.event)
        with self._database.reading() as connection:
            return _load(connection, query)

    def plans(self, topic: TopicName | None = None, *, limit: int = 50) -> Sequence[PlanSummary]:
        """Newest first."""
        query = select(_plans).order_by(_plans.c.event.desc()).limit(limit)
        if topic is not None:
            query = query.where(_plans.c.topic == key_of(topic))
        with self._database.reading() as connection:
            return [_summary(row) for row in connection.execute(query)]

    def waiting(self) -> Sequence[PlanSummary]:
        """See `ports.PlanReader`."""
        query = (
            select(_plans)
            .where(_plans.c.state == "gated", _plans.c.judgement == "needs_approval", _plans.c.approval.is_(None))
            .where(_plans.c.format == PLAN_FORMAT)
            .order_by(_plans.c.reported_at, _plans.c.event)
        )
        with self._database.reading() as connection:
            return [_summary(row) for row in connection.execute(query)]


def state_of_plans() -> Select[Any]:
    return select(_plans, tables.outcomes.c.outcome).outerjoin(tables.outcomes, tables.outcomes.c.event == _plans.c.outcome_event)


def _since(query: Select[Any], topic: TopicName, operations: Collection[Operation], published_after: Instant) -> Select[Any]:
    """Of plans whose outcome came after that time, as `published_at` tells it."""
    outcomes = tables.outcomes
    return query.join(outcomes, _plans.c.outcome_event == outcomes.c.event).where(
        _plans.c.topic == key_of(topic),
        _plans.c.operation.in_(sorted(operations)),
        _plans.c.outcome_name.in_(("published", "failed")),
        outcomes.c.recorded_at > published_after,
    )


def _whole_plans() -> Select[Any]:
    documents = tables.plan_documents
    return state_of_plans().add_columns(documents.c.document, documents.c.text_id).join(documents, documents.c.plan_id == _plans.c.plan_id)


def _load(connection: Connection, query: Select[Any]) -> list[PlanRecord]:
    return [record_of(row, plan_from_json(row.document, row.plan_id, row.text_id)) for row in connection.execute(query)]


def record_of(row: Row[Any], plan: Plan) -> PlanRecord:
    return PlanRecord(
        plan=plan,
        state=row.state,
        recorded_at=Instant(row.recorded_at),
        staged=None if row.staged is None else from_json(Staged, row.staged),
        report=None if row.report is None else from_json(GateReport, row.report),
        approval=None if row.approval is None else from_json(Approval, row.approval),
        outcome=None if row.outcome is None else from_json(Outcome, row.outcome),
        reported_at=row.reported_at,
        requested_by=row.requested_by,
    )


def _summary(row: Row[Any]) -> PlanSummary:
    return PlanSummary(
        plan_id=row.plan_id,
        operation=row.operation,
        topic=topic_of(row.topic),
        as_of=row.as_of,
        state=row.state,
        recorded_at=row.recorded_at,
        expected_rows=row.expected_rows,
        expected_bytes=row.expected_bytes,
        judgement=row.judgement,
        reported_at=row.reported_at,
        approval=None if row.approval is None else from_json(Approval, row.approval),
        outcome=row.outcome_name,
    )


def _by_beginning(connection: Connection, beginning: str) -> str:
    # An empty beginning is no beginning; a `%` in it is only a character.
    query = select(_plans.c.plan_id).where(_plans.c.plan_id.startswith(beginning, autoescape=True)).order_by(_plans.c.plan_id)
    found = connection.execute(query.limit(3)).scalars().all() if beginning else []
    if not found:
        raise UnknownPlan(beginning)
    if len(found) > 1:
        raise AmbiguousPlan(beginning, tuple(found))
    return str(found[0])
