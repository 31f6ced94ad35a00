"""A deleted topic in a run of `storage_reclaim`: found by itself, asked about, and gone after a person's word (DEL-3, DEL-7)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from message_lifecycle.app import applications, tasks
from message_lifecycle.app.operations.reclaim import find_lost_reclaims
from message_lifecycle.app.requests import deleted_topics
from message_lifecycle.model.instants import Instant, format_instant
from tests.worlds import NOW, SECOND, Lake, make_lake

RUN = "storage_reclaim/r1"
LATER = Instant(NOW + 8 * 86_400 * SECOND)
AS_OF = format_instant(LATER)


@pytest.fixture
def lake(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lake:
    made = make_lake(capsys)
    monkeypatch.setattr(tasks, "lake", lambda: made.services)
    monkeypatch.setattr(applications, "lake", lambda **_: made.services)
    return made


@pytest.fixture
def plan_id(lake: Lake) -> str:
    """Of the deletion; its window has passed."""
    topic = lake.topic("shop/orders", max_removed_fraction=1.0)
    lake.append(topic, 3, 2)
    lake.say("topic", "delete", "shop/orders", "--by", "ada", "--why", "not needed")
    lake.world.set_now(LATER)
    (found,) = deleted_topics(lake.services)
    return found.plan_id


def planned_and_judged(topics: list[str]) -> None:
    assert applications.plan_and_stage(run=RUN, as_of=AS_OF, topics=topics, work="reclaim") == 0
    assert applications.gate_all(run=RUN) == 0
    assert applications.publish_all(run=RUN) == 0


def test_a_run_asks_and_takes_it(lake: Lake, plan_id: str) -> None:
    due = tasks.due(run=RUN, as_of=AS_OF, topics=[], work="reclaim")
    assert due == ["shop/orders"]
    planned_and_judged(due)
    (told,) = tasks.verify(run=RUN, work="reclaim")
    assert told["outcome"] == "needs_approval"
    (question,) = tasks.waiting_plans(run=RUN)
    assert re.fullmatch(r"shop/orders: remove \d+ files of [\d.]+ (bytes|kB) for good\?", question["subject"]), (
        "in a unit that a person reads"
    )
    assert plan_id[:12] in question["body"] and "cannot come back" in question["body"] and "2 messages" in question["body"]
    assert tasks.due(run="storage_reclaim/r2", as_of=AS_OF, topics=[], work="reclaim") == []
    tasks.record_approval(plan_id=question["plan_id"], gate_id=question["gate_id"], granted=True, by="ann", text="it may go")
    assert applications.publish_all(run=RUN, plan_id=question["plan_id"]) == 0
    (told,) = tasks.verify(run=RUN, plan_id=question["plan_id"], work="reclaim")
    assert (told["outcome"], told["plan_id"]) == ("published", question["plan_id"])
    assert deleted_topics(lake.services) == []
    assert tasks.due(run="storage_reclaim/r3", as_of=AS_OF, topics=[], work="reclaim") == []


def test_a_refusal_stands_for_a_while_and_holds_up_no_topic_of_the_name(lake: Lake, plan_id: str) -> None:
    planned_and_judged(tasks.due(run=RUN, as_of=AS_OF, topics=[], work="reclaim"))
    (question,) = tasks.waiting_plans(run=RUN)
    tasks.record_approval(plan_id=question["plan_id"], gate_id=question["gate_id"], granted=False, by="ann", text="not yet")
    assert tasks.due(run="storage_reclaim/r2", as_of=AS_OF, topics=["shop/orders"], work="reclaim") == []
    lake.topic("shop/orders")
    applications.plan_and_stage(run="storage_reclaim/r3", as_of=AS_OF, topics=["shop/orders"], work="reclaim")
    (entry,) = lake.services.ledger.run_entries("storage_reclaim/r3")
    assert entry.plan_id is not None
    plan = lake.services.ledger.record(entry.plan_id).plan
    assert (plan.operation, plan.parent) == ("reclaim", None)


def test_a_run_whose_publish_died_half_way_is_finished_by_its_verify(lake: Lake, plan_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planned_and_judged(tasks.due(run=RUN, as_of=AS_OF, topics=[], work="reclaim"))
    (question,) = tasks.waiting_plans(run=RUN)
    tasks.record_approval(plan_id=question["plan_id"], gate_id=question["gate_id"], granted=True, by="ann", text="it may go")
    with monkeypatch.context() as dying:
        dying.setattr(lake.services.stores.drop_tables, "finish", _dies)
        assert applications.publish_all(run=RUN, plan_id=question["plan_id"]) != 0
    (told,) = tasks.verify(run=RUN, plan_id=question["plan_id"], work="reclaim")
    assert told["outcome"] == "published"


def test_a_reclaim_that_the_ledger_does_not_know_is_ended_by_its_own_name(lake: Lake, plan_id: str) -> None:
    done = lake.say("reclaim", "run", "--deleted", plan_id, "--by", "ada", "--why", "it may go", "-o", "json").document
    reclaimer: Any = lake.services.stores.drop_tables
    reclaimer._begun[done["plan_id"]] = lake.services.ledger.record(done["plan_id"]).plan
    assert list(find_lost_reclaims(lake.services)) == [done["plan_id"]]
    ended = lake.say("reclaim", "run", "--deleted", done["plan_id"][:12], "-o", "json")
    assert (ended.status, ended.document["outcome"]) == (0, "no_op")
    assert "no file of it is left" in ended.document["detail"]
    assert find_lost_reclaims(lake.services) == {}


def _dies(_plan: object) -> None:
    from message_lifecycle.model.errors import storage_refused

    raise storage_refused("a folder", "it went away")


def test_a_person_calls_it_by_the_plan_that_deleted(lake: Lake, plan_id: str) -> None:
    lake.world.set_now(NOW)
    early = lake.say("reclaim", "run", "--deleted", plan_id, "--by", "ada", "--why", "it may go")
    assert (early.status, early.err.split(":")[0]) == (3, "UndoWindowOpen")
    (listed,) = lake.say("topic", "list", "--deleted", "-o", "json").document
    assert listed["undoable"] is True
    assert "can be undone" in lake.say("topic", "list", "--deleted").out
    lake.world.set_now(LATER)
    shown = lake.say("topic", "list", "--deleted").out
    assert "can be reclaimed" in shown and "lifecycle reclaim run --deleted" in shown
    planned = lake.say("reclaim", "plan", "--deleted", plan_id[:12], "-o", "json").document
    assert [action["action"] for action in planned["actions"]] == ["drop_table"]
    assert (planned["topic"], planned["takes_back"]) == ("shop/orders", None)
    assert lake.say("reclaim", "plan", "--deleted", plan_id).status == 0
    waits = lake.say("reclaim", "run", "--deleted", plan_id)
    assert waits.status == 5, waits.err
    done = lake.say("reclaim", "run", "--deleted", plan_id[:12], "--by", "ada", "--why", "it may go", "-o", "json").document
    assert (done["outcome"], done["operation"]) == ("published", "reclaim")
    assert "no deleted topics" in lake.say("topic", "list", "--deleted").out
    undo = lake.say("undo", plan_id, "--by", "ada", "--why", "too late")
    assert (undo.status, undo.err.split(":")[0]) == (3, "UndoWindowPassed")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "Usage"),
        (("shop/orders", "--deleted", "PLAN"), "Usage"),
        (("--deleted", "no such id"), "UnknownPlan"),
        (("shop/orders",), "UnknownTopic"),
    ],
)
def test_what_is_meant_must_be_told(lake: Lake, plan_id: str, arguments: tuple[str, ...], error: str) -> None:
    told = lake.say("reclaim", "run", *(plan_id if one == "PLAN" else one for one in arguments))
    assert (told.status, error in told.err) == (2, True), told.err
    assert [topic.plan_id for topic in deleted_topics(lake.services)] == [plan_id]
