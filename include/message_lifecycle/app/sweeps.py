"""Which topics may owe markers for what another writer removed (MRK-2): without a JVM, by the table's history alone."""

from __future__ import annotations

from collections.abc import Iterable

from message_lifecycle.app.due import Due, judge_each, of_messages
from message_lifecycle.app.previews import preview
from message_lifecycle.app.services import Services, policy_of
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName


def due_sweeps(s: Services, names: Iterable[TopicName], *, as_of: Instant) -> list[Due]:
    """Judge every topic. A topic that is looked at for the first time owes nothing: nobody knows what it held before."""
    return judge_each(of_messages(s, names), lambda name: _one(s, name, as_of))


def _one(s: Services, name: TopicName, as_of: Instant) -> Due:
    if policy_of(s, name).marker_ttl_us is None:
        return Due(topic=name, due=False, reason="the topic makes no markers")
    s.ledger.check(name, s.topics.describe(name).ledger)
    made = preview(s, name, as_of=as_of, work="marker_generation")
    if not made.is_empty:
        return Due(topic=name, due=True, reason=f"another writer removed messages in {len(made.swept)} snapshot(s) since the last sweep")
    snapshot_id = made.requirements.snapshot_id
    if snapshot_id is not None and snapshot_id != s.ledger.swept(name):
        s.ledger.set_swept(name, snapshot_id)
    return Due(topic=name, due=False, reason="; ".join(made.warnings) or "nobody else has removed messages")
