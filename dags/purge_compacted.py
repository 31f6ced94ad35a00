"""### Purge of compacted messages

Removes whole sealed segments from the log that the compacted view covers, on topics with `cleanup_policy = "compact"`. Every purge is
planned, checked on a staged copy, published in one commit, and verified. A purge never goes past the view's horizon, or past the position
of a consumer or replica. The DAG runs after each compaction, judged by the same time, and also on the interval of compaction, because a
consumer may have moved on. If there is nothing to purge, the run ends after `due`, skipped, without starting Spark.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import AssetOrTimeSchedule, DeltaDataIntervalTimetable, dag

from lifecycle_tasks import COMPACTED, OURS, form, gated_deletion, interval


@dag(
    schedule=AssetOrTimeSchedule(timetable=DeltaDataIntervalTimetable(interval("compaction_interval")), assets=[COMPACTED]),
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    # As for the message cleaner: nothing rests on this number.
    max_active_runs=1000,
    params=form(),
    doc_md=__doc__,
    tags=["message-lifecycle", "compacted topics"],
    default_args=OURS,
)
def purge_compacted() -> None:
    gated_deletion("purge_compacted")


purge_compacted()
