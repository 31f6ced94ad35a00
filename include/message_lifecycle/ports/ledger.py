"""Seams to the memory of intentions: what is recorded, who reads it, and who writes it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from message_lifecycle.model.facts import Progress
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Approval, GateReport, Judgement, Outcome, OutcomeName, Staged
from message_lifecycle.model.plan import Operation, Plan
from message_lifecycle.model.settings import Value
from message_lifecycle.model.undo import Range, Undone
from message_lifecycle.ports.documents import DocumentMemory
from message_lifecycle.ports.erasures import ErasureMemory
from message_lifecycle.ports.holds import HoldMemory

PlanState = Literal["planned", "staged", "gated", "publishing", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """A plan and how far it has come."""

    plan: Plan
    state: PlanState
    recorded_at: Instant
    staged: Staged | None
    report: GateReport | None
    approval: Approval | None
    outcome: Outcome | None
    reported_at: Instant | None = None
    """When the gate asked: from then on an approval's time runs (DEL-1)."""
    requested_by: str | None = None
    """The person who asked for it; None: a scheduled run did, or nobody is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """A plan without what it names: cheap to list, however many files a plan holds."""

    plan_id: str
    operation: Operation
    topic: TopicName
    as_of: Instant
    state: PlanState
    recorded_at: Instant
    expected_rows: int
    expected_bytes: int | None
    judgement: Judgement | None
    reported_at: Instant | None
    approval: Approval | None
    outcome: OutcomeName | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """What one run met for one topic. `plan_id` None: it came to its outcome without a plan, or has only taken the topic so far."""

    topic: TopicName
    plan_id: str | None
    state: PlanState | None
    judgement: Judgement | None
    outcome: Outcome | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run as it was recorded. `as_of` and `detail` are set where it found nothing due."""

    run_id: str
    recorded_at: Instant
    as_of: Instant | None
    detail: str
    entries: tuple[RunEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file to ingest. `path`: within its source folder, with `/`, so that the same folder elsewhere is the same source."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Files taken together, in one commit that carries `batch_id`."""

    batch_id: str
    topic: TopicName
    begun_at: Instant
    files: tuple[SourceFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DueState:
    """What the last run left for the next look. `holders`: names that hold overdue messages, with their state then."""

    marker: str
    policy_hash: str
    next_due_at: Instant | None
    holders: tuple[tuple[str, str], ...]


class PlanReader(Protocol):
    """Plans, whole."""

    def record(self, plan_id: str) -> PlanRecord:
        """By id or a unique beginning of one. Raises UnknownPlan, AmbiguousPlan."""
        ...

    def open_plan(self, topic: TopicName) -> PlanRecord | None:
        """The topic's one plan that has no outcome yet (DEL-1)."""
        ...

    def find_published(self, topic: TopicName, operation: Operation, as_of: Instant) -> PlanRecord | None:
        """The newest plan published for that interval."""
        ...

    def planned_since(self, topic: TopicName, operations: Collection[Operation], *, published_after: Instant) -> Instant | None:
        """When the oldest plan of these operations was recorded whose outcome came after that time, as `published_at` tells it."""
        ...

    def published_since(self, topic: TopicName, operations: Collection[Operation], *, published_after: Instant) -> frozenset[str]:
        """Ids of the plans of these operations whose outcome came after that time, as `published_at` tells it."""
        ...

    def published_at(self, plan_id: str) -> Instant | None:
        """When the outcome of a plan that was published was recorded, `failed` where something else was found after it; None: it has no
        such outcome."""
        ...

    def published_after(self, topic: TopicName, plan_id: str, operation: Operation, *, or_failed: bool = False) -> Sequence[PlanRecord]:
        """The operation's plans that were published after that plan was, oldest first. `or_failed`: those, too, of which something else was
        found after their commit, and those that failed before it."""
        ...

    def plans_that_removed(self, topic: TopicName, partition: int, offset: int) -> Sequence[PlanRecord]:
        """Published plans whose actions cover that offset, oldest first."""
        ...

    def plans_of_run(self, run: str) -> Sequence[PlanRecord]: ...


class LedgerLists(Protocol):
    """What was done, without what plans name: cheap however large they are."""

    def plans(self, topic: TopicName | None = None, *, limit: int = 50) -> Sequence[PlanSummary]:
        """Newest first."""
        ...

    def waiting(self) -> Sequence[PlanSummary]:
        """Plans that need a person and have no answer yet, the longest waiting first. One that an earlier version made waits no more: it is
        planned, and asked, again."""
        ...

    def history(
        self, topic: TopicName | None = None, *, limit: int | None = None, operations: Collection[Operation] | None = None
    ) -> Sequence[tuple[Instant, Outcome]]:
        """Newest first, with the time of recording; of these operations, or of all. `limit` None: however many there are."""
        ...

    def runs(self, *, limit: int = 50) -> Sequence[Run]:
        """Newest first."""
        ...

    def run_entries(self, run: str) -> Sequence[RunEntry]: ...


class TopicMemory(Protocol):
    """What is kept per topic between runs."""

    def consumers(self, topic: TopicName) -> Sequence[Progress]: ...

    def replicas(self) -> Sequence[tuple[TopicName, TopicName]]:
        """(origin, replica) of all that are registered, in one query."""
        ...

    def accepted(self, topic: TopicName) -> Mapping[str, Value | None] | None:
        """The settings under which its removals were last accepted; None: unknown."""
        ...

    def accepted_view(self, topic: TopicName) -> Mapping[str, Value | None] | None:
        """The settings under which its compacted view is as it is; None: it was never compacted."""
        ...

    def due_states(self) -> Mapping[TopicName, DueState]:
        """All topics in one query: the due check must stay cheap."""
        ...

    def swept(self, topic: TopicName) -> int | None:
        """The snapshot up to which markers owed for other writers' removals have been made; None: no sweep yet."""
        ...

    def ingest_settings(self, topic: TopicName) -> Mapping[str, Value]: ...

    def open_batches(self, topic: TopicName) -> Sequence[Batch]: ...


class LedgerReader(PlanReader, LedgerLists, TopicMemory, Protocol):
    """What was intended and done."""


class PlanWriter(Protocol):
    """How far a plan has come. The same write again changes nothing."""

    def add_plan(self, plan: Plan, *, run: str | None = None, requested_by: str | None = None) -> PlanRecord:
        """A plan that is there already is returned as it is. Raises OpenPlan (DEL-1)."""
        ...

    def record_staged(self, staged: Staged) -> None: ...

    def record_report(self, report: GateReport) -> None: ...

    def record_approval(self, approval: Approval) -> Approval:
        """Returns the first. Raises NotReady, AlreadyAnswered, UnnamedApproval."""
        ...

    def record_publishing(self, plan_id: str) -> None: ...

    def record_outcome(self, outcome: Outcome) -> Outcome:
        """Close the outcome's plan; the first outcome stands and is returned."""
        ...


class RunWriter(Protocol):
    """What a run met, and came to without closing a plan."""

    def link_run(self, run: str | None, plan_id: str) -> None: ...

    def claim(self, run: str, topic: TopicName, *, since: Instant) -> str | None:
        """Take the topic for the run before there is a plan; the run that has taken it since then, if there is one."""
        ...

    def record_idle_run(self, run: str, *, as_of: Instant, detail: str) -> None: ...

    def record_run_outcome(self, run: str | None, outcome: Outcome) -> Outcome: ...


class TopicWriter(Protocol):
    """Consumers' progress, and what is kept per topic."""

    def commit(
        self,
        topic: TopicName,
        consumer: str,
        partition: int,
        offset: int,
        at: Instant | None,
        *,
        end_offset: int | None = None,
    ) -> Progress:
        """The last offset processed (EXP-6). Raises InvalidName, InvalidProgress, ReplicaProgress."""
        ...

    def start_anew(self, topic: TopicName) -> None:
        """Before a topic is made: nobody has read or copied anything of it, and it has copied nothing, whatever a topic of that name
        knew before."""
        ...

    def forget_former(self, topic: TopicName) -> None:
        """After a topic is made: its files are taken as if for the first time, and nothing of it was brought back by an undo."""
        ...

    def register_replica(self, topic: TopicName, replica: TopicName, partitions: int) -> None:
        """Nothing of the topic goes before the replica has copied it (TTL-6). The same again changes nothing."""
        ...

    def set_copied(self, topic: TopicName, replica: TopicName, copied: Mapping[int, int]) -> None:
        """What the replica's own table says it has copied: the topic's last offset by partition."""
        ...

    def remove(self, topic: TopicName, consumer: str) -> None:
        """Raises UnknownConsumer."""
        ...

    def set_accepted(
        self, topic: TopicName, values: Mapping[str, Value | None], *, by: str | None = None, text: str | None = None
    ) -> None: ...

    def set_accepted_view(self, topic: TopicName, values: Mapping[str, Value | None] | None) -> None:
        """None: forget that there was a view."""
        ...

    def set_due_state(self, topic: TopicName, state: DueState) -> None: ...

    def set_swept(self, topic: TopicName, snapshot_id: int) -> None: ...

    def set_ingest_setting(self, topic: TopicName, name: str, value: Value) -> None: ...


class BatchWriter(Protocol):
    """Each file is ingested once."""

    def begin_batch(self, topic: TopicName, batch_id: str, files: Iterable[SourceFile]) -> Sequence[SourceFile]:
        """Those that no batch has taken. Raises OpenBatch, BatchNotOpen, ChangedFile, RepeatedFile."""
        ...

    def finish_batch(self, batch_id: str, *, snapshot_id: int | None, rows: int, quarantined: int) -> None: ...

    def abandon_batch(self, batch_id: str) -> None: ...


class UndoneMemory(Protocol):
    """Plans that were taken back, and what came back with them (DEL-7)."""

    def set_undone(self, topic: TopicName, plan_id: str, undone_by: str, ranges: Iterable[Range]) -> None:
        """Keep that the plan was taken back by the plan `undone_by`, and what came back. The same again changes nothing; where an undo came
        to the first of its two commits alone, the one that brings the rest takes its place."""
        ...

    def undone(self, topic: TopicName) -> Sequence[Undone]:
        """All of the topic's, released ones too, the first first."""
        ...

    def undoing(self, plan_id: str) -> Undone | None:
        """How the plan was taken back; None: it was not."""
        ...

    def release_undone(self, plan_id: str, *, by: str, text: str) -> Undone:
        """From now on the rules take its messages again; the first release stands. Raises NotUndone, UnnamedApproval."""
        ...


class LedgerIdentity(Protocol):
    """Whether this is the ledger that a table was written with, and its clock."""

    def identity(self) -> tuple[str, int]:
        """(uuid, sequence); the sequence grows with every `next_identity`."""
        ...

    def next_identity(self, topic: TopicName | None = None) -> tuple[str, int]:
        """For the table of that topic."""
        ...

    def check(self, topic: TopicName, found: tuple[str, int] | None) -> None:
        """Raises LedgerMismatch."""
        ...

    def accept(self, topic: TopicName, found: tuple[str, int]) -> None:
        """Take the table on knowingly, as it is now."""
        ...

    def now(self) -> Instant:
        """The ledger's clock: the only one, read at the edge alone (CLK-1)."""
        ...

    def check_as_of(self, as_of: Instant, skew_us: int) -> None:
        """Raises FutureAsOf."""
        ...


class Ledger(
    LedgerReader,
    PlanWriter,
    RunWriter,
    TopicWriter,
    BatchWriter,
    DocumentMemory,
    UndoneMemory,
    HoldMemory,
    ErasureMemory,
    LedgerIdentity,
    Protocol,
):
    """The memory of intentions. Every write is one transaction."""

    def lock(self, topic: TopicName, *, wait_seconds: float | None = 5.0, purpose: str = "") -> AbstractContextManager[None]:
        """Held while one run works on the topic. Raises TopicBusy after `wait_seconds`; None waits for as long as it takes.

        Locks of different purposes do not meet.
        """
        ...
