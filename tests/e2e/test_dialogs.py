"""Runs that a dialog of Airflow starts while their DAG is paused: nothing else goes, the DAG is paused again, and where the `lifecycle` command
answers, the question in Airflow ends. On a backend of files, whose runs start no Spark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest

from lifecycle_local.airflow import API
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.postgres]

DAG = "backend_retention"
APPROVED, REFUSED, OTHER = "files/approved", "files/refused", "files/other"


def is_paused(stack: Stack) -> bool:
    return bool(stack.api.request("GET", f"{API}/dags/{DAG}")["is_paused"])


def dialog(stack: Stack, *topics: str, keep: bool) -> str:
    """As the UI sends it: both requests at once, neither waits for the other."""
    conf = {"topics": list(topics), "as_of": None, "keep_schedule_running": keep}
    with ThreadPoolExecutor(2) as at_once:
        at_once.submit(stack.api.set_paused, DAG, False)
        return at_once.submit(stack.api.trigger, DAG, conf=conf, logical_date=datetime.now(UTC).isoformat()).result()


def runs(stack: Stack, run_type: str) -> list[dict[str, Any]]:
    return list(stack.api.request("GET", f"{API}/dags/{DAG}/dagRuns?run_type={run_type}&limit=100")["dag_runs"])


def asks(stack: Stack, run_id: str) -> dict[str, Any]:
    """The one question of the run, as the grid shows it."""
    path = f"{API}/dags/{DAG}/dagRuns/{quote(run_id, safe='')}/taskInstances/approval.ask/0"
    return dict(stack.api.request("GET", path))


def answered(stack: Stack, run_id: str, verb: str) -> None:
    """By the command, once the run has asked."""
    (question,) = stack.questions(run_id, 1, DAG)
    topic = question.subject.split(":")[0]
    (plan_id,) = [entry["waiting"]["plan_id"] for entry in stack.lifecycle("status") if entry["topic"] == topic]
    stack.lifecycle(verb, plan_id, "--by", "ada", "--why", "the audit says so")


@pytest.fixture(scope="module")
def filled(stack: Stack) -> None:
    stack.api.wait_for_dag(DAG, seconds=120)
    for topic in (APPROVED, REFUSED, OTHER):
        stack.agent("fill", topic, 6)


def test_a_run_by_hand_pauses_its_dag_again_and_its_schedule_removes_nothing(stack: Stack, filled: None) -> None:
    assert is_paused(stack)
    run_id = dialog(stack, APPROVED, keep=False)
    stack.questions(run_id, 1, DAG)
    assert not is_paused(stack), "no task of a paused DAG would start"
    (scheduled,) = runs(stack, "scheduled")  # Airflow made it at once, for the newest day
    assert stack.finished(scheduled["dag_run_id"], DAG) == "success"
    assert set(stack.states(scheduled["dag_run_id"], DAG).values()) == {"skipped"}
    assert "unpaused this DAG for a run by hand alone" in str(runs(stack, "scheduled")[0]["note"])
    assert stack.agent("offsets", OTHER) == list(range(6))
    answered(stack, run_id, "approve")
    assert stack.finished(run_id, DAG) == "success"
    assert is_paused(stack)
    states = stack.states(run_id, DAG)
    assert {states[f"approval.{task}[0]"] for task in ("ask", "record", "publish", "verify")} == {"success"}
    assert asks(stack, run_id)["rendered_map_index"].endswith("Ended: ada approved the plan elsewhere")
    assert [stack.agent("offsets", topic) for topic in (APPROVED, OTHER)] == [[4, 5], list(range(6))]


def test_its_form_keeps_the_schedule_and_a_refusal_by_command_ends_its_question(stack: Stack, filled: None) -> None:
    run_id = dialog(stack, REFUSED, OTHER, keep=True)
    answered(stack, run_id, "refuse")
    assert stack.finished(run_id, DAG) == "success"
    assert not is_paused(stack)
    states = stack.states(run_id, DAG)
    assert [states[f"approval.{task}[0]"] for task in ("ask", "record", "publish", "verify")] == ["skipped"] * 3 + ["success"]
    why = "ada refused the plan elsewhere, and the plan was closed; nothing of it was removed"
    assert asks(stack, run_id)["rendered_map_index"].endswith(f"Ended: {why}")
    assert why in stack.api.task_log(DAG, run_id, "approval.ask", map_index=0)
    assert [stack.agent("offsets", topic) for topic in (REFUSED, OTHER)] == [list(range(6)), [1, 2, 3, 4, 5]]
    stack.api.set_paused(DAG, True)
