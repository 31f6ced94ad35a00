"""What the tasks of the compaction's DAG call, from due to verified, on the memory store."""

from __future__ import annotations

import pytest

from message_lifecycle.app import applications, tasks
from message_lifecycle.app.operations.registry import Scheduled
from message_lifecycle.model.instants import Instant, format_instant
from message_lifecycle.model.names import TopicName
from tests.errors import raises
from tests.worlds import HOUR, NOW, Lake, make_lake

RUN = "log_compaction/a run"
AS_OF = format_instant(NOW)
DAY = 86_400


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lake:
    made = make_lake(capsys)
    monkeypatch.setattr(tasks, "lake", lambda: made.services)
    monkeypatch.setattr(applications, "lake", lambda **_: made.services)
    return made


def prices(lake: Lake, **settings: str | int) -> TopicName:
    name = lake.topic("shop/prices", **{"cleanup_policy": "compact,delete", **settings})
    lake.append(name, 3, 2)
    return name


def planned(name: TopicName, *, work: Scheduled = "compaction", run: str = RUN, as_of: str = AS_OF) -> None:
    assert tasks.due(run=run, as_of=as_of, topics=[], work=work) == [str(name)]
    assert applications.plan_and_stage(run=run, as_of=as_of, topics=[str(name)], work=work) == 0
    assert applications.gate_all(run=run) == 0
    assert applications.publish_all(run=run) == 0


def test_a_run_of_compaction_ends_verified(lake: Lake) -> None:
    name = prices(lake)
    lake.topic("shop/orders")
    planned(name)
    (outcome,) = tasks.verify(run=RUN, work="compaction")
    assert (outcome["outcome"], outcome["removed"], outcome["messages_kept"]) == ("published", {"superseded": 1}, 1)
    assert lake.stored(name) == [0, 1]
    assert tasks.due(run="log_compaction/the next", as_of=AS_OF, topics=[], work="compaction") == []
    idle = next(run for run in lake.services.ledger.runs() if run.run_id == "log_compaction/the next")
    assert "removed 1 at this as_of before" in idle.detail


def test_a_run_of_the_purge_follows(lake: Lake) -> None:
    name = prices(lake, cleanup_policy="compact", max_removed_fraction=1)
    assert tasks.due(run="purge_compacted/0", as_of=AS_OF, topics=[], work="purge_compacted") == []
    planned(name)
    tasks.verify(run=RUN, work="compaction")
    planned(name, work="purge_compacted", run="purge_compacted/1")
    (outcome,) = tasks.verify(run="purge_compacted/1", work="purge_compacted")
    assert outcome["outcome"] == "needs_approval", "a log that is emptied is asked about"
    (question,) = tasks.waiting_plans(run="purge_compacted/1")
    assert question["subject"] == "shop/prices: remove 2 of 2 messages?"
    tasks.record_approval(plan_id=question["plan_id"], gate_id=question["gate_id"], granted=True, by="ada", text="the view has them")
    applications.publish_all(run="purge_compacted/1", plan_id=question["plan_id"])
    (outcome,) = tasks.verify(run="purge_compacted/1", plan_id=question["plan_id"], work="purge_compacted")
    assert (outcome["outcome"], outcome["removed"]) == ("published", {"compacted": 2})
    assert lake.stored(name) == []


def test_what_a_person_is_asked_about_a_view_is_what_was_staged(lake: Lake) -> None:
    name = prices(lake)
    planned(name)
    tasks.verify(run=RUN, work="compaction")
    lake.say("topic", "alter", str(name), "--set", f"message_expiry={DAY}")
    later = Instant(NOW + 24 * HOUR)
    lake.world.set_now(later)
    planned(name, run="log_compaction/later", as_of=format_instant(later))
    (question,) = tasks.waiting_plans(run="log_compaction/later")
    assert question["subject"] == "shop/prices: leave 1 of 1 messages out of the compacted view?"
    assert "the log keeps them" in question["body"]
    assert "* reason: 1 by expiry" in question["body"]


def test_a_run_that_never_came_to_plan_fails_as_what_it_was(lake: Lake) -> None:
    """Its outcome is the compaction's, and so is the status of the topic."""
    name = prices(lake)
    assert tasks.due(run=RUN, as_of=AS_OF, topics=[], work="compaction") == [str(name)]
    with raises("RunFailed"):
        tasks.verify(run=RUN, work="compaction")
    told = lake.say("compact", str(name), "--status", "-o", "json")
    assert (told.status, told.document["status"]) == (1, "ERROR")
