"""Operations that neither the demo nor the other tests here run from Airflow: a view and the purge behind it, which is taken back, and markers
that are owed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.e2e.stack import DAY, Stack
from tests.effort import hunt

pytestmark = [
    hunt,
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.postgres,
]

VIEW, MARKED = "e2e/view", "e2e/marked"


def _ran(stack: Stack, dag: str, topic: str) -> dict[str, Any]:
    """How the topic ended in a run of its own, or in one that came before it."""
    operation = dag.removeprefix("log_")
    stack.api.wait_for_dag(dag, seconds=120)
    stack.api.set_paused(dag, False)
    run_id = stack.api.trigger(dag, conf={"topics": [topic], "as_of": datetime.now(UTC).isoformat()})
    assert stack.finished(run_id, dag) == "success", stack.states(run_id, dag)
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
