"""Stage a change of a view: write the new view to a branch of its table, where no reader sees it (CMP-4)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from secrets import token_hex
from time import perf_counter

from message_lifecycle.model.errors import topic_without_keys
from message_lifecycle.model.message import StagedView
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.compaction import rules_of
from message_lifecycle.stores.iceberg import change
from message_lifecycle.stores.iceberg.branches import branch_of
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.compaction import CompactionJob, new_view, removals, view_table
from message_lifecycle.stores.iceberg.compaction.kernel import discard, sum_counts
from message_lifecycle.stores.iceberg.compaction.kernel import run as engine_run
from message_lifecycle.stores.iceberg.compaction.view_table import partition_job, sources
from message_lifecycle.stores.iceberg.data_files import commit, written_files
from message_lifecycle.stores.iceberg.engine import Engine, job_text
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import COMPACTED, STAGED_PLAN_ID
from message_lifecycle.stores.iceberg.pointers import look
from message_lifecycle.stores.iceberg.shares import ResourceLimits
from message_lifecycle.stores.iceberg.tasks import Store

STAGED_VIEW = "lifecycle.staged-view"
Work = Callable[[str], object]
"""Writes the new view to the branch of that name."""
Prepare = Callable[[Engine, Tables, Plan, int, Java], Work]
"""Returns the work from the view's snapshot of that id. A missing file or a conflict raises here, before there is a branch."""


def stage(engine: Engine, tables: Tables, plan: Plan, prepare: Prepare) -> Staged:
    """Write the new view to the plan's branch, unless an earlier run has done so.

    Args:
        engine: Runs the work in the JVM.
        tables: The catalog's tables.
        plan: The plan to stage.
        prepare: Returns the work: `removal_work`, `restoration_work` or `compaction_work`.

    Raises:
        PlanConflict: The view has changed since the plan, or an undo would restore another number of messages than planned.
        TopicWithoutKeys: The topic's first compaction found messages, and no key among them.
        CompactionFailed: A task failed.
        UndoSourceGone: The messages to restore are missing.
        UnreadableDeletes: A table has equality deletes, or position deletes of an older kind.
    """
    table = change.table_to_build_on(engine, plan, COMPACTED, plan.view, partial(new_view.create, tables, plan.topic))
    base_id = required_base(table, plan)
    work = partial(prepare, engine, tables, plan, base_id, table)
    return _staged(plan, change.stage(engine, table, plan, base_id, work, kind=COMPACTED))


def removal_work(engine: Engine, tables: Tables, plan: Plan, base_id: int, table: Java) -> Work:
    marks = removals.write_removals(tables.load(plan.topic, kind=COMPACTED), base_id, plan.view_removal.mark)
    return partial(commit, engine, table, marks, properties=_stage_properties(plan, removals.staged_removal(plan, marks)))


def restoration_work(engine: Engine, tables: Tables, plan: Plan, base_id: int, table: Java) -> Work:
    back = removals.restore(tables.load(plan.topic, kind=COMPACTED), base_id, plan)
    return partial(commit, engine, table, back, properties=_stage_properties(plan, removals.staged_return(plan, back)))


def compaction_work(engine: Engine, tables: Tables, plan: Plan, base_id: int, _table: Java) -> Work:
    return partial(_compact, engine, tables, plan, base_id)


def required_base(table: Java, plan: Plan) -> int:
    """Return the view's snapshot that the plan builds on. Raises PlanConflict unless it is the newest one."""
    made, changed = "the topic was compacted for the first time", "the compacted view has changed"
    return change.required_head(table, plan.plan_id, plan.view, made=made, changed=changed)


def _compact(engine: Engine, tables: Tables, plan: Plan, base_id: int, branch: str) -> None:
    assert plan.view is not None
    policy, started = Policy.from_values(plan.policy), perf_counter()
    with look():  # load each of the two tables once
        before = view_table.state_of(tables, plan.topic)
        view, log = tables.load(plan.topic, kind=COMPACTED), tables.load(plan.topic)
    rules = rules_of(policy, as_of=plan.as_of, tombstones_until=plan.view.tombstones_until)
    of_log = sources(log, log.snapshot_by_id(plan.requirements.snapshot_id or 0), rules)
    of_view = sources(view, view.snapshot_by_id(base_id), rules)
    parts = tuple(
        partition_job(a.partition, of_log, of_view, after=a.after, through=a.through, rewrite=plan.view.rewrite)
        for a in plan.view_commit.compact
    )
    # A unique name, so that leftovers of an attempt that died never count as files of this one.
    job = CompactionJob(
        run=f"{plan.plan_id[:16]}-{token_hex(4)}",
        data_folder=f"{view.location()}/data",
        rules=rules,
        partitions=parts,
        store=Store.of(view),
        rates=ResourceLimits(**_rates(policy)),
        description=job_text(plan, f"{len(parts)} partitions"),
    )
    results = engine_run(engine, job)
    table = engine.table(plan.topic, kind=COMPACTED)  # load the table again: storage keys from the catalog may have expired
    tail_rows, keys = sum(result.tail_rows for result in results), sum(result.keys for result in results)
    # Check the first compaction only: an earlier compaction has shown that the topic has keys.
    if (before is None or not before.has_reached) and tail_rows and not keys:
        discard(job)
        raise topic_without_keys(str(plan.topic))
    read = [file for part in parts for file in (*part.view, *part.tail)]
    staged = StagedView(
        view_rows=plan.view.rows,
        tail_rows=tail_rows,
        rows=plan.view.rows - sum(result.view_rows - result.rows_out for result in results),
        removed=tuple(sorted(sum_counts(results).items())),
        bytes_read=sum(file.size_bytes for file in read),
        bytes_written=sum(new.bytes for new in written_files(results)),
        engine="kernel",
        took_ms=round((perf_counter() - started) * 1000),
    )
    commit(engine, table, results, branch=branch, properties=_stage_properties(plan, staged))


def _rates(policy: Policy) -> dict[str, int]:
    """Return the bytes per second that a run may read and write; 0: no limit (CMP-11)."""
    return {name: int(str(policy[f"compaction_{name}"])) for name in ("read_bytes_per_second", "write_bytes_per_second")}


def _stage_properties(plan: Plan, view: StagedView) -> dict[str, str]:
    """Return the staged snapshot's properties: the mark of a complete stage, and its results."""
    return {STAGED_PLAN_ID: plan.plan_id, STAGED_VIEW: json.dumps(asdict(view))}


def _staged(plan: Plan, snapshot: Java) -> Staged:
    content = json.loads(str(snapshot.summary().get(STAGED_VIEW)))
    content["removed"] = tuple((reason, count) for reason, count in content["removed"])
    content["snapshot_id"] = int(snapshot.snapshotId())
    return Staged(plan_id=plan.plan_id, branch=branch_of(plan.plan_id), snapshot_id=content["snapshot_id"], view=StagedView(**content))
