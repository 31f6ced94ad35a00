"""Changes that no undo takes back, and the deletion of topics: erasure, reclaim."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from message_lifecycle.model.erasure import ErasedTable, KeyMatch, KeySearchResult
from message_lifecycle.model.in_values import Needle, ValuePlace
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import (
    BegunReclaim,
    DeletedTopic,
    Deletion,
    LogSize,
    LooseFiles,
    LooseQuestion,
    Remnant,
    TableFiles,
    TableHistory,
    TopicTable,
)
from message_lifecycle.ports.change import ChangeStore

# Erasure of keys from all tables of a topic.


class Eraser(ChangeStore, Protocol):
    """Erases the keys of a request: one commit on each table, the log last, and files are deleted at once.

    The search reads the bytes of every file, so removed rows and rows in old snapshots count. `publish` raises PlanConflict, also if
    messages of a requested key arrived after the plan.
    """

    def find_key(
        self, name: TopicName, matches: KeyMatch, policy: Policy, *, as_of: Instant, undoable: Collection[str] = ()
    ) -> Sequence[KeySearchResult]:
        """Return the places of the requested keys in every table of the topic, the log first.

        Args:
            name: The topic.
            matches: Returns True for each of the keys.
            policy: Its undo window says which snapshots an undo still needs.
            as_of: Judge the undo window at this instant.
            undoable: Plans that the ledger can still undo, even if the window has passed.

        Raises UnsupportedErasure if a part of the topic cannot be searched.
        """

    def find_in_values(
        self, name: TopicName, needle: Needle, policy: Policy, *, as_of: Instant, undoable: Collection[str] = ()
    ) -> Sequence[ValuePlace]:
        """Return the messages with a requested key in their values or headers, in every table of the topic, the log first. Changes no table.

        Raises UnsupportedErasure if a part of the topic cannot be searched.
        """

    def erased_tables(
        self, plan: Plan, matches: KeyMatch, went: Mapping[str, Sequence[str]] = MappingProxyType({}), /
    ) -> Sequence[ErasedTable]:
        """Search the tables of a published plan again and return the result.

        Args:
            plan: The erasure's plan.
            matches: Returns True for each of the keys.
            went: Files by table, relative to its location, that must not exist.
        """

    def describe_old_copies(self, name: TopicName, until: Instant) -> Sequence[str]:
        """Describe copies below the tables, out of reach, of files written up to `until` and since deleted. The copies may hold any key.

        Raises UnknownTopic.
        """


# The past of tables and of deleted topics, and its end (DEL-7).


class Reclaimer(ChangeStore, Protocol):
    """Expires snapshots, then deletes the files that nothing needs any more. Only the expiry may need a JVM."""

    def histories(self, name: TopicName) -> Sequence[TableHistory]:
        """Return the history of each of the topic's tables. Empty if the store keeps none. Raises UnknownTopic, ForeignTable."""

    def loose(self, name: TopicName, question: LooseQuestion) -> LooseFiles:
        """Return the files that nothing needs. Raises UnsafePath for a link among the table's files, and any error of reading the history."""

    def size_history(self, name: TopicName) -> Sequence[LogSize]:
        """Return the log's size after each snapshot that its table remembers, oldest first. Empty if the store keeps no history."""

    def hidden_bytes(self, name: TopicName) -> int | None:
        """Estimate the bytes of files that only old snapshots need, from summaries. None if not known, or if the store keeps no history."""


class DeletedReclaimer(ChangeStore, Protocol):
    """Removes deleted topics after their undo window: it records the plan, drops the tables one by one, then deletes their files.

    The record stays until `discard`. A missing file is no error. Raises UnsafePath, StorageRefused.
    """

    def files_of(self, topic: DeletedTopic, *, orphans_before: Instant) -> Sequence[TableFiles]:
        """Return the files of each table, the log first. Raises UnsafePath for a link, another table or a file elsewhere, StorageRefused."""

    def unfinished(self) -> Mapping[str, BegunReclaim]:
        """Return the unfinished removals by plan id."""

    def remaining_files(self, plan_id: str) -> Sequence[str]:
        """Return the first few remaining files of an unfinished removal, by full name and in order.

        Locations that another table uses now are left out: that table's orphan removal covers them. Raises UnsafePath, StorageRefused.
        """

    def forget(self, plan_id: str) -> None:
        """Drop the record of a removal that no ledger can finish."""


# Deletion of whole topics, and their return (DEL-7).


class TopicDeleter(ChangeStore, Protocol):
    """Deletes and returns a topic with all its tables. The log leaves last and returns first, so a run after a crash finds the topic.

    Raises PlanConflict if a table differs from the plan, TableBusy, CommitUnknown.
    """

    def tables_of(self, name: TopicName) -> Sequence[TopicTable]:
        """Return the topic's tables, the log first. Raises UnknownTopic, ForeignTable."""

    def deletions(self) -> Sequence[Deletion]:
        """Return the deleted topics, the newest first, without reading their history."""

    def remnants(self) -> Sequence[Remnant]:
        """Return tables of deleted topics whose log no longer exists. `deletions` leaves them out."""

    def record_ledger(self, plan_id: str, ledger: tuple[str, int]) -> None:
        """Do as `Topics.record_ledger` for a deleted topic. Does nothing if its log no longer exists."""

    def deleted(self, plan_id: str) -> DeletedTopic | None:
        """Return the topic that the plan deleted. None if it no longer exists. Raises StorageRefused if its rows cannot be counted."""
