"""Seam to documents: their changes and snapshots. What goes of them, or comes back, are changes of two tables, see `ports.stores`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.model.document import Change, DocumentState, DocumentTables, Snapshot
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.undo import DocumentsBefore


class Documents(Protocol):
    """What can be known of documents, for tables without a JVM; and changes coming in."""

    def tables(self, name: TopicName) -> DocumentTables:
        """Cheap, however many documents there are. Raises UnknownTopic, NotADocumentTopic."""
        ...

    def states(
        self,
        name: TopicName,
        tables: DocumentTables,
        *,
        older_than: Instant | None = None,
        own: Mapping[str, Instant | None] | None = None,
        only: Collection[str] | None = None,
    ) -> Sequence[DocumentState]:
        """Every document (or `only` these) at those snapshots, by name. `older_than`: changes earlier than this may go by age (SNP-9,
        strict); `own`: the same of single documents, None: no age."""
        ...

    def changes(self, name: TopicName, document: str, *, after: int = 0) -> Iterator[Change]:
        """Stored changes with a server_seq above `after`, ascending."""
        ...

    def snapshots(self, name: TopicName, document: str, *, server_seq: int | None = None) -> Sequence[Snapshot]:
        """Stored snapshots, ascending; or only the one at `server_seq`, whatever has become of the others."""
        ...

    def before(self, plan: Plan, taken: Sequence[SnapshotDocument]) -> DocumentsBefore:
        """Those documents of a published plan, as they were before its commits. Raises UndoSourceGone."""
        ...

    def add(self, name: TopicName, changes: Sequence[Change], *, ledger: tuple[str, int]) -> None:
        """Store the changes, all or none. Each must be its document's next one, in the order given. Raises InvalidServerSeq."""
        ...
