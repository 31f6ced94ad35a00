"""The seams: what the verbs need of a store and a gate. Each is small; the memory store is the reference."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NoReturn, Protocol, Self

from message_lifecycle.model.change import DocumentsBefore, Effect, Range, Returning, ReturningView, SnapshotDocument
from message_lifecycle.model.document import Change, DocumentState, DocumentTables, Snapshot
from message_lifecycle.model.erasure import ErasedTable, KeyInTable, KeyMatch, Matches
from message_lifecycle.model.facts import CopyState, LogFound, LogState, LogWitness, Progress, SeenTable
from message_lifecycle.model.in_values import Needle, ValuePlace
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import Message, NewMessage, Outlived, RowAnswer, RowQuestion, Tail, ViewRow, ViewState
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import GateReport, Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.request import Request
from message_lifecycle.model.setting_list import Value, of_documents
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.tables import (
    BegunReclaim,
    DeletedTopic,
    Deletion,
    LooseFiles,
    LooseQuestion,
    QuarantineReturning,
    QuarantineState,
    RefusedCount,
    RefusedRow,
    Remnant,
    TableFiles,
    TableHistory,
    TopicTable,
)
from message_lifecycle.operations.admission import Refusal
from message_lifecycle.operations.verdict import Verdict

# Seam to what a store's history can bring back (DEL-7). The deed itself is a plan like any other: `MessageStore` carries it out.


class HistoryReader(Protocol):
    """By metadata, and by the offsets of the files concerned."""

    def marker_offsets(self, name: TopicName, plan_id: str) -> Sequence[Range]:
        """What the markers of a plan that was just published were given."""

    def returning(self, log: LogState, plan: Plan, staged: Staged, *, own: Sequence[Range], without: Sequence[Range]) -> Returning:
        """What of a published plan's removals, and of the older markers that went with them (`staged`), is not in the log and can come
        back. `own`: offsets of the plan's markers. What lies `without` stays away: markers of plans that were taken back before.
        Raises UndoSourceGone, NotUndoable where the store keeps no history."""


# Seams to what holds messages: topics, reading, staging and publishing, writing, and the gate.


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as its table describes it. `settings`: the topic's own, checked."""

    name: TopicName
    uuid: str
    partitions: int
    role: Literal["local", "source", "mirror"]
    settings: Mapping[str, Value]
    ledger: tuple[str, int] | None
    """(uuid, sequence) of the ledger that made the newest commit or the newest mark (`Topics.record_ledger`); None before the first."""
    live_view: str | None = None
    """Full name of the view that hides dead messages (see `Topics.live_view`). None: the store has none."""
    updated_at: Instant | None = field(default=None, compare=False)
    """The newest time that a commit wrote to the topic's table. None if the store keeps no such time."""

    @property
    def of_documents(self) -> bool:
        """Whether it holds documents, not messages (SNP-10)."""
        return of_documents(self.settings)


class Topics(Protocol):
    """Topics and their settings, kept with the table so that they travel with it."""

    def create(self, name: TopicName, *, partitions: int, settings: Mapping[str, Value], ledger: tuple[str, int]) -> Topic: ...

    def alter(self, name: TopicName, settings: Mapping[str, Value | None]) -> Topic:
        """Set the given settings; None unsets."""

    def describe(self, name: TopicName) -> Topic:
        """Raises UnknownTopic."""

    def record_ledger(self, name: TopicName, ledger: tuple[str, int]) -> None:
        """Write the ledger's number next to the log, so that an older ledger deletes nothing from it (DEL-8). Raises UnknownTopic."""

    def list(self, stream: str | None = None) -> Sequence[TopicName]: ...

    def look(self) -> AbstractContextManager[None]:
        """The caller changes nothing in the block, and what it asks of any store of this lake may be answered as of when it was asked first."""

    def live_view(self, name: TopicName, policy: Policy) -> str | None:
        """Full name of the view that hides dead messages from every reader at once, after making it say what the policy says.

        None: this store has none. Raises ForeignTable where somebody else's table has its name, TableBusy."""


