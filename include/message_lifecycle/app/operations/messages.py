"""Operations that take messages from the log, from its compacted view, or from both, and then from the view first (PRG-1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from message_lifecycle.app import sparing
from message_lifecycle.app.due import of_messages
from message_lifecycle.app.operations.base import Frames, Operation, Work
from message_lifecycle.app.services import Services
from message_lifecycle.app.sparing import readers_of
from message_lifecycle.app.topics import latest_view
from message_lifecycle.model.errors import PlanConflict, is_a_document_topic
from message_lifecycle.model.facts import Facts, LogState
from message_lifecycle.model.hold import Hold
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Published, Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.records import PlanRecord
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.view import ViewState
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import ChangeStore


class OfMessages(Operation):
    """What the operations on topics of messages have in common."""

    def candidates(self, s: Services, names: Iterable[TopicName], *, named: bool) -> Iterable[TopicName]:
        return of_messages(s, names)

    def plan(self, s: Services, name: TopicName, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        if policy.fold is not None:
            raise is_a_document_topic(str(name))
        log = s.reader.log(name, late_after=Instant(as_of + policy.clock_skew_us))
        return self.plan_of_log(s, log, policy, work, as_of=as_of)

    def plan_of_log(self, s: Services, log: LogState, policy: Policy, work: Work, *, as_of: Instant) -> Plan:
        raise NotImplementedError(self.name)

    def published(self, plan: Plan, done: Sequence[Published]) -> Published:
        return of_log_alone(plan, done[-1])

    def evidence(self, s: Services, plan: Plan, staged: Staged, policy: Policy) -> Frames:
        of_log = s.stores.log.evidence(plan, staged, policy)
        of_view = plan.on_view.mark or plan.on_view.back or plan.past_horizon
        return {**of_log, **s.stores.view.evidence(plan, staged, policy)} if of_view else of_log

    def before(self, s: Services, verdict: Verdict, store: ChangeStore) -> None:
        plan = verdict.plan
        if store is not s.stores.view:
            if plan.on_view.mark:
                latest_view(
                    s, plan.topic
                )  # an older one would show what went from the view, once what hides it there has gone from the log
        elif plan.of_log and plan.requirements.snapshot_id is not None:
            others = s.reader.removed_by_others(s.reader.log(plan.topic), plan.requirements.snapshot_id)
            if others is None or others:
                raise PlanConflict(plan.plan_id, "another writer has removed messages from the log since it was planned")

    def touched(self, s: Services, plan: Plan, staged: Staged, holds: Sequence[Hold]) -> int:
        return sparing.touched_messages(s, plan, staged, holds)

    def differences(self, s: Services, record: PlanRecord, published: Published) -> list[str]:
        plan, staged = record.plan, record.staged
        assert staged is not None, "what is published was staged"
        wrong = _view_differences(s, plan, staged)
        gone = set(s.reader.effect(plan).files)
        if gone != set(plan.selection.files):
            wrong.append(
                f"the commit took {len(gone)} files out, the plan names {len(plan.selection.files)}, {len(gone ^ set(plan.selection.files))} differ"
            )
        if dict(published.removed) != dict(staged.removed(plan)):
            wrong.append(f"the commit removed {dict(published.removed)}, the plan says {dict(staged.removed(plan))}")
        judged = 0 if staged.markers is None else staged.markers.count
        if published.markers + published.cancelled_markers != judged:
            wrong.append(
                f"the commit made {published.markers} markers and cancelled {published.cancelled_markers}, the gate judged {judged}"
            )
        return wrong

    def leave(self, s: Services, plan: Plan) -> str:
        if (
            not plan.of_log or not plan.on_view.mark or s.stores.view.published(plan) is None or s.stores.log.published(plan) is not None
        ):  # both tables
            return ""
        return f"The compacted view is without what it took from there: `lifecycle undo {plan.plan_id}` brings that back"


def of_log_alone(plan: Plan, done: Published) -> Published:
    """An outcome counts nothing that goes from the view, or comes back to it, for the log may have it still; but what compaction leaves out."""
    return done if plan.of_log or plan.on_view.compact else replace(done, removed=())


def facts_of(s: Services, log: LogState, view: ViewState | None = None) -> Facts:
    """What the rules of messages are asked about."""
    facts = Facts(log=log, consumers=tuple(readers_of(s, log.topic)), accepted=s.ledger.accepted(log.topic))
    return sparing.facts_with_spared(s, facts, view)


def view_as_relied_on(s: Services, plan: Plan) -> bool:
    """Whether the view is as the plan was made on it: it relies on it, or names what goes from it."""
    view, done = s.stores.view.view(plan.topic), s.stores.view.published(plan)
    # A run that died between its two commits has changed the view itself.
    relied_on = done.snapshot_id if done is not None else None if plan.view is None else plan.view.snapshot_id
    return (None if view is None else view.snapshot_id) == relied_on


def _view_differences(s: Services, plan: Plan, staged: Staged) -> list[str]:
    """What the commit on the view did not do as it was judged."""
    done = s.stores.view.published(plan) if plan.on_view.mark else None
    if not plan.on_view.mark or (done is not None and staged.view is not None and dict(done.removed) == dict(staged.view.removed)):
        return []
    return [f"the commit took {None if done is None else dict(done.removed)} from the compacted view, not what the gate judged"]
