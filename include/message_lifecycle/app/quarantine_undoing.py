"""Taking back what an age took out of the quarantine: what is looked at before it is planned, and what is compared afterwards (DEL-7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from message_lifecycle.app import quarantine, sparing, undoing
from message_lifecycle.model.errors import UndoSourceGone
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import UndoPlan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import quarantine_undo

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services

_THERE = "what it took is there again already"
_GONE = "no row that it took is in any file any more"


def takes_back_quarantine(s: Services, work: UndoPlan) -> bool:
    """Whether that plan took rows out of the quarantine, and they are still to come back. Raises UnknownPlan."""
    undone = s.ledger.record(work.plan_id).plan
    return undone.operation == "quarantine" and not undoing.is_undone(s, undone)


def plan_undo_of_quarantine(s: Services, name: TopicName, policy: Policy, work: UndoPlan, *, as_of: Instant) -> Plan:
    """As `undoing.plan_undo`, of a plan that `takes_back_quarantine` is asked about. Raises UnknownPlan, CannotUndo's leaves."""
    record = s.ledger.record(work.plan_id)
    undone, store = record.plan, quarantine.store_of(s, name)
    state = store.quarantine(name) or quarantine.NOTHING
    uuid = undone.requirements.table_uuid
    undoing.check(s, record, policy, uuid, lambda: store.quarantine_has_committed(name, undone.plan_id))
    if state.table_uuid != uuid:
        raise UndoSourceGone(undone.plan_id, "the quarantine that it took rows from is not there any more")
    found = store.quarantine_returning(undone)
    if not found.files:
        raise UndoSourceGone(undone.plan_id, _THERE if found.present else _GONE)
    heeded = sparing.ids_of(sparing.holds_of(s, name))
    return quarantine_undo.plan(state, found, policy, undone, as_of=as_of, heeded=heeded)


def differences(s: Services, plan: Plan, published: Published) -> list[str]:
    """What of a published undo is not there (DEL-6). What came back is remembered first, whatever else is found: the next run must not take
    it again."""
    undoing.remember(s, plan)
    found = quarantine.store_of(s, plan.topic).quarantine_returned(plan)
    if published.restored == found == plan.restored_rows:
        return []
    return [f"{plan.restored_rows} rows should be back in the quarantine: the commit says {published.restored}, it has {found} of them"]