class MessageReader(HistoryReader, Protocol):
    """What can be known without a writer (and, for tables, without a JVM)."""

    def log(self, name: TopicName, *, late_after: Instant | None = None) -> LogState:
        """State at the newest snapshot. Where a segment's newest time is later than `late_after`, the newest time at or
        before that is read instead, and the later messages are counted (CLK-4)."""

    def end_offsets(self, name: TopicName) -> Mapping[int, int]:
        """As `LogState.end_offsets`, by the newest commit's word alone; cheap, however long the log. Raises UnknownTopic."""

    def rows(self, log: LogState, question: RowQuestion) -> RowAnswer:
        """Which single messages the rules take, at the log's own snapshot (TTL-7). Raises UnknownTopic."""

    def requested(self, log: LogState, request: Request, *, as_of: Instant) -> RowAnswer:
        """Where the messages lie that a person named, at the log's own snapshot; those that are not there are left out."""

    def removed_by_others(self, log: LogState, since: int) -> tuple[int, ...] | None:
        """Snapshots after `since`, up to the log's own, in which another writer removed messages, oldest first; None: `since`, or
        what such a snapshot changed, is not known any more."""

    def marker(self, name: TopicName) -> str:
        """A text that differs whenever the topic's table has changed in any way; cheap."""

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

    def effect(self, plan: Plan) -> Effect:
        """What a published plan has done, from the table's own history; what of an undo's work is in the log now."""


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
    behind: Callable[[], Collection[str]] = _not_given
    """Asked within the commit of a purge: documents whose clients now need more than when it was planned (SNP-9)."""


NOTHING_GIVEN = Given()


class Prepared(Protocol):
    """A change's commit that is ready and not made."""

    def commit_with(self, others: Sequence[Self], /) -> None:
        """It and the others at once, all or none, where what keeps them is what it is said to be: who made them ready looks for each
        afterwards. Raises PlanConflict, TableBusy and CommitUnknown, and then none is there."""


class ChangeStore(Protocol):
    """How one kind of change is carried out, whatever it is: made where no reader sees it, shown to the gate, committed, found again by the
    tables themselves (DEL-4). Each step again changes nothing."""

    def stage(self, plan: Plan, _given: Given = NOTHING_GIVEN, /) -> Staged:
        """Do the work on the plan's snapshot, unseen. Raises PlanConflict when that snapshot is gone, UndoSourceGone. Unless a
        store says otherwise nothing is staged: the commit itself moves names or removes files, and the gate judges the list."""
        return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)

    def evidence(self, plan: Plan, staged: Staged, policy: Policy, given: Given = NOTHING_GIVEN, /) -> Mapping[str, object]:
        """Frames that the gate judges: what goes or comes, what differs beside the plan, figures."""

    def prepare(self, _verdict: Verdict, _given: Given, /) -> Prepared | None:
        """The commit that `publish` would make, to be made at once with those of the plan's changes before and behind it; `publish` then
        finds it. None: it is there, there is none to make, or no two are made at once here. Raises PlanConflict, NoTransactions."""
        return None

    def publish(self, verdict: Verdict, given: Given, /) -> Published:
        """One fenced commit of each table; one that is there already is reported, not repeated. Raises PlanConflict."""

    def published(self, plan: Plan, /) -> Published | None:
        """The commit that carries this plan, if it is there; counts are of what it really changed."""

    def has_begun(self, plan: Plan, /) -> bool:
        """Whether any of it is there: also where files are left to remove, or an erasure has ended its commit since. Also for a
        compaction of which the view's history tells nothing any more."""
        return self.published(plan) is not None

    def is_lost(self, _plan: Plan, /) -> bool:
        """Of a plan that was published: whether it is sure that no commit of it is there any more. The table remembers what the plan was
        made from, and nothing of the plan since. False also where that is not known."""
        return False

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


