"""The stage, the gate's report, the approval and the outcome of a plan (DEL-2), and the records that the ledger keeps."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from message_lifecycle.model.change import RemoveRows, SnapshotDocument
from message_lifecycle.model.document import StagedDocuments
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import StagedView
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Held, Operation, Plan
from message_lifecycle.model.plan_state import PlanState

OutcomeName = Literal["published", "no_op", "blocked", "needs_approval", "refused", "starved", "lapsed", "superseded", "failed"]
Judgement = Literal["passed", "blocked", "needs_approval"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedMarkers:
    """The markers on the plan's branch."""

    count: int
    digest: str
    """See `message.digest`."""
    superseded: tuple[RemoveRows, ...] = ()
    """Older markers of the same keys. The deletion removes them (MRK-5), even if a newer message cancels the new marker (MRK-4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A staged change that no reader sees yet."""

    plan_id: str
    branch: str | None
    snapshot_id: int | None
    """The staged snapshot. An empty plan stages nothing and repeats its own snapshot here."""
    markers: StagedMarkers | None = None
    """None: the topic makes no markers (MRK-1)."""
    view: StagedView | None = None
    """None: the plan leaves the compacted view alone."""
    documents: StagedDocuments | None = None
    """None: the topic holds no documents."""

    @property
    def superseded(self) -> tuple[RemoveRows, ...]:
        return () if self.markers is None else self.markers.superseded

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for a person: documents whose changes cannot be folded (SNP-10)."""
        blocked = () if self.documents is None else self.documents.blocked
        return tuple(f"InvalidChange: document {document}: {reason}: nothing of it goes" for document, reason in blocked)

    def removed(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        """Return the messages that leave, by reason: the plan's and the older markers.

        For a compaction, return the messages that it leaves out of the view.
        """
        if plan.view_commit.compact:
            return () if self.view is None else self.view.removed
        if plan.snapshots_commit.documents:
            return self._purged(plan)
        older = sum(action.rows for action in self.superseded)
        return (*plan.expected.removed, *((("superseded", older),) if older else ()))

    def documents_of(self, plan: Plan) -> list[SnapshotDocument]:
        """Return the plan's documents except those whose fold failed (SNP-10)."""
        blocked = dict(() if self.documents is None else self.documents.blocked)
        return [action for action in plan.snapshots_commit.documents if action.document not in blocked]

    def _purged(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        found: Counter[str] = Counter()
        for action in self.documents_of(plan):
            if action.reason is not None:
                found[action.reason] += action.purged
        return tuple(sorted(found.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """An evaluated expectation, without values of messages. A failed `limit` asks a person; a failed `rule` blocks (DEL-2)."""

    id: str
    says: str
    kind: Literal["rule", "limit"]
    evaluated: bool
    passed: bool
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """The gate's checks and judgement. The gate fails closed: it returns `blocked` unless each declared check was evaluated exactly once."""

    plan_id: str
    staged_snapshot_id: int | None
    declared: int
    checks: tuple[Check, ...]
    figures: tuple[tuple[str, int | float | None], ...] = ()
    took_ms: int | None = field(default=None, compare=False, repr=False)
    """The time that the gate took. Equality and `gate_id` ignore it."""
    seal: str | None = field(default=None, compare=False, repr=False)
    """See `app.seals`. None: not sealed yet."""

    @property
    def evaluated_count(self) -> int:
        """The number of evaluated checks. A check that is listed twice counts once."""
        return len({check.id for check in self.checks if check.evaluated})

    @property
    def blocking(self) -> tuple[Check, ...]:
        """The checks that block. An exceeded limit asks a person; a limit that was not evaluated blocks like a rule."""
        return tuple(check for check in self.checks if not check.evaluated or (check.kind == "rule" and not check.passed))

    @property
    def judgement(self) -> Judgement:
        some_rule = any(check.kind == "rule" for check in self.checks)
        if not some_rule or len(self.checks) != self.declared or self.evaluated_count != self.declared or self.blocking:
            return "blocked"
        return "passed" if all(check.passed for check in self.checks) else "needs_approval"

    @property
    def gate_id(self) -> str:
        """The name of this report in the commit that it allows."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A person's answer about one plan and one report of the gate (DEL-3)."""

    plan_id: str
    granted: bool
    by: str
    at: Instant
    text: str
    gate_id: str | None = None
    """None: the gate has made no report."""
    seal: str | None = field(default=None, compare=False, repr=False)
    """See `app.seals`. None: not sealed yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A commit on main that carries a plan."""

    plan_id: str
    snapshot_id: int
    removed: tuple[tuple[str, int], ...]
    markers: int = 0
    cancelled_markers: int = 0
    """Markers that a newer message of their key made needless between stage and commit (MRK-4)."""
    restored: int = 0
    """Messages, or changes of documents, that an undo brought back (DEL-7)."""
    reclaimed_files: int = 0
    reclaimed_bytes: int = 0
    """The sizes that the file system reported just before each removal (DEL-7). A file that was missing already adds nothing."""
    kept_beneath: tuple[str, ...] = ()
    """Descriptions of bytes that the storage still keeps (DEL-7), for example older versions of objects in a bucket."""
    at_once: bool = False
    """The request asked for this commit and the plan's other commits together, all or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a run for one topic."""

    name: OutcomeName
    operation: Operation
    topic: TopicName
    as_of: Instant
    plan_id: str | None = None
    snapshot_id: int | None = None
    removed: tuple[tuple[str, int], ...] = ()
    rows_in: int | None = None
    rows_kept: int | None = None
    markers: int = 0
    cancelled_markers: int = 0
    removed_bytes: int | None = None
    more: bool = False
    held: tuple[Held, ...] = ()
    warnings: tuple[str, ...] = ()
    detail: str = ""
    first_plan_id: str | None = None
    """The plan that had already done this work (DEL-5)."""
    archived: int = 0
    """Removed messages that the archive has (RET-7)."""
    restored: int = 0
    """Messages, or changes of documents, that an undo brought back (DEL-7)."""
    marker_offsets: tuple[tuple[int, int, int], ...] | None = ()
    """Offsets of the plan's markers, as (partition, first, last). An undo removes these markers (DEL-7). None: unknown."""
    reclaimed_files: int | None = None
    reclaimed_bytes: int | None = None
    """The space that the file system measured (RET-5, DEL-7). None: unknown, or the operation reclaims no space."""

    @property
    def removed_rows(self) -> int:
        return sum(count for _, count in self.removed)


# Records of the ledger: plans, runs, batches of files, and the state that the next check for due work starts from.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """A plan with its progress."""

    plan: Plan
    state: PlanState
    recorded_at: Instant
    staged: Staged | None
    report: GateReport | None
    approval: Approval | None
    outcome: Outcome | None
    reported_at: Instant | None = None
    """When the gate asked. The time for an approval starts here (DEL-1)."""
    requested_by: str | None = None
    """The person who requested the plan. None: a scheduled run, or an unknown person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """A plan without its files and offsets: cheap to list, however large the plan is."""

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
    """The result of one run for one topic, so far."""

    topic: TopicName
    plan_id: str | None
    """None: the run ended without a plan, or has not planned yet."""
    state: PlanState | None
    judgement: Judgement | None
    outcome: Outcome | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A recorded run. `as_of` and `detail` have values if nothing was due, or if the run was a preview."""

    run_id: str
    recorded_at: Instant
    as_of: Instant | None
    detail: str
    entries: tuple[RunEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file to ingest."""

    path: str
    """The path below its source folder, with `/`. The same folder in another place is therefore the same source."""
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Files that one commit takes. The commit carries `batch_id`."""

    batch_id: str
    topic: TopicName
    begun_at: Instant
    files: tuple[SourceFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBatch:
    """A batch that took files, as a remap needs it.

    Args:
        mapping: How its records became messages, as JSON; None: nobody recorded it.
        ranges: Its messages, as (partition, first offset, last offset); None: nobody recorded them.
        files: The files that it took or refused whole.
        remap_plan: The plan that removes its messages, so that its files can come in again.
    """

    batch_id: str
    is_open: bool
    mapping: str | None
    ranges: tuple[tuple[int, int, int], ...] | None
    rows: int
    refused: int
    files: tuple[SourceFile, ...]
    remap_plan: str | None


SettledAs = Literal["replayed", "accepted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedBatch:
    """A batch with refused rows."""

    batch_id: str
    topic: TopicName
    begun_at: Instant
    ended_at: Instant
    rows: int
    """Messages that the batch took."""
    refused: int
    unsettled: int
    """Refused rows that a person must still replay or accept."""
    settled_as: SettledAs | None = None
    settled_at: Instant | None = None
    settled_by: str | None = None
    settled_why: str | None = None

    @property
    def needs_a_person(self) -> bool:
        """True if more than half of the batch was refused and is unsettled (OBL-1)."""
        return 2 * self.unsettled > self.rows + self.refused

    def may_contain(self, oldest_at: Instant | None, newest_at: Instant | None) -> bool:
        """Return True if this batch may hold rows that were refused between these times. None: unknown time."""
        return oldest_at is None or newest_at is None or (oldest_at <= self.ended_at and newest_at >= self.begun_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueState:
    """The state that a run leaves for the next check. `holders`: names that hold overdue messages, each with its state then."""

    marker: str
    policy_hash: str
    next_due_at: Instant | None
    holders: tuple[tuple[str, str], ...]
