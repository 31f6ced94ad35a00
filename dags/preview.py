"""### Preview

Shows what an operation would remove, and removes nothing. The run's tab *Outcomes* shows the plan of each topic, as
`lifecycle plan TOPIC --dry-run` prints it. No plan is recorded, so no open plan gives way, and no question to a person lapses or is asked
again.

* **Trigger** it with an operation, topics, and a time to judge by. The DAG is unpaused from the start, and has no schedule.
* **The preview shows** the log at the time of the run. A run of the operation's own DAG makes a new plan.
* **Only this DAG makes dry runs**: the other DAGs refuse the parameter `dry_run`.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import dag

from lifecycle_tasks import OURS, preview_form, would_go


@dag(
    # A preview runs only when a person triggers it.
    schedule=None,
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    # A preview changes nothing, so the DAG needs no unpausing by a person. A dialog would unpause it anyway.
    is_paused_upon_creation=False,
    params=preview_form(),
    doc_md=__doc__,
    tags=["message-lifecycle", "look first: takes nothing"],
    default_args=OURS,
)
def preview() -> None:
    would_go()


preview()
