"""Operations that take messages from the log, from its compacted view, or from both, and then from the view first (PRG-1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from message_lifecycle.app import archiving, sparing
from message_lifecycle.app.due import of_messages
from message_lifecycle.app.operations.base import Frames, Operation, Work
from message_lifecycle.app.sparing import horizons_of, readers_of
from message_lifecycle.app.topics import latest_view
from message_lifecycle.model.change import DropSegments, RemoveRows
from message_lifecycle.model.errors import PlanConflict, is_a_document_topic
from message_lifecycle.model.facts import Facts, LogState
from message_lifecycle.model.hold import SparedBy
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.rows import LimitReason
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.barriers import READER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from message_lifecycle.app.services import Services
    from message_lifecycle.model.hold import Hold
    from message_lifecycle.model.names import TopicName
    from message_lifecycle.model.outcome import Outcome, Published, Staged
    from message_lifecycle.model.plan import Plan
    from message_lifecycle.model.records import PlanRecord
    from message_lifecycle.model.view import ViewState
    from message_lifecycle.operations.verdict import Verdict
    from message_lifecycle.ports import ChangeStore

_LIMITS = get_args(LimitReason)


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
        of_log = s.store.evidence(plan, staged, policy)
        of_view = plan.on_view.mark or plan.on_view.back or plan.past_horizon
        return {**of_log, **s.views.evidence(plan, staged, policy)} if of_view else of_log

    def before(self, s: Services, verdict: Verdict, store: ChangeStore) -> None:
        plan = verdict.plan
        if store is not s.views:
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
            not plan.of_log or not plan.on_view.mark or s.views.published(plan) is None or s.store.published(plan) is not None
        ):  # both tables
            return ""
        return f"The compacted view is without what it took from there: `lifecycle undo {plan.plan_id}` brings that back"


class Cleaning(OfMessages):
    """What removes by the topic's own rules. Nothing of what these take is left afterwards but what somebody holds (DEL-6)."""

    marks, undoable = True, True

    def evidence(self, s: Services, plan: Plan, staged: Staged, policy: Policy) -> Frames:
        frames = super().evidence(s, plan, staged, policy)
        return archiving.evidence(s, plan, frames) if plan.archives else frames

    def before(self, s: Services, verdict: Verdict, store: ChangeStore) -> None:
        if verdict.plan.archives:
            archiving.require(s, verdict.plan)
        super().before(s, verdict, store)

    def heeds_horizon(self, s: Services, plan: Plan) -> bool:
        """Where the cleaner does not wait for compaction it relies on the view as it was; else any horizon binds it, for horizons only rise."""
        if plan.past_horizon or any(bound.name == READER for bound in plan.bounds):
            return not plan.past_horizon or view_as_relied_on(s, plan)
        return not horizons_of(s, plan.topic)

    def look_again(self, s: Services, plan: Plan) -> tuple[Plan | None, list[str]]:
        after = self.preview(s, plan.topic, self.again(plan), as_of=plan.as_of)
        return after, _overdue_without_holder(plan, after)

    def closed(self, s: Services, plan: Plan, after: Plan) -> None:
        """What was removed under these settings was accepted with them; with nothing removed, only a loosening needs no word (DEL-3)."""
        accepted = s.ledger.accepted(plan.topic)
        if not plan.is_empty or (accepted is not None and not Policy.of_values(plan.policy).tightened_since(accepted)):
            s.ledger.set_accepted(plan.topic, dict(plan.policy))

    def counted(self, outcome: Outcome, plan: Plan, published: Published) -> Outcome:
        return replace(outcome, archived=plan.expected.removed_rows if plan.archives else 0)


def of_log_alone(plan: Plan, done: Published) -> Published:
    """An outcome counts nothing that goes from the view, or comes back to it, for the log may have it still; but what compaction leaves out."""
    return done if plan.of_log or plan.on_view.compact else replace(done, removed=())


def facts_of(s: Services, log: LogState, view: ViewState | None = None) -> Facts:
    """What the rules of messages are asked about."""
    facts = Facts(log=log, consumers=tuple(readers_of(s, log.topic)), accepted=s.ledger.accepted(log.topic))
    return sparing.facts_with_spared(s, facts, view)


def view_as_relied_on(s: Services, plan: Plan) -> bool:
    """Whether the view is as the plan was made on it: it relies on it, or names what goes from it."""
    view, done = s.views.view(plan.topic), s.views.published(plan)
    # A run that died between its two commits has changed the view itself.
    relied_on = done.snapshot_id if done is not None else None if plan.view is None else plan.view.snapshot_id
    return (None if view is None else view.snapshot_id) == relied_on


def _overdue_without_holder(plan: Plan, after: Plan) -> list[str]:
    """Messages that a new plan at the same `as_of` would still take, that were there when the first was made and had no holder then.

    Three things wait for the next run. A reader may have moved on, or the segment before may have lost its last message in this very run:
    what they held. What messages that came since, the run's own markers among them, have pushed beyond a limit by number or size. And what
    a held message beyond a limit has: by the times of those that went it may have ranked behind, and before by those that are left (RET-4)."""
    ends = dict(plan.requirements.end_offsets)
    ranks_anew = dict(after.requirements.end_offsets) != ends or any(held.holder in get_args(SparedBy) for held in plan.held)
    going: tuple[DropSegments | RemoveRows, ...] = (*after.on_log.drop, *after.on_log.mark)
    left = [
        action
        for action in going
        if action.last_offset < ends.get(action.partition, 0)
        and not _was_held(plan, action)
        and not (ranks_anew and action.reason in _LIMITS)
    ]
    if not left or plan.more:
        return []
    return [
        f"partition {action.partition}: messages up to offset {action.last_offset} are still overdue and nothing named holds them"
        for action in left
    ]


def _was_held(plan: Plan, action: DropSegments | RemoveRows) -> bool:
    first = action.first_base if isinstance(action, DropSegments) else action.base_offset
    held = [entry for entry in plan.held if entry.partition == action.partition]
    return all(any(entry.first_base <= offset <= entry.last_offset for entry in held) for offset in (first, action.last_offset))


def _view_differences(s: Services, plan: Plan, staged: Staged) -> list[str]:
    """What the commit on the view did not do as it was judged."""
    done = s.views.published(plan) if plan.on_view.mark else None
    if not plan.on_view.mark or (done is not None and staged.view is not None and dict(done.removed) == dict(staged.view.removed)):
        return []
    return [f"the commit took {None if done is None else dict(done.removed)} from the compacted view, not what the gate judged"]
