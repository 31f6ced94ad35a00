"""A plan's changes, walked in their order: made where no reader sees them, committed, found again by the tables themselves (DEL-4).

Each kind of change has its store, and all stores have the same words (`ports.ChangeStore`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from message_lifecycle.app import archiving
from message_lifecycle.app.operations.registry import Operation, of_plan, stores
from message_lifecycle.app.services import Services
from message_lifecycle.app.topics import latest_view
from message_lifecycle.app.witness import note
from message_lifecycle.model.errors import PlanConflict, TopicBusy, UnknownTopic, code_of
from message_lifecycle.model.instants import Instant, seconds
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import OutcomeName, PlanRecord, Published, Staged
from message_lifecycle.model.people import is_same_person
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.plan_state import PLANNING, Planner, PlanState, Standing
from message_lifecycle.model.settings import Policy, from_to
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.ports import Prepared

logger = logging.getLogger(__name__)


def make(s: Services, plan: Plan) -> Staged:
    """All of them, unseen. Again: the same."""
    operation = of_plan(s, plan)
    staged = Staged(plan_id=plan.plan_id, branch=None, snapshot_id=plan.requirements.snapshot_id)
    # What gives back is staged in reverse: where the view's messages are lost it fails before anything of the log is staged.
    for store in reversed(stores(s, plan)) if operation.gives_back else stores(s, plan):
        made = store.stage(plan, operation.given(s, plan, staged))
        staged = replace(made, view=made.view or staged.view, documents=made.documents or staged.documents)
    if plan.archives:
        archiving.archive(s, plan)  # found again before what it keeps goes, dropped unless that has gone
    return staged


def commit(s: Services, verdict: Verdict) -> Published:
    """One fenced commit each, or one of them all where the catalog can; one that is there already is found. Raises PlanConflict, of the second
    too: then the first stands."""
    plan, operation = verdict.plan, of_plan(s, verdict.plan)
    done: list[Published] = []
    with operation.alone(s, plan):
        _commit_at_once(s, verdict, operation)
        for store in stores(s, plan):
            if store.published(plan) is None:
                operation.before(s, verdict, store)
            done.append(store.publish(verdict, operation.given(s, plan, verdict.staged)))
            if plan.on_view.back and store is s.stores.view:
                latest_view(s, plan.topic)  # it names the view as it was
    note(s, plan.topic)
    return operation.published(plan, done)


def _commit_at_once(s: Services, verdict: Verdict, operation: Operation) -> None:
    """Make those commits in one that are ready and follow each other from the first. Whatever comes of it, who walks the changes finds
    what is there, and makes what is not. Raises PlanConflict, NoTransactions."""
    found = stores(s, verdict.plan)
    if len(found) < 2 or operation.comes_between(verdict.plan):
        return
    given = operation.given(s, verdict.plan, verdict.staged)
    ready: list[Prepared] = []
    for store in found:
        prepared = store.prepare(verdict, given)
        if prepared is None:
            break  # what comes behind it must not be there before it
        ready.append(prepared)
    if len(ready) < 2:
        return
    for store in found[: len(ready)]:
        operation.before(s, verdict, store)
    first, *others = ready
    first.commit_with(others)


def drop(s: Services, plan: Plan, *, ended: OutcomeName | None = None) -> None:
    """Forget what was made; what is committed stays. `ended`: how the plan has, where that was long ago, and the log may have forgotten."""
    for store in stores(s, plan):
        store.discard(plan)
    if plan.archives and ended not in ("published", "failed") and s.stores.log.published(plan) is None:
        archiving.forget(plan)


def sweep(s: Services, name: TopicName) -> None:
    """Drop what a run that died, or could not reach its store, has left of the topic's closed plans. Under the topic's lock.

    What the ledger does not know, or has as open, stays: another ledger's plans, questions, commits of which nobody knows how they ended.
    What cannot be dropped now hinders no plan: it is told, and tried again when the topic is next planned.
    """
    for plan_id in s.ledger.uncleared(name):
        if drop_left(s, s.ledger.record(plan_id)):
            s.ledger.record_cleared(plan_id)


def drop_left(s: Services, record: PlanRecord) -> bool:
    """Drop what a run that died has left of its stage: of a closed plan, or of one that was never recorded as staged. Under the topic's lock.
    Whether it is gone; what cannot be dropped now is told."""
    plan = record.plan
    try:
        with _nobody_stages(s, plan):
            drop(s, plan, ended=None if record.outcome is None else record.outcome.name)
    except TopicBusy:  # who stages beside it works on that very plan, or on the next
        logger.info("%s: what plan %s has staged is looked at with the next plan", plan.topic, plan.plan_id)
    except Exception as error:  # noqa: BLE001 - of any engine or disk: what it hinders is named, and stays the next planning's
        logger.warning("%s: what plan %s has staged is not taken away yet: %s: %s", plan.topic, plan.plan_id, code_of(error), error)
    else:
        return True
    return False


@contextmanager
def _nobody_stages(s: Services, plan: Plan) -> Iterator[None]:
    """Keep out, under the topic's lock, who stages beside it (CMP-10). Raises TopicBusy."""
    if not plan.is_beside:
        yield
        return
    with s.ledger.lock(plan.topic, wait_seconds=0, purpose=plan.operation):
        yield


