"""A plan's changes, walked in their order: made where no reader sees them, committed, found again by the tables themselves (DEL-4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from message_lifecycle.app.operations.registry import deeds, of_plan
from message_lifecycle.model.outcome import Staged

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services
    from message_lifecycle.model.outcome import Published
    from message_lifecycle.model.plan import Plan
    from message_lifecycle.operations.verdict import Verdict


def make(s: Services, plan: Plan) -> Staged:
    """All of them, unseen. Again: the same."""
    staged = Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)
    # What gives back looks first for what may be lost, as copies of the view's messages are: then nothing of the log is staged.
    for deed in reversed(deeds(plan)) if of_plan(s, plan).gives_back else deeds(plan):
        staged = deed.make(s, plan, staged)
    return staged


def commit(s: Services, verdict: Verdict) -> Published:
    """One fenced commit each; one that is there already is found. Raises PlanConflict, of the second too: then the first stands."""
    plan, operation = verdict.plan, of_plan(s, verdict.plan)
    done: list[Published] = []
    for deed in deeds(plan):
        if deed.done(s, plan) is None:
            operation.before(s, verdict, deed)
        done.append(deed.commit(s, verdict))
    return operation.published(plan, done)


def drop(s: Services, plan: Plan) -> None:
    """Forget what was made; what is committed stays."""
    for deed in deeds(plan):
        deed.drop(s, plan)


def published(s: Services, plan: Plan) -> Published | None:
    """What came of it, if all of it is there: of its commits the one that the outcome counts. Of what takes, the last commit tells, for
    the others came before it; of what gives back, each is asked for."""
    operation = of_plan(s, plan)
    found = [deed.done(s, plan) for deed in (deeds(plan) if operation.gives_back else deeds(plan)[-1:])]
    there = [commit for commit in found if commit is not None]
    return operation.published(plan, there) if there and len(there) == len(found) else None


def is_committed(s: Services, plan: Plan) -> bool:
    """Whether readers see it, or cannot any more, though files may be left to remove: then `steps.verify` brings it to its end."""
    return published(s, plan) is not None or of_plan(s, plan).is_begun(s, plan)


def has_first(s: Services, plan: Plan) -> bool:
    """Whether its first commit is there."""
    return any(deed.done(s, plan) is not None for deed in deeds(plan)[:1])


def is_halfway(s: Services, plan: Plan) -> bool:
    """Whether a run has died between two of its commits."""
    return len(deeds(plan)) > 1 and has_first(s, plan) and published(s, plan) is None


def is_decided(s: Services, plan: Plan) -> bool:
    """Whether nothing stops it any more: all of it is there, or the first commit of what only gives back."""
    return has_first(s, plan) if of_plan(s, plan).gives_back else published(s, plan) is not None


def has_begun(s: Services, plan: Plan) -> bool:
    """Whether any of its commits is there, or any of its files gone."""
    operation = of_plan(s, plan)
    first = any(deed.has_begun(s, plan) for deed in deeds(plan)[:1])
    return first or published(s, plan) is not None or operation.is_begun(s, plan) or operation.resumes(s, plan)
