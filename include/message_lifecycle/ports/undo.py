"""Seam to what a store's history can bring back (DEL-7). The deed itself is a plan like any other: `MessageStore` carries it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from message_lifecycle.model.facts import LogState
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.undo import Range, Returning


class HistoryReader(Protocol):
    """By metadata, and by the offsets of the files concerned."""

    def marker_offsets(self, name: TopicName, plan_id: str) -> Sequence[Range]:
        """What the markers of a plan that was just published were given."""
        ...

    def returning(self, log: LogState, plan: Plan, staged: Staged, *, own: Sequence[Range], without: Sequence[Range]) -> Returning:
        """What of a published plan's removals, and of the older markers that went with them (`staged`), is not in the log and can come
        back. `own`: offsets of the plan's markers. What lies `without` stays away: markers of plans that were taken back before.
        Raises UndoSourceGone, NotUndoable where the store keeps no history."""
        ...
