"""### Erasure

Carries out a request to erase a key everywhere (`lifecycle erase --later`): from the log, its compacted view, and every snapshot that
history, branches, tags and open undos still read. The erasure is planned, rewritten next to the tables, checked, and published in one
commit for each table. Then the old files are deleted, and the tables searched again. The run knows only the request's id, not the key: the
search uses the key's keyed hash.

* **Trigger** it with the id of the request; `lifecycle erase list` shows it.
* **Approve** each topic's erasure under *Required Actions*: an erasure ends time travel to earlier states, and cannot be undone.
* **Afterwards** `lifecycle receipt show REQUEST` shows the erased rows and files, and `lifecycle receipt verify REQUEST` searches again.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import dag

from lifecycle_tasks import OURS, erasure_form, requested_deletion


@dag(
    # A person asks for it; nothing makes it due.
    schedule=None,
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    # As for the message cleaner: nothing rests on this number.
    max_active_runs=1000,
    params=erasure_form(),
    doc_md=__doc__,
    tags=["message-lifecycle", "on request"],
    default_args=OURS,
)
def erasure() -> None:
    requested_deletion("erasure")


erasure()
