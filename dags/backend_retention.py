"""### Retention on backends

Keeps topics in backends (JSON files, rotating files, Redis Streams) within their limits by age, number and size. `lifecycle.toml`
configures the backends next to the lake. Every removal is planned, checked by Great Expectations over a data frame of removed and remaining
messages, published in one step of the backend, and verified. No Spark starts. If no topic is beyond its limits, or no backend is
configured, the run ends after `due`, skipped.

* **Trigger** it with topics or a time to judge by. If the DAG is paused, it is paused again afterwards. The DAG `preview` shows what would
  be removed.
* **Consumers** keep unread messages. On Redis Streams, consumer groups keep unread and pending messages, too.
* **Approve** large or newly enabled removals under *Required Actions*; the other topics do not wait.
* The message cleaner handles topics of tables.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DeltaDataIntervalTimetable, dag

from lifecycle_operators import PlainApplication
from lifecycle_tasks import OURS, form, gated_deletion, interval


@dag(
    schedule=DeltaDataIntervalTimetable(interval()),
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    # Limits hold at a time, not for an interval, so the newest interval covers all missed intervals.
    catchup=False,
    # No guarantee depends on this number, as for the message cleaner.
    max_active_runs=1000,
    params=form(),
    doc_md=__doc__,
    tags=["message-lifecycle", "topics in backends"],
    default_args=OURS,
)
def backend_retention() -> None:
    gated_deletion("retention", application=PlainApplication)


backend_retention()
