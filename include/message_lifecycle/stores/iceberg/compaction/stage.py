"""Staging a compaction: the new view on a branch of its table, where no reader sees it (CMP-4)."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from secrets import token_hex
from time import perf_counter
from typing import TYPE_CHECKING, get_args

from message_lifecycle.model.errors import topic_without_keys
from message_lifecycle.model.message import REASON_HEADER, StagedView, ViewReason
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.outcome import Staged
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.compaction import FoldRules, rules_of
from message_lifecycle.stores.iceberg import change, view_file
from message_lifecycle.stores.iceberg.branches import branch_of
from message_lifecycle.stores.iceberg.catalog import Tables
from message_lifecycle.stores.iceberg.columns import SCHEMA as TOPIC_SCHEMA
from message_lifecycle.stores.iceberg.compaction import CompactionJob, Rules, removals, view_table
from message_lifecycle.stores.iceberg.compaction.kernel import discard, totals
from message_lifecycle.stores.iceberg.compaction.kernel import run as engine_run
from message_lifecycle.stores.iceberg.compaction.view_table import SCHEMA, UnreadableDeletes, partition_job, sources
from message_lifecycle.stores.iceberg.data_files import commit, written_files
from message_lifecycle.stores.iceberg.java import Java
from message_lifecycle.stores.iceberg.layout import COMPACTED, STAGED_PLAN_ID
from message_lifecycle.stores.iceberg.pointers import look
from message_lifecycle.stores.iceberg.session import java_table, sql_table
from message_lifecycle.stores.iceberg.tasks import Store

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import Column, DataFrame, SparkSession


logger = logging.getLogger(__name__)
STAGED_VIEW = "lifecycle.staged-view"


def stage(session: SparkSession, tables: Tables, plan: Plan, *, sql: Callable[[], SparkSession]) -> Staged:
    """Make the new view on the plan's branch; done before, it is found. `sql`: asked for where the kernel cannot do it. Raises PlanConflict, TopicWithoutKeys,
    CompactionFailed, UndoSourceGone."""
    view_table.create(tables, plan.topic)
    table = java_table(session, plan.topic, kind=COMPACTED)
    base_id = required_base(table, plan)
    work = partial(_work, session, tables, plan, base_id, table, sql)
    return _staged(plan, change.stage(session, table, plan, base_id, work, kind=COMPACTED))


def _work(
    session: SparkSession, tables: Tables, plan: Plan, base_id: int, table: Java, sql: Callable[[], SparkSession]
) -> Callable[[str], object]:
    """Where something is lost, or other than planned, it raises before there is a branch."""
    view = tables.load(plan.topic, kind=COMPACTED)
    back = removals.restore(view, base_id, plan)
    if plan.on_view.mark:
        marks = removals.marks(view, base_id, plan.on_view.mark)
        return partial(commit, session, table, marks, properties=_told(plan, removals.staged(plan, marks, engine="request")))
    if plan.on_view.back:
        return partial(commit, session, table, back, properties=_told(plan, removals.staged(plan, back, engine="undo")))
    return partial(_compact, session, tables, plan, base_id, table, sql)


def _compact(
    session: SparkSession, tables: Tables, plan: Plan, base_id: int, table: Java, sql: Callable[[], SparkSession], branch: str
) -> None:
    by_kernel = Policy.of_values(plan.policy)["compaction_engine"] == "kernel"
    with look():  # each of the two tables is asked for once
        before = view_table.state_of(tables, plan.topic)
        view, log = tables.load(plan.topic, kind=COMPACTED), tables.load(plan.topic)
    first = before is None or not before.has_reached
    if not (by_kernel and _by_kernel(session, plan, view, log, base_id, table, branch, first=first)):
        _by_sql(sql(), plan, base_id, branch, first=first)


def required_base(table: Java, plan: Plan) -> int:
    """The view's snapshot that the plan builds on, which must be the newest one. Raises PlanConflict."""
    made, changed = "the topic was compacted for the first time", "the compacted view has changed"
    return change.required_head(table, plan.plan_id, plan.view, made=made, changed=changed)


