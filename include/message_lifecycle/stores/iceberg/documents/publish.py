"""Publishing: first new snapshots and raised epochs, then the purge, each in one fenced commit of its table (SNP-7, DEL-4, DEL-5); of an
undo first the changes that come back, then the snapshots.

A crash between the two leaves changes that are not needed any more, and never lacks one: readers stand on the new epoch already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from message_lifecycle.model.document import StagedDocuments
from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.outcome import Published
from message_lifecycle.operations.snapshot_with_purge import needs_more
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.stores.iceberg import requirements
from message_lifecycle.stores.iceberg.branches import chain
from message_lifecycle.stores.iceberg.commits import Steps, commit_once, find, nothing_since, only_appends_since, properties
from message_lifecycle.stores.iceberg.documents.tables import snapshots_base
from message_lifecycle.stores.iceberg.fence import Ancestor, Judge, fenced_commit, main_ancestors
from message_lifecycle.stores.iceberg.layout import PLAN_ID, SNAPSHOTS, UNDOES
from message_lifecycle.stores.iceberg.read import published_by
from message_lifecycle.stores.iceberg.session import Java, forget_cached, java_table
from message_lifecycle.stores.iceberg.staged_change import Change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def publish_snapshots(session: SparkSession, verdict: Verdict, *, ledger: tuple[str, int], steps: Steps) -> Published:
    """Raises PlanConflict, TableBusy, CommitUnknown."""
    plan, plan_id = verdict.plan, verdict.plan.plan_id
    table = java_table(session, plan.topic, kind=SNAPSHOTS)
    done = find(table, plan_id)
    if done is not None:
        return _of_snapshots(done)
    if not plan.restored_rows:  # an undo that has brought back changes has looked at it before them, and then nothing stops it
        requirements.check(plan, plan_id, java_table(session, plan.topic), None)
    base_id = snapshots_base(table, plan)
    change = _change(session, table, plan_id, _told(verdict).snapshots_id, base_id)
    update = change.with_added(table.newRowDelta(), base_id)

    def judge(walk: Callable[[], Iterator[Ancestor]]) -> None:
        steps("inside_snapshots_commit")
        nothing_since(walk(), plan_id, base_id, table="the documents' snapshots were")

    found = _once(session, table, update, judge, verdict, ledger, steps, "snapshots_commit")
    forget_cached(session, plan.topic, kind=SNAPSHOTS)
    return _of_snapshots(found)


def purge(
    session: SparkSession, verdict: Verdict, *, ledger: tuple[str, int], steps: Steps, behind: Callable[[], Collection[str]]
) -> Published:
    """Raises PlanConflict, also where the plan's snapshots are not the newest ones, TableBusy, CommitUnknown."""
    plan, plan_id = verdict.plan, verdict.plan.plan_id
    snapshots = find(java_table(session, plan.topic, kind=SNAPSHOTS), plan_id)
    if snapshots is None:
        raise PlanConflict(plan_id, "its snapshots are not published: nothing is purged before")
    staged_id = _told(verdict).changes_id
    if staged_id is None:
        return _of_snapshots(snapshots)
    table = java_table(session, plan.topic)
    done = find(table, plan_id)
    if done is not None:
        return published_by(plan_id, done.snapshot_id, done.summary)
    requirements.check(plan, plan_id, table, None)
    base_id = plan.requirements.snapshot_id
    if base_id is None:
        raise PlanConflict(plan_id, "it was made of no snapshot, and purges changes")
    change = _change(session, table, plan_id, staged_id, base_id)
    update = change.update(session, table, base_id)

    def judge(walk: Callable[[], Iterator[Ancestor]]) -> None:
        steps("inside_purge_commit")
        only_appends_since(walk(), plan_id, base_id)
        # What was proved rests on these snapshots: a later plan's may rest on others.
        newest = next(main_ancestors(java_table(session, plan.topic, kind=SNAPSHOTS)))
        if newest.get(PLAN_ID) != plan_id:
            raise PlanConflict(plan_id, "other snapshots of its documents were published since", rival=newest.get(PLAN_ID))
        if found := behind():
            raise PlanConflict(plan_id, needs_more(sorted(found)))

    found = _once(session, table, update, judge, verdict, ledger, steps, "purge_commit")
    forget_cached(session, plan.topic)
    return published_by(plan_id, found.snapshot_id, found.summary)


def return_changes(session: SparkSession, verdict: Verdict, *, ledger: tuple[str, int], steps: Steps) -> Published:
    """The first of an undo's commits. Raises PlanConflict, TableBusy, CommitUnknown."""
    plan, plan_id, base_id = verdict.plan, verdict.plan.plan_id, verdict.plan.requirements.snapshot_id
    table = java_table(session, plan.topic)
    done = find(table, plan_id)
    if done is not None:
        return published_by(plan_id, done.snapshot_id, done.summary)
    requirements.check(plan, plan_id, table, None)
    if base_id is None:
        raise PlanConflict(plan_id, "it was made of no snapshot, and brings changes back")
    update = _change(session, table, plan_id, _told(verdict).changes_id, base_id).restore(session, table, base_id)

    def judge(walk: Callable[[], Iterator[Ancestor]]) -> None:
        steps("inside_changes_commit")
        only_appends_since(walk(), plan_id, base_id)

    found = _once(session, table, update, judge, verdict, ledger, steps, "changes_commit")
    forget_cached(session, plan.topic)
    return published_by(plan_id, found.snapshot_id, found.summary)


def _once(
    session: SparkSession, table: Java, update: Java, judge: Judge, verdict: Verdict, ledger: tuple[str, int], steps: Steps, of: str
) -> Ancestor:
    plan = verdict.plan
    for key, value in {**properties(verdict, ledger), **({UNDOES: plan.parent} if plan.parent is not None else {})}.items():
        update.set(key, value)
    what = f"publishing plan {plan.plan_id}"
    return commit_once(table, plan.plan_id, lambda: fenced_commit(session, [(update, judge)], what=what), steps=steps, of=of)


def _change(session: SparkSession, table: Java, plan_id: str, staged_id: int | None, base_id: int) -> Change:
    """What the plan's branch differs in. Raises PlanConflict."""
    staged = None if staged_id is None else table.snapshot(staged_id)
    if staged is None:
        raise PlanConflict(plan_id, f"nothing is staged for it (snapshot {staged_id})")
    return Change.of(session, table, chain(table, staged, base_id))


def _told(verdict: Verdict) -> StagedDocuments:
    told = verdict.staged.documents
    if told is None:
        raise PlanConflict(verdict.plan.plan_id, "nothing of documents is staged for it")
    return told


def _of_snapshots(commit: Ancestor) -> Published:
    """No change has gone yet."""
    return Published(plan_id=str(commit.get(PLAN_ID)), snapshot_id=commit.snapshot_id, removed=())
