"""Staging a compaction: the new view on a branch of its table, where no reader sees it (CMP-4)."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from secrets import token_hex
from time import perf_counter
from typing import TYPE_CHECKING

from message_lifecycle.model.errors import PlanConflict, topic_without_keys
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import ViewReason
from message_lifecycle.model.settings import Policy
from message_lifecycle.model.view import StagedView
from message_lifecycle.operations.compaction_fold import rules_of
from message_lifecycle.stores.iceberg.branches import branch_of, make_branch, staged_on
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.compaction import removals, returns, sql, view_table
from message_lifecycle.stores.iceberg.compaction.commit import commit, written_paths
from message_lifecycle.stores.iceberg.compaction.engine import discard, totals
from message_lifecycle.stores.iceberg.compaction.engine import run as engine_run
from message_lifecycle.stores.iceberg.compaction.inputs import UnreadableDeletes, partition_job, sources
from message_lifecycle.stores.iceberg.compaction.job import CompactionJob, Rules
from message_lifecycle.stores.iceberg.document import is_local, local_path
from message_lifecycle.stores.iceberg.layout import COMPACTED, STAGED_PLAN_ID
from message_lifecycle.stores.iceberg.session import Java, forget_cached, java_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)
STAGED_VIEW = "lifecycle.staged-view"


def stage(session: SparkSession, tables: Tables, plan: Plan) -> Staged:
    """Make the new view on the plan's branch; done before, it is found. Raises PlanConflict, TopicWithoutKeys,
    CompactionFailed, UndoSourceGone."""
    view_table.create(tables, plan.topic)
    table = java_table(session, plan.topic, kind=COMPACTED)
    base_id = required_base(table, plan)
    found = staged_on(table, plan.plan_id)
    if found is not None:
        return _staged(plan, branch_of(plan.plan_id), found)
    # Before the branch: where something is lost, or other than planned, nothing is staged.
    back = returns.restore(tables.load(plan.topic, kind=COMPACTED), base_id, plan)
    branch = make_branch(table, plan, base_id)
    if plan.on_view.mark:
        results = removals.marks(tables.load(plan.topic, kind=COMPACTED), base_id, plan.on_view.mark)
        commit(session, table, results, branch=branch, properties=_told(plan, removals.staged(plan, results)))
        return _staged(plan, branch, table.snapshot(branch))
    if plan.on_view.back:
        unmarked = [path for part in back for path in part.unmarked]
        commit(session, table, back, branch=branch, properties=_told(plan, returns.staged(plan)), unmarked=unmarked)
        return _staged(plan, branch, table.snapshot(branch))
    by_kernel = Policy.of_values(plan.policy)["compaction_engine"] == "kernel"
    if not (by_kernel and _by_kernel(session, tables, plan, base_id, table, branch)):
        _by_sql(session, plan, base_id, branch)
    forget_cached(session, plan.topic, kind=COMPACTED)
    table.refresh()
    return _staged(plan, branch, table.snapshot(branch))


def required_base(table: Java, plan: Plan) -> int:
    """The view's snapshot that the plan builds on, which must be the newest one. Raises PlanConflict."""
    assert plan.view is not None
    head = table.currentSnapshot()
    before = plan.view.snapshot_id
    if before is None:
        # Made by staging, and never published: the table's first snapshot holds nothing.
        if head.parentId() is not None:
            raise PlanConflict(plan.plan_id, "the topic was compacted for the first time since it was planned")
    elif str(table.uuid()) != plan.view.table_uuid or int(head.snapshotId()) != before:
        raise PlanConflict(plan.plan_id, "the compacted view has changed since it was planned")
    return int(head.snapshotId())


