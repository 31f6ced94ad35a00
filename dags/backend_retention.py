"""### Retention on backends

Keeps the topics of the backends that `lifecycle.toml` configures beside the lake (JSON files, rotating files, Redis Streams) within their
limits by age, number and size. Planned, checked by Great Expectations over a data frame of what goes and what stays, published in one
step of the backend, verified. No Spark starts. Nothing beyond its limits, or no backend configured: the run ends after `due`, skipped.

* **Trigger** it with topics or a time to judge by; where it is paused, it is paused again afterwards. The DAG `preview` shows what would go.
* **Consumers** keep what they have not read; on Redis Streams consumer groups do, too, with all that is pending in them.
* **Approve** large or newly enabled removals under *Required Actions*; the other topics do not wait.
* Topics of tables are the message cleaner's.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DeltaDataIntervalTimetable, dag

from lifecycle_operators import PlainApplication
from lifecycle_tasks import OURS, form, gated_deletion, interval


@dag(
    schedule=DeltaDataIntervalTimetable(interval()),
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    # Limits hold at a time, not for an interval: those that were slept through are in the newest.
    catchup=False,
    # As for the message cleaner: nothing rests on this number.
    max_active_runs=1000,
    params=form(),
    doc_md=__doc__,
    tags=["message-lifecycle", "topics in backends"],
    default_args=OURS,
)
def backend_retention() -> None:
    gated_deletion("retention", application=PlainApplication)


backend_retention()
