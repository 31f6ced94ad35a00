"""### Marker generation

Makes the limit markers still owed: for keys whose last message another writer has removed since the last sweep, on every topic that
has a `subject_delete_marker_ttl`. Planned, checked on a staged copy, published in one commit, verified. What the message cleaner or a
person's request removes has its markers already. Nothing owed: the run ends after `due`, skipped, without starting Spark.

Messages and keys are removed on request by `lifecycle message delete` and `lifecycle key purge`, which take the same way.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DeltaDataIntervalTimetable, dag

from lifecycle_tasks import OURS, form, gated_deletion, interval


@dag(
    schedule=DeltaDataIntervalTimetable(interval()),
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    # As for the message cleaner: nothing rests on this number.
    max_active_runs=1000,
    params=form(),
    doc_md=__doc__,
    tags=["message-lifecycle", "topics with markers"],
    default_args=OURS,
)
def marker_generation() -> None:
    gated_deletion("marker_generation")


marker_generation()
