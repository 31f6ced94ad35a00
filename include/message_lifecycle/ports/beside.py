"""Tables next to the log: documents, the compacted view, the quarantine."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

from message_lifecycle.model.change import SnapshotDocument
from message_lifecycle.model.document import Change, DocumentState, DocumentTables, Snapshot
from message_lifecycle.model.facts import LogState
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import OlderRows, Tail, ViewRow, ViewState
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import (
    QuarantineReturning,
    QuarantineState,
    RefusedCount,
    RefusedRow,
)
from message_lifecycle.model.undo import DocumentsBefore, ReturningView
from message_lifecycle.ports.change import ChangeStore

# Documents: changes and snapshots. `ChangeStore` removes and returns the rows of both tables.


class Documents(Protocol):
    """Reads documents, without a JVM for tables, and adds changes to them."""

    def tables(self, name: TopicName) -> DocumentTables:
        """Return both tables of the topic. Cheap for any number of documents. Raises UnknownTopic, NotADocumentTopic."""

    def states(
        self,
        name: TopicName,
        tables: DocumentTables,
        *,
        older_than: Instant | None = None,
        own: Mapping[str, Instant | None] | None = None,
        only: Collection[str] | None = None,
    ) -> Sequence[DocumentState]:
        """Return the state of every document at those snapshots, by name.

        Args:
            name: The topic.
            tables: The snapshots to read.
            older_than: Changes before this instant may be removed by age (SNP-9).
            own: The same instant for single documents. None if no age removes changes of that document.
            only: Return these documents alone.
        """

    def changes(self, name: TopicName, document: str, *, after: int = 0) -> Iterator[Change]:
        """Yield stored changes with a server_seq above `after`, in ascending order."""

    def snapshots(self, name: TopicName, document: str, *, server_seq: int | None = None) -> Sequence[Snapshot]:
        """Return stored snapshots in ascending order, or only the snapshot at `server_seq`."""

    def before(self, plan: Plan, taken: Sequence[SnapshotDocument]) -> DocumentsBefore:
        """Return the documents of a published plan as they were before its commits. Raises UndoSourceGone."""

    def add(self, name: TopicName, changes: Sequence[Change], *, ledger: tuple[str, int]) -> None:
        """Store the changes, all or none, in the given order. A change must be its document's next change. Raises InvalidServerSeq."""


# The compacted view of a topic.


class ViewReader(Protocol):
    """Reads views without a writer, and tables without a JVM."""

    def view(self, name: TopicName) -> ViewState | None:
        """Return the view at its newest snapshot. None if nothing was ever compacted. Raises CompactedTableMissing (CMP-4)."""

    def tails(self, log: LogState, after: Mapping[int, int], *, as_of: Instant, latest_allowed_time: Instant) -> Sequence[Tail]:
        """Return for every partition the messages past the horizon `after` that a compaction includes (`compaction.end_point`).

        Args:
            log: The log's state.
            after: The last compacted offset of each partition.
            as_of: The instant of the compaction.
            latest_allowed_time: `as_of` plus the skew.
        """

    def oldest_past(self, log: LogState, view: ViewState) -> Mapping[int, Instant]:
        """Return by partition the oldest known append_time past the horizon. A missing partition has none (CMP-9)."""

    def find_older_rows(self, view: ViewState, plan: Plan) -> OlderRows:
        """Return the older messages that readers would see again if the plan removed its messages from past the view's horizons.

        Raises PlanConflict if the plan's snapshot has expired, CompactedTableMissing.
        """

    def find_returning(self, view: ViewState, plan: Plan) -> ReturningView:
        """Return the messages that a published plan removed from the view and an undo can bring back. Raises UndoSourceGone."""

    def view_rows(self, name: TopicName, view: ViewState, *, partition: int | None = None, start: int = 0) -> Iterator[ViewRow]:
        """Yield the view's rows at that snapshot, remembered ones too, in order of (partition, offset). Raises CompactedTableMissing."""

    def places_of(
        self, name: TopicName, view: ViewState, *, offsets: Mapping[int, Collection[int]], keys: Collection[bytes]
    ) -> Sequence[tuple[int, int, bytes | None]]:
        """Return (partition, offset, key) of the view's messages at one of the offsets or with one of the keys."""


class ViewStore(ViewReader, ChangeStore, Protocol):
    """Compacts the view: one fenced commit holds the view and its horizons (CMP-4). Removals and returns have stores of their own."""

    def older_rows_frame(self, plan: Plan, staged: Staged) -> object:
        """Return the frame `outlived` of `gates.rows`: older messages that would stay, in the staged view and in the log (CMP-9)."""

    def update_sql_view(self, name: TopicName, policy: Policy) -> str | None:
        """Bring the SQL view over the compacted table in line with the newest compaction and the policy, and return its name.

        None if nothing was compacted, or the store has no SQL views. Raises ForeignTable, TableBusy.
        """


# The quarantine of a topic. Its rows are removed by age (QUA-1), and an undo brings them back (DEL-7).


class QuarantineStore(ChangeStore, Protocol):
    """Reads and changes the quarantine. Only refused rows and their counts need more than metadata."""

    def quarantine(self, name: TopicName) -> QuarantineState | None:
        """Return the quarantine's files. None if no row of the topic was ever refused."""

    def refused_counts(self, name: TopicName) -> Sequence[RefusedCount]:
        """Return the number of refused rows by batch, file and code, in order of their time."""

    def refused_rows(self, name: TopicName, *, batch: str | None, file: str | None, code: str | None, limit: int) -> Sequence[RefusedRow]:
        """Return the first rows of that batch, file and code (None: any), in order of time, file and position."""

    def find_returning(self, plan: Plan) -> QuarantineReturning:
        """Return the rows that a published plan removed and an undo can bring back. Raises UndoSourceGone, even if they are back already."""
