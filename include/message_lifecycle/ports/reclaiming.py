"""Seams to what remembers the past of a topic's tables, and of deleted topics, and can let go of it (DEL-7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.tables import BegunReclaim, DeletedTopic, LooseFiles, LooseQuestion, TableFiles, TableHistory
from message_lifecycle.ports.stores import ChangeStore


class Reclaimer(ChangeStore, Protocol):
    """Snapshots are forgotten, and then files go, if nothing needs one of them again. Looked at by metadata, without a JVM."""

    def histories(self, name: TopicName) -> Sequence[TableHistory]:
        """Of the topic's table and of all beside it; none where the store keeps no past. Raises UnknownTopic, ForeignTable."""
        ...

    def loose(self, name: TopicName, question: LooseQuestion) -> LooseFiles:
        """Raises UnsafePath where a link lies among the table's files, and what reading the history raises: nothing goes by guesswork."""
        ...

    def hidden_bytes(self, name: TopicName) -> int | None:
        """About how many bytes of files only the past needs, by summaries alone; None: not known, or the store has no past."""
        ...


class DeletedReclaimer(ChangeStore, Protocol):
    """Deleted topics that nobody can bring back any more: their tables are forgotten in one commit, which leaves word of the plan until it
    is discarded; then their files go. One that is gone is success. Without a JVM. Raises UnsafePath, StorageRefused."""

    def files_of(self, topic: DeletedTopic, *, orphans_before: Instant) -> Sequence[TableFiles]:
        """Of each of its tables, the log first. Raises UnsafePath where a link, another table or a file elsewhere is in the way,
        StorageRefused."""
        ...

    def unfinished(self) -> Mapping[str, BegunReclaim]:
        """By plan: those that have begun and not come to their end."""
        ...

    def left_by(self, plan_id: str) -> Sequence[str]:
        """The first few files in the order of their names below each location of a plan that has begun, whole names; in a location that
        another table has now, none: what nothing names there goes with that table's orphans. Raises UnsafePath, StorageRefused."""
        ...

    def forget(self, plan_id: str) -> None:
        """Drop the word of a plan that nobody can bring to its end by the ledger."""
        ...
