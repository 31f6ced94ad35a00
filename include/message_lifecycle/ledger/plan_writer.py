"""Plans and how far each has come: planned, staged, gated, publishing, closed (DEL-1 to DEL-5).

Each write is one transaction, and the same write again changes nothing. A topic has one open plan at the most; a plan's first
outcome stands.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from message_lifecycle.ledger import tables
from message_lifecycle.ledger.codec import from_json, plan_id_of, to_json
from message_lifecycle.ledger.database import add_rows
from message_lifecycle.ledger.part import Part, claim_topic, key_of, next_event
from message_lifecycle.ledger.plan_reader import record_of, state_of_plans
from message_lifecycle.ledger.ranges import ranges_of
from message_lifecycle.ledger.runs import link, write_outcome
from message_lifecycle.model.errors import AlreadyAnswered, NotReady, OpenPlan, UnknownPlan, UnnamedApproval
from message_lifecycle.model.instants import format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Approval, GateReport, Outcome, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.ports import PlanRecord

_plans = tables.plans


class PlanWriter(Part):
    """The way of one plan, from its recording to its outcome."""

    def add_plan(self, plan: Plan, *, run: str | None = None, requested_by: str | None = None) -> PlanRecord:
        """Record a plan, for that run; a plan that is there already is returned as it is. Raises OpenPlan (DEL-1). `requested_by`: the
        person who asked for it.

        One that had given way (`superseded`, `lapsed`) and is planned again begins anew: nothing of it was done.
        """
        document = plan.to_json()
        plan_id = plan_id_of(document)
        with self._database.writing() as connection:
            claim_topic(connection, plan.topic)
            _forget_if_it_gave_way(connection, plan_id)
            if connection.execute(select(_plans.c.plan_id).where(_plans.c.plan_id == plan_id)).first() is None:
                _refuse_second(connection, plan.topic)
                connection.execute(insert(tables.plan_documents).values(plan_id=plan_id, document=document))
                ranges = [
                    {"topic": key_of(plan.topic), "plan_id": plan_id, **covered._asdict()} for covered in sorted(set(ranges_of(plan)))
                ]
                add_rows(connection, tables.plan_ranges, ranges)
                connection.execute(
                    insert(_plans).values(
                        plan_id=plan_id,
                        topic=key_of(plan.topic),
                        operation=plan.operation,
                        as_of=plan.as_of,
                        state="planned",
                        recorded_at=self._database.now(connection),
                        expected_rows=plan.expected.removed_rows,
                        expected_bytes=plan.expected.removed_bytes,
                        requested_by=requested_by,
                        format=plan.format,
                        event=next_event(connection),
                    )
                )
            if run is not None:
                link(connection, run, plan.topic, plan_id, at=self._database.now(connection))
            # The plan is at hand: its document is not read back.
            row = connection.execute(state_of_plans().where(_plans.c.plan_id == plan_id)).one()
        return record_of(row, plan)

    def record_staged(self, staged: Staged) -> None:
        """Keep what was staged; another staged change takes its place and must be judged again. Raises NotReady once a person
        has answered for the first one, or once publishing has begun."""
        with self._database.writing() as connection:
            row = _open(connection, staged.plan_id, "an open plan")
            text = to_json(staged)
            if row.staged == text:
                return
            if row.approval is not None or row.state == "publishing":
                raise NotReady(staged.plan_id, _found(row), "the staged change that was judged")
            _set(connection, row, state="staged", staged=text, report=None, judgement=None, reported_at=None)

    def record_report(self, report: GateReport) -> None:
        """Keep the gate's report and its time; the same one again keeps the first time. Raises NotReady."""
        with self._database.writing() as connection:
            row = _open(connection, report.plan_id, "a staged, open plan")
            text = to_json(report)
            if row.report == text:
                return
            if row.staged is None or row.approval is not None or row.state == "publishing":
                raise NotReady(report.plan_id, _found(row), "a staged plan that nobody has answered for")
            at = self._database.now(connection)
            _set(connection, row, state="gated", report=text, judgement=report.judgement, reported_at=at)

    def record_approval(self, approval: Approval) -> Approval:
        """Keep a person's word; the same word again returns the first. Raises NotReady where no question waits, AlreadyAnswered
        where it differs from the first, UnnamedApproval."""
        if not approval.by.strip():
            raise UnnamedApproval(approval.plan_id)
        with self._database.writing() as connection:
            row = _locked(connection, approval.plan_id)
            if row.approval is not None:
                first = from_json(Approval, row.approval)
                if (first.granted, first.by, first.text) != (approval.granted, approval.by, approval.text):
                    raise AlreadyAnswered(approval.plan_id, first.granted, first.by, format_instant(first.at))
                return first
            if row.state != "gated" or row.judgement != "needs_approval":
                raise NotReady(approval.plan_id, _found(row), "a plan that waits for a person")
            _set(connection, row, approval=to_json(approval))
        return approval

    def record_publishing(self, plan_id: str) -> None:
        """Note that a commit is about to be tried: from here on only the table tells what happened (DEL-4). Raises NotReady."""
        with self._database.writing() as connection:
            row = _open(connection, plan_id, "a plan that the gate has judged")
            if row.report is None:
                raise NotReady(plan_id, _found(row), "a plan that the gate has judged")
            _set(connection, row, state="publishing")

    def record_outcome(self, outcome: Outcome) -> Outcome:
        """Close the outcome's plan. The first outcome stands and is returned (DEL-5). Raises NotReady where `published` is said
        of a plan that no gate has judged."""
        if outcome.plan_id is None:
            raise UnknownPlan("(none)")
        with self._database.writing() as connection:
            row = _locked(connection, outcome.plan_id)
            if row.outcome is not None:
                return from_json(Outcome, row.outcome)
            if outcome.name == "published" and row.report is None:
                raise NotReady(outcome.plan_id, _found(row), "a plan that the gate has judged")
            if outcome.name != "published":
                # Nothing of it is gone: no offset's fate is told by it.
                connection.execute(
                    tables.plan_ranges.delete().where(tables.plan_ranges.c.topic == row.topic, tables.plan_ranges.c.plan_id == row.plan_id)
                )
            event = write_outcome(connection, outcome, at=self._database.now(connection))
            _set(connection, row, state="closed", outcome_name=outcome.name, outcome_event=event)
        return outcome