def published(s: Services, plan: Plan) -> Published | None:
    """What came of it, if all of it is there: of its commits the one that the outcome counts. For a plan that removes, the last commit is
    enough, as the others precede it. For one that gives back, every commit must be there."""
    operation = of_plan(s, plan)
    found = [store.published(plan) for store in (stores(s, plan) if operation.gives_back else stores(s, plan)[-1:])]
    there = [commit for commit in found if commit is not None]
    return operation.published(plan, there) if there and len(there) == len(found) else None


def warnings(s: Services, plan: Plan) -> tuple[str, ...]:
    """What a person must know of how the plan was committed: of tables that were to change at once, one has not changed with the others."""
    several = stores(s, plan)
    found = [store.published(plan) for store in several] if len(several) > 1 else []
    if {commit.at_once for commit in found if commit is not None} != {True, False}:
        return ()
    return (
        "NotAtOnce: the catalog made one of the plan's commits without the other, though its configuration says that it makes all or none "
        "(lifecycle.atomic-transactions); what was missing has followed. Unless another run of the plan has made it, the catalog is not "
        "atomic: take the setting out.",
    )


def is_committed(s: Services, plan: Plan) -> bool:
    """Whether readers see it, or cannot any more, though files may be left to remove: then `steps.verify` brings it to its end."""
    return published(s, plan) is not None or is_to_be_finished(s, plan)


def has_first(s: Services, plan: Plan) -> bool:
    """Whether its first commit is there."""
    return any(store.published(plan) is not None for store in stores(s, plan)[:1])


def is_halfway(s: Services, plan: Plan) -> bool:
    """Whether a run has died between two of its commits, so that it is brought to its end."""
    begun = has_first(s, plan) if len(stores(s, plan)) > 1 else plan.moves_tables and has_begun(s, plan)
    return plan.goes_on and begun and published(s, plan) is None


def is_decided(s: Services, plan: Plan) -> bool:
    """Whether nothing stops it any more: all of it is there, or any of what only gives back."""
    return has_begun(s, plan) if of_plan(s, plan).gives_back else published(s, plan) is not None


def has_begun(s: Services, plan: Plan) -> bool:
    """Whether any of its commits is there, or any of its files gone."""
    # Where the view's history no longer tells whether a compaction was committed, `ChangeStore.has_begun` says yes, for undos to refuse.
    first = plan.goes_on and not plan.on_view.compact and any(store.has_begun(plan) for store in stores(s, plan)[:1])
    return first or published(s, plan) is not None


def is_to_be_finished(s: Services, plan: Plan) -> bool:
    """Whether it has begun and has no way back, so that whoever comes ends it, whatever was said since."""
    return plan.no_way_back and has_begun(s, plan)


def finish(s: Services, plan: Plan) -> Published:
    """Bring it to its end, without a verdict."""
    done = stores(s, plan)[0].finish(plan)
    note(s, plan.topic)
    return done


def left(s: Services, plan: Plan) -> list[str]:
    """Of what it takes, what is still there, and of what it brings, what is not: in words."""
    return [what for store in stores(s, plan) for what in store.left(plan)]


# Whose a topic's open plan is, whether it waits for a person (DEL-1), and what ends it.


UNDER_WAY_US = seconds(3_600)
"""A run closes its plans at its end, also when it fails. Beyond this its machine is gone, and the topic is anybody's again; what
makes that safe is the fence in the commit."""


