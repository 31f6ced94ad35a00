"""Outcomes and runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache

from sqlalchemy import ColumnElement, Connection, bindparam, exists, func, select, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import from_json, recorded_state, to_json
from message_lifecycle.ledger.database import LedgerPart, add, claim_topic, key_of, lock_row, next_event, topic_of
from message_lifecycle.ledger.tables import FoundRow, Query
from message_lifecycle.model.errors import UnknownPlan
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Outcome, Run, RunEntry
from message_lifecycle.model.plan import Operation

# Runs and their outcomes. An idle run has an outcome, too.
#
# The starter names a run (Airflow's run id, or the command line's). A run links topics, plans and outcomes.


_met = tables.run_topics
_NO_PLAN = ""


class Runs(LedgerPart):
    """Runs and the history of outcomes."""

    def link_run(self, run: str | None, plan_id: str) -> None:
        """Record that the run works on a recorded plan. Do nothing without a run. Raises UnknownPlan."""
        if run is None:
            return
        with self._database.writing() as connection:
            query = select(tables.plans.c.topic).where(tables.plans.c.plan_id == plan_id)
            topic = connection.execute(query).scalar_one_or_none()
            if topic is None:
                raise UnknownPlan(plan_id)
            link(connection, run, topic_of(topic), plan_id, at=self._database.now(connection))

    def claim(self, run: str, topic: TopicName, *, since: Instant) -> str | None:
        """Claim the topic for the run, before it has a plan. The claim ends with the run's plan or outcome for the topic.

        Returns:
            The run that has claimed the topic since that time, and then nothing changes. None: this run has the claim now.
        """
        planned = _met.alias("planned")
        claims = (
            select(_met.c.run_id)
            .join(tables.runs, tables.runs.c.run_id == _met.c.run_id)
            .where(
                _met.c.topic == key_of(topic),
                _met.c.plan_id == _NO_PLAN,
                _met.c.outcome_event.is_(None),
                _met.c.run_id != run,
                tables.runs.c.recorded_at > since,
                ~exists().where(planned.c.run_id == _met.c.run_id, planned.c.topic == _met.c.topic, planned.c.plan_id != _NO_PLAN),
            )
            .order_by(_met.c.event)
        )
        with self._database.writing() as connection:
            claim_topic(connection, topic)
            holder = connection.execute(claims.limit(1)).scalar_one_or_none()
            if holder is None:
                link(connection, run, topic, None, at=self._database.now(connection))
        return holder

    def record_idle_run(self, run: str, *, as_of: Instant, detail: str) -> None:
        """Record a run without removals: why no topic is due, or a preview. The run's newest record replaces the earlier one."""
        with self._database.writing() as connection:
            _record_run(connection, run, at=self._database.now(connection))
            renewed = update(tables.runs).where(tables.runs.c.run_id == run).values(as_of=as_of, detail=detail)
            connection.execute(renewed)

    def record_run_outcome(self, run: str | None, outcome: Outcome) -> Outcome:
        """Record a run's outcome for a topic, without closing a plan: nothing to do, starved, failed. Return the outcome.

        Repeating the call adds nothing. If the run was tried again, the history keeps both outcomes, and the run shows the newest. Without
        a run only the history has the outcome.
        """
        with self._database.writing() as connection:
            claim_topic(connection, outcome.topic)
            at = self._database.now(connection)
            if run is None:
                write_outcome(connection, outcome, at=at)
                return outcome
            link(connection, run, outcome.topic, outcome.plan_id, at=at)
            here = (
                _met.c.run_id == run,
                _met.c.topic == key_of(outcome.topic),
                _met.c.plan_id == (outcome.plan_id or _NO_PLAN),
            )
            last = select(tables.outcomes.c.outcome).join(_met, _met.c.outcome_event == tables.outcomes.c.event)
            if connection.execute(last.where(*here)).scalar_one_or_none() != to_json(outcome):
                event = write_outcome(connection, outcome, at=at)
                connection.execute(update(_met).where(*here).values(outcome_event=event))
        return outcome

    def run_entries(self, run: str) -> Sequence[RunEntry]:
        """Return topics, plans and outcomes of a run in order. Empty for an unknown run."""
        with self._database.reading() as connection:
            return [entry for _, entry in _entries(connection, _met.c.run_id == run)]

    def runs_of(self, plan_id: str) -> Sequence[str]:
        """Return the names of the runs that have worked on the plan, the first run first."""
        return [str(row.run_id) for row in self._rows(select(_met.c.run_id).where(_met.c.plan_id == plan_id).order_by(_met.c.event))]

    def runs(self, run: str | None = None, *, limit: int = 50) -> Sequence[Run]:
        """Return the newest runs first, or the run of that name."""
        query = select(tables.runs).order_by(tables.runs.c.event.desc()).limit(limit)
        if run is not None:
            query = query.where(tables.runs.c.run_id == run)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
            entries: dict[str, list[RunEntry]] = {row.run_id: [] for row in rows}
            for run, entry in _entries(connection, _met.c.run_id.in_(entries)):
                entries[run].append(entry)
        return [
            Run(
                run_id=row.run_id,
                recorded_at=row.recorded_at,
                as_of=row.as_of,
                detail=row.detail,
                entries=tuple(entries[row.run_id]),
            )
            for row in rows
        ]

    def history(
        self,
        topic: TopicName | None = None,
        *,
        limit: int | None = None,
        operations: Collection[Operation] | None = None,
        without: Collection[Operation] = (),
    ) -> Sequence[tuple[Instant, Outcome]]:
        """Return outcomes with the time of their record, newest first.

        Args:
            topic: The topic. None: all topics.
            limit: None: no limit.
            operations: None: every operation.
            without: Leave out these operations.
        """
        outcomes = tables.outcomes
        query = select(outcomes.c.recorded_at, outcomes.c.outcome).order_by(outcomes.c.event.desc()).limit(limit)
        if topic is not None:
            query = query.where(outcomes.c.topic == key_of(topic))
        if operations is not None:
            query = query.where(outcomes.c.operation.in_(operations))
        if without:
            query = query.where(outcomes.c.operation.not_in(without))
        return [_read_end(row) for row in self._rows(query)]

    def newest(self, topic: TopicName) -> Mapping[str, Sequence[tuple[Instant, Outcome]]]:
        """Return the newest outcome of each name for each operation, newest first, with the time of its record."""
        found: dict[str, list[tuple[Instant, Outcome]]] = {}
        for row in self._newest(topic):
            found.setdefault(row.operation, []).append(_read_end(row))
        return found

    def last(self, topic: TopicName, operations: Collection[Operation]) -> tuple[Instant, Outcome] | None:
        """Return the newest outcome of these operations, with the time of its record."""
        return next((_read_end(row) for row in self._newest(topic) if row.operation in operations), None)

    def has_published(self, topic: TopicName, operations: Collection[Operation]) -> bool:
        """Return True if a plan of these operations was ever published."""
        return any(row.name == "published" and row.operation in operations for row in self._newest(topic))

    def _newest(self, topic: TopicName) -> Sequence[FoundRow]:
        return self._of_topic(newest_outcomes(one_topic=False), topic, one=newest_outcomes(one_topic=True))


