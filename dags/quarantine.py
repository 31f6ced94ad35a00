"""### Quarantine

Removes refused rows older than `quarantine_max_age` (30 days) from the quarantine next to each topic of a table, in whole files. Rows
that came in again by a replay do not wait for that age. Every removal is planned, checked on a staged copy, published in one commit, and
verified. A legal hold on a topic keeps its quarantine. If no row is due, the run ends after `due`, skipped, without starting Spark.
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
    tags=["message-lifecycle", "refused rows"],
    default_args=OURS,
)
def quarantine() -> None:
    gated_deletion("quarantine")


quarantine()
