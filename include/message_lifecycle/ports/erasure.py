"""Seam to what erases a key from a topic's tables, wherever it lies in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from message_lifecycle.model.erasure import ErasedTable, KeyInTable, Matches
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.ports.stores import ChangeStore


class Eraser(ChangeStore, Protocol):
    """One commit per table, the log's the last; files are deleted at once. Raises PlanConflict, also where messages of the key came since
    the plan. What it is about is searched everywhere, by bytes: what is marked as removed or reachable from history alone counts too."""

    def find_key(
        self, name: TopicName, matches: Matches, policy: Policy, *, as_of: Instant, undoable: Collection[str] = ()
    ) -> Sequence[KeyInTable]:
        """Of every table of the topic, the log first; the `policy`'s undo window says what an undo still needs, of plans that are
        `undoable` by the ledger also when it has passed since their commits.

        Raises UnsupportedErasure where a part of the topic cannot be searched."""
        ...

    def erased_tables(
        self, plan: Plan, matches: Matches, went: Mapping[str, Sequence[str]] = MappingProxyType({}), /
    ) -> Sequence[ErasedTable]:
        """What is true now of the tables that a published plan has changed, by a new search. `went`: files by table, relative to its
        location, that are looked for too."""
        ...
