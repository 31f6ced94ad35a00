"""What a topic's compacted view means to everybody else: its horizon is one more reader of the log (CMP-9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from message_lifecycle.model.facts import Progress
from message_lifecycle.model.names import TopicName
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
