"""Publishing a compaction: the staged view and its horizons in one fenced commit of the view's table (CMP-4, DEL-5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import PlanConflict
from message_lifecycle.model.outcome import Published
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.compaction import settings_hash_after
from message_lifecycle.operations.verdict import Verdict
from message_lifecycle.stores.iceberg.branches import chain
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.commits import Steps, commit_once, find, nothing_since, properties
from message_lifecycle.stores.iceberg.compaction.due_at import due_at
from message_lifecycle.stores.iceberg.compaction.read import view_published_by
from message_lifecycle.stores.iceberg.compaction.stage import required_base
from message_lifecycle.stores.iceberg.compaction.view_table import DUE_AT, HORIZONS, MEMORIES, SETTINGS, memories
from message_lifecycle.stores.iceberg.fence import Ancestor, fenced_commit, main_ancestors
from message_lifecycle.stores.iceberg.layout import COMPACTED, by_partition, offsets_of
from message_lifecycle.stores.iceberg.session import Java, forget_cached, java_table
from message_lifecycle.stores.iceberg.staged_change import Change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def publish(session: SparkSession, tables: Tables, verdict: Verdict, *, ledger: tuple[str, int], steps: Steps) -> Published:
    """Make the plan's one commit on main, or report the one that is there. Raises PlanConflict, TableBusy, CommitUnknown."""
    plan, plan_id = verdict.plan, verdict.plan.plan_id
    table = java_table(session, plan.topic, kind=COMPACTED)
    done = find(table, plan_id)
    if done is not None:
        return view_published_by(plan_id, done.snapshot_id, done.summary)
    base_id = required_base(table, plan)
    staged_id = None if verdict.staged.view is None else verdict.staged.view.snapshot_id
    staged = None if staged_id is None else table.snapshot(staged_id)
    if staged is None or staged_id == base_id:
        raise PlanConflict(plan_id, f"nothing is staged for it (snapshot {staged_id})")
    change = Change.of(session, table, chain(table, staged, base_id))
    update = change.with_added(table.newRowDelta(), base_id)
    for key, value in _properties(session, tables, table, verdict, ledger).items():
        update.set(key, value)

    def judge(walk: Callable[[], Iterator[Ancestor]]) -> None:
        steps("inside_commit")
        nothing_since(walk(), plan_id, base_id, table="the compacted view was")

    def attempt() -> None:
        fenced_commit(session, [(update, judge)], what=f"publishing plan {plan_id}")

    try:
        found = commit_once(table, plan_id, attempt, steps=steps)
    finally:
        forget_cached(session, plan.topic, kind=COMPACTED)
    return view_published_by(plan_id, found.snapshot_id, found.summary)


def _properties(session: SparkSession, tables: Tables, table: Java, verdict: Verdict, ledger: tuple[str, int]) -> dict[str, str]:
    plan = verdict.plan
    before = next((found for ancestor in main_ancestors(table) if (found := ancestor.get(HORIZONS)) is not None), "{}")
    horizons = offsets_of(before)
    for action in plan.on_view.compact:
        horizons[action.partition] = max(action.through, horizons.get(action.partition, -1))
    view = tables.load(plan.topic, kind=COMPACTED)
    told = verdict.staged.view
    assert told is not None
    staged = view.snapshot_by_id(told.snapshot_id or 0)
    assert staged is not None, "the caller has found it"
    due = due_at(view, staged, Policy.of_values(plan.policy), as_of=plan.as_of)
    return {
        **properties(verdict, ledger, told.removed),
        HORIZONS: by_partition(horizons),
        SETTINGS: settings_hash_after(plan, _judged(table, plan)),
        MEMORIES: str(_memories(session, table, verdict, staged.snapshot_id)),
        **({} if due is None else {DUE_AT: str(due)}),
    }


def _judged(table: Java, plan: Plan) -> Iterator[str]:
    """Hashes of settings, as `settings_hash_after` asks for them."""
    assert plan.view is not None
    for snapshot_id in (plan.view.snapshot_id, *((plan.on_view.source_id,) if plan.on_view.back else ())):
        snapshot = None if snapshot_id is None else table.snapshot(snapshot_id)
        yield "" if snapshot is None else str(snapshot.summary().get(SETTINGS) or "")


def _memories(session: SparkSession, table: Java, verdict: Verdict, staged_id: int) -> int:
    """Rows of the staged view that are no messages; there are none where the latest is that of the highest offset."""
    if not Policy.of_values(verdict.plan.policy).by_event_time and not memories(table):
        return 0
    from message_lifecycle.stores.iceberg.session import sql_table

    frame = session.read.option("versionAsOf", str(staged_id)).table(sql_table(verdict.plan.topic, kind=COMPACTED))
    return frame.where("coalesce(remembered, false)").count()
