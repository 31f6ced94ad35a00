"""### Preview

Shows what an operation would take, and takes nothing: the plan of each topic as `lifecycle plan TOPIC --dry-run` prints it, under the run's
tab *Outcomes*. No plan is recorded, so none that is open gives way, and no question to a person lapses or is asked again.

* **Trigger** it with an operation, topics, a time to judge by. It is unpaused from the start, and no schedule ever starts it.
* **What it shows** is the log as it was when the run looked. A run of the operation's own DAG plans anew.
* **It is the only dry run here**: the other DAGs refuse the word.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import dag

from lifecycle_tasks import OURS, preview_form, would_go


@dag(
    # A person asks for it; nothing makes it due.
    schedule=None,
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    # It changes nothing, so nobody has to let it run first, here where a dialog would do that by itself.
    is_paused_upon_creation=False,
    params=preview_form(),
    doc_md=__doc__,
    tags=["message-lifecycle", "look first: takes nothing"],
    default_args=OURS,
)
def preview() -> None:
    would_go()


preview()