class Witnesses(Protocol):
    """Witnesses of the state of logs that another engine can change (MSG-4)."""

    def seen(self, name: TopicName, *, anew: bool = False) -> Sequence[SeenTable]:
        """Return the topic's log and compacted view, with our newest commit on each by the table's own witnesses.

        Args:
            anew: Ask the catalog again, also within a look (`Topics.look`).

        Raises:
            LogStateLost: They are missing, or disagree.
            LogRolledBack: The table does not come from our newest commit.
        """

    def found(
        self, name: TopicName, kept: Callable[[str], LogWitness | None], ever: Sequence[LogWitness], judge: Callable[[], None]
    ) -> Sequence[LogFound]:
        """Return what is left of each table's state. `kept` gives the ledger's witness by uuid, `ever` are those of each log that the topic
        ever had, `judge` raises what stops the topic."""

    def repair(self, name: TopicName, found: LogFound, *, ledger: tuple[str, int]) -> LogWitness:
        """Write the state that was found anew, in one commit. Raises TableBusy if the table has moved since."""


class MessageWriter(Protocol):
    """Appending, for stores that take messages directly (scenarios, tests; tables are fed by the ingest application)."""

    def append(
        self,
        name: TopicName,
        messages: Iterable[NewMessage],
        policy: Policy,
        forbidden: KeyMatch | None = None,
        *,
        late_after: Instant | None = None,
    ) -> Sequence[tuple[int, int] | Refusal]:
        """Returns (partition, offset) of each message, or why it was refused and is not there (TTL-4; a `forbidden` key). Raises
        InvalidAppend, and then nothing was appended.

        `late_after` is the writer's clock with the skew: a later time ends no segment (CLK-4). None if the writer has no clock."""

    def seal(self, name: TopicName, partition: int) -> None: ...

    def foreign_delete(self, name: TopicName, offsets: Sequence[tuple[int, int]]) -> None:
        """A delete by another writer, outside our rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What a copy has come to. `copied`: the origin's last offset by partition that is copied or has been passed; `rows`: new ones;
    `erased`: messages that were left out, because their key may not come in; None: not counted, the commit was there already."""

    copied: Mapping[int, int]
    rows: int
    erased: int | None = 0
    span_seconds: int | None = None
    """What the span of the new segments was doubled to, because they would have been too many (EXP-3); None: it is as set."""


class Copier(Protocol):
    """Filling a source or mirror from its origin (MSG-5, TTL-6). What was copied stands in the replica's own table, in the commit
    that holds the copies, so that nothing is copied twice whatever dies when."""

    def copied(self, name: TopicName) -> CopyState:
        """By metadata. Raises UnknownTopic."""

    def copy(
        self,
        name: TopicName,
        origin: LogState,
        policy: Policy,
        *,
        ledger: tuple[str, int],
        late_after: Instant,
        forbidden: KeyMatch | None = None,
    ) -> Copied:
        """Everything of the origin, at the snapshot of `origin`, that is not copied yet, in one commit; nothing is refused (TTL-4) but
        a `forbidden` key.
        `policy` is the replica's. `late_after` is the ledger's clock with the skew: a later time ends no segment (CLK-4). Raises AnotherOrigin, TableBusy, CommitUnknown."""


class Groups(Protocol):
    """Readers that a store itself knows of, as Redis knows its consumer groups: they bind as the ledger's consumers do (EXP-6)."""

    def progress(self, name: TopicName) -> Sequence[Progress]:
        """As it is now, by partition. Raises UnknownTopic."""


class Gate(Protocol):
    """The judge of a staged change."""

    def judge(self, plan: Plan, staged: Staged, suite: Any, evidence: Mapping[str, object]) -> GateReport:
        """Each check of the `suite` (see `gates.suite`), evaluated on the `evidence`: frames by name."""


# Seam to documents: their changes and snapshots. What goes of them, or comes back, are changes of two tables (`ChangeStore`).


class Documents(Protocol):
    """What can be known of documents, for tables without a JVM; and changes coming in."""

    def tables(self, name: TopicName) -> DocumentTables:
        """Cheap, however many documents there are. Raises UnknownTopic, NotADocumentTopic."""

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

    def changes(self, name: TopicName, document: str, *, after: int = 0) -> Iterator[Change]:
        """Stored changes with a server_seq above `after`, ascending."""

    def snapshots(self, name: TopicName, document: str, *, server_seq: int | None = None) -> Sequence[Snapshot]:
        """Stored snapshots, ascending; or only the one at `server_seq`, whatever has become of the others."""

    def before(self, plan: Plan, taken: Sequence[SnapshotDocument]) -> DocumentsBefore:
        """Those documents of a published plan, as they were before its commits. Raises UndoSourceGone."""

    def add(self, name: TopicName, changes: Sequence[Change], *, ledger: tuple[str, int]) -> None:
        """Store the changes, all or none. Each must be its document's next one, in the order given. Raises InvalidServerSeq."""


