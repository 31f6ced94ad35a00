"""Seams to what holds messages: topics, reading, staging and publishing, writing, and the gate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol

from message_lifecycle.model.erasure import KeyMatch, Matches
from message_lifecycle.model.facts import CopyState, LogState, Progress
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import GateReport, Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import Request
from message_lifecycle.model.rows import RowAnswer, RowQuestion
from message_lifecycle.model.settings import Policy, Value
from message_lifecycle.model.undo import Effect
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

    def messages(
        self,
        name: TopicName,
        *,
        partition: int | None = None,
        start: int = 0,
        after: Mapping[int, int] | None = None,
        at: LogState | None = None,
    ) -> Iterator[Message]:
        """Stored messages in order of (partition, offset), raw; or those past the offsets `after` alone. `at`: as of that state, where the
        store can read an older one. Raises PlanConflict where that is gone."""
        ...

    def effect(self, plan: Plan) -> Effect:
        """What a published plan has done, from the table's own history; what of an undo's work is in the log now."""
        ...


def _not_given() -> NoReturn:
    raise AssertionError("nobody has given it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a store may ask while it carries out a change, and what is no part of the plan: made anew for each call."""

    ledger: Callable[[], tuple[str, int]] = _not_given
    """Another identity of the ledger at each call, for one commit: its uuid, and a sequence that grows."""
    now: Callable[[], Instant] = _not_given
    matches: Callable[[], Matches] = _not_given
    """Of an erasure: whether a key is the one that goes."""
    staged: Staged | None = None
    """What was made before it, of other changes of the plan."""
    behind: Callable[[], Collection[str]] = tuple
    """Asked within the commit of a purge: documents whose clients now need more than when it was planned (SNP-9)."""


NOTHING_GIVEN = Given()


class ChangeStore(Protocol):
    """How one kind of change is carried out, whatever it is: made where no reader sees it, shown to the gate, committed, found again by the
    tables themselves (DEL-4). Each step again changes nothing."""

    def stage(self, plan: Plan, _given: Given = NOTHING_GIVEN, /) -> Staged:
        """Do the work on the plan's snapshot, unseen. Raises PlanConflict when that snapshot is gone, UndoSourceGone. Here nothing is tried
        before: names are given, or files go, in the commit itself, and the gate judges the list."""
        return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)

    def evidence(self, plan: Plan, staged: Staged, policy: Policy, given: Given = NOTHING_GIVEN, /) -> Mapping[str, object]:
        """Frames that the gate judges: what goes or comes, what differs beside the plan, figures."""
        ...

    def publish(self, verdict: Verdict, given: Given, /) -> Published:
        """One fenced commit of each table; one that is there already is reported, not repeated. Raises PlanConflict."""
        ...

    def published(self, plan: Plan, /) -> Published | None:
        """The commit that carries this plan, if it is there; counts are of what it really changed."""
        ...

    def has_begun(self, plan: Plan, /) -> bool:
        """Whether any of it is there: also where files are left to remove, or an erasure has ended its commit since. Where no history tells
        that any more, it may be."""
        return self.published(plan) is not None

    def finish(self, plan: Plan, /) -> Published:
        """Bring to its end what has begun and has no way back, without a verdict. Here the commit was all."""
        done = self.published(plan)
        assert done is not None, f"plan {plan.plan_id} has not begun"
        return done

    def left(self, _plan: Plan, /) -> Sequence[str]:
        """Of what the plan takes, what is still there, and of what it brings, what is not: in words (DEL-6)."""
        return ()

    def discard(self, _plan: Plan, /) -> None:
        """Forget what was made for the plan, and of a published one what told that it was; nothing there is success."""
        return


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
