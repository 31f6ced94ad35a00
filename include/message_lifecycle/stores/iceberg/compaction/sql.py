"""The reference engine: two-pass compaction by Spark SQL, for any number of keys and any input that Spark can read (CMP-1 to CMP-3).

Pass one groups keys and offsets; pass two joins the messages to the winners by sorting both, never by a broadcast, which would need
memory for every key. Writes the plan's partitions anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from message_lifecycle.model.marker import REASON_HEADER
from message_lifecycle.model.names import TopicName
from message_lifecycle.model.plan import Plan
from message_lifecycle.model.rows import ViewReason
from message_lifecycle.model.settings import Policy
from message_lifecycle.operations.compaction_fold import FoldRules, rules_of
from message_lifecycle.stores.iceberg import rule_sql
from message_lifecycle.stores.iceberg.columns import SCHEMA as TOPIC_SCHEMA
from message_lifecycle.stores.iceberg.compaction.columns import SCHEMA
from message_lifecycle.stores.iceberg.layout import COMPACTED
from message_lifecycle.stores.iceberg.session import sql_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_TOPIC_COLUMNS = [field.name for field in TOPIC_SCHEMA.fields]
_COLUMNS = [field.name for field in SCHEMA.fields]


def decided(session: SparkSession, plan: Plan, view_snapshot_id: int) -> DataFrame:
    """Each key's latest message, and every one without a key, of the plan's partitions: with `reason` why it is not in the new view
    (null: it is), its new `delete_horizon`, and whether it was in the view before (`of_view`)."""
    assert plan.view is not None
    rules = rules_of(Policy.of_values(plan.policy), as_of=plan.as_of, tombstones_until=plan.view.tombstones_until)
    rows = source(session, plan, view_snapshot_id)
    latest = latest_of(rows, rules)
    matches = (rows["partition"] == latest["of_partition"]) & (rows["key"] == latest["of_key"]) & (rows["offset"] == latest["latest"])
    winners = rows.where("key IS NOT NULL").hint("merge").join(latest.hint("merge"), matches, "leftsemi")
    return judged(winners.unionByName(rows.where("key IS NULL")), rules)


def latest_of(rows: DataFrame, rules: FoldRules) -> DataFrame:
    """Pass one: `of_partition`, `of_key` and the offset of the `latest` message of each key."""
    order = "struct(event_time IS NOT NULL, event_time, offset)" if rules.by_event_time else "struct(offset)"
    found = rows.where("key IS NOT NULL").groupBy("partition", "key").agg(_expr(f"max({order}).offset").alias("latest"))
    return found.withColumnsRenamed({"partition": "of_partition", "key": "of_key"})


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
        *(f"WHEN {rule_sql.holds(rule, as_of)} THEN '{reason}'" for reason, rule in rules.ages),
        f"WHEN key IS NULL THEN {'NULL' if rules.retain_null_key else _text('null_key')}",
        f"WHEN (deletes AND delete_horizon IS NULL) OR delete_horizon <= timestamp_micros({as_of}) THEN 'tombstoned'",
    ]
    return judged.selectExpr(*_COLUMNS, "of_view", f"CASE {' '.join(cases)} END AS reason")


def written(rows: DataFrame, rules: FoldRules) -> DataFrame:
    """What the new view holds of `decided` rows: those that stay, and memories of what went (CMP-12)."""
    kept = rows.where("reason IS NULL").select(*_COLUMNS)
    if rules.remember_until is None:
        return kept
    blank = {"value": "binary", "append_time": "timestamp", "expires_at": "timestamp", "never": "boolean"}
    gone = rows.where("reason IS NOT NULL AND key IS NOT NULL AND NOT coalesce(remembered, false)").select(*_COLUMNS)
    memories = gone.withColumns(
        {
            **{name: _expr(f"CAST(NULL AS {kind})") for name, kind in blank.items()},
            "headers": _expr("CAST(array() AS array<struct<name: string, value: binary>>)"),
            "delete_horizon": _expr(f"timestamp_micros({rules.remember_until}L)"),
            "remembered": _expr("true"),
        }
    )
    return kept.unionByName(memories)


def counts(rows: DataFrame) -> dict[ViewReason | None, int]:
    """How many `decided` messages there are by reason (None: they stay); memories are no messages."""
    found = rows.where("NOT coalesce(remembered, false)").groupBy("reason").count().collect()
    return {row["reason"]: row["count"] for row in found}


def write(rows: DataFrame, plan: Plan, branch: str, properties: dict[str, str]) -> None:
    """Put the new view of the plan's partitions on the branch, in one commit."""
    assert plan.view is not None
    rules = rules_of(Policy.of_values(plan.policy), as_of=plan.as_of, tombstones_until=plan.view.tombstones_until)
    mine = ", ".join(str(action.partition) for action in plan.on_view.compact)
    ordered = written(rows, rules).repartitionById(len(plan.on_view.compact), _slot(plan)).sortWithinPartitions("partition", "offset")
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


def _text(value: str) -> str:
    return f"'{value}'"
