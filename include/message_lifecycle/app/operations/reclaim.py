"""Space given back once the undo window has passed: old snapshots, and files that no snapshot names (DEL-7).

A name may have had topics that were deleted, and have another one now. One of them is taken a run: the deleted first, for they are seldom.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from message_lifecycle.app.due import Asked, Due
from message_lifecycle.app.operations import words
from message_lifecycle.app.operations.base import Frames, OfSpace, Work, accept_one
from message_lifecycle.app.operations.deleted_reclaim import DeletedReclaim, begun_plan, due_by_name, forget_ended
from message_lifecycle.app.operations.registry import kind_of, undoable
from message_lifecycle.app.services import Services
from message_lifecycle.app.sparing import holds_of, ids_of
from message_lifecycle.gates.suite import Suite
from message_lifecycle.gates.tables import reclaim_suite
from message_lifecycle.model import plan as plans
from message_lifecycle.model.errors import UnknownTopic
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Check, Outcome, Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.records import PlanRecord
from message_lifecycle.model.request import ReclaimDeleted
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import ReclaimFacts
from message_lifecycle.operations import reclaim

_RECLAIM: tuple[plans.Operation, ...] = ("reclaim",)


class Reclaim(OfSpace):
    """Gives back the space of a topic that stands."""

    gives_way = True

    def looked_at(self, s: Services, given: Sequence[TopicName]) -> Sequence[TopicName]:
        """Also at names that a deleted topic had."""
        names = super().looked_at(s, given)
        return names if given else [*names, *sorted(set(due_by_name(s)) - set(names))]

    def candidates(self, s: Services, names: Iterable[TopicName], *, named: bool) -> Iterable[TopicName]:
        """All of them; and what lost reclaims have left is forgotten first, whichever topics are asked about."""
        forget_ended(s)
        return names

    def due(self, s: Services, name: TopicName, asked: Asked) -> Due:
        """Looking costs a walk through the topic's history, once an interval."""
        if (waiting := asked.question(name)) is not None:
            return waiting
        deleted = asked.once(due_by_name).get(name)
        begun = None if deleted is None else begun_plan(s, name)
        if begun is not None:
            return Due(topic=name, due=True, reason=f"plan {begun.plan_id} has begun and is to be brought to its end")
        if deleted is not None:
            hindered = _hindrance(s, name, deleted, as_of=asked.as_of)
            if hindered is None:
                made = DeletedReclaim().preview(s, name, deleted, as_of=asked.as_of)
                return _judged(made, f"the topic that plan {deleted.plan_id} deleted cannot come back, and {_size(made)} can go", asked)
            if not _stands(s, name):
                return Due(topic=name, due=False, reason=hindered)
        s.ledger.check(name, s.topics.describe(name).ledger)
        made = self.preview(s, name, self.name, as_of=asked.as_of)
        snapshots = sum(len(action.snapshots) for action in made.forgets)
        return _judged(made, f"{_size(made)} can go, with {snapshots} snapshots", asked)

    def plan(self, s: Services, name: TopicName, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        tables, holds = tuple(s.stores.forget.histories(name)), holds_of(s, name)
        main = (ref.snapshot_id for table in tables if not table.table for ref in table.refs if ref.name == reclaim.MAIN)
        facts = ReclaimFacts(
            topic=name,
            tables=tables,
            snapshot_id=next(main, None),
            needed_since=_needed_since(s, name),
            undoable_since=s.ledger.planned_since(name, undoable(), published_after=Instant(s.ledger.now() - policy.undo_window_us)),
            # What a hold names may lie in files of the past, and nobody looks into them (DEL-8).
            held=tuple(hold.told for hold in holds),
            heeded=ids_of(holds),
            accepted=s.ledger.accepted(name),
        )
        return reclaim.plan(facts, policy, as_of=as_of, ask=partial(s.stores.forget.loose, name))

    def evidence(self, s: Services, plan: Plan, staged: Staged, policy: Policy) -> Frames:
        return s.stores.forget.evidence(plan, staged, policy)

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return reclaim_suite(plan, policy)

    def lines(self, plan: Plan, going: words.Removed, failed: Sequence[Check]) -> list[str]:
        return words.of_space(plan, "What it had removed longer ago than the undo window could then not be taken back any more", failed)

    def differences(self, s: Services, record: PlanRecord, published: Published) -> list[str]:
        """What went and was not listed."""
        listed = sum(len(removal.files) for removal in record.plan.file_removals)
        return [f"{published.reclaimed_files} files went, the plan lists {listed}"] if published.reclaimed_files > listed else []

    def settle(self, s: Services, plan: Plan, staged: Staged | None) -> None:
        """That the undo window is as long as it is was accepted."""
        accept_one(s, plan, reclaim.WINDOW)

    def counted(self, outcome: Outcome, plan: Plan, published: Published) -> Outcome:
        return replace(outcome, reclaimed_files=published.reclaimed_files, reclaimed_bytes=published.reclaimed_bytes)


def work_on(s: Services, name: TopicName, *, as_of: Instant) -> Work:
    """The deleted topic that is to go, or else the one that stands."""
    deleted = due_by_name(s).get(name)
    if deleted is None or (begun_plan(s, name) is None and _hindrance(s, name, deleted, as_of=as_of) is not None):
        return Reclaim.name
    return deleted


def _hindrance(s: Services, name: TopicName, deleted: ReclaimDeleted, *, as_of: Instant) -> str | None:
    """Why nothing of the deleted topic is to go now, in words, so that what else has its name need not wait; None: nothing is in the way."""
    holds = holds_of(s, name)
    if holds:
        return f"nothing is reclaimed: {holds[0].told}"
    for _, outcome in s.ledger.history(name, operations=_RECLAIM):
        plan = None if outcome.name != "refused" or outcome.plan_id is None else s.ledger.record(outcome.plan_id).plan
        if plan is not None and plan.parent == deleted.plan_id:
            until = Instant(outcome.as_of + Policy.of_values(plan.policy).approval_ttl_us)
            return f"a person refused; asked again after {format_instant(until)}" if as_of < until else None
    return None


def _judged(made: Plan, reason: str, asked: Asked) -> Due:
    if made.is_empty:
        until = "" if made.next_due_at is None else f" before {format_instant(made.next_due_at)}"
        return Due(topic=made.topic, due=False, reason="; ".join(made.warnings) or f"no space can come back{until}")
    return asked.unless_hindered(made, reason)


def _size(made: Plan) -> str:
    files = sum(len(removal.files) for removal in made.file_removals)
    return f"{files} files of {made.expected.removed_bytes} bytes"


def _stands(s: Services, name: TopicName) -> bool:
    try:
        s.topics.describe(name)
    except UnknownTopic:
        return False
    return True


def _needed_since(s: Services, name: TopicName) -> Instant | None:
    """When the oldest ingest or plan of the topic began that is still open: what it has written since may be named by nothing yet."""
    batches = [batch.begun_at for batch in s.ledger.open_batches(name)]
    plan = s.ledger.open_plan(name)
    # One that gives back space writes nothing itself.
    open_plans = [plan.recorded_at] if plan is not None and kind_of(plan.plan).counts_messages else []
    return min([*batches, *open_plans], default=None)
