"""A plan's changes, walked in their order: made where no reader sees them, committed, found again by the tables themselves (DEL-4).

Each kind of change has its store, and all stores have the same words (`ports.stores.ChangeStore`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from message_lifecycle.app import archiving
from message_lifecycle.app.operations.registry import of_plan, stores_of
from message_lifecycle.model.outcome import Staged

if TYPE_CHECKING:
    from message_lifecycle.app.services import Services
    from message_lifecycle.model.outcome import Published
    from message_lifecycle.model.plan import Plan
    from message_lifecycle.operations.verdict import Verdict
    from message_lifecycle.ports import ChangeStore


def stores(s: Services, plan: Plan) -> list[ChangeStore]:
    """Of the plan's changes, in their order."""
    return [cast("ChangeStore", getattr(s, name)) for name in stores_of(plan)]


def make(s: Services, plan: Plan) -> Staged:
    """All of them, unseen. Again: the same."""
    operation = of_plan(s, plan)
    staged = Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)
    # What gives back looks first for what may be lost, as copies of the view's messages are: then nothing of the log is staged.
    for store in reversed(stores(s, plan)) if operation.gives_back else stores(s, plan):
        made = store.stage(plan, operation.given(s, plan, staged))
        staged = replace(made, view=made.view or staged.view, documents=made.documents or staged.documents)
    archiving.archive(s, plan)  # what goes may be kept elsewhere (RET-7): found again before it goes, dropped unless it has gone
    return staged


def commit(s: Services, verdict: Verdict) -> Published:
    """One fenced commit each; one that is there already is found. Raises PlanConflict, of the second too: then the first stands."""
    plan, operation = verdict.plan, of_plan(s, verdict.plan)
    done: list[Published] = []
    with operation.alone(s, plan):
        for store in stores(s, plan):
            if store.published(plan) is None:
                operation.before(s, verdict, store)
            done.append(store.publish(verdict, operation.given(s, plan, verdict.staged)))
            operation.after(s, plan, store)
    return operation.published(plan, done)


def drop(s: Services, plan: Plan) -> None:
    """Forget what was made; what is committed stays."""
    for store in stores(s, plan):
        store.discard(plan)
    if archiving.archives(plan) and s.store.published(plan) is None:
        archiving.forget(plan)


def published(s: Services, plan: Plan) -> Published | None:
    """What came of it, if all of it is there: of its commits the one that the outcome counts. Of what takes, the last commit tells, for
    the others came before it; of what gives back, each is asked for."""
    operation = of_plan(s, plan)
    found = [store.published(plan) for store in (stores(s, plan) if operation.gives_back else stores(s, plan)[-1:])]
    there = [commit for commit in found if commit is not None]
    return operation.published(plan, there) if there and len(there) == len(found) else None


def is_committed(s: Services, plan: Plan) -> bool:
    """Whether readers see it, or cannot any more, though files may be left to remove: then `steps.verify` brings it to its end."""
    return published(s, plan) is not None or is_to_be_finished(s, plan)


def has_first(s: Services, plan: Plan) -> bool:
    """Whether its first commit is there."""
    return any(store.published(plan) is not None for store in stores(s, plan)[:1])


def is_halfway(s: Services, plan: Plan) -> bool:
    """Whether a run has died between two of its commits, so that it is brought to its end."""
    return plan.goes_on and len(stores(s, plan)) > 1 and has_first(s, plan) and published(s, plan) is None


def is_decided(s: Services, plan: Plan) -> bool:
    """Whether nothing stops it any more: all of it is there, or the first commit of what only gives back."""
    return has_first(s, plan) if of_plan(s, plan).gives_back else published(s, plan) is not None


def has_begun(s: Services, plan: Plan) -> bool:
    """Whether any of its commits is there, or any of its files gone."""
    first = plan.goes_on and any(store.has_begun(plan) for store in stores(s, plan)[:1])
    return first or published(s, plan) is not None


def is_to_be_finished(s: Services, plan: Plan) -> bool:
    """Whether it has begun and has no way back, so that whoever comes ends it, whatever was said since."""
    return plan.no_way_back and has_begun(s, plan)


def finish(s: Services, plan: Plan) -> Published:
    """Bring it to its end, without a verdict."""
    return stores(s, plan)[0].finish(plan)


def left(s: Services, plan: Plan) -> list[str]:
    """Of what it takes, what is still there, and of what it brings, what is not: in words."""
    return [what for store in stores(s, plan) for what in store.left(plan)]
