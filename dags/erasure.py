"""### Erasure

Carries out a request that a key be gone everywhere (`lifecycle erase --later`): from the log, its compacted view, and all that history,
branches, tags and open undos still read. Planned, written again beside the tables, checked, published in one commit a table, the files
deleted, searched once more. The run knows the request's id and nothing of the key, which is found again by its keyed hash.

* **Trigger** it with the id of the request; `lifecycle erase list` shows it.
* **Approve** each topic's erasure under *Required Actions*: it ends time travel to before it, and cannot be undone.
* **After it** `lifecycle receipt show REQUEST` tells what went, and `lifecycle receipt verify REQUEST` looks again.
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
