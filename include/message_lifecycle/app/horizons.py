"""What a topic's compacted view means to everybody else: its horizon is one more reader of the log (CMP-9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from message_lifecycle.model.facts import Progress
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import CLEANING, Plan
from message_lifecycle.model.view import ViewState
from message_lifecycle.operations.barriers import READER

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services


def readers_of(s: Services, name: TopicName) -> list[Progress]:
    """Who needs the topic's messages: consumers, those of the store's own, replicas, and compaction where the topic has a view; it never falls silent."""
    own = () if s.groups is None else s.groups.progress(name)
    return [*s.ledger.consumers(name), *own, *_compaction(s.views.view(name))]


def _compaction(view: ViewState | None) -> list[Progress]:
    # Partitions without a horizon lose nothing: a reader has read nothing of what it does not name.
    horizons = {} if view is None else view.horizons
    return [Progress(consumer=READER, partition=p, offset=offset, at=None, kind="compaction") for p, offset in sorted(horizons.items())]


def horizons_of(s: Services, name: TopicName) -> Mapping[int, int]:
    """The last offset compacted by partition; empty: nothing yet."""
    view = s.views.view(name)
    return {} if view is None else view.horizons


def heeds_horizon(s: Services, plan: Plan) -> bool:
    """Whether a plan still knows all that binds it: a compaction may have come after it. A request, an undo, and the cleaner where it does
    not wait for compaction, rely on the view, or name what goes from the view as it was; else any horizon binds the cleaner, for horizons only rise."""
    if plan.moved_tables or plan.of_quarantine:
        return True  # the view is one of the tables that it names, or nothing to it
    if plan.operation in ("message_request", "undo") or plan.past_horizon:
        view, done = s.views.view(plan.topic), s.views.published(plan.topic, plan.plan_id)
        # A run that died between its two commits has changed the view itself.
        relied_on = done.snapshot_id if done is not None else None if plan.view is None else plan.view.snapshot_id
        return (None if view is None else view.snapshot_id) == relied_on
    if plan.operation not in CLEANING or any(bound.name == READER for bound in plan.bounds):
        return True
    return not horizons_of(s, plan.topic)