def _by_kernel(session: SparkSession, tables: Tables, plan: Plan, base_id: int, table: Java, branch: str) -> bool:
    """Whether the columnar kernel has made the view. It reads local files, and neither older kinds of deletes nor event times."""
    assert plan.view is not None
    policy, started = Policy.of_values(plan.policy), perf_counter()
    view, log = tables.load(plan.topic, kind=COMPACTED), tables.load(plan.topic)
    # Memories stay for their time, also after the latest is told by offsets again (CMP-12).
    if policy.by_event_time or view_table.memories(table) or not (is_local(view.location()) and is_local(log.location())):
        return False
    of_fold = rules_of(policy, as_of=plan.as_of, tombstones_until=plan.view.tombstones_until)
    rules = Rules(
        as_of=plan.as_of,
        ages=of_fold.ages,
        empty_is_value=policy.empty_is_value,
        retain_null_key=policy.retain_null_key,
        tombstones_until=plan.view.tombstones_until,
    )
    try:
        of_log = sources(log, log.snapshot_by_id(plan.requirements.snapshot_id or 0), rules)
        of_view = sources(view, view.snapshot_by_id(base_id), rules)
    except UnreadableDeletes as error:
        logger.info("%s: %s Spark SQL does it.", plan.topic, error)
        return False
    parts = tuple(
        partition_job(a.partition, of_log, of_view, after=a.after, through=a.through, rewrite=plan.view.rewrite)
        for a in plan.on_view.compact
    )
    # Unique: what an attempt that died has left is never taken for this one's.
    job = CompactionJob(
        run=f"{plan.plan_id[:16]}-{token_hex(4)}", data_folder=f"{view.location()}/data", rules=rules, partitions=parts, **_rates(policy)
    )
    results = engine_run(session, job)
    tail_rows, keys = sum(result.tail_rows for result in results), sum(result.keys for result in results)
    if plan.view.table_uuid is None and tail_rows and not keys:
        discard(job)
        raise topic_without_keys(str(plan.topic))
    paths = [file.path for part in parts for file in (*part.view, *part.tail)]
    staged = StagedView(
        view_rows=plan.view.rows,
        tail_rows=tail_rows,
        rows=plan.view.rows - sum(result.view_rows - result.rows_out for result in results),
        removed=tuple(sorted(totals(results).items())),
        bytes_read=sum(local_path(path).stat().st_size for path in paths),
        bytes_written=sum(path.stat().st_size for path in written_paths(results)),
        engine="kernel",
        took_ms=round((perf_counter() - started) * 1000),
    )
    commit(session, table, results, branch=branch, properties=_told(plan, staged))
    return True


def _rates(policy: Policy) -> dict[str, int]:
    """Bytes per second that a run may read and write; 0: any number (CMP-11)."""
    return {name: int(str(policy[f"compaction_{name}"])) for name in ("read_bytes_per_second", "write_bytes_per_second")}


def _by_sql(session: SparkSession, plan: Plan, base_id: int, branch: str) -> None:
    assert plan.view is not None
    started = perf_counter()
    if any(_rates(Policy.of_values(plan.policy)).values()):
        logger.warning("%s: Spark SQL keeps to no rate of bytes per second.", plan.topic)
    rows = sql.decided(session, plan, base_id)
    by_reason = sql.counts(rows)
    tail_rows = sum(action.rows for action in plan.on_view.compact)
    touched = sql.source(session, plan, base_id).where("of_view AND NOT coalesce(remembered, false)").count()
    kept = by_reason.get(None, 0)
    removed: dict[ViewReason, int] = {reason: count for reason, count in by_reason.items() if reason is not None}
    superseded = touched + tail_rows - sum(by_reason.values())
    if superseded:
        removed["superseded"] = superseded
    if tail_rows and plan.view.table_uuid is None and not rows.where("key IS NOT NULL").limit(1).count():
        raise topic_without_keys(str(plan.topic))
    view = StagedView(
        view_rows=plan.view.rows,
        tail_rows=tail_rows,
        rows=plan.view.rows - touched + kept,
        removed=tuple(sorted(removed.items())),
        bytes_read=0,
        bytes_written=0,
        engine="sql",
        took_ms=round((perf_counter() - started) * 1000),
    )
    sql.write(rows, plan, branch, _told(plan, view))


def _told(plan: Plan, view: StagedView) -> dict[str, str]:
    """What the staged snapshot's summary says: that the stage is whole, and what came of it."""
    return {STAGED_PLAN_ID: plan.plan_id, STAGED_VIEW: json.dumps(asdict(view))}


def _staged(plan: Plan, branch: str, snapshot: Java) -> Staged:
    told = json.loads(str(snapshot.summary().get(STAGED_VIEW)))
    told["removed"] = tuple((reason, count) for reason, count in told["removed"])
    told["snapshot_id"] = int(snapshot.snapshotId())
    return Staged(plan_id=plan.plan_id, branch=branch, snapshot_id=told["snapshot_id"], view=StagedView(**told))
