"""Seams to the compacted view of a topic: reading it, and the deed of compaction."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.undo import ReturningView
from message_lifecycle.model.view import Outlived, Tail, ViewRow, ViewState
from message_lifecycle.ports.stores import ChangeStore


class ViewReader(Protocol):
    """What can be known of views without a writer (and, for tables, without a JVM)."""

    def view(self, name: TopicName) -> ViewState | None:
        """The view at its newest snapshot; None: nothing was ever compacted. Raises CompactedTableMissing (CMP-4)."""
        ...

    def tails(self, log: LogState, after: Mapping[int, int], *, as_of: Instant) -> Sequence[Tail]:
        """What lies past the horizons `after`, up to the last message before the first one later than `as_of`, of every partition."""
        ...

    def oldest_past(self, log: LogState, view: ViewState) -> Mapping[int, Instant]:
        """By partition, the oldest known append_time of what lies past the horizons; a partition that is not there has none (CMP-9)."""
        ...

    def outlived(self, view: ViewState, plan: Plan) -> Outlived:
        """What would be seen again if the plan took its messages from past the view's horizons, by the log at the plan's own snapshot.
        Raises PlanConflict where that is gone, CompactedTableMissing."""
        ...

    def returning(self, view: ViewState, plan: Plan) -> ReturningView:
        """What of a published plan's removals from the view is not in it now and can come back. Raises UndoSourceGone."""
        ...

    def view_rows(self, name: TopicName, view: ViewState, *, partition: int | None = None, start: int = 0) -> Iterator[ViewRow]:
        """What is in the view at that snapshot, memories too, in order of (partition, offset). Raises CompactedTableMissing."""
        ...

    def places_of(
        self, name: TopicName, view: ViewState, *, offsets: Mapping[int, Collection[int]], keys: Collection[bytes]
    ) -> Sequence[tuple[int, int, bytes | None]]:
        """(partition, offset, key) of the view's messages that lie at one of the offsets or have one of the keys."""
        ...


class ViewStore(ViewReader, ChangeStore, Protocol):
    """Compaction, and single messages that go or come back; one fenced commit of the view and its horizons (CMP-4)."""

    def keep_sql_view(self, name: TopicName, policy: Policy) -> str | None:
        """Name of the view by which SQL reads the topic through its compacted view, after making it say what the newest compaction
        and the policy say. None: nothing was compacted, or this store has none. Raises ForeignTable, TableBusy."""
        ...
