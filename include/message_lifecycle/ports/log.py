"""Topics of messages: settings, reading, writing, copying, and changes of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from message_lifecycle.model.erasure import KeyMatch
from message_lifecycle.model.facts import CopyState, LogFound, LogState, LogWitness, Progress, SeenTable
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage, RowAnswer, RowQuestion
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import Request
from message_lifecycle.model.setting_list import Value, settings_have_documents
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.undo import Range, Returning, UndoEffect
from message_lifecycle.operations.admission import Refusal
from message_lifecycle.ports.change import ChangeStore

# Messages that a store's history can bring back (DEL-7). An undo is a plan like any other, and `MessageStore` carries it out.


class HistoryReader(Protocol):
    """Reads the past of a log. Implementations read metadata, and only the offsets of data files."""

    def marker_offsets(self, name: TopicName, plan_id: str) -> Sequence[Range]:
        """Return the offsets of the markers that a just published plan made."""

    def find_returning(self, log: LogState, plan: Plan, staged: Staged, *, own: Sequence[Range], without: Sequence[Range]) -> Returning:
        """Return the messages that a published plan removed and an undo can bring back.

        Args:
            log: The log's state now.
            plan: The published plan.
            staged: Its older markers were removed together with the messages, and return with them.
            own: Offsets of the plan's own markers.
            without: Offsets that do not return: markers of plans that were undone before.

        Raises:
            UndoSourceGone: The snapshot that holds the messages has expired.
            NotUndoable: The store keeps no history.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as its table describes it. `settings` are the topic's own, already checked."""

    name: TopicName
    uuid: str
    partitions: int
    role: Literal["local", "source", "mirror"]
    settings: Mapping[str, Value]
    ledger: tuple[str, int] | None
    """(uuid, sequence) of the ledger that made the newest commit or the newest mark (`Topics.record_ledger`); None before the first."""
    live_view: str | None = None
    """Full name of the view that hides dead messages (see `Topics.update_live_view`). None: the store has no such view."""
    updated_at: Instant | None = field(default=None, compare=False)
    """The newest time that a commit wrote to the topic's table. None if the store keeps no such time."""

    @property
    def has_documents(self) -> bool:
        """True if the topic holds documents, not messages (SNP-10)."""
        return settings_have_documents(self.settings)


class Topics(Protocol):
    """Topics and their settings. The settings are stored with the table, so they move with it."""

    def create(self, name: TopicName, *, partitions: int, settings: Mapping[str, Value], ledger: tuple[str, int]) -> Topic: ...

    def alter(self, name: TopicName, settings: Mapping[str, Value | None]) -> Topic:
        """Set the given settings; None unsets."""

    def describe(self, name: TopicName) -> Topic:
        """Raises UnknownTopic."""

    def record_ledger(self, name: TopicName, ledger: tuple[str, int]) -> None:
        """Write the ledger's number next to the log, so that an older ledger deletes nothing from it (DEL-8). Raises UnknownTopic."""

    def list(self, stream: str | None = None) -> Sequence[TopicName]: ...

    def look(self) -> AbstractContextManager[None]:
        """Return a block. Inside the block, every store of this lake may repeat its first answer, and the caller changes nothing."""

    def update_live_view(self, name: TopicName, policy: Policy) -> str | None:
        """Bring the view that hides dead messages in line with the policy, and return its full name. None if the store has no views.

        Raises:
            ForeignTable: A table of another writer has the view's name.
            TableBusy: Another writer changed the view at the same time.
        """


class MessageReader(HistoryReader, Protocol):
    """Reads a log without a writer, and tables without a JVM."""

    def log(self, name: TopicName, *, latest_allowed_time: Instant | None = None) -> LogState:
        """Return the state at the newest snapshot.

        Args:
            name: The topic.
            latest_allowed_time: The last time that is not a future time. A later time does not count as a segment's newest time. The segment counts
                such messages instead (CLK-4).
        """

    def end_offsets(self, name: TopicName) -> Mapping[int, int]:
        """Return `LogState.end_offsets` from the newest commit's summary, without reading the log. Raises UnknownTopic."""

    def rows(self, log: LogState, question: RowQuestion) -> RowAnswer:
        """Return the single messages that the rules remove, at the log's own snapshot (TTL-7). Raises UnknownTopic."""

    def find_requested_rows(self, log: LogState, request: Request, *, as_of: Instant) -> RowAnswer:
        """Return the places of the messages that a person named, at the log's own snapshot. Missing messages are left out."""

    def removed_by_others(self, log: LogState, since: int) -> tuple[int, ...] | None:
        """Return the snapshots of removals by another writer after `since`, up to the log's own, oldest first.

        None if `since`, or the effect of such a snapshot, is no longer known.
        """

    def marker(self, name: TopicName) -> str:
        """Return a text that changes with every change of the topic's table. Cheap."""

    def messages(
        self,
        name: TopicName,
        *,
        partition: int | None = None,
        start: int = 0,
        after: Mapping[int, int] | None = None,
        at: LogState | None = None,
    ) -> Iterator[Message]:
        """Yield stored messages, hidden ones too, in order of (partition, offset).

        Args:
            name: The topic.
            partition: Yield messages of this partition. None: of all partitions.
            start: The first offset in each partition.
            after: By partition, yield only messages past this offset.
            at: Read this state, if the store can read older states.

        Raises:
            PlanConflict: The state `at` has expired.
        """

    def removed_files(self, plan: Plan) -> Sequence[str]:
        """Return the names of the data files that a published plan's commit removed, from the table's history."""


