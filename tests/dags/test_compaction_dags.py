"""The DAGs of compaction, of the purge that follows it, of documents and of quarantines, as Airflow reads them."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.airflow

OPERATIONS = {
    "log_compaction": "compaction",
    "purge_compacted": "purge_compacted",
    "snapshot_with_purge": "snapshot_with_purge",
    "quarantine": "quarantine",
    "storage_reclaim": "reclaim",
}


@pytest.fixture(params=OPERATIONS)
def dag(bag: Any, request: pytest.FixtureRequest) -> Any:
    return bag.dags[request.param]


def test_the_way_from_due_to_verified(dag: Any) -> None:
    operation = OPERATIONS[dag.dag_id]
    assert {task.task_id: set(task.downstream_task_ids) for task in dag.tasks} == {
        "due": {operation, "verify", "waiting"},
        operation: {"quality_gate"},
        "quality_gate": {"publish"},
        "publish": {"verify", "waiting"},
        "verify": set(),
        "waiting": {"approval.ask", "approval.record", "approval.publish", "approval.verify"},
        "approval.ask": {"approval.record"},
        "approval.record": {"approval.publish"},
        "approval.publish": {"approval.verify"},
        "approval.verify": set(),
    }


def test_what_writes_runs_once_in_the_pool(dag: Any) -> None:
    for task_id in (OPERATIONS[dag.dag_id], "quality_gate", "publish", "approval.publish"):
        task = dag.get_task(task_id)
        assert (task.retries, task.pool) == (0, "lifecycle")
        # What reads no row needs no Spark.
        assert getattr(task, "_conn_id", None) == (None if dag.dag_id == "storage_reclaim" else "spark_default")
        assert Path(task.application).is_file()


def test_what_compaction_has_verified_updates_the_asset_and_nothing_else_does(bag: Any) -> None:
    telling = {
        (dag.dag_id, task.task_id): [asset.name for asset in task.outlets]
        for dag in bag.dags.values()
        for task in dag.tasks
        if task.outlets
    }
    assert telling == {("log_compaction", "verify"): ["compacted"], ("log_compaction", "approval.verify"): ["compacted"]}


def test_the_purge_follows_the_asset_and_the_interval(bag: Any) -> None:
    purge = bag.dags["purge_compacted"].timetable
    assert type(purge).__name__ == "AssetOrTimeSchedule"
    assert [asset.name for asset in purge.asset_condition.objects] == ["compacted"]
    assert type(purge.timetable).__name__ == type(bag.dags["log_compaction"].timetable).__name__ == "DeltaDataIntervalTimetable"


def test_runs_that_were_missed_are_not_made_up_for(dag: Any) -> None:
    assert (dag.start_date.year, dag.catchup) == (2000, False)
    assert dag.max_active_runs >= 100, "a run that waits for a person must not hold up the next ones"


def test_the_interval_is_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugins: None) -> None:
    import lifecycle_tasks

    (tmp_path / "lifecycle.toml").write_text("[message_cleaner]\ninterval = 7\n[compaction]\ninterval = 11\n[documents]\ninterval = 13\n")
    monkeypatch.setenv("LIFECYCLE_CONFIG", str(tmp_path / "lifecycle.toml"))
    assert lifecycle_tasks.interval("compaction_interval") == timedelta(seconds=11)
    assert lifecycle_tasks.interval("snapshots_interval") == timedelta(seconds=13)


def test_a_dag_survives_being_stored(dag: Any) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    again = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    assert sorted(again.task_ids) == sorted(dag.task_ids)


def test_no_file_is_an_orphan_while_a_task_may_still_commit_it() -> None:
    from lifecycle_operators import LONGEST_APPLICATION
    from message_lifecycle.model.settings import BY_NAME

    assert timedelta(seconds=BY_NAME["orphan_age"].minimum) > LONGEST_APPLICATION
