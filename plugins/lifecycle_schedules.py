"""Keep the schedule of a DAG off that a dialog unpaused for one run, and pause the DAG again when its runs have ended.

Airflow's dialogs of a run and of a backfill have *Unpause on trigger* ticked, and no setting changes that. Airflow starts tasks only of
unpaused DAGs, so the DAG must stay unpaused during the run. Airflow's audit log shows how a DAG was unpaused: a dialog sends the change and
the run at the same moment, as the same user. A person at the switch does not.

Tasks cannot read the audit log, but the scheduler and the api-server can, and they call this listener. The listener marks each scheduled
run of such a DAG in the run's configuration, and the run's first task then skips the run.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.log import Log
    from sqlalchemy.orm import Session

TAG = "message-lifecycle"
KEEP_RUNNING = "keep_schedule_running"
"""The field of a run's form that keeps an unpaused DAG unpaused."""
SCHEDULE_OFF = "schedule_off"
"""The key in the configuration of a run that its schedule should not have started. The value is the reason, for a person."""
WHY_OFF = (
    "A dialog unpaused this DAG for a run by hand alone: its schedule does nothing, and the DAG is paused again when its runs have ended."
)
BY_ITSELF = ("scheduled", "asset_triggered")
TOGETHER = timedelta(seconds=2)
"""A dialog sends its two requests at once, in either order. A person needs longer from the switch through a run's dialog."""
_CHANGES_READ = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of the audit log. `keeps`: the entry is a run whose form keeps the schedule running."""

    at: datetime
    by: str | None
    what: Literal["paused", "unpaused", "run"]
    keeps: bool = False


def is_schedule_on(events: Sequence[Event], now: datetime) -> bool | None:
    """Return True if a person wants the schedule of an unpaused DAG to run; None: not known yet.

    A dialog's unpausing says nothing, so the change before decides. If only dialogs have ever unpaused a DAG, it was created paused.

    Args:
        events: Newest first.
        now: The present time.
    """
    runs = [event for event in events if event.what == "run"]
    changes = [event for event in events if event.what != "run" or event.keeps]
    for change in changes:
        if change.what != "unpaused":
            return change.keeps
        if not any(run.by == change.by and abs(run.at - change.at) <= TOGETHER for run in runs):
            return None if now - change.at <= TOGETHER else True
    return not changes


@hookimpl
def on_dag_run_running(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001  # Airflow's own signature
    """Mark a run that the schedule should not have started. Leave the run in the queue while that is not known."""
    from airflow.utils.state import DagRunState

    session = _session_of(dag_run)
    if session is None or str(getattr(dag_run.run_type, "value", dag_run.run_type)) not in BY_ITSELF:
        return
    on = True if dag_run.clear_number else is_schedule_on(_events(session, dag_run.dag_id), datetime.now(UTC))
    conf = {name: value for name, value in (dag_run.conf or {}).items() if name != SCHEDULE_OFF}
    if on is None:
        dag_run.set_state(DagRunState.QUEUED)
    elif on:
        dag_run.conf = conf
    else:
        dag_run.conf, dag_run.note = {**conf, SCHEDULE_OFF: WHY_OFF}, WHY_OFF


@hookimpl
def on_dag_run_success(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001  # as above
    _pause_again(dag_run)


@hookimpl
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001  # as above
    _pause_again(dag_run)


def _pause_again(dag_run: DagRun) -> None:
    """Pause the DAG if nobody wants its schedule, and no other run of it is open."""
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.models.log import Log
    from sqlalchemy import select, update

    session, dag_id = _session_of(dag_run), dag_run.dag_id
    if session is None or is_schedule_on(_events(session, dag_id), datetime.now(UTC)) is not False:
        return
    others = select(DagRun.id).where(DagRun.dag_id == dag_id, DagRun.id != dag_run.id, DagRun.state.in_(("queued", "running"))).limit(1)
    if session.scalar(others) is not None or session.scalar(select(DagModel.is_paused).where(DagModel.dag_id == dag_id)):
        return
    pausing = update(DagModel).where(DagModel.dag_id == dag_id).values(is_paused=True).execution_options(synchronize_session="fetch")
    session.execute(pausing)
    extra = json.dumps({"is_paused": True, "why": WHY_OFF})
    session.add(Log(event="paused", dag_id=dag_id, owner="message lifecycle", owner_display_name="Message lifecycle", extra=extra))


def _session_of(dag_run: DagRun) -> Session | None:
    """Return the database session that holds the run, if it is a run of one of our DAGs with a schedule. Otherwise None."""
    from airflow.models.dag import DagModel, DagTag
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        return None
    ours = select(DagTag.dag_id).where(DagTag.dag_id == dag_run.dag_id, DagTag.name == TAG)
    scheduled = select(DagModel.timetable_summary).where(DagModel.dag_id.in_(ours))
    return session if session.scalar(scheduled) not in (None, "None") else None


def _events(session: Session, dag_id: str) -> list[Event]:
    """Return the changes and runs of the DAG from the audit log, newest first."""
    from airflow.models.log import Log
    from sqlalchemy import or_, select

    of_it = or_(Log.dag_id == dag_id, Log.event.in_(("patch_dags", "cli_dag_pause", "cli_dag_unpause")))
    changes = select(Log).where(of_it, Log.event.in_(("patch_dag", "patch_dags", "paused", "cli_dag_pause", "cli_dag_unpause")))
    found = [event for row in session.scalars(changes.order_by(Log.dttm.desc()).limit(_CHANGES_READ)) for event in _change(row, dag_id)]
    if not found:
        return []
    runs = select(Log).where(Log.dag_id == dag_id, Log.event.in_(("trigger_dag_run", "create_backfill")))
    since = runs.where(Log.dttm >= found[-1].at - TOGETHER)
    found += [Event(at=row.dttm, by=row.owner, what="run", keeps=_keeps(row)) for row in session.scalars(since)]
    return sorted(found, key=lambda event: event.at, reverse=True)


def _change(row: Log, dag_id: str) -> Iterator[Event]:
    extra = _extra(row)
    match row.event:
        case "paused":
            paused: object = True
        case "cli_dag_pause" | "cli_dag_unpause":
            by_pattern = "--treat-dag-id-as-regex" in extra.get("full_command", "")
            if not (re.search(row.dag_id or "", dag_id) if by_pattern else row.dag_id == dag_id):
                return
            paused = row.event == "cli_dag_pause"
        case _:
            pattern = str(extra.get("dag_id_pattern") or "").strip("%~")
            if row.event == "patch_dags" and pattern not in dag_id:
                return
            paused = extra.get("is_paused")
    if isinstance(paused, bool):
        yield Event(at=row.dttm, by=row.owner, what="paused" if paused else "unpaused")


def _keeps(row: Log) -> bool:
    extra = _extra(row)
    conf = extra.get("conf" if row.event == "trigger_dag_run" else "dag_run_conf")
    return isinstance(conf, dict) and conf.get(KEEP_RUNNING) is True


def _extra(row: Log) -> dict[str, Any]:
    try:
        extra = json.loads(row.extra or "{}")
    except ValueError:
        return {}
    return extra if isinstance(extra, dict) else {}


class LifecycleSchedules(AirflowPlugin):
    """Registers this module as a listener."""

    name = "message_lifecycle_schedules"
    listeners = [sys.modules[__name__]]  # noqa: RUF012 - Airflow reads this attribute of the class