def _by_kernel(session: SparkSession, plan: Plan, view: Table, log: Table, base_id: int, table: Java, branch: str, *, first: bool) -> bool:
    """Whether the columnar kernel has made the view. It reads neither older kinds of deletes nor event times.

    `first`: no message of the topic was compacted before; one without any key is refused then."""
    assert plan.view is not None
    policy, started = Policy.of_values(plan.policy), perf_counter()
    # Memories stay for their time, also after the latest is told by offsets again (CMP-12).
    if policy.by_event_time or view_table.memories(table):
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
        run=f"{plan.plan_id[:16]}-{token_hex(4)}",
        data_folder=f"{view.location()}/data",
        rules=rules,
        partitions=parts,
        store=Store.of(view),
        **_rates(policy),
    )
    results = engine_run(session, job)
    table = java_table(session, plan.topic, kind=COMPACTED)  # keys that a catalog gave out with it may have ended meanwhile
    tail_rows, keys = sum(result.tail_rows for result in results), sum(result.keys for result in results)
    if first and tail_rows and not keys:
        discard(job)
        raise topic_without_keys(str(plan.topic))
    read = [file for part in parts for file in (*part.view, *part.tail)]
    staged = StagedView(
        view_rows=plan.view.rows,
        tail_rows=tail_rows,
        rows=plan.view.rows - sum(result.view_rows - result.rows_out for result in results),
        removed=tuple(sorted(totals(results).items())),
        bytes_read=sum(file.size_bytes for file in read),
        bytes_written=sum(new.bytes for new in written_files(results)),
        engine="kernel",
        took_ms=round((perf_counter() - started) * 1000),
    )
    commit(session, table, results, branch=branch, properties=_told(plan, staged))
    return True


def _rates(policy: Policy) -> dict[str, int]:
    """Bytes per second that a run may read and write; 0: any number (CMP-11)."""
    return {name: int(str(policy[f"compaction_{name}"])) for name in ("read_bytes_per_second", "write_bytes_per_second")}


def _by_sql(session: SparkSession, plan: Plan, base_id: int, branch: str, *, first: bool) -> None:
    assert plan.view is not None
    started = perf_counter()
    if any(_rates(Policy.of_values(plan.policy)).values()):
        logger.warning("%s: Spark SQL keeps to no rate of bytes per second.", plan.topic)
    tail_rows = sum(action.rows for action in plan.on_view.compact)
    touched = 0 if first else source(session, plan, base_id).where("of_view AND NOT coalesce(remembered, false)").count()
    rows = decided(session, plan, base_id)
    met = counted(rows)
    if first and tail_rows and not met.keys:
        raise topic_without_keys(str(plan.topic))
    removed: dict[ViewReason, int] = {reason: count for reason, count in met.by_reason.items() if reason is not None and count}
    superseded = touched + tail_rows - sum(met.by_reason.values())
    if superseded:
        removed["superseded"] = superseded
    view = StagedView(
        view_rows=plan.view.rows,
        tail_rows=tail_rows,
        rows=plan.view.rows - touched + met.by_reason[None],
        removed=tuple(sorted(removed.items())),
        bytes_read=0,
        bytes_written=0,
        engine="sql",
        took_ms=round((perf_counter() - started) * 1000),
    )
    write(rows, plan, branch, _told(plan, view))


def _told(plan: Plan, view: StagedView) -> dict[str, str]:
    """What the staged snapshot's summary says: that the stage is whole, and what came of it."""
    return {STAGED_PLAN_ID: plan.plan_id, STAGED_VIEW: json.dumps(asdict(view))}


