"""Seam to where whole topics go when they are deleted, and whence they come back (DEL-7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from message_lifecycle.model.names import TopicName
from message_lifecycle.model.tables import DeletedTopic, Deletion, Remnant, TopicTable
from message_lifecycle.ports.stores import ChangeStore


class TopicDeleter(ChangeStore, Protocol):
    """Deleted and brought back with all that lies beside it, or not at all: one commit, without a JVM. Raises PlanConflict where a table is
    not as it was planned for, TableBusy."""

    def tables_of(self, name: TopicName) -> Sequence[TopicTable]:
        """The topic's tables, the log first. Raises UnknownTopic, ForeignTable."""
        ...

    def deletions(self) -> Sequence[Deletion]:
        """Topics that were deleted and not brought back, the newest first: told without a look into their history."""
        ...

    def remnants(self) -> Sequence[Remnant]:
        """Of what a plan deleted, tables that are there still without their log: `deletions` does not tell them."""
        ...

    def deleted(self, plan_id: str) -> DeletedTopic | None:
        """The one that the plan deleted; None: it is not there (any more). Raises StorageRefused where its rows cannot be counted."""
        ...
