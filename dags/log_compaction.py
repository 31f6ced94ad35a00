"""### Log compaction

Keeps, beside each topic whose `cleanup_policy` names `compact`, a view of every key's latest message: planned, written beside the
old view, checked, published in one commit with its horizons, verified. The log itself stays as it is. Nothing new: the run ends
after `due`, skipped, without starting Spark.

* **Trigger** it with topics (which then need not ask for it) or a time to judge by; where it is paused, it is paused again afterwards. The DAG `preview`
  shows what would go.
* **Order**: what is not compacted yet the message cleaner keeps, so it is compact first, then expire, whichever runs when.
* **After it** `purge_compacted` takes from the log what the view covers, where the topic says so; the asset `compacted` starts it.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DeltaDataIntervalTimetable, dag

from lifecycle_tasks import COMPACTED, OURS, form, gated_deletion, interval


@dag(
    schedule=DeltaDataIntervalTimetable(interval("compaction_interval")),
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    # A view is a matter of the newest interval; those that were slept through are in it.
    catchup=False,
    # As for the message cleaner: nothing rests on this number.
    max_active_runs=1000,
    params=form(),
    doc_md=__doc__,
    tags=["message-lifecycle", "compacted topics"],
    default_args=OURS,
)
def log_compaction() -> None:
    gated_deletion("compaction", outlets=[COMPACTED])


log_compaction()
