"""What stands between plan and publish, how a run ended (DEL-2), and how the ledger tells of both."""

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
    """Markers on the branch: how many, their `message.digest`, and the older markers of their keys, which go with the deletion (MRK-5),
    also where a newer message cancels the one that replaces them (MRK-4): then it is the message that makes them obsolete."""

    count: int
    digest: str
    superseded: tuple[RemoveRows, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A staged change that no reader sees yet. An empty plan stages nothing: `snapshot_id` is then the plan's own.

    `markers` None: none were asked for (MRK-1). `view`: where the plan changes the compacted view. `documents`: of a document topic."""

    plan_id: str
    branch: str | None
    snapshot_id: int | None
    markers: StagedMarkers | None = None
    view: StagedView | None = None
    documents: StagedDocuments | None = None

    @property
    def superseded(self) -> tuple[RemoveRows, ...]:
        return () if self.markers is None else self.markers.superseded

    @property
    def warnings(self) -> tuple[str, ...]:
        """What staging met that a person must know: documents whose changes cannot be folded (SNP-10)."""
        blocked = () if self.documents is None else self.documents.blocked
        return tuple(f"InvalidChange: document {document}: {reason}: nothing of it goes" for document, reason in blocked)

    def removed(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        """Messages that go by reason: the plan's, and the older markers; of a compaction those that are not in the view."""
        if plan.on_view.compact:
            return () if self.view is None else self.view.removed
        if plan.on_snapshots.documents:
            return self._purged(plan)
        older = sum(action.rows for action in self.superseded)
        return (*plan.expected.removed, *((("superseded", older),) if older else ()))

    def documents_of(self, plan: Plan) -> list[SnapshotDocument]:
        """What the plan names, but for the documents whose fold failed (SNP-10)."""
        blocked = dict(() if self.documents is None else self.documents.blocked)
        return [action for action in plan.on_snapshots.documents if action.document not in blocked]

    def _purged(self, plan: Plan) -> tuple[tuple[str, int], ...]:
        found: Counter[str] = Counter()
        for action in self.documents_of(plan):
            if action.reason is not None:
                found[action.reason] += action.purged
        return tuple(sorted(found.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One expectation as it was evaluated. `limit` checks ask a person; the others block (DEL-2). No values of messages."""

    id: str
    says: str
    kind: Literal["rule", "limit"]
    evaluated: bool
    passed: bool
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """What the gate saw and how it judged. Fails closed: anything but exactly the declared checks, each evaluated once, is `blocked`.

    `took_ms`: the gate's own work. It is no part of what was judged, so neither equality nor `gate_id` knows it.
    `seal`: see `app.seals`; None: nobody has sealed it."""

    plan_id: str
    staged_snapshot_id: int | None
    declared: int
    checks: tuple[Check, ...]
    figures: tuple[tuple[str, int | float | None], ...] = ()
    took_ms: int | None = field(default=None, compare=False, repr=False)
    seal: str | None = field(default=None, compare=False, repr=False)

    @property
    def evaluated(self) -> int:
        """Checks that could be evaluated; one that is listed twice counts once."""
        return len({check.id for check in self.checks if check.evaluated})

    @property
    def blocking(self) -> tuple[Check, ...]:
        """A limit that was exceeded asks a person; one that was not evaluated blocks as a rule does."""
        return tuple(check for check in self.checks if not check.evaluated or (check.kind == "rule" and not check.passed))

    @property
    def judgement(self) -> Judgement:
        some_rule = any(check.kind == "rule" for check in self.checks)
        if not some_rule or len(self.checks) != self.declared or self.evaluated != self.declared or self.blocking:
            return "blocked"
        return "passed" if all(check.passed for check in self.checks) else "needs_approval"

    @property
    def gate_id(self) -> str:
        """Names this report in the commit it allows."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A person's word on one plan, as one report of the gate judged it (DEL-3). `gate_id`: of that report; None: none was made.
    `seal`: see `app.seals`; None: nobody has sealed it."""

    plan_id: str
    granted: bool
    by: str
    at: Instant
    text: str
    gate_id: str | None = None
    seal: str | None = field(default=None, compare=False, repr=False)


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
    """As the file system told just before each file went (DEL-7); of a file that was gone already, nothing."""
    kept_beneath: tuple[str, ...] = ()
    """What lies beneath of files that went and is out of reach, in words (DEL-7): a bucket may keep versions of its objects."""
    at_once: bool = False
    """Asked for with those of the plan's other tables, all or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a run for one topic. `first_plan_id`: the plan that had done it all before (DEL-5)."""

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
    archived: int = 0
    """Of the messages that went, those that the archive has (RET-7)."""
    restored: int = 0
    """Messages, or changes of documents, that an undo brought back (DEL-7)."""
    marker_offsets: tuple[tuple[int, int, int], ...] | None = ()
    """What the plan's markers were given, as (partition, first offset, last offset): they go with it when it is taken back (DEL-7). None:
    not known, for versions before undo did not keep it."""
    reclaimed_files: int | None = None
    reclaimed_bytes: int | None = None
    """Space that came back, as measured on the file system (RET-5, DEL-7); None: not known, or not what the operation does."""

    @property
    def removed_rows(self) -> int:
        return sum(count for _, count in self.removed)


# What the ledger tells: a plan and how far it has come, what a run met, a batch of files, what the next look goes on from.


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
    """One run as it was recorded. `as_of` and `detail` are set where it found nothing due, or was a preview."""

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
class TakenBatch:
    """A batch that took files, as a remap needs it.

    Args:
        mapping: How its records became messages, as JSON; None: nobody recorded it.
        ranges: Its messages, as (partition, first offset, last offset); None: nobody recorded them.
        files: The files that it took or refused whole.
        remap_plan: The plan that removes, or has removed, its messages so that its files come in again.
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
    """A batch of which rows were refused. `rows`: messages that it took. `unsettled`: refused rows that a person must still see to."""

    batch_id: str
    topic: TopicName
    begun_at: Instant
    ended_at: Instant
    rows: int
    refused: int
    unsettled: int
    settled_as: SettledAs | None = None
    settled_at: Instant | None = None
    settled_by: str | None = None
    settled_why: str | None = None

    @property
    def needs_a_person(self) -> bool:
        """True if more than half of the batch was refused and is unsettled (OBL-1)."""
        return 2 * self.unsettled > self.rows + self.refused

    def may_hold(self, oldest_at: Instant | None, newest_at: Instant | None) -> bool:
        """True if rows that were refused between these times may be of this batch; None: a time that is not known."""
        return oldest_at is None or newest_at is None or (oldest_at <= self.ended_at and newest_at >= self.begun_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueState:
    """What the last run left for the next look. `holders`: names that hold overdue messages, with their state then."""

    marker: str
    policy_hash: str
    next_due_at: Instant | None
    holders: tuple[tuple[str, str], ...]
