"""Reclaiming, put together: what is asked of tables and ledger, and what is checked afterwards (DEL-7)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from message_lifecycle.app.sparing import holds_of, ids_of
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import ReclaimFacts
from message_lifecycle.operations import reclaim
from message_lifecycle.operations.undo import TAKEN_BACK

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services


def plan_reclaim(s: Services, name: TopicName, policy: Policy, *, as_of: Instant) -> Plan:
    """The plan as it would be. Raises what reading the tables raises."""
    tables, holds = tuple(s.reclaimer.histories(name)), holds_of(s, name)
    facts = ReclaimFacts(
        topic=name,
        tables=tables,
        snapshot_id=next((ref.snapshot_id for table in tables if not table.table for ref in table.refs if ref.name == reclaim.MAIN), None),
        needed_since=_needed_since(s, name),
        undoable_since=s.ledger.planned_since(name, TAKEN_BACK, published_after=Instant(s.ledger.now() - policy.undo_window_us)),
        # What a hold names may lie in files of the past, and nobody looks into them (DEL-8).
        held=tuple(hold.told for hold in holds),
        heeded=ids_of(holds),
        accepted=s.ledger.accepted(name),
    )
    return reclaim.plan(facts, policy, as_of=as_of, ask=partial(s.reclaimer.loose, name))


def begun(s: Services, plan: Plan) -> bool:
    """Whether snapshots of the plan have gone already, so that it is to be brought to its end and not planned anew."""
    if plan.operation != "reclaim" or plan.is_empty:
        return False
    left = {snapshot.snapshot_id for table in s.reclaimer.histories(plan.topic) for snapshot in table.snapshots}
    gone = [snapshot_id for action in plan.expiries for snapshot_id in action.snapshots]
    return bool(gone) and not left.issuperset(gone)


def differences(s: Services, plan: Plan, published: Published) -> list[str]:
    """What is there still, or went that was not listed (DEL-6)."""
    wrong = [f"{what} is still there" for what in s.reclaimer.remains(plan)]
    listed = sum(len(removal.files) for removal in plan.file_removals)
    if published.reclaimed_files > listed:
        wrong.append(f"{published.reclaimed_files} files went, the plan lists {listed}")
    return wrong


def accept(s: Services, plan: Plan) -> None:
    """That the undo window is as long as it is was accepted; of other settings a reclaim says nothing."""
    accepted = s.ledger.accepted(plan.topic)
    if not plan.is_empty and accepted is not None:
        s.ledger.set_accepted(plan.topic, {**accepted, reclaim.WINDOW: dict(plan.policy)[reclaim.WINDOW]})


def _needed_since(s: Services, name: TopicName) -> Instant | None:
    """When the oldest ingest or plan of the topic began that is still open: what it has written since may be named by nothing yet."""
    batches = [batch.begun_at for batch in s.ledger.open_batches(name)]
    plan = s.ledger.open_plan(name)
    plans = [] if plan is None or plan.plan.operation == "reclaim" else [plan.recorded_at]
    return min([*batches, *plans], default=None)
