"""### Snapshots of documents, and the purge of synchronised changes

Makes the due snapshots on every topic of documents. If `snapshot_with_purging_changes` is set, the run also removes changes that every
client has and a snapshot covers. The snapshots are planned, folded and staged next to the tables, and proved: each snapshot with the
remaining changes must give the document again. There are two commits: snapshots and epochs first, then the purge, but only if the snapshots
read back as they were staged. A document that cannot be folded keeps everything; the run names it and goes on with the others. If nothing
is due, the run ends after `due`, skipped, without starting Spark.

* **Trigger** it with topics or a time to judge by. If the DAG is paused, it is paused again afterwards. The DAG `preview` shows what would
  be removed.
* **A slow client** keeps the changes that it needs. A client that is silent for `client_deactivate_after` keeps nothing any more; the run
  names it.
* **Approve** removals by a tightened setting, the first time, under *Required Actions*; the other topics do not wait.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DeltaDataIntervalTimetable, dag

from lifecycle_tasks import OURS, form, gated_deletion, interval


@dag(
    schedule=DeltaDataIntervalTimetable(interval("snapshots_interval")),
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    # The newest interval's snapshots cover all missed intervals.
    catchup=False,
    # No guarantee depends on this number, as for the message cleaner.
    max_active_runs=1000,
    params=form(),
    doc_md=__doc__,
    tags=["message-lifecycle", "topics of documents"],
    default_args=OURS,
)
def snapshot_with_purge() -> None:
    gated_deletion("snapshot_with_purge")


snapshot_with_purge()
