"""The DAG that shows and takes nothing; and that no other takes a word for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, get_args

import pytest

from message_lifecycle.app.operations.registry import Scheduled
from tests.dags.conftest import ROOT
from tests.dags.test_run import Stage, run, stage
from tests.effort import sample

__all__ = ["stage"]
pytestmark = pytest.mark.airflow

DESTRUCTIVE = sorted(path.stem for path in (ROOT / "dags").glob("*.py") if path.stem != "preview")
FIRST = {"message_cleaner": {"copies", "due"}, "message_cleaner_by_day": {"copies", "due"}, "erasure": {"requested"}}
GIVEN = {"erasure": {"request_id": "abcd"}}
KEY = "a key that is nobody's affair"


def test_it_is_one_task_that_no_schedule_starts_and_nobody_has_to_unpause(bag: Any) -> None:
    dag = bag.dags["preview"]
    (task,) = dag.tasks
    assert (task.task_id, task.retries, task.pool) == ("would_go", 2, "default_pool")
    assert (dag.timetable.can_be_scheduled, dag.is_paused_upon_creation) == (False, False)


def test_no_other_dag_is_unpaused_when_it_is_made(bag: Any) -> None:
    assert {bag.dags[name].is_paused_upon_creation for name in DESTRUCTIVE} == {None}, "airflow.cfg says paused"


def test_its_form_has_every_operation_of_a_schedule(bag: Any) -> None:
    params = bag.dags["preview"].params
    assert sorted(params) == ["as_of", "operation", "topics"]
    assert params.get_param("operation").schema["enum"] == list(get_args(Scheduled))
    assert (params["operation"], params["topics"], params["as_of"]) == ("message_cleaner", [], None)


def test_a_run_looks_by_its_own_time_and_nothing_else_is_called(stage: Stage) -> None:
    state, states = run({"operation": "compaction", "topics": ["a/b"], "as_of": "2026-01-01T06:00:00+01:00"}, dag_id="preview")
    assert (state, states) == ("success", {"would_go": "success"})
    ((name, asked),) = stage.calls
    assert (name, asked.pop("run").partition("/")[0]) == ("keep_preview", "preview")
    assert asked == {"as_of": "2026-01-01T05:00:00Z", "topics": ["a/b"], "work": "compaction"}


def test_without_a_time_the_run_is_judged_by_when_it_was_asked_for(stage: Stage) -> None:
    assert run({}, dag_id="preview")[0] == "success"
    ((_, asked),) = stage.calls
    assert (asked["work"], asked["topics"]) == ("message_cleaner", [])
    assert asked["as_of"].endswith("T00:00:00Z")


@pytest.mark.parametrize("word", ["dry_run", "topix"])
def test_it_refuses_what_its_form_does_not_have(stage: Stage, word: str) -> None:
    assert run({word: True}, dag_id="preview") == ("failed", {"would_go": "failed"})
    assert stage.calls == []


@pytest.mark.parametrize(
    ("dag_id", "word", "value"),
    sample(
        [*((name, "dry_run", True) for name in DESTRUCTIVE), ("message_cleaner", "dry_run", False), ("quarantine", "dryRun", True)],
        ("message_cleaner", "dry_run", True),
        ("erasure", "dry_run", True),
        ("message_cleaner", "dry_run", False),
        ("quarantine", "dryRun", True),
    ),
)
def test_every_other_dag_refuses_a_dry_run_before_anything_is_looked_at(stage: Stage, dag_id: str, word: str, value: bool) -> None:
    state, states = run({**GIVEN.get(dag_id, {}), word: value}, dag_id=dag_id)
    assert state == "failed"
    assert {states.pop(task) for task in FIRST.get(dag_id, {"due"})} == {"failed"}
    assert set(states.values()) == {"upstream_failed"}
    assert stage.calls == []


@pytest.mark.parametrize("dag_id", DESTRUCTIVE)
def test_the_refusal_names_the_word_and_the_dag_that_shows(bag: Any, dag_id: str) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    dag = bag.dags[dag_id]
    for task_id in FIRST.get(dag_id, {"due"}):
        context = {"dag_run": SimpleNamespace(conf={"dry_run": KEY}), "params": dict(dag.params.items()), "dag": dag, "run_id": "r"}
        task = dag.get_task(task_id)
        with pytest.raises(AirflowFailException) as error:
            task.python_callable(*task.op_args, **task.op_kwargs, **context)
        assert "InvalidSetting: configuration of this run: dry_run = " in str(error.value)
        assert "The DAG `preview` shows what would go." in str(error.value)
        # Of an erasure nothing is told that may be the key.
        assert (KEY in str(error.value)) == (dag_id != "erasure")


def test_no_form_has_a_word_for_a_dry_run_and_each_says_what_else_its_dialog_does(bag: Any) -> None:
    for name in DESTRUCTIVE:
        params = bag.dags[name].params
        assert "dry_run" not in params
        if name != "erasure":  # it has no schedule that could start
            told = str(params.get_param("topics").schema["description_md"])
            assert "Unpause ... on trigger" in told
            assert "`preview`" in told
