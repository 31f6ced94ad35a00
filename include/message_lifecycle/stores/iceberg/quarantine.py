"""The quarantine beside a topic: rows that broke a rule, with where they stood, why they were refused, and their raw text.

Made when the first row is refused. All rows of a batch carry the same `at`, so that they go together when their age comes
(QUA-1): a file is then dropped whole.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from message_lifecycle.model.instants import Instant
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.catalog import UNDO_PROPERTY
from message_lifecycle.stores.iceberg.exactly_once import AlreadyThere, MayCommit, commit_staged, staging
from message_lifecycle.stores.iceberg.layout import CATALOG, STREAM_PROPERTY, TOPIC_PROPERTY
from message_lifecycle.stores.iceberg.session import forget_cached, java_table, sql_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KIND = "quarantine"
_COLUMNS = """
    at timestamp NOT NULL,
    batch string NOT NULL,
    file string NOT NULL,
    position bigint NOT NULL,
    code string NOT NULL,
    reason string,
    raw string
"""
_PROPERTIES: Mapping[str, str] = {
    "format-version": "3",
    "commit.retry.num-retries": "20",
    "commit.retry.min-wait-ms": "50",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
    # The age of what a file holds is all that is ever asked of it.
    "write.metadata.metrics.default": "none",
    "write.metadata.metrics.column.at": "full",
}


def quarantine(session: SparkSession, name: TopicName, refused: DataFrame, *, batch_id: str, at: Instant, may_commit: MayCommit) -> None:
    """Keep the refused rows of a batch, once: a batch that has been here changes nothing.

    `refused` has the columns file, position, code, reason, raw.
    """
    from pyspark.sql import functions as F

    _create(session, name)
    rows = refused.select(
        F.timestamp_micros(F.lit(at)).alias("at"), F.lit(batch_id).alias("batch"), "file", "position", "code", "reason", "raw"
    )
    with staging(session, name, batch_id, kind=KIND) as stage:
        if stage.found(batch_id) is not None:
            return
        # Whether a column may hold nothing is known here, not to Spark's planner.
        rows.coalesce(1).writeTo(sql_table(name, kind=KIND, branch=stage.branch)).option("check-nullability", "false").append()
        try:
            commit_staged(session, stage, stage.written(), batch_id=batch_id, properties={}, may_commit=may_commit)
        except AlreadyThere:
            return
        finally:
            forget_cached(session, name, kind=KIND)


def quarantined(session: SparkSession, name: TopicName, batch_id: str) -> dict[str, int]:
    """How many rows of the batch are in quarantine, by code."""
    from pyspark.sql import functions as F

    if not session.catalog.tableExists(sql_table(name, kind=KIND)):
        return {}
    counts = session.table(sql_table(name, kind=KIND)).where(F.col("batch") == batch_id).groupBy("code").count()
    return {row["code"]: row["count"] for row in counts.orderBy("code").collect()}


def _create(session: SparkSession, name: TopicName) -> None:
    if session.catalog.tableExists(sql_table(name, kind=KIND)):
        return
    # What its age removes can be taken back for as long as what goes from the log.
    window = java_table(session, name).properties().get(UNDO_PROPERTY)
    kept = {} if window is None else {UNDO_PROPERTY: str(window)}
    properties = {**_PROPERTIES, **kept, STREAM_PROPERTY: name.stream, TOPIC_PROPERTY: name.topic}
    listed = ", ".join(f"{_text(key)} = {_text(value)}" for key, value in properties.items())
    warehouse = session.conf.get(f"spark.sql.catalog.{CATALOG}.warehouse", None)
    # Named by a fresh uuid, so that a topic made again never meets the files of its predecessor.
    place = "" if warehouse is None else "location " + _text(f"{warehouse.rstrip('/')}/{uuid.uuid4()}")
    session.sql(f"create table if not exists {sql_table(name, kind=KIND)} ({_COLUMNS}) using iceberg {place} tblproperties ({listed})")


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
