"""### Message cleaner, a day at a time

Only for backfills: the message cleaner's work with one run for about a day (a whole number of the cleaner's intervals), instead of one run
for each interval. A run judges at its day's end, as the last interval of the day would. Rule P6 in docs/rules.md lists the differences.

* **Backfill** it from one day to another; an end that was published before, by either DAG, reports the first result.
* **Its schedule** does nothing: its scheduled runs are skipped. The message cleaner may stay paused.
* **Approve** large removals under *Required Actions*: a day is more than an interval, so a person may be asked more often. The DAG
  `preview` shows what would go at a given time.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DeltaDataIntervalTimetable, dag

from lifecycle_tasks import OURS, about_a_day, form, gated_deletion


@dag(
    # Without a schedule Airflow would not backfill it.
    schedule=DeltaDataIntervalTimetable(about_a_day()),
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    # No guarantee depends on this number, as for the message cleaner.
    max_active_runs=1000,
    params=form(),
    doc_md=__doc__,
    tags=["message-lifecycle", "past days"],
    default_args=OURS,
)
def message_cleaner_by_day() -> None:
    gated_deletion("message_cleaner", copies_and_marks=True, by_hand=True)


message_cleaner_by_day()
