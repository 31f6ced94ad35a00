"""What the verbs of `steps` do for the quarantine beside a topic (QUA-1), and whether it is due."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from message_lifecycle.app.sparing import holds_of, ids_of, undone_detail
from message_lifecycle.model.errors import NoQuarantine
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import CameBack, QuarantineState
from message_lifecycle.model.undo import QUARANTINE
from message_lifecycle.operations import quarantine_age

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services
    from message_lifecycle.ports import QuarantineStore

NOTHING = QuarantineState(table_uuid="", snapshot_id=None, files=())


def store_of(s: Services, name: TopicName) -> QuarantineStore:
    """Raises NoQuarantine."""
    if s.quarantine is None or name in s.backends:
        raise NoQuarantine(str(name))
    return s.quarantine


def plan_quarantine(s: Services, name: TopicName, policy: Policy, *, as_of: Instant) -> Plan:
    state = store_of(s, name).quarantine(name) or NOTHING
    holds, undone = ids_of(holds_of(s, name)), tuple(_came_back(s, name))
    return quarantine_age.plan(name, state, policy, s.ledger.accepted(name), holds, undone, as_of=as_of)


def _came_back(s: Services, name: TopicName) -> Iterator[CameBack]:
    for known in s.ledger.undone(name):
        times = tuple((first, last) for partition, first, last in known.ranges if partition == QUARANTINE)
        if times and known.released_at is None:
            yield CameBack(times=times, detail=undone_detail(known))


def differences(s: Services, plan: Plan) -> list[str]:
    """Files of a published plan that are still there (DEL-6)."""
    state = store_of(s, plan.topic).quarantine(plan.topic) or NOTHING
    left = {file.name for file in state.files} & set(plan.selection.files)
    return [f"the quarantine still has {len(left)} of the {len(plan.selection.files)} files that went"] if left else []


def accept(s: Services, plan: Plan) -> None:
    """That rows go at this age was accepted; of other settings it says nothing (DEL-3)."""
    accepted = s.ledger.accepted(plan.topic)
    if not plan.is_empty and accepted is not None:
        s.ledger.set_accepted(plan.topic, {**accepted, quarantine_age.SETTING: dict(plan.policy)[quarantine_age.SETTING]})
