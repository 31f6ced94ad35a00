"""### Snapshots of documents, and the purge of synchronised changes

On every topic of documents: makes the snapshots that have come due, and where `snapshot_with_purging_changes` is set, removes the
changes that every client has and a snapshot covers. Planned, folded and staged beside the tables, proved (each snapshot and what is
left after it must give the document again), published as two commits: snapshots and epochs first, and only when they are read back as
they were staged, the purge. A document that cannot be folded keeps everything, is named, and stops no other. Nothing due: the run ends
after `due`, skipped, without starting Spark.

* **Trigger** it with topics or a time to judge by; where it is paused, it is paused again afterwards. The DAG `preview` shows what would go.
* **A client that lags** keeps what it needs; one that is silent for `client_deactivate_after` does so no longer, and is named.
* **Approve** what a tightened setting removes for the first time under *Required Actions*; the other topics do not wait.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DeltaDataIntervalTimetable, dag

from lifecycle_tasks import OURS, form, gated_deletion, interval


@dag(
    schedule=DeltaDataIntervalTimetable(interval("snapshots_interval")),
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    # A snapshot is a matter of the newest interval; those that were slept through are in it.
    catchup=False,
    # As for the message cleaner: nothing rests on this number.
    max_active_runs=1000,
    params=form(),
    doc_md=__doc__,
    tags=["message-lifecycle", "topics of documents"],
    default_args=OURS,
)
def snapshot_with_purge() -> None:
    gated_deletion("snapshot_with_purge")


snapshot_with_purge()
