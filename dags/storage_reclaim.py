"""### Storage reclaim

Gives back the space of what was removed longer ago than the undo window (`undo_window`): snapshots that nothing needs any more leave the
tables' history, then exactly the files that only they needed are removed, and files that no snapshot ever named. The plan lists each of
them; the gate looks a second time that nothing which stays loses a file; the bytes are reported as the file system told them. Nothing can
come back: the run ends after `due`, skipped. No Spark is started. Deleted topics that cannot be brought back any more are taken as well.

* **Trigger** it with topics or a time to judge by; where it is paused, it is paused again afterwards. The DAG `preview` shows what would go.
* **A large share** (over `max_removed_fraction` of the bytes in a topic's folders), the first run after the undo window was shortened,
  and always a deleted topic, wait for a person.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DeltaDataIntervalTimetable, dag

from lifecycle_operators import PlainApplication
from lifecycle_tasks import OURS, form, gated_deletion, interval


@dag(
    schedule=DeltaDataIntervalTimetable(interval("reclaim_interval")),
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    # What an interval that was slept through would have given back, the newest does.
    catchup=False,
    # As for the message cleaner: nothing rests on this number.
    max_active_runs=1000,
    params=form(),
    doc_md=__doc__,
    tags=["message-lifecycle", "last: space"],
    default_args=OURS,
)
def storage_reclaim() -> None:
    gated_deletion("reclaim", application=PlainApplication)


storage_reclaim()