def belongs_to_another(s: Services, plan_id: str, recorded_at: Instant, run: str | None) -> bool:
    """Return True if an open plan is under way in another run: were it superseded by every interval, a slow topic would never be cleaned.

    A run by hand (None) takes any plan over, and so does everybody once the plan is UNDER_WAY_US old.
    """
    own = {entry.plan_id for entry in s.ledger.run_entries(run)} if run is not None else set()
    return plan_id not in own and s.ledger.now() < recorded_at + UNDER_WAY_US


def standing(s: Services, record: PlanRecord, run: str | None = None) -> Standing:
    """Return how an open plan stands by the ledger, the clock and the settings; `run`: the run that asks. The tables are not read."""
    asked = record.state is PlanState.ASKED
    if asked and not _can_be_answered(s, record):
        return Standing.VOID
    recent = belongs_to_another(s, record.plan.plan_id, record.recorded_at, run)
    if asked or record.approval is not None:
        return Standing.ASKS_LATELY if recent and run is not None else Standing.ASKS
    if not recent:
        return Standing.FREE
    return Standing.RECENT if run is None else Standing.UNDER_WAY


def standing_in_tables(s: Services, record: PlanRecord, planner: Planner, run: str | None, *, can_finish: bool = True) -> Standing:
    """Return how an open plan stands for a run that plans. The tables come first: the ledger may not know what a dead run committed.

    Args:
        can_finish: False after an attempt to finish a plan of which some commits are there.
    """
    plan = record.plan
    if can_finish and is_committed(s, plan):
        return Standing.COMMITTED
    by_ledger = standing(s, record, run)
    if can_finish and is_halfway(s, plan):
        return Standing.HALF_ANSWERED if by_ledger.is_question else Standing.HALF
    same = planner in PLANNING[Standing.BEGUN]
    return Standing.BEGUN if same and not by_ledger.is_question and plan.resumes and has_begun(s, plan) else by_ledger


def _can_be_answered(s: Services, record: PlanRecord) -> bool:
    """Return False if nobody answered in time, or settings were changed: the topic is asked again."""
    assert record.reported_at is not None, "a gate report has its time"
    ttl_us = Policy.of_values(record.plan.policy).approval_ttl_us
    return s.ledger.now() <= record.reported_at + ttl_us and not outdated(s, record.plan)


def waits(s: Services, record: PlanRecord) -> bool:
    """Return True if the gate left the plan to a person, and the question still stands or has its answer."""
    return standing(s, record).is_question


def outdated(s: Services, plan: Plan) -> str:
    """Why nobody can say yes to it any more, in words; empty: they can."""
    try:
        changed = settings_changed(s, plan)
    except (UnknownTopic, PlanConflict):  # of a topic that is gone nothing was changed
        return ""
    return f"settings were changed after it was planned: {', '.join(changed)}" if changed else ""


def settings_changed(s: Services, plan: Plan) -> tuple[str, ...]:
    """Settings that have another value now than the plan was made with: from and to, in words. Raises UnknownTopic, PlanConflict of a
    deleted topic whose tables are gone."""
    before, now = dict(plan.policy), of_plan(s, plan).settings_now(s, plan)
    return tuple(from_to(name, before, now.values) for name in now.changed_since(before))


def with_second_person(plan: Plan, requested_by: str | None) -> Plan:
    """Return the plan with a question to a second person, if a person asked for it and `approver_is_not_requester` is set (DEL-3)."""
    if requested_by is None or plan.is_empty or not Policy.of_values(plan.policy).approver_is_not_requester:
        return plan
    asked = f"{requested_by} asked for it, and approver_is_not_requester is set: somebody else approves it"
    return replace(plan, asks=(*plan.asks, asked))


def asked_by_itself(record: PlanRecord, by: str) -> bool:
    """Return True if `by` asked for the plan, and may therefore not approve it."""
    if record.requested_by is None or not Policy.of_values(record.plan.policy).approver_is_not_requester:
        return False
    return is_same_person(by, record.requested_by)


def replaced(s: Services, record: PlanRecord, by: str) -> tuple[OutcomeName, str]:
    """How an open plan ends whose place another takes: the outcome and its words. Of an outdated one nobody has failed to answer."""
    if told := outdated(s, record.plan):
        return "superseded", f"{by} took its place: {told}"
    asked = record.state is PlanState.ASKED or record.approval is not None
    return "lapsed" if asked else "superseded", f"{by} took its place"
