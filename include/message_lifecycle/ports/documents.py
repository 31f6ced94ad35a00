"""Seams to documents: their changes and snapshots, and the deed of snapshot and purge."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.model.document import Change, DocumentState, DocumentTables, Snapshot
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.undo import DocumentsBefore
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports.stores import StagingStore


class DocumentReader(Protocol):
    """What can be known of documents without a writer (and, for tables, without a JVM)."""

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

    def carrying(self, name: TopicName, plan_id: str) -> tuple[Published | None, Published | None]:
        """The commits that carry an undo (DEL-7): of the changes' table, and of the snapshots'."""
        ...

    def before(self, plan: Plan, taken: Sequence[SnapshotDocument]) -> DocumentsBefore:
        """Those documents of a published plan, as they were before its commits. Raises UndoSourceGone."""
        ...


class DocumentStore(DocumentReader, StagingStore, Protocol):
    """Changes coming in; snapshot and purge, in one fenced commit per table. Of `stage`, a document whose fold fails is `blocked` and left
    as it is; `published` is both commits, if both are there."""

    def add(self, name: TopicName, changes: Sequence[Change], *, ledger: tuple[str, int]) -> None:
        """Store the changes, all or none. Each must be its document's next one, in the order given. Raises InvalidServerSeq."""
        ...

    def has_committed(self, name: TopicName, plan_id: str, *, purged: bool = True) -> bool:
        """Of both tables; of the snapshots' alone where the plan has not `purged`."""
        ...

    def publish_snapshots(self, verdict: Verdict, *, ledger: tuple[str, int]) -> Published:
        """First of two commits: new snapshots and raised epochs come, old snapshots go. Of an undo the second: those come back that had
        gone. Done before, it is found. Raises PlanConflict."""
        ...

    def purge(self, verdict: Verdict, *, ledger: tuple[str, int], behind: Callable[[], Collection[str]]) -> Published:
        """Second: the changes go. Only after `publish_snapshots`. Done before, it is found.

        `behind`: asked within the commit, documents whose clients now need more than when it was planned (SNP-9). Raises PlanConflict."""
        ...

    def return_changes(self, verdict: Verdict, *, ledger: tuple[str, int]) -> Published:
        """First of an undo's two commits: changes come back (DEL-7). Done before, it is found. Raises PlanConflict."""
        ...
