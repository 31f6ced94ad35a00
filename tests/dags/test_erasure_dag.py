"""The DAG of an erasure: given the id of a request and nothing else, in order, and a person asked for each topic."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from message_lifecycle.app import tasks
from message_lifecycle.app.erasures import ask
from message_lifecycle.app.wiring import memory_world
from message_lifecycle.model.names import TopicName
from tests.errors import raises

pytestmark = pytest.mark.airflow
KEY = "customer-17"


@pytest.fixture(scope="module")
def dag(bag: Any) -> Any:
    return bag.dags["erasure"]


def test_the_way_from_the_request_to_verified(dag: Any) -> None:
    assert {task.task_id: set(task.downstream_task_ids) for task in dag.tasks} == {
        "requested": {"erasure", "verify", "waiting"},
        "erasure": {"quality_gate"},
        "quality_gate": {"publish"},
        "publish": {"verify", "waiting"},
        "verify": set(),
        "waiting": {"approval.ask", "approval.record", "approval.publish", "approval.verify"},
        "approval.ask": {"approval.record"},
        "approval.record": {"approval.publish"},
        "approval.publish": {"approval.verify"},
        "approval.verify": set(),
    }


def test_nothing_makes_it_due_and_what_writes_runs_once(dag: Any) -> None:
    assert type(dag.timetable).__name__ == "NullTimetable"
    for task_id in ("erasure", "quality_gate", "publish", "approval.publish"):
        task = dag.get_task(task_id)
        assert (task.retries, task.pool, task._conn_id) == (0, "lifecycle", "spark_default")
        assert Path(task.application).is_file()


def test_the_request_is_all_that_a_run_is_given(dag: Any) -> None:
    assert list(dag.params) == ["request_id"]
    from airflow.sdk.exceptions import ParamValidationError

    param = dag.params.get_param("request_id")
    assert param.resolve("0123456789abcdef0123456789abcdef") == "0123456789abcdef0123456789abcdef"
    for wrong in (KEY, "", None, 17):
        with pytest.raises(ParamValidationError):
            param.resolve(wrong)


def test_a_dag_survives_being_stored(dag: Any) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    again = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    assert sorted(again.task_ids) == sorted(dag.task_ids)


def test_what_else_is_given_is_refused_without_a_word_of_it(dag: Any, caplog: pytest.LogCaptureFixture) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    context = {"dag_run": SimpleNamespace(conf={KEY: KEY}), "params": {"request_id": "abcd"}, "dag": dag, "run_id": "r"}
    with pytest.raises(AirflowFailException) as error:
        dag.get_task("requested").python_callable(**context)
    assert KEY not in str(error.value) + caplog.text


def test_topics_of_a_request_are_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.worlds import Lake

    lake = Lake(world=memory_world({}), capsys=None)  # type: ignore[arg-type]  # no command runs here
    one, two = lake.topic("one"), lake.topic("two")
    monkeypatch.setattr(tasks, "lake", lambda: lake.services)
    request = ask(lake.services, [KEY.encode()], topics=(), forbid=False, by="ada", why="a letter")
    found = tasks.requested_erasure(run="erasure/r", request_id=request.request_id[:8])
    assert (found["request_id"], found["topics"]) == (request.request_id, [str(one), str(two)])
    assert {entry.topic for entry in lake.services.ledger.run_entries("erasure/r")} == {one, two}
    lake.services.ledger.set_erasure_state(request.request_id, "erased")
    assert tasks.requested_erasure(run="erasure/s", request_id=request.request_id)["topics"] == []
    with raises("UnknownErasure"):
        tasks.requested_erasure(run="erasure/s", request_id="no such id")


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the run's tasks and applications work with; its clock stands at NOW."""
    from message_lifecycle.app import applications, tasks
    from tests.worlds import NOW, Lake

    made = Lake(world=memory_world({}), capsys=None)  # type: ignore[arg-type]  # no command runs here
    made.world.set_now(NOW)
    monkeypatch.setattr(tasks, "lake", lambda: made.services)
    monkeypatch.setattr(applications, "lake", lambda **_: made.services)
    return made