def _forget_if_it_gave_way(connection: Connection, plan_id: str) -> None:
    gave_way = (_plans.c.plan_id == plan_id) & _plans.c.outcome_name.in_(("superseded", "lapsed"))
    if connection.execute(_plans.delete().where(gave_way)).rowcount:
        connection.execute(tables.plan_documents.delete().where(tables.plan_documents.c.plan_id == plan_id))


def _refuse_second(connection: Connection, topic: TopicName) -> None:
    other = connection.execute(
        select(_plans.c.plan_id, _plans.c.recorded_at).where(_plans.c.topic == key_of(topic), _plans.c.state != "closed")
    ).first()
    if other is not None:
        raise OpenPlan(str(topic), other.plan_id, format_instant(other.recorded_at))


def _locked(connection: Connection, plan_id: str) -> Row[Any]:
    connection.execute(select(_plans.c.plan_id).where(_plans.c.plan_id == plan_id).with_for_update())
    # A second statement: whoever waited for the lock must also see the outcome that the one before wrote.
    row = connection.execute(state_of_plans().where(_plans.c.plan_id == plan_id)).first()
    if row is None:
        raise UnknownPlan(plan_id)
    return row


def _open(connection: Connection, plan_id: str, needed: str) -> Row[Any]:
    row = _locked(connection, plan_id)
    if row.state == "closed":
        raise NotReady(plan_id, _found(row), needed)
    return row


def _found(row: Row[Any]) -> str:
    if row.state == "closed":
        return f"closed ({row.outcome_name})"
    if row.approval is not None:
        return f"{row.state} and answered"
    return str(row.state)


def _set(connection: Connection, row: Row[Any], **values: object) -> None:
    connection.execute(update(_plans).where(_plans.c.plan_id == row.plan_id).values(**values))
