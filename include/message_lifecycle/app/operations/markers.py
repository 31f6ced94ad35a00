"""The sweep: markers that are owed for what another writer removed (MRK-2), found out by the table's history alone."""

from __future__ import annotations

from message_lifecycle.app.due import Asked, Due
from message_lifecycle.app.operations.base import Work
from message_lifecycle.app.operations.messages import OfMessages, facts_of
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.gates.messages import marker_generation_suite
from message_lifecycle.gates.suite import Suite
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations import markers


class MarkerGeneration(OfMessages):
    """Makes the markers that are owed. A topic that is looked at for the first time owes nothing: nobody knows what it held before."""

    name = "marker_generation"
    gives_way, marks = True, True
    not_undone = (
        "it made the markers owed for what another writer removed, which is gone; `lifecycle message delete` removes single markers"
    )

    def due(self, s: Services, name: TopicName, asked: Asked) -> Due:
        if policy_of(s, name).marker_ttl_us is None:
            return Due(topic=name, due=False, reason="the topic makes no markers")
        s.ledger.check(name, s.topics.describe(name).ledger)
        made = self.preview(s, name, self.name, as_of=asked.as_of)
        if not made.is_empty:
            return Due(
                topic=name, due=True, reason=f"another writer removed messages in {len(made.on_log.sweep)} snapshot(s) since the last sweep"
            )
        snapshot_id = made.requirements.snapshot_id
        if snapshot_id is not None and snapshot_id != s.ledger.swept(name):
            s.ledger.set_swept(name, snapshot_id)
        return Due(topic=name, due=False, reason="; ".join(made.warnings) or "nobody else has removed messages")

    def plan_of_log(self, s: Services, log: LogState, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        since = s.ledger.swept(log.topic)
        # Before the first sweep nobody has looked, and nothing is owed for what nobody can tell.
        removals = () if since is None or log.snapshot_id is None else s.reader.removed_by_others(log, since)
        return markers.plan(facts_of(s, log), policy, removals, as_of=as_of)

    def checks(self, plan: Plan, staged: Staged, policy: Policy) -> Suite:
        return marker_generation_suite(plan, staged, policy)

    def settle(self, s: Services, plan: Plan, staged: Staged | None) -> None:
        if plan.requirements.snapshot_id is not None:
            s.ledger.set_swept(plan.topic, plan.requirements.snapshot_id)
