"""How a change of a plan is carried out, and how the gate judges it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, Self

from message_lifecycle.model.document import StagedDocuments
from message_lifecycle.model.erasure import KeyMatch
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.outcome import GateReport, Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.verdict import Verdict


def _not_given() -> NoReturn:
    raise AssertionError("the caller gave no such value")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitContext:
    """Values that a store may ask for while it carries out a change, and that are no part of the plan. Made for each call."""

    ledger: Callable[[], tuple[str, int]] = _not_given
    """The ledger's uuid and a sequence that grows with each call. One commit uses one call."""
    now: Callable[[], Instant] = _not_given
    matches: Callable[[], KeyMatch] = _not_given
    """For an erasure: whether a key is the erased one."""
    staged: Staged | None = None
    """The stages of earlier changes of the plan."""
    behind: Callable[[], Collection[str]] = _not_given
    """Asked inside the commit of a purge: documents whose clients need more changes now than at planning time (SNP-9)."""

    @property
    def staged_documents(self) -> StagedDocuments:
        """The stage of the table of documents that was staged earlier. An empty stage: none was."""
        return (self.staged and self.staged.documents) or StagedDocuments()


NO_CONTEXT = CommitContext()


class Prepared(Protocol):
    """The commit of a change, ready but not yet made."""

    def commit_with(self, others: Sequence[Self], /) -> None:
        """Make this commit and the others at once: all or none, if the catalog really is atomic. The caller then checks each.

        Raises PlanConflict, TableBusy or CommitUnknown, and then none of them was made.
        """


class ChangeStore(Protocol):
    """Carries out one kind of change: stage it unseen, show it to the gate, commit it, find it again in the tables (DEL-4).

    Repeating a step changes nothing. A plan without changes reaches `evidence` alone.
    """

    def stage(self, plan: Plan, _given: CommitContext = NO_CONTEXT, /) -> Staged:
        """Make the change on the plan's snapshot, where no reader sees it.

        The default stages nothing: the commit itself moves names or removes files, and the gate judges the plan's list.

        Raises:
            PlanConflict: The plan's snapshot has expired.
            UndoSourceGone: The snapshot that holds the returning rows has expired.
        """
        return Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)

    def evidence(self, _plan: Plan, _staged: Staged, _policy: Policy, _given: CommitContext = NO_CONTEXT, /) -> Mapping[str, object]:
        """Return the frames that the gate judges: removed and returned rows, other differences, figures.

        The default returns none: the store of another change of the plan judges this one, too.
        """
        return {}

    def prepare(self, _verdict: Verdict, _given: CommitContext, /) -> Prepared | None:
        """Return the commit that `publish` would make, so that the caller can make several commits at once. `publish` finds it afterwards.

        None if the commit exists, if nothing is to commit, or if the catalog has no transactions over tables.

        Raises PlanConflict, NoTransactions.
        """
        return None

    def publish(self, verdict: Verdict, given: CommitContext, /) -> Published:
        """Make one fenced commit on each table. A commit that exists is reported, not repeated. Raises PlanConflict."""

    def find_published(self, plan: Plan, /) -> Published | None:
        """Return the plan's commit if it exists, with the counts of its real changes."""

    def has_begun(self, plan: Plan, /) -> bool:
        """Return True if any part of the plan is done, even if files are left to remove or an erasure has removed the commit since.

        A compaction that the view's history no longer covers counts as begun.
        """
        return self.find_published(plan) is not None

    def is_lost(self, _plan: Plan, /) -> bool:
        """Return True if a published plan's commits have certainly disappeared. False if that is not known.

        The commits have disappeared if the table has the plan's snapshot and no later commit of the plan.
        """
        return False

    def finish(self, plan: Plan, /) -> Published:
        """Finish a plan that has started and cannot be rolled back, without a verdict. By default the commit was everything."""
        done = self.find_published(plan)
        assert done is not None, f"plan {plan.plan_id} has not begun"
        return done

    def find_unapplied(self, _plan: Plan, /) -> Sequence[str]:
        """Describe the rows that should be gone but are not, and the rows that should be back but are not (DEL-6)."""
        return ()

    def discard(self, _plan: Plan, /) -> None:
        """Drop the plan's stage, and the records that find a published plan. An empty stage is a success."""
        return


class Gate(Protocol):
    """The judge of a staged change."""

    def judge(self, plan: Plan, staged: Staged, suite: Any, evidence: Mapping[str, object]) -> GateReport:
        """Evaluate each check of the `suite` (see `gates.suite`) on the `evidence`, which is frames by name."""
