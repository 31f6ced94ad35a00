"""What a look at a topic leaves for the next one: when it can have something to remove, and who holds what is overdue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from message_lifecycle.app.horizons import readers_of
from message_lifecycle.model.facts import READERS
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.ports import DueState

if TYPE_CHECKING:
    from message_lifecycle.app.steps import Services


def note_due(s: Services, after: Plan, marker: str | None = None) -> None:
    """Keep for the next look when this topic can have something to remove, and who holds what is overdue now."""
    more_now = after.as_of if after.actions or after.more else after.next_due_at
    s.ledger.set_due_state(
        after.topic,
        DueState(
            marker=marker or s.reader.marker(after.topic),
            policy_hash=after.requirements.policy_hash,
            next_due_at=more_now,
            holders=holders_of(s, after),
        ),
    )


def holders_of(s: Services, plan: Plan) -> tuple[tuple[str, str], ...]:
    """Consumers that hold overdue messages, with their progress now: a change of it makes the topic due again."""
    if not any(entry.holder in READERS for entry in plan.held):
        return ()
    return consumer_state(s, plan.topic)


def consumer_state(s: Services, name: TopicName) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((f"{p.consumer}/{p.partition}", str(p.offset)) for p in readers_of(s, name)))
