"""Operations that neither the demo nor the other tests here run from Airflow: a view and the purge behind it, which is taken back, and markers
that are owed."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from lifecycle_local.airflow import API
from tests.e2e.stack import DAY, RUN_SECONDS, Stack
from tests.effort import hunt

pytestmark = [
    hunt,
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.postgres,
]

VIEW, MARKED = "e2e/view", "e2e/marked"


def _ran(stack: Stack, dag: str, topic: str) -> dict[str, Any]:
    """How the topic ended in a run of its own, or in the scheduled one that begins with it; each question is answered by yes."""
    operation = dag.removeprefix("log_")
    stack.api.wait_for_dag(dag, seconds=120)
    stack.api.set_paused(dag, False)
    stack.api.trigger(dag, conf={"topics": [topic], "as_of": datetime.now(UTC).isoformat()})
    deadline, open_runs = time.monotonic() + RUN_SECONDS, True
    while open_runs:
        assert time.monotonic() < deadline, stack.agent("history", topic)
        runs = stack.api.request("GET", f"{API}/dags/{dag}/dagRuns?limit=100")["dag_runs"]
        open_runs = any(run["state"] not in ("success", "failed") for run in runs)
        for question in (asked for run in runs for asked in stack.api.approvals(dag, run["dag_run_id"])):
            stack.api.answer(question, "Approve", {"text": "as it is set"})
        time.sleep(1)  # between two looks; the deadline ends it
    stack.api.set_paused(dag, True)
    (outcome,) = [one for one in stack.agent("history", topic) if one["operation"] == operation and one["outcome"] == "published"]
    return dict(outcome)


def test_a_view_is_compacted_and_what_it_covers_is_purged_and_comes_back(stack: Stack) -> None:
    stack.agent("create", VIEW, cleanup_policy="compact", max_removed_fraction=1.0)
    times = [stack.days.end - DAY] * 3
    stack.agent("append", VIEW, [{"base": base, "times": times} for base in (0, 3, 6)])
    compacted = _ran(stack, "log_compaction", VIEW)
    assert compacted["removed"] == {"superseded": 6}
    purged = _ran(stack, "purge_compacted", VIEW)
    assert stack.agent("look", VIEW)["offsets"] == [6, 7, 8]
    told = stack.lifecycle("undo", purged["plan_id"], "--by", "ada", "--why", "the audit asks for it")
    assert told["restored"] == 6, told
    assert stack.agent("look", VIEW)["offsets"] == list(range(9))


def test_markers_that_are_owed_are_made(stack: Stack) -> None:
    stack.agent("create", MARKED, subject_delete_marker_ttl=DAY, allow_msg_ttl=True)
    stack.agent("append", MARKED, [{"base": 0, "times": [stack.days.end] * 3}])
    assert not stack.agent("look_for_markers", MARKED)
    stack.agent("delete_by_sql", MARKED, 1)
    made = _ran(stack, "marker_generation", MARKED)
    assert made["removed"] == {}
    seen = stack.agent("look", MARKED)
    assert (seen["offsets"], seen["end_offset"]) == ([0, 2, 3], 4)
