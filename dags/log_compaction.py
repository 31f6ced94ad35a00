"""### Log compaction

Keeps a view of every key's latest message next to each topic whose `cleanup_policy` contains `compact`. The view is planned, written next
to the old view, checked, published in one commit with its horizons, and verified. The log itself does not change. If the log has nothing
new, the run ends after `due`, skipped, without starting Spark.

* **Trigger** it with topics (their settings then need not ask for compaction) or a time to judge by. If the DAG is paused, it is paused
  again afterwards. The DAG `preview` shows what would be removed.
* **Order**: the message cleaner keeps messages that are not compacted yet. So messages are always compacted first and expire later,
  whichever DAG runs first.
* **Afterwards** `purge_compacted` removes the covered messages from the log, if the topic's settings say so. The asset `compacted` starts
  it.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DeltaDataIntervalTimetable, dag

from lifecycle_tasks import COMPACTED, OURS, form, gated_deletion, interval


@dag(
    schedule=DeltaDataIntervalTimetable(interval("compaction_interval")),
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    # The newest interval's view covers all missed intervals.
    catchup=False,
    # No guarantee depends on this number, as for the message cleaner.
    max_active_runs=1000,
    params=form(),
    doc_md=__doc__,
    tags=["message-lifecycle", "compacted topics"],
    default_args=OURS,
)
def log_compaction() -> None:
    gated_deletion("compaction", outlets=[COMPACTED])


log_compaction()
