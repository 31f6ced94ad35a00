"""### Message cleaner

Removes due messages from every topic: whole segments by `message_expiry`, single messages by their own TTL or `max_age_seconds`, with
markers for keys that are left empty. Every removal is planned, checked on a staged copy, published in one commit, and verified. If no
message is due, the run ends after `due`, skipped, without starting Spark.

* **Copies** into sources and mirrors come first; an origin keeps messages that they have not copied.
* **Trigger** it with topics or a time to judge by. If the DAG is paused, it is paused again afterwards, also after a backfill. A run needs
  a logical date or the parameter `as_of`. The DAG `preview` shows what would be removed.
* **Backfill** plans each interval at its own end; an interval that was published before reports the first result. For many days, use
  `message_cleaner_by_day`: it makes fewer runs, judged at the same ends.
* **Approve** large or newly enabled removals under *Required Actions*; the other topics do not wait.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DeltaDataIntervalTimetable, dag

from lifecycle_tasks import OURS, form, gated_deletion, interval


@dag(
    schedule=DeltaDataIntervalTimetable(interval()),
    # Long past: a manual run with a logical date before the start date would be a success without a single task.
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    # The ledger knows the time of the last work, so missed intervals need no runs of their own.
    catchup=False,
    # A run that waits for a person stays open for as long as `approval_ttl`, and later runs must pass it. No guarantee depends on this
    # number: a topic has at most one open plan, the pool bounds the load, and the commit is fenced.
    max_active_runs=1000,
    params=form(),
    doc_md=__doc__,
    tags=["message-lifecycle", "every topic of messages"],
    default_args=OURS,
)
def message_cleaner() -> None:
    gated_deletion("message_cleaner", copies_and_marks=True)


message_cleaner()
