"""What a topic's compacted view means to everybody else: its horizon is one more reader of the log (CMP-9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from message_lifecycle.model.facts import Progress
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.view import ViewState

if TYPE_CHECKING:
    from message_lifecycle.app.steps import Services

READER = "compaction"
"""The name by which reports tell of the horizon (CMP-9)."""


def readers_of(s: Services, name: TopicName) -> list[Progress]:
    """Who needs the topic's messages: consumers, replicas, and compaction where the topic has a view; it never falls silent."""
    return [*s.ledger.consumers(name), *_compaction(s.views.view(name))]


def _compaction(view: ViewState | None) -> list[Progress]:
    # Partitions without a horizon lose nothing: a reader has read nothing of what it does not name.
    horizons = {} if view is None else view.horizons
    return [Progress(consumer=READER, partition=p, offset=offset, at=None, kind="compaction") for p, offset in sorted(horizons.items())]


def horizons_of(s: Services, name: TopicName) -> Mapping[int, int]:
    """The last offset compacted by partition; empty: nothing yet."""
    view = s.views.view(name)
    return {} if view is None else view.horizons


def heeds_horizon(s: Services, plan: Plan) -> bool:
    """Whether a plan still knows all that binds it: a compaction may have come after it. A request names what goes from the view as it
    was; the cleaner is bound by any horizon, for horizons only rise."""
    if plan.operation == "message_request":
        view = s.views.view(plan.topic)
        return (None if view is None else view.snapshot_id) == (None if plan.view is None else plan.view.snapshot_id)
    if plan.operation != "message_cleaner" or any(bound.name == READER for bound in plan.bounds):
        return True
    return not horizons_of(s, plan.topic)
