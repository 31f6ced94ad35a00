"""### Marker generation

Makes missing limit markers on every topic with a `subject_delete_marker_ttl`. A marker is missing if another writer has removed the last
message of a key since the last sweep. The markers are planned, checked on a staged copy, published in one commit, and verified. Removals by
the message cleaner or by a person's request make their own markers. If no marker is missing, the run ends after `due`, skipped, without
starting Spark.

`lifecycle message delete` and `lifecycle key purge` remove messages and keys on request, with the same steps.
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