def _read_end(row: FoundRow) -> tuple[Instant, Outcome]:
    return Instant(row.recorded_at), from_json(Outcome, row.outcome)


@cache
def newest_outcomes(*, one_topic: bool) -> Query:
    """Select the newest outcome of each name for each operation and topic, newest first."""
    of = tables.outcomes.c
    last = select(func.max(of.event)).group_by(of.topic, of.operation, of.name)
    last = last.where(of.topic == bindparam("of_topic")) if one_topic else last
    return select(of.topic, of.operation, of.name, of.recorded_at, of.outcome).where(of.event.in_(last)).order_by(of.event.desc())


def link(connection: Connection, run: str, topic: TopicName, plan_id: str | None, *, at: Instant) -> None:
    """Link run, topic and plan, unless they are linked. Runs in the caller's transaction."""
    event = _record_run(connection, run, at=at)
    lock_row(connection, _met, run_id=run, topic=key_of(topic), plan_id=plan_id or _NO_PLAN, event=event)


def _record_run(connection: Connection, run: str, *, at: Instant) -> int:
    event = next_event(connection)
    lock_row(connection, tables.runs, run_id=run, event=event, recorded_at=at, detail="")
    return event


def write_outcome(connection: Connection, outcome: Outcome, *, at: Instant) -> int:
    """Insert the outcome and return its event. Runs in the caller's transaction."""
    event = next_event(connection)
    add(
        connection,
        tables.outcomes,
        event=event,
        topic=key_of(outcome.topic),
        operation=outcome.operation,
        as_of=outcome.as_of,
        name=outcome.name,
        outcome=to_json(outcome),
        recorded_at=at,
    )
    return event


def _entries(connection: Connection, which: ColumnElement[bool]) -> Iterator[tuple[str, RunEntry]]:
    plans, of_plan, of_run = tables.plans, tables.outcomes.alias("of_plan"), tables.outcomes.alias("of_run")
    query = (
        select(
            _met.c.run_id,
            _met.c.topic,
            _met.c.plan_id,
            plans.c.state,
            plans.c.judgement,
            plans.c.approval,
            of_plan.c.outcome.label("of_plan"),
            of_run.c.outcome.label("of_run"),
        )
        .outerjoin(plans, plans.c.plan_id == _met.c.plan_id)
        .outerjoin(of_plan, of_plan.c.event == plans.c.outcome_event)
        .outerjoin(of_run, of_run.c.event == _met.c.outcome_event)
        .where(which)
        .order_by(_met.c.event)
    )
    for row in connection.execute(query).all():
        # A plan's own outcome is final. Until then the run's outcome for it (failed) counts.
        text = row.of_plan or row.of_run
        yield (
            row.run_id,
            RunEntry(
                topic=topic_of(row.topic),
                plan_id=row.plan_id or None,
                state=None if row.state is None else recorded_state(row.state, row.judgement, row.approval),
                judgement=row.judgement,
                outcome=None if text is None else from_json(Outcome, text),
            ),
        )
