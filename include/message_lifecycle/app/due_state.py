"""What a look at a topic leaves for the next one: when it can have something to remove, and who holds what is overdue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, get_args

from message_lifecycle.app.horizons import readers_of
from message_lifecycle.app.sparing import spared_state
from message_lifecycle.model.facts import READERS
from message_lifecycle.model.hold import SparedBy
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.records import DueState

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services


def due_states(s: Services) -> Mapping[TopicName, DueState]:
    """What all earlier looks have left."""
    return s.ledger.due_states()


def note_due(s: Services, after: Plan, marker: str | None = None) -> None:
    """Keep for the next look when this topic can have something to remove, and who holds what is overdue now."""
    more_now = after.as_of if after.changes or after.more else after.next_due_at
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
    """Consumers that hold overdue messages, with their progress now, legal holds and undone plans: a change of it makes the topic due again."""
    readers = any(entry.holder in READERS for entry in plan.held)
    spared = any(entry.holder in get_args(SparedBy) for entry in plan.held)
    return _state(s, plan.topic, readers=readers, spared=spared)


def have_changed(s: Services, name: TopicName, holders: tuple[tuple[str, str], ...]) -> bool:
    """Whether the holders of that time hold otherwise now, or not at all."""
    if not holders:
        return False
    spared = [":" in held for held, _ in holders]
    return _state(s, name, readers=not all(spared), spared=any(spared)) != holders


def _state(s: Services, name: TopicName, *, readers: bool, spared: bool) -> tuple[tuple[str, str], ...]:
    return (*(consumer_state(s, name) if readers else ()), *(spared_state(s, name) if spared else ()))


def consumer_state(s: Services, name: TopicName) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((f"{p.consumer}/{p.partition}", str(p.offset)) for p in readers_of(s, name)))