def _staged(plan: Plan, snapshot: Java) -> Staged:
    told = json.loads(str(snapshot.summary().get(STAGED_VIEW)))
    told["removed"] = tuple((reason, count) for reason, count in told["removed"])
    told["snapshot_id"] = int(snapshot.snapshotId())
    return Staged(plan_id=plan.plan_id, branch=branch_of(plan.plan_id), snapshot_id=told["snapshot_id"], view=StagedView(**told))


# The reference engine: compaction by Spark SQL, for any number of keys and any input that Spark can read (CMP-1 to CMP-3).
#
# Messages are sorted by key, each key's latest is found among them, and the others go: no memory is needed for all keys, nor for all messages
# of one. Writes the plan's partitions anew.


_TOPIC_COLUMNS = [field.name for field in TOPIC_SCHEMA.fields]
_COLUMNS = [field.name for field in SCHEMA.fields]


def decided(session: SparkSession, plan: Plan, view_snapshot_id: int) -> DataFrame:
    """Each key's latest message, and every one without a key, of the plan's partitions: with `reason` why it is not in the new view
    (null: it is), and its new `delete_horizon`."""
    rules = _rules(plan)
    order = "event_time DESC NULLS LAST, offset DESC" if rules.by_event_time else "offset DESC"
    # One without a key stands alone.
    alike = "PARTITION BY partition, key, CASE WHEN key IS NULL THEN offset END"
    # The first of a rank: Spark keeps no other while it sorts, where an aggregate over the window would hold all messages of a key.
    rows = source(session, plan, view_snapshot_id).selectExpr("*", f"row_number() OVER ({alike} ORDER BY {order}) AS rank")
    return judged(rows.where("rank = 1").drop("rank"), rules)


def _rules(plan: Plan) -> FoldRules:
    assert plan.view is not None
    return rules_of(Policy.of_values(plan.policy), as_of=plan.as_of, tombstones_until=plan.view.tombstones_until)


def source(session: SparkSession, plan: Plan, view_snapshot_id: int) -> DataFrame:
    """What goes in: the view's partitions, and what lies past their horizons up to the plan's end points."""
    tail = tail_of(session, plan)
    new = {"delete_horizon": "CAST(NULL AS timestamp)", "remembered": "CAST(NULL AS boolean)"}
    tail = tail.selectExpr("*", *(f"{text} AS {name}" for name, text in new.items()), "false AS of_view")
    return view_at(session, plan, view_snapshot_id).selectExpr("*", "true AS of_view").unionByName(tail)


def view_at(session: SparkSession, plan: Plan, snapshot_id: int) -> DataFrame:
    """The plan's partitions of the view, memories too."""
    mine = ", ".join(str(action.partition) for action in plan.on_view.compact)
    return _at(session, plan.topic, snapshot_id, kind=COMPACTED).where(f"partition IN ({mine})").select(*_COLUMNS)


def tail_of(session: SparkSession, plan: Plan) -> DataFrame:
    """What lies past the horizons, up to the plan's end points."""
    span = " OR ".join(f"(partition = {a.partition} AND offset > {a.after} AND offset <= {a.through})" for a in plan.on_view.compact)
    return _at(session, plan.topic, plan.requirements.snapshot_id, kind="").where(span).select(*_TOPIC_COLUMNS)


def _at(session: SparkSession, name: TopicName, snapshot_id: int | None, *, kind: str) -> DataFrame:
    return session.read.option("versionAsOf", str(snapshot_id)).table(sql_table(name, kind=kind))