# Seams to the compacted view of a topic: reading it, and the deed of compaction.


class ViewReader(Protocol):
    """What can be known of views without a writer (and, for tables, without a JVM)."""

    def view(self, name: TopicName) -> ViewState | None:
        """The view at its newest snapshot; None: nothing was ever compacted. Raises CompactedTableMissing (CMP-4)."""

    def tails(self, log: LogState, after: Mapping[int, int], *, as_of: Instant, late_after: Instant) -> Sequence[Tail]:
        """The messages past the horizons `after` that a compaction takes at `as_of`, of every partition (`compaction.end_point`).

        `late_after` is `as_of` with the skew."""

    def oldest_past(self, log: LogState, view: ViewState) -> Mapping[int, Instant]:
        """By partition, the oldest known append_time of what lies past the horizons; a partition that is not there has none (CMP-9)."""

    def outlived(self, view: ViewState, plan: Plan) -> Outlived:
        """What would be seen again if the plan took its messages from past the view's horizons, by the log at the plan's own snapshot.
        Raises PlanConflict where that is gone, CompactedTableMissing."""

    def returning(self, view: ViewState, plan: Plan) -> ReturningView:
        """What of a published plan's removals from the view is not in it now and can come back. Raises UndoSourceGone."""

    def view_rows(self, name: TopicName, view: ViewState, *, partition: int | None = None, start: int = 0) -> Iterator[ViewRow]:
        """What is in the view at that snapshot, memories too, in order of (partition, offset). Raises CompactedTableMissing."""

    def places_of(
        self, name: TopicName, view: ViewState, *, offsets: Mapping[int, Collection[int]], keys: Collection[bytes]
    ) -> Sequence[tuple[int, int, bytes | None]]:
        """(partition, offset, key) of the view's messages that lie at one of the offsets or have one of the keys."""


class ViewStore(ViewReader, ChangeStore, Protocol):
    """Compaction, and single messages that go or come back; one fenced commit of the view and its horizons (CMP-4)."""

    def keep_sql_view(self, name: TopicName, policy: Policy) -> str | None:
        """Name of the view by which SQL reads the topic through its compacted view, after making it say what the newest compaction
        and the policy say. None: nothing was compacted, or this store has none. Raises ForeignTable, TableBusy."""


# Seam to the quarantine beside a topic, whose rows go by their age (QUA-1), and come back (DEL-7).


class QuarantineStore(ChangeStore, Protocol):
    """Looked at by metadata alone, except for its rows and their counts."""

    def quarantine(self, name: TopicName) -> QuarantineState | None:
        """None: nothing of the topic was ever refused."""

    def refused_counts(self, name: TopicName) -> Sequence[RefusedCount]:
        """Return the number of refused rows by batch, file and code, in order of their time."""

    def refused_rows(self, name: TopicName, *, batch: str | None, file: str | None, code: str | None, limit: int) -> Sequence[RefusedRow]:
        """Return the first rows of that batch, file and code (None: of any), in order of time, file and position."""

    def returning(self, plan: Plan) -> QuarantineReturning:
        """What a published plan took and can come back. Raises UndoSourceGone, also where it has come back already."""


# Seam to what erases a key from a topic's tables, wherever it lies in them.


