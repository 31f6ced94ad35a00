"""What the ledger tells: a plan and how far it has come, what a run met, a batch of files, what the next look goes on from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Approval, GateReport, Judgement, Outcome, OutcomeName, Staged
from message_lifecycle.model.plan import Operation, Plan

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
