"""The message cleaner's backfill by days: where its windows end, and that no schedule makes it remove (P6)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from lifecycle_local.layout import project_root
from message_lifecycle.app.config import interval_seconds
from message_lifecycle.app.windows import Window, resolve
from message_lifecycle.model.settings import BY_NAME
from tests.dags.conftest import parse
from tests.dags.test_run import Stage, run, stage

__all__ = ["stage"]
pytestmark = pytest.mark.airflow


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Both DAGs with the shipped configuration, whatever the machine's is."""
    monkeypatch.setenv("LIFECYCLE_CONFIG", str(project_root() / "include" / "lifecycle.toml"))
    return {name: parse(name) for name in ("message_cleaner", "message_cleaner_by_day")}


def windows(dag: Any, begin: datetime, end: datetime) -> list[Window]:
    """Of a backfill of that time, as Airflow's own timetable makes them."""
    from airflow.serialization.serialized_objects import DagSerialization

    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    found = [info.data_interval for info in stored.iter_dagrun_infos_between(begin, end)]
    return [resolve(run_type="backfill", interval_start=one.start, interval_end=one.end) for one in found]


def test_the_shipped_interval_is_ten_minutes_and_the_one_built_in_is_iggys(parsed: dict[str, Any]) -> None:
    assert interval_seconds("interval") == 600
    assert BY_NAME["interval"].default == 60
    day = datetime(2026, 11, 20, tzinfo=UTC)
    assert len(windows(parsed["message_cleaner"], day, day + timedelta(hours=23, minutes=59))) == 144


def test_a_window_ends_where_the_last_of_its_intervals_ends(parsed: dict[str, Any]) -> None:
    """CLK-1: the end is all that is judged by."""
    begin = datetime(2026, 11, 20, tzinfo=UTC)
    until = begin + timedelta(days=2, hours=23, minutes=59)
    narrow = windows(parsed["message_cleaner"], begin, until)
    wide = windows(parsed["message_cleaner_by_day"], begin, until)
    assert (len(wide), len(narrow)) == (3, 432)
    assert [window.as_of for window in wide] == [narrow[last].as_of for last in (143, 287, 431)]


def test_it_does_what_the_cleaner_does(parsed: dict[str, Any]) -> None:
    by_day, cleaner = parsed["message_cleaner_by_day"], parsed["message_cleaner"]
    assert {task.task_id: task.downstream_task_ids for task in by_day.tasks} == {
        task.task_id: task.downstream_task_ids for task in cleaner.tasks
    }
    assert by_day.get_task("due").op_args[0] == cleaner.get_task("due").op_args[0] == "message_cleaner"


def test_a_run_by_hand_goes_the_whole_way(stage: Stage) -> None:
    state, states = run({"as_of": "2026-01-01T06:00:00Z"}, dag_id="message_cleaner_by_day")
    assert (state, states["publish"], states["verify"]) == ("success", "success", "success")


@pytest.mark.parametrize(("dag_id", "skipped"), [("message_cleaner_by_day", True), ("message_cleaner", False)])
def test_a_run_of_its_own_schedule_is_skipped(parsed: dict[str, Any], stage: Stage, dag_id: str, skipped: bool) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    dag = parsed[dag_id]
    end = datetime(2026, 1, 1, tzinfo=UTC)
    scheduled = SimpleNamespace(conf=None, run_type="scheduled", data_interval_start=end - timedelta(days=1), data_interval_end=end)
    for task_id in ("copies", "due"):
        task = dag.get_task(task_id)
        context = {"dag_run": scheduled, "params": {"topics": [], "as_of": None}, "dag": dag, "run_id": "r", "triggering_asset_events": {}}
        stage.topics = []
        with pytest.raises(AirflowSkipException, match="for backfills" if skipped else "nothing (is due|new)|anything new"):
            task.python_callable(*task.op_args, **task.op_kwargs, **context)
    assert bool(stage.calls) is not skipped
