"""Whose doing it was that a DAG is unpaused: by Airflow's audit log, as dialogs, the switch, programs and commands write it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.airflow

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
DAG = "message_cleaner"
HALF, LATER = 0.5, 100.0

# Seconds before NOW, the entry's event, by whom, what else it says.
Entry = tuple[float, str, str, dict[str, Any]]


def paused(ago: float, is_paused: bool, by: str = "ada", **more: Any) -> Entry:
    return ago, "patch_dag", by, {"dag_id": DAG, "is_paused": is_paused, "method": "PATCH", **more}


def run(ago: float, by: str = "ada", **conf: Any) -> Entry:
    return ago, "trigger_dag_run", by, {"dag_id": DAG, "conf": conf, "method": "POST"}


def backfill(ago: float, by: str = "ada", **conf: Any) -> Entry:
    return ago, "create_backfill", by, {"dag_id": DAG, "dag_run_conf": conf, "method": "POST"}


def command(ago: float, verb: str, dag_id: str = DAG, *options: str) -> Entry:
    return ago, f"cli_dag_{verb}", "root", {"dag_id": dag_id, "full_command": ["airflow", "dags", verb, dag_id, *options]}


def every(ago: float, is_paused: bool, pattern: str) -> Entry:
    return ago, "patch_dags", "ada", {"is_paused": is_paused, "dag_id_pattern": pattern}


CASES: dict[str, tuple[list[Entry], bool | None]] = {
    "nobody has touched it": ([], True),
    "a run of a DAG that was always on": ([run(LATER)], True),
    "the switch": ([paused(LATER, False)], True),
    "the switch, a moment ago": ([paused(HALF, False)], None),
    "the switch, and a run long after": ([paused(LATER, False), run(LATER - 10)], True),
    "the switch, and somebody else's run at once": ([paused(LATER, False), run(LATER, by="bob")], True),
    "a run's dialog": ([paused(LATER, False), run(LATER - HALF)], False),
    "a run's dialog, whose run came first": ([run(LATER), paused(LATER - HALF, False)], False),
    "a run's dialog, a moment ago": ([paused(HALF, False), run(HALF)], False),
    "a backfill's dialog": ([paused(LATER, False), backfill(LATER)], False),
    "a dialog that keeps the schedule": ([paused(LATER, False), run(LATER, keep_schedule_running=True)], True),
    "a backfill's dialog that keeps it": ([paused(LATER, False), backfill(LATER, keep_schedule_running=True)], True),
    "a later run that keeps it": ([paused(LATER, False), run(LATER), run(50, keep_schedule_running=True)], True),
    "it was kept, and paused since": ([paused(LATER, False), run(LATER, keep_schedule_running=True), paused(50, True)], False),
    "the switch after a dialog": ([paused(LATER, False), run(LATER), paused(50, True), paused(40, False)], True),
    "the switch on, and the dialog of an old page": ([paused(LATER, False), paused(50, False), run(50)], True),
    "two dialogs": (
        [paused(LATER, False), run(LATER), (60, "paused", "message lifecycle", {"dag_id": DAG}), paused(50, False), run(50)],
        False,
    ),
    "the switch, long ago paused by Airflow, and a dialog": (
        [paused(LATER, False), (60, "paused", "scheduler", {"dag_id": DAG, "extra": "[('is_paused', True)]"}), paused(50, False), run(50)],
        False,
    ),
    "the command": ([command(LATER, "unpause")], True),
    "the command for another DAG": ([command(LATER, "unpause", f"{DAG}_by_day"), paused(50, False), run(50)], False),
    "the command by a pattern": ([command(LATER, "unpause", "message.*", "--treat-dag-id-as-regex"), paused(50, False), run(50)], True),
    "the command has paused it": ([command(LATER, "unpause"), command(60, "pause"), paused(50, False), run(50)], False),
    "all DAGs at once": ([every(LATER, False, "~"), paused(50, False), run(50)], True),
    "other DAGs at once": ([every(LATER, False, "%other%"), paused(50, False), run(50)], False),
}


@pytest.fixture
def session(database: None) -> Iterator[Any]:
    from airflow.models.log import Log
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as opened:
        opened.execute(delete(Log))
        yield opened
        opened.rollback()


def keep(session: Any, entries: list[Entry]) -> None:
    from airflow.models.log import Log

    for ago, event, by, more in entries:
        extra = more.get("extra") or json.dumps({name: value for name, value in more.items() if name != "dag_id"})
        row = Log(event=event, owner=by, extra=extra, dag_id=more.get("dag_id"))
        row.dttm = NOW - timedelta(seconds=ago)
        session.add(row)
    session.flush()


@pytest.mark.parametrize("case", CASES)
def test_a_schedule_is_on_where_a_person_wants_it(case: str, session: Any, plugins: None) -> None:
    from lifecycle_schedules import _events, is_schedule_on

    entries, on = CASES[case]
    keep(session, entries)
    assert is_schedule_on(_events(session, DAG), NOW) is on


def context(run_type: str, **conf: Any) -> dict[str, Any]:
    return {"dag_run": SimpleNamespace(run_type=run_type, conf=conf)}


@pytest.mark.parametrize("run_type", ["scheduled", "asset_triggered"])
def test_a_run_that_its_schedule_should_not_have_started_is_skipped(run_type: str, plugins: None) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    from lifecycle_schedules import SCHEDULE_OFF, WHY_OFF
    from lifecycle_tasks import _only_where_wanted

    with pytest.raises(AirflowSkipException, match="unpaused this DAG for a run by hand alone"):
        _only_where_wanted(context(run_type, **{SCHEDULE_OFF: WHY_OFF}))
    _only_where_wanted(context(run_type))


@pytest.mark.parametrize("run_type", ["manual", "backfill", "operator_triggered", "asset_materialization"])
def test_no_mark_stops_a_run_that_somebody_asked_for(run_type: str, plugins: None) -> None:
    from lifecycle_schedules import SCHEDULE_OFF
    from lifecycle_tasks import _only_where_wanted

    _only_where_wanted(context(run_type, **{SCHEDULE_OFF: "why"}))
