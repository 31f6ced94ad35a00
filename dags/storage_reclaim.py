"""### Storage reclaim

Frees the space of rows that were removed before the undo window (`undo_window`). First, snapshots that nothing needs any more leave the
tables' history. Then the run removes exactly the files that only these snapshots needed, and files that no snapshot ever named. The plan
lists every file, the gate checks again that no remaining snapshot loses a file, and the outcome reports the bytes that the file system
counted. If no space can be freed, the run ends after `due`, skipped. No Spark is started. The run also removes deleted topics that cannot
be brought back any more.

* **Trigger** it with topics or a time to judge by. If the DAG is paused, it is paused again afterwards. The DAG `preview` shows what would
  be removed.
* **A person must approve** a large share (over `max_removed_fraction` of the bytes in a topic's folders), the first run after the undo
  window was shortened, and every deleted topic.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DeltaDataIntervalTimetable, dag

from lifecycle_operators import PlainApplication
from lifecycle_tasks import OURS, form, gated_deletion, interval


@dag(
    schedule=DeltaDataIntervalTimetable(interval("reclaim_interval")),
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    # The newest interval frees the space of all missed intervals.
    catchup=False,
    # No guarantee depends on this number, as for the message cleaner.
    max_active_runs=1000,
    params=form(),
    doc_md=__doc__,
    tags=["message-lifecycle", "last: space"],
    default_args=OURS,
)
def storage_reclaim() -> None:
    gated_deletion("reclaim", application=PlainApplication)


storage_reclaim()