class Eraser(ChangeStore, Protocol):
    """One commit per table, the log's the last; files are deleted at once. Raises PlanConflict, also where messages of the key came since
    the plan. The key is searched in the bytes of every file: removed rows, and rows that history alone reaches, count too."""

    def find_key(
        self, name: TopicName, matches: Matches, policy: Policy, *, as_of: Instant, undoable: Collection[str] = ()
    ) -> Sequence[KeyInTable]:
        """Of every table of the topic, the log first. The `policy`'s undo window says what an undo still needs; plans that are `undoable` by
        the ledger count even where it has passed since their commits.

        Raises UnsupportedErasure where a part of the topic cannot be searched."""

    def find_in_values(
        self, name: TopicName, needle: Needle, policy: Policy, *, as_of: Instant, undoable: Collection[str] = ()
    ) -> Sequence[ValuePlace]:
        """Return where other messages tell the key in their values or headers, in every table of the topic, the log first. Nothing changes.

        Raises UnsupportedErasure where a part of the topic cannot be searched."""

    def erased_tables(
        self, plan: Plan, matches: Matches, went: Mapping[str, Sequence[str]] = MappingProxyType({}), /
    ) -> Sequence[ErasedTable]:
        """What is true now of the tables that a published plan has changed, by a new search. `went`: files by table, relative to its
        location, that are looked for too."""

    def kept_beneath(self, name: TopicName, until: Instant) -> Sequence[str]:
        """What lies beneath the topic's tables of files that were written until then, and deleted or replaced, out of reach, in words: it
        may hold any key. Raises UnknownTopic."""


# Seams to what remembers the past of a topic's tables, and of deleted topics, and can let go of it (DEL-7).


class Reclaimer(ChangeStore, Protocol):
    """Snapshots are forgotten, and then files go, if nothing needs one of them again. Looked at by metadata, without a JVM; forgetting may need one."""

    def histories(self, name: TopicName) -> Sequence[TableHistory]:
        """Of the topic's table and of all beside it; none where the store keeps no past. Raises UnknownTopic, ForeignTable."""

    def loose(self, name: TopicName, question: LooseQuestion) -> LooseFiles:
        """Raises UnsafePath where a link lies among the table's files, and what reading the history raises: nothing goes by guesswork."""

    def hidden_bytes(self, name: TopicName) -> int | None:
        """About how many bytes of files only the past needs, by summaries alone; None: not known, or the store has no past."""


class DeletedReclaimer(ChangeStore, Protocol):
    """Deleted topics that nobody can bring back any more: word of the plan is told, and stays until it is discarded; then
    their tables are forgotten, one by one, and then their files go. A file that is gone already is no error. Raises UnsafePath,
    StorageRefused."""

    def files_of(self, topic: DeletedTopic, *, orphans_before: Instant) -> Sequence[TableFiles]:
        """Of each of its tables, the log first. Raises UnsafePath where a link, another table or a file elsewhere is in the way,
        StorageRefused."""

    def unfinished(self) -> Mapping[str, BegunReclaim]:
        """By plan: those that have begun and not come to their end."""

    def left_by(self, plan_id: str) -> Sequence[str]:
        """The first few files below each location of a plan that has begun, by their full names, in order. None of a location that another
        table has now: they go with that table's orphans. Raises UnsafePath, StorageRefused."""

    def forget(self, plan_id: str) -> None:
        """Drop the word of a plan that nobody can bring to its end by the ledger."""


# Seam to where whole topics go when they are deleted, and whence they come back (DEL-7).


class TopicDeleter(ChangeStore, Protocol):
    """Deleted and brought back with all that lies beside it, or not at all: the log goes last and comes back first, so that whoever comes
    after a run that died finds the topic. Raises PlanConflict where a table is not as it was planned for, TableBusy, CommitUnknown."""

    def tables_of(self, name: TopicName) -> Sequence[TopicTable]:
        """The topic's tables, the log first. Raises UnknownTopic, ForeignTable."""

    def deletions(self) -> Sequence[Deletion]:
        """Topics that were deleted and not brought back, the newest first: told without a look into their history."""

    def remnants(self) -> Sequence[Remnant]:
        """Of what a plan deleted, tables that are there still without their log: `deletions` does not tell them."""

    def record_ledger(self, plan_id: str, ledger: tuple[str, int]) -> None:
        """As `Topics.record_ledger`, next to the log of the topic that the plan deleted; nothing where that is gone."""

    def deleted(self, plan_id: str) -> DeletedTopic | None:
        """The one that the plan deleted; None: it is not there (any more). Raises StorageRefused where its rows cannot be counted."""