class MessageStore(ChangeStore, Protocol):
    """Carries out changes of the log."""

    def mark(self, plan: Plan, staged: Staged, policy: Policy) -> Staged:
        """Add markers to the stage for the keys that the staged change empties (MRK-1 to MRK-5). Repeating it gives the same stage."""


class LogReturns(ChangeStore, Protocol):
    """Brings messages back to the log."""

    def effect(self, plan: Plan) -> UndoEffect:
        """Return the effect of a published undo, by the log as it is now."""


class LogIntegrity(Protocol):
    """Witnesses of the state of logs that another engine can change (MSG-4)."""

    def read_commits(self, name: TopicName, *, anew: bool = False) -> Sequence[SeenTable]:
        """Return the topic's log and compacted view, with our newest commit on each by the table's own witnesses.

        Args:
            name: The topic.
            anew: Ask the catalog again, even inside `Topics.look`.

        Raises:
            LogStateLost: The witnesses are missing or disagree.
            LogRolledBack: The table does not come from our newest commit.
        """

    def read_states(
        self, name: TopicName, kept: Callable[[str], LogWitness | None], ever: Sequence[LogWitness], judge: Callable[[], None]
    ) -> Sequence[LogFound]:
        """Return the remaining state of each table.

        Args:
            name: The topic.
            kept: Returns the ledger's witness of a table by its uuid.
            ever: The ledger's witnesses of all logs that the topic ever had.
            judge: Raises the error that stops the topic.
        """

    def side_table_uuids(self, name: TopicName) -> Mapping[str, str | None]:
        """Return the uuid of each table next to the topic's log, by kind. None if nobody can read the metadata of that table.

        The tables need no log: a table stays when the log is missing.
        """

    def repair(self, name: TopicName, found: LogFound, *, ledger: tuple[str, int]) -> LogWitness:
        """Write the found state again, in one commit. Raises TableBusy if the table has changed since."""


class MessageWriter(Protocol):
    """Appends to stores that take messages directly, in scenarios and tests. The ingest application feeds tables."""

    def append(
        self,
        name: TopicName,
        messages: Iterable[NewMessage],
        policy: Policy,
        forbidden: KeyMatch | None = None,
        *,
        latest_allowed_time: Instant | None = None,
    ) -> Sequence[tuple[int, int] | Refusal]:
        """Return (partition, offset) of each message, or the reason for its refusal (TTL-4).

        Args:
            name: The topic.
            messages: The messages to append.
            policy: The topic's policy.
            forbidden: Messages with such a key are refused.
            latest_allowed_time: The writer's clock plus the skew. A later time closes no segment (CLK-4). None if the writer has no clock.

        Raises:
            InvalidAppend: Nothing was appended.
        """

    def seal(self, name: TopicName, partition: int) -> None: ...

    def foreign_delete(self, name: TopicName, offsets: Sequence[tuple[int, int]]) -> None:
        """Delete messages as another writer does, outside our rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The result of a copy.

    Attributes:
        copied: By partition, the origin's last offset that was copied or passed over.
        rows: Number of new messages.
        erased: Number of messages that were left out because their key is forbidden. None if the commit existed already.
        span_seconds: The span of new segments after it was doubled, because there would have been too many segments (EXP-3). None if it
            was not doubled.
    """

    copied: Mapping[int, int]
    rows: int
    erased: int | None = 0
    span_seconds: int | None = None


class Copier(Protocol):
    """Fills a source or a mirror from its origin (MSG-5, TTL-6).

    The commit that holds the copies also records how far they reach, so a copy that dies at any time copies nothing twice.
    """

    def copy_state(self, name: TopicName) -> CopyState:
        """Return how far the replica is copied, from metadata. Raises UnknownTopic."""

    def copy_new_messages(
        self,
        name: TopicName,
        origin: LogState,
        policy: Policy,
        *,
        ledger: tuple[str, int],
        latest_allowed_time: Instant,
        forbidden: KeyMatch | None = None,
    ) -> Copied:
        """Copy all messages of the origin's snapshot that are not copied yet, in one commit (TTL-4).

        Args:
            name: The replica.
            origin: The origin's state.
            policy: The replica's policy.
            ledger: The ledger's (uuid, sequence).
            latest_allowed_time: The ledger's clock plus the skew. A later time closes no segment (CLK-4).
            forbidden: Messages with such a key are left out.

        Raises AnotherOrigin, TableBusy, CommitUnknown.
        """


class Groups(Protocol):
    """Readers that the store itself knows, like the consumer groups of Redis.

    Such a reader pins messages as the ledger's consumers do (EXP-6).
    """

    def progress(self, name: TopicName) -> Sequence[Progress]:
        """Return the progress of each reader by partition. Raises UnknownTopic."""