def judged(rows: DataFrame, rules: FoldRules) -> DataFrame:
    empty = "" if rules.empty_is_value else f" OR length(value) = 0 OR exists(headers, h -> h.name = '{REASON_HEADER}')"
    deletes = f"(key IS NOT NULL AND (value IS NULL{empty}))"
    until = "CAST(NULL AS timestamp)" if rules.tombstones_until is None else f"timestamp_micros({rules.tombstones_until}L)"
    judged = rows.selectExpr(
        *(name for name in rows.columns if name != "delete_horizon"),
        # What is in the view was judged when it was taken up.
        f"coalesce(delete_horizon, CASE WHEN NOT of_view AND {deletes} THEN {until} END) AS delete_horizon",
        f"NOT of_view AND coalesce({deletes}, false) AS deletes",
    )
    as_of = f"{rules.as_of}L"
    cases = [
        f"WHEN coalesce(remembered, false) THEN CASE WHEN delete_horizon <= timestamp_micros({as_of}) THEN 'tombstoned' END",
        *(f"WHEN {view_file.holds(rule, as_of)} THEN '{reason}'" for reason, rule in rules.ages),
        f"WHEN key IS NULL THEN {'NULL' if rules.retain_null_key else _text('null_key')}",
        f"WHEN (deletes AND delete_horizon IS NULL) OR delete_horizon <= timestamp_micros({as_of}) THEN 'tombstoned'",
    ]
    return judged.selectExpr(*_COLUMNS, f"CASE {' '.join(cases)} END AS reason")


def written(rows: DataFrame, rules: FoldRules) -> DataFrame:
    """What the new view holds of `decided` rows: those that stay, and memories of what went (CMP-12)."""
    if rules.remember_until is None:
        return rows.where("reason IS NULL").select(*_COLUMNS)
    of_memory = {
        **dict.fromkeys(("value", "append_time", "expires_at", "never"), "NULL"),
        "headers": "CAST(array() AS array<struct<name: string, value: binary>>)",
        "delete_horizon": f"timestamp_micros({rules.remember_until}L)",
        "remembered": "true",
    }
    either = (
        f"CASE WHEN reason IS NULL THEN {name} ELSE {of_memory[name]} END AS {name}" if name in of_memory else name for name in _COLUMNS
    )
    return rows.where("reason IS NULL OR (key IS NOT NULL AND NOT coalesce(remembered, false))").selectExpr(*either)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Met:
    """Of `decided` messages, which memories are none of. `by_reason`: how many (None: they stay). `keys`: how many have one."""

    by_reason: Counter[ViewReason | None]
    keys: int


def counted(rows: DataFrame) -> _Met:
    """In a pass of its own: what is counted while it is written counts a task twice that an executor's loss has made run again."""
    reasons = (None, *get_args(ViewReason))
    told = [f"count_if(NOT coalesce(remembered, false) AND reason <=> {_text(reason)}) AS `{at}`" for at, reason in enumerate(reasons)]
    (found,) = rows.agg(*map(_expr, told), _expr("count_if(key IS NOT NULL) AS keys")).collect()
    return _Met(by_reason=Counter({reason: found[str(at)] for at, reason in enumerate(reasons)}), keys=found["keys"])


def write(rows: DataFrame, plan: Plan, branch: str, properties: dict[str, str]) -> None:
    """Put the new view of the plan's partitions on the branch, in one commit."""
    mine = ", ".join(str(action.partition) for action in plan.on_view.compact)
    ordered = (
        written(rows, _rules(plan)).repartitionById(len(plan.on_view.compact), _slot(plan)).sortWithinPartitions("partition", "offset")
    )
    writer = ordered.writeTo(sql_table(plan.topic, kind=COMPACTED, branch=branch)).option("use-table-distribution-and-ordering", "false")
    for key, value in properties.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    # What is required is so by its source; Spark's planner does not see it.
    writer.option("check-nullability", "false").overwrite(_expr(f"partition IN ({mine})"))


def _slot(plan: Plan) -> Column:
    """A Spark partition for each partition of the plan."""
    cases = " ".join(f"WHEN {action.partition} THEN {slot}" for slot, action in enumerate(plan.on_view.compact))
    return _expr(f"CASE partition {cases} END")


def _expr(text: str) -> Column:
    from pyspark.sql import functions as F

    return F.expr(text)


def _text(value: str | None) -> str:
    return "NULL" if value is None else f"'{value}'"