def asked(lake: Any, *names: str) -> str:
    """Topics with the key, and the id of the request for all of them."""
    from message_lifecycle.app.services import policy_of
    from message_lifecycle.model.message import NewMessage
    from tests.worlds import NOW

    for topic in map(lake.topic, names):
        lake.world.writer.append(topic, [NewMessage(append_time=NOW, key=KEY.encode(), value=b"v")], policy_of(lake.services, topic))
    return ask(lake.services, [KEY.encode()], topics=(), forbid=False, by="ada", why="a letter").request_id


def questions_of(request_id: str) -> list[dict[str, Any]]:
    """What the run `erasure/r` asks, once it has come so far."""
    from message_lifecycle.app import applications, tasks
    from message_lifecycle.model.request import EraseKey

    found = tasks.requested_erasure(run="erasure/r", request_id=request_id)
    work = EraseKey(request_id=request_id)
    assert applications.plan_and_stage(run="erasure/r", as_of=found["as_of"], topics=found["topics"], work=work) == 0
    assert applications.gate_all(run="erasure/r") == 0
    assert applications.publish_all(run="erasure/r") == 0
    tasks.verify(run="erasure/r", work="erasure")
    return tasks.waiting_plans(run="erasure/r")


def publish(lake: Any, plan_id: str) -> None:
    from message_lifecycle.app import applications, steps

    steps.approve(lake.services, plan_id, granted=True, by="bob", text="yes")
    assert applications.publish_all(run="erasure/r", plan_id=plan_id) == 0


def test_a_run_that_was_verified_settles_its_request(lake: Any) -> None:
    request_id = asked(lake, "one")
    (question,) = questions_of(request_id)
    assert lake.services.ledger.erasure(request_id).state == "requested"
    assert KEY not in json.dumps(question)
    assert question["body"].count("* why approval: ") == 1
    assert "* why approval: erases the key from the log: 1 row in 1 file" in question["body"]
    publish(lake, question["plan_id"])
    (outcome,) = tasks.verify(run="erasure/r", plan_id=question["plan_id"], work="erasure")
    assert (outcome["outcome"], outcome["removed"]) == ("published", {"erased": 1})
    assert lake.services.ledger.erasure(request_id).state == "erased"
    assert lake.stored(TopicName.parse("one")) == []


def test_a_request_of_which_nothing_is_left_to_do_is_settled(lake: Any) -> None:
    """Its only topic was deleted, and went for good, before anybody carried the request out."""
    from message_lifecycle.app.requests import delete_topic, reclaim_deleted
    from message_lifecycle.model.instants import Instant
    from tests.worlds import NOW, SECOND

    s, name = lake.services, lake.topic("one")
    request = ask(s, [KEY.encode()], topics=[name], forbid=False, by="ada", why="a letter")
    deletion = delete_topic(s, name, by="ada", text="not needed")
    assert tasks.requested_erasure(run="erasure/r", request_id=request.request_id)["topics"] == [str(name)], "it could come back"
    later = Instant(NOW + 8 * 86_400 * SECOND)
    lake.world.set_now(later)
    gone = reclaim_deleted(s, deletion.plan_id, as_of=later, approver=lambda *_: (True, "ada", "it may go"))
    assert gone.name == "published"
    found = tasks.requested_erasure(run="erasure/s", request_id=request.request_id)
    assert (found["topics"], found["state"]) == ([], "erased")
    assert s.ledger.erasure(request.request_id).state == "erased"


def test_topics_that_are_verified_at_one_time_settle_their_request(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    request_id = asked(lake, "one", "two")
    first, second = questions_of(request_id)
    publish(lake, first["plan_id"])
    publish(lake, second["plan_id"])
    ledger, overtaken = lake.services.ledger, []
    write = ledger.set_erasure_state

    def overtaken_once(*args: Any, **named: Any) -> None:
        if not overtaken:
            overtaken.append(args)
            tasks.verify(run="erasure/r", plan_id=second["plan_id"], work="erasure")
            assert ledger.erasure(request_id).state == "erased"
        write(*args, **named)

    monkeypatch.setattr(ledger, "set_erasure_state", overtaken_once)
    tasks.verify(run="erasure/r", plan_id=first["plan_id"], work="erasure")
    assert overtaken
    assert ledger.erasure(request_id).state == "erased"
