"""The DAG as Airflow reads it: structure, form, cost of parsing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.dags.conftest import ROOT, settings

pytestmark = pytest.mark.airflow

DAG_FILES = sorted((ROOT / "dags").glob("*.py"))
SPARK_TASKS = {"topic_copy", "message_cleaner", "marker_generation", "quality_gate", "publish", "approval.publish"}
EDGES = {
    "copies": {"topic_copy"},
    "topic_copy": {"due", "copied"},
    "copied": set(),
    "due": {"message_cleaner", "verify", "waiting"},
    "message_cleaner": {"marker_generation", "quality_gate"},
    "marker_generation": {"quality_gate"},
    "quality_gate": {"publish"},
    "publish": {"verify", "waiting"},
    "verify": set(),
    "waiting": {"approval.ask", "approval.record", "approval.publish", "approval.verify"},
    "approval.ask": {"approval.record"},
    "approval.record": {"approval.publish"},
    "approval.publish": {"approval.verify"},
    "approval.verify": set(),
}


@pytest.fixture(scope="module")
def dag(bag: Any) -> Any:
    return bag.dags["message_cleaner"]


def test_every_file_is_imported_and_holds_one_dag_of_its_name(bag: Any) -> None:
    assert bag.import_errors == {}
    assert sorted(bag.dags) == [path.stem for path in DAG_FILES]


def test_each_dag_is_ours_and_its_tag_says_for_what_it_is_without_a_number(bag: Any) -> None:
    assert {task.owner for one in bag.dags.values() for task in one.tasks} == {"message lifecycle"}
    told = {name: (set(one.tags) - {"message-lifecycle"}).pop() for name, one in bag.dags.items()}
    assert all(not any(letter.isdigit() for letter in tag) for tag in told.values())  # beside a tag it would look like a count
    assert (told["preview"], told["message_cleaner"]) == ("look first: takes nothing", "every topic of messages")


@pytest.mark.parametrize("path", DAG_FILES, ids=lambda path: path.stem)
def test_a_dag_file_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 60


def test_the_way_from_due_to_verified(dag: Any) -> None:
    assert {task.task_id: set(task.downstream_task_ids) for task in dag.tasks} == EDGES


def test_what_writes_runs_once_in_the_pool_and_what_reads_may_run_again(dag: Any) -> None:
    for task in dag.tasks:
        if task.task_id in SPARK_TASKS:
            assert (task.retries, task.pool, task._conn_id) == (0, "lifecycle", "spark_default")
            assert Path(task.application).is_file()
        elif task.task_id == "approval.ask":
            assert task.retries == 2, "Airflow may fail a task that was answered at once; asking again harms nobody"
        else:
            assert (task.retries, task.pool) == (2, "default_pool")


def test_every_task_ends_some_time(dag: Any) -> None:
    # The question has the topic's own approval_ttl, and asking takes no time of execution.
    assert {task.task_id for task in dag.tasks if task.execution_timeout is None} == {"approval.ask"}


def test_who_runs_after_what(dag: Any) -> None:
    rules = {task.task_id: str(task.trigger_rule.value) for task in dag.tasks if task.trigger_rule.value != "all_success"}
    assert rules == {
        "due": "all_done",
        "verify": "all_done_min_one_success",
        "waiting": "all_done_min_one_success",
        "quality_gate": "none_failed_min_one_success",
        "approval.verify": "none_failed",
    }


def test_a_person_is_asked_without_a_default_answer(dag: Any) -> None:
    ask = dag.get_task("approval.ask")
    assert ask.options == ["Approve", "Reject"], "these two are what the UI shows as an approval"
    assert ask.defaults is None
    assert list(ask.params) == ["text"]


def test_intervals_are_explicit_and_long_past(dag: Any) -> None:
    assert type(dag.timetable).__name__ == "DeltaDataIntervalTimetable"
    assert dag.start_date.year == 2000
    assert not dag.catchup
    # A run that waits for a person must not hold up the next ones.
    assert dag.max_active_runs >= 100


def test_the_interval_is_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugins: None) -> None:
    import lifecycle_tasks

    (tmp_path / "lifecycle.toml").write_text("[message_cleaner]\ninterval = 7\n")
    monkeypatch.setenv("LIFECYCLE_CONFIG", str(tmp_path / "lifecycle.toml"))
    assert lifecycle_tasks.interval() == timedelta(seconds=7)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("topics", [[], ["a/b"], ["demo/flights", "x"]], ["a/b", [1], [""], None]),
        ("as_of", [None, "2026-11-21T00:00:00Z"], [5, True, ["2026-11-21"]]),
    ],
)
def test_the_form_takes_values_of_its_kind(dag: Any, name: str, good: list[object], bad: list[object]) -> None:
    from airflow.sdk.exceptions import ParamValidationError

    param = dag.params.get_param(name)
    for value in good:
        assert param.resolve(value) == value
    for value in bad:
        with pytest.raises(ParamValidationError):
            param.resolve(value)


def test_the_form_is_filled_with_what_a_scheduled_run_does(plugins: None) -> None:
    from lifecycle_tasks import form

    assert {name: param.value for name, param in form().items()} == {"topics": [], "as_of": None, "keep_schedule_running": False}


def test_a_dag_survives_being_stored(dag: Any) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    stored = DagSerialization.to_dict(dag)
    again = DagSerialization.from_dict(json.loads(json.dumps(stored)))
    assert {task.task_id: set(task.downstream_task_ids) for task in again.tasks} == EDGES
    assert "spark_apps" in json.dumps(stored)


PARSE = """
import sys, time
from airflow.dag_processing.dagbag import DagBag
before = set(sys.modules)
started = time.process_time()
bag = DagBag(dag_folder=sys.argv[1])
spent = time.process_time() - started
assert not bag.import_errors, bag.import_errors
heavy = {"pyspark", "py4j", "great_expectations", "pandas", "pyarrow", "pyiceberg", "numpy", "scipy"}
print(spent, sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""


def test_parsing_is_cheap_and_loads_no_engine(tmp_path: Path) -> None:
    environ = dict(os.environ) | settings(str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(ROOT / "dags")], env=environ, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    spent, heavy = done.stdout.strip().splitlines()[-1].split(" ", 1)
    assert heavy == "[]"
    assert float(spent) < 5, "CPU seconds, provider imports included"


def test_a_sweep_makes_its_markers_where_it_is_planned(bag: Any) -> None:
    sweep = {task.task_id: set(task.downstream_task_ids) for task in bag.dags["marker_generation"].tasks}
    assert sweep["due"] == {"marker_generation", "verify", "waiting"}
    assert sweep["marker_generation"] == {"quality_gate"}
    assert sweep["quality_gate"] == {"publish"}
    assert "topic_copy" not in sweep
