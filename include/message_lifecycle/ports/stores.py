"""Seams to what holds messages: topics, reading, staging and publishing, writing, and the gate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from message_lifecycle.model.erasure import KeyMatch
from message_lifecycle.model.facts import CopyState, LogState, Progress
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import GateReport, Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import Request
from message_lifecycle.model.rows import RowAnswer, RowQuestion
from message_lifecycle.model.settings import Policy, Value
from message_lifecycle.operations.lifetime import Refusal
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports.undo import HistoryReader

Progressed = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as its table describes it. `settings`: the topic's own, checked."""

    name: TopicName
    uuid: str
    partitions: int
    role: Literal["local", "source", "mirror"]
    settings: Mapping[str, Value]
    ledger: tuple[str, int] | None
    """(uuid, sequence) of the ledger that the newest commit of ours was made with; None before the first."""
    live_view: str | None = None
    """Full name of the view that hides dead messages (see `Topics.live_view`). None: the store has none."""


class Topics(Protocol):
    """Topics and their settings, kept with the table so that they travel with it."""

    def create(self, name: TopicName, *, partitions: int, settings: Mapping[str, Value], ledger: tuple[str, int]) -> Topic: ...

    def alter(self, name: TopicName, settings: Mapping[str, Value | None]) -> Topic:
        """Set the given settings; None unsets."""
        ...

    def describe(self, name: TopicName) -> Topic:
        """Raises UnknownTopic."""
        ...

    def list(self, stream: str | None = None) -> Sequence[TopicName]: ...

    def live_view(self, name: TopicName, policy: Policy) -> str | None:
        """Full name of the view that hides dead messages from every reader at once, after making it say what the policy says.

        None: this store has none. Raises ForeignTable where somebody else's table has its name, TableBusy."""
        ...


class MessageReader(HistoryReader, Protocol):
    """What can be known without a writer (and, for tables, without a JVM)."""

    def log(self, name: TopicName, *, late_after: Instant | None = None) -> LogState:
        """State at the newest snapshot. Where a segment's newest time is later than `late_after`, the newest time at or
        before that is read instead, and the later messages are counted (CLK-4)."""
        ...

    def end_offsets(self, name: TopicName) -> Mapping[int, int]:
        """As `LogState.end_offsets`, by the newest commit's word alone; cheap, however long the log. Raises UnknownTopic."""
        ...

    def rows(self, log: LogState, question: RowQuestion) -> RowAnswer:
        """Which single messages the rules take, at the log's own snapshot (TTL-7). Raises UnknownTopic."""
        ...

    def requested(self, log: LogState, request: Request, *, as_of: Instant) -> RowAnswer:
        """Where the messages lie that a person named, at the log's own snapshot; those that are not there are left out."""
        ...

    def removed_by_others(self, log: LogState, since: int) -> tuple[int, ...] | None:
        """Snapshots after `since`, up to the log's own, in which another writer removed messages, oldest first; None: `since`, or
        what such a snapshot changed, is not known any more."""
        ...

    def marker(self, name: TopicName) -> str:
        """A text that differs whenever the topic's table has changed in any way; cheap."""
        ...

    def messages(self, name: TopicName, *, partition: int | None = None, start: int = 0) -> Iterator[Message]:
        """Stored messages in order of (partition, offset), raw."""
        ...

    def effect(self, name: TopicName, plan_id: str) -> Sequence[str]:
        """Names of the data files that the plan's commit took out of the table, from the table's own history."""
        ...


class StagingStore(Protocol):
    """Changes made where no reader sees them, shown to the gate, found again once they are committed, or forgotten. Idempotent by plan id."""

    def stage(self, plan: Plan) -> Staged:
        """Do the work on the plan's snapshot, unseen. Raises PlanConflict when that snapshot is gone, UndoSourceGone."""
        ...

    def evidence(self, plan: Plan, staged: Staged, policy: Policy) -> Mapping[str, object]:
        """Frames that the gate judges: what goes or comes, what differs beside the plan, figures."""
        ...

    def published(self, name: TopicName, plan_id: str) -> Published | None:
        """The commit on main that carries this plan, if there is one (DEL-4); counts are of what the commit really changed."""
        ...

    def has_committed(self, name: TopicName, plan_id: str) -> bool:
        """Whether a plan has changed the table, also where an erasure has ended its commit since and left what an undo needs of it."""
        ...

    def discard(self, plan: Plan) -> None:
        """Forget what was staged for the plan; nothing there is success."""
        ...


class ChangeStore(StagingStore, Protocol):
    """Changes of one kind of table, in one fenced commit."""

    def publish(self, verdict: Verdict, *, ledger: tuple[str, int]) -> Published:
        """A plan that is there already is reported, not repeated. Raises PlanConflict."""
        ...


class MessageStore(ChangeStore, Protocol):
    """Of the log."""

    def mark(self, plan: Plan, staged: Staged, policy: Policy) -> Staged:
        """Put the markers of the keys that the staged change empties beside it, unseen as well (MRK-1 to MRK-5). Again: the same."""
        ...


class MessageWriter(Protocol):
    """Appending, for stores that take messages directly (scenarios, tests; tables are fed by the ingest application)."""

    def append(
        self, name: TopicName, messages: Iterable[NewMessage], policy: Policy, forbidden: KeyMatch | None = None
    ) -> Sequence[tuple[int, int] | Refusal]:
        """Returns (partition, offset) of each message, or why it was refused and is not there (TTL-4; a `forbidden` key). Raises
        InvalidAppend, and then nothing was appended."""
        ...

    def seal(self, name: TopicName, partition: int) -> None: ...

    def foreign_delete(self, name: TopicName, offsets: Sequence[tuple[int, int]]) -> None:
        """A delete by another writer, outside our rules."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What a copy has come to. `copied`: the origin's last offset by partition that is copied or has been passed; `rows`: new ones;
    `erased`: messages that were left out, because their key may not come in; None: not counted, the commit was there already."""

    copied: Mapping[int, int]
    rows: int
    erased: int | None = 0


class Copier(Protocol):
    """Filling a source or mirror from its origin (MSG-5, TTL-6). What was copied stands in the replica's own table, in the commit
    that holds the copies, so that nothing is copied twice whatever dies when."""

    def copied(self, name: TopicName) -> CopyState:
        """By metadata. Raises UnknownTopic."""
        ...

    def copy(
        self, name: TopicName, origin: LogState, policy: Policy, *, ledger: tuple[str, int], forbidden: KeyMatch | None = None
    ) -> Copied:
        """Everything of the origin, at the snapshot of `origin`, that is not copied yet, in one commit; nothing is refused (TTL-4) but
        a `forbidden` key.
        `policy` is the replica's. Raises AnotherOrigin, TableBusy, CommitUnknown."""
        ...


class Groups(Protocol):
    """Readers that a store itself knows of, as Redis knows its consumer groups: they bind as the ledger's consumers do (EXP-6)."""

    def progress(self, name: TopicName) -> Sequence[Progress]:
        """As it is now, by partition. Raises UnknownTopic."""
        ...


class Gate(Protocol):
    """The judge of a staged change."""

    def judge(self, plan: Plan, staged: Staged, suite: Any, evidence: Mapping[str, object]) -> GateReport:
        """Each check of the `suite` (see `gates.suite`), evaluated on the `evidence`: frames by name."""
        ...
