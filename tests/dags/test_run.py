"""Whole runs of the DAG in this process: Airflow's own scheduling rules, with a ledger and Spark applications that only say who called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any

import pytest

from tests.dags.conftest import parse

pytestmark = pytest.mark.airflow

YES = {"chosen_options": ["Approve"], "params_input": {"text": "go"}, "responded_by_user": {"id": "1", "name": "ada"}}
NO = {"chosen_options": ["Reject"], "params_input": {"text": "stop"}, "responded_by_user": {"id": "2", "name": "bob"}}
LATE = {"error": "nobody came", "error_type": "timeout"}
COPYING = {"copies", "topic_copy", "copied"}
APPROVAL = {"approval.ask", "approval.record", "approval.publish", "approval.verify"}


@dataclass
class Stage:
    """What is answered, and who called what. Mapped instances call in any order: `DAG.test` takes them from a set."""

    topics: list[str] = field(default_factory=lambda: ["a/b"])
    copies: list[str] = field(default_factory=list)
    plans: list[dict[str, Any]] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    endings: dict[str, dict[str, Any]] = field(default_factory=dict)
    late: dict[str, dict[str, Any]] = field(default_factory=dict)
    failing: str = ""
    marks: bool = False
    outcomes: Callable[[], list[dict[str, Any]]] | None = None
    calls: list[tuple[str, Any]] = field(default_factory=list)

    def asks(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.plans = [
            {"plan_id": f"p{number}", "gate_id": f"g{number}", "topic": f"a/{number}", "subject": f"a/{number}: remove?"}
            | {"body": "**much**", "answer_within": 60}
            for number in range(len(answers))
        ]

    def named(self, name: str) -> list[Any]:
        return [what for who, what in self.calls if who == name]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, database: None) -> Stage:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
    from airflow.providers.standard.operators.hitl import HITLOperator

    from message_lifecycle.app import tasks

    made = Stage()

    def by_plan(name: str, found: dict[str, Any]) -> Callable[..., Any]:
        def called(**given: Any) -> Any:
            made.calls.append((name, given))
            return found.get(given["plan_id"])

        return called

    def say(name: str, answer: Callable[[], Any]) -> Callable[..., Any]:
        def called(**given: Any) -> Any:
            made.calls.append((name, given))
            return answer()

        return called

    def submit(operator: Any, context: Any) -> None:
        made.calls.append((operator.task_id, operator.application_args))
        if operator.task_id == made.failing:
            raise RuntimeError("the application ended with status 1")

    def ask(operator: Any, context: Any) -> Any:
        made.calls.append(("ask", (operator.subject, operator.body, operator.response_timeout, operator.plan_id)))
        return operator.execute_complete(context, made.answers[context["ti"].map_index] | {"responded_at": datetime.now(UTC)})

    monkeypatch.setattr(tasks, "copies", say("copies", lambda: made.copies))
    monkeypatch.setattr(tasks, "due", say("due", lambda: made.topics))
    monkeypatch.setattr(tasks, "store_preview", say("keep_preview", lambda: None))
    monkeypatch.setattr(tasks, "requested_erasure", say("requested_erasure", lambda: None))
    monkeypatch.setattr(tasks, "wants_markers", say("wants_markers", lambda: made.marks))
    monkeypatch.setattr(tasks, "waiting_plans", say("waiting", lambda: made.plans))
    monkeypatch.setattr(tasks, "find_question_end", by_plan("find_question_end", made.endings))
    monkeypatch.setattr(tasks, "record_approval", by_plan("record_approval", made.late))
    monkeypatch.setattr(
        tasks,
        "verify",
        say("verify", lambda: made.outcomes() if made.outcomes else [{"topic": t, "outcome": "published"} for t in made.topics]),
    )
    monkeypatch.setattr(SparkSubmitOperator, "execute", submit)
    monkeypatch.setattr(HITLOperator, "execute", ask)
    return made


_days = iter(range(10_000))


def run(conf: dict[str, Any] | None = None, *, dag_id: str = "message_cleaner") -> tuple[str, dict[str, str]]:
    """A run's state, and its tasks'. Each has its own day, and a DAG read anew: a test run keeps the parameters it was given."""
    done = parse(dag_id).test(run_conf=conf, logical_date=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=next(_days)))
    states = {
        f"{ti.task_id}[{ti.map_index}]" if ti.map_index >= 0 else ti.task_id: str(getattr(ti.state, "value", ti.state))
        for ti in done.get_task_instances()
    }
    return str(getattr(done.state, "value", done.state)), states


def test_nothing_due_skips_everything(stage: Stage) -> None:
    stage.topics = []
    state, states = run()
    assert (state, set(states.values())) == ("success", {"skipped"})
    assert [name for name, _ in stage.calls] == ["copies", "due"]


def test_every_task_passes_what_the_next_needs(stage: Stage) -> None:
    stage.topics = ["a/b", "a/c"]
    state, states = run({"topics": ["a/b", "a/c"], "as_of": "2026-01-01T06:00:00+01:00"})
    assert state == "success"
    assert {states.pop(task) for task in (*APPROVAL, *COPYING, "marker_generation")} == {"skipped"}
    assert set(states.values()) == {"success"}
    (asked,) = stage.named("due")
    assert (asked["as_of"], asked["topics"]) == ("2026-01-01T05:00:00Z", ["a/b", "a/c"])
    name = asked["run"]
    assert name.startswith("message_cleaner/")
    assert stage.named("message_cleaner") == [["--run", name, "--as-of", "2026-01-01T05:00:00Z", "--topics", "a/b,a/c"]]
    assert stage.named("quality_gate") == stage.named("publish") == [["--run", name]]
    assert stage.named("verify") == [{"run": name, "plan_id": None, "work": "message_cleaner"}]


def test_markers_are_looked_for_between_stage_and_gate_where_a_plan_calls_for_them(stage: Stage) -> None:
    stage.marks = True
    state, states = run()
    assert (state, states["marker_generation"]) == ("success", "success")
    (asked,) = stage.named("wants_markers")
    assert stage.named("marker_generation") == [["--run", asked["run"]]]
    in_order = [name for name, _ in stage.calls]
    assert in_order.index("message_cleaner") < in_order.index("marker_generation") < in_order.index("quality_gate")


def test_what_has_no_markers_looked_for_is_not_judged(stage: Stage) -> None:
    stage.marks, stage.failing = True, "marker_generation"
    _, states = run()
    assert (states["marker_generation"], states["quality_gate"], states["publish"]) == ("failed", "upstream_failed", "upstream_failed")


def test_each_plan_goes_its_own_way_after_its_answer(stage: Stage) -> None:
    stage.asks(YES, NO, LATE)
    state, states = run()
    assert state == "success", "a refusal is an answer, and so is none"
    assert [states[f"approval.publish[{index}]"] for index in range(3)] == ["success", "skipped", "skipped"]
    for task in ("ask", "record", "verify"):
        assert {states[f"approval.{task}[{index}]"] for index in range(3)} == {"success"}
    assert sorted(stage.named("record_approval"), key=itemgetter("plan_id")) == [
        {"plan_id": "p0", "gate_id": "g0", "granted": True, "by": "ada", "text": "go"},
        {"plan_id": "p1", "gate_id": "g1", "granted": False, "by": "bob", "text": "stop"},
    ]
    name = stage.named("due")[0]["run"]
    assert stage.named("approval.publish") == [["--run", name, "--plan", "p0"]]
    assert {call["plan_id"] for call in stage.named("verify")} == {None, "p0", "p1", "p2"}
    asked = sorted(stage.named("ask"), key=itemgetter(0))
    assert [(subject, within, plan_id) for subject, _, within, plan_id in asked] == [
        (f"a/{number}: remove?", timedelta(seconds=60), f"p{number}") for number in range(3)
    ]
    for number, (_, body, _, _) in enumerate(asked):
        assert body.startswith("**much**")
        assert f"/lifecycle/plans/p{number})" in body
        assert "the end of the data interval" in body


ELSEWHERE = {"granted": True, "reason": "ada approved the plan elsewhere", "by": "ada", "text": "fine"}
GONE = {"granted": False, "reason": "the plan gave way to a newer plan"}


def test_a_question_that_ended_elsewhere_ends_here_and_no_run_is_red(stage: Stage) -> None:
    stage.asks(NO, NO, YES, YES, NO)
    stage.endings |= {"p0": GONE, "p1": ELSEWHERE}
    stage.late |= {"p2": GONE, "p3": ELSEWHERE}
    state, states = run()
    assert state == "success"
    ends = {task: [states[f"approval.{task}[{index}]"] for index in range(5)] for task in ("ask", "record", "publish", "verify")}
    assert ends == {
        "ask": ["skipped", "success", "success", "success", "success"],
        "record": ["skipped", "success", "skipped", "success", "success"],
        "publish": ["skipped", "success", "skipped", "success", "skipped"],
        "verify": ["success"] * 5,
    }
    assert [number for number, *_ in sorted(stage.named("ask"))] == [f"a/{number}: remove?" for number in (2, 3, 4)]
    assert {"plan_id": "p1", "gate_id": "g1", "granted": True, "by": "ada", "text": "fine"} in stage.named("record_approval")


def test_why_a_question_ended_stands_in_the_grid_the_log_and_the_task(stage: Stage) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    from lifecycle_operators import LONGEST_NAME, Approval

    kept: dict[str, Any] = {}
    ti = type("Ti", (), {"xcom_push": lambda _, key, value: kept.update({key: value})})()
    ask = Approval(task_id="ask", subject="a/b: remove?", body="", answer_within=60, plan_id="p", gate_id="g", params={})
    with pytest.raises(AirflowSkipException, match="ended: the plan gave way to a newer plan"):
        ask.execute_complete({"ti": ti}, {"ending": GONE})
    assert (ask.subject, kept) == ("a/b: remove? Ended: the plan gave way to a newer plan", {"ending": GONE["reason"]})
    with pytest.raises(AirflowSkipException):
        ask.execute_complete({"ti": ti}, {"ending": {**GONE, "reason": "x" * 1_000}})
    assert len(ask.subject) == LONGEST_NAME


@pytest.mark.parametrize("failing", ["message_cleaner", "publish"])
def test_what_an_application_did_before_it_died_is_looked_at(stage: Stage, failing: str) -> None:
    stage.failing = failing
    stage.outcomes = list
    state, states = run()
    assert state == "failed"
    assert states[failing] == states["verify"] == "failed", "due, and no outcome: a person must see it"
    assert states["waiting"] == "success"


def test_an_unknown_parameter_ends_the_run_before_it_begins(stage: Stage) -> None:
    state, states = run({"topix": ["a/b"]})
    assert (state, states.pop("copies"), states.pop("due")) == ("failed", "failed", "failed")
    assert set(states.values()) == {"upstream_failed"}
    assert stage.calls == []


def test_copies_come_first_and_then_everything_else(stage: Stage) -> None:
    stage.copies = ["a/mirror", "b/mirror"]
    state, states = run({"topics": ["a/b"]})
    assert (state, states["copied"], states["verify"]) == ("success", "success", "success")
    assert [name for name, _ in stage.calls][:3] == ["copies", "topic_copy", "due"]
    assert stage.named("copies") == [{"topics": ["a/b"]}]
    assert stage.named("topic_copy") == [["--topics", "a/mirror,b/mirror"]]


def test_a_failed_copy_makes_the_run_red_and_holds_up_no_cleaning(stage: Stage) -> None:
    stage.copies, stage.failing = ["a/mirror"], "topic_copy"
    state, states = run()
    assert (state, states["topic_copy"], states["copied"]) == ("failed", "failed", "upstream_failed")
    assert (states["due"], states["publish"], states["verify"]) == ("success", "success", "success")


@pytest.mark.parametrize(("dag_id", "operation"), [("log_compaction", "compaction"), ("purge_compacted", "purge_compacted")])
def test_compaction_and_its_purge_go_the_same_way_without_copies_and_markers(stage: Stage, dag_id: str, operation: str) -> None:
    state, states = run({"as_of": "2026-01-01T06:00:00Z"}, dag_id=dag_id)
    assert state == "success"
    assert {states.pop(task) for task in APPROVAL} == {"skipped"}
    assert states == dict.fromkeys(("due", operation, "quality_gate", "publish", "verify", "waiting"), "success")
    (asked,) = stage.named("due")
    assert (asked["work"], asked["run"].partition("/")[0]) == (operation, dag_id)
    assert stage.named(operation) == [["--run", asked["run"], "--as-of", "2026-01-01T06:00:00Z", "--topics", "a/b"]]
    assert stage.named("verify") == [{"run": asked["run"], "plan_id": None, "work": operation}]


def test_what_was_compacted_is_told_to_the_asset_with_its_time(stage: Stage) -> None:
    from airflow.sdk import Asset

    stage.topics = ["a/b", "a/c"]
    stage.outcomes = lambda: [{"topic": "a/b", "outcome": "published"}, {"topic": "a/c", "outcome": "no_op"}]
    run({"as_of": "2026-01-01T06:00:00Z"}, dag_id="log_compaction")
    assert events(Asset("compacted"))[-1] == {"as_of": "2026-01-01T06:00:00Z", "topics": ["a/b"]}


def test_an_approved_compaction_is_told_to_the_asset_too(stage: Stage) -> None:
    from airflow.sdk import Asset

    stage.asks(YES)
    stage.outcomes = lambda: [{"topic": "a/b", "outcome": "published"}]
    before = len(events(Asset("compacted")))
    state, states = run({"as_of": "2026-01-01T07:00:00Z"}, dag_id="log_compaction")
    assert (state, states["approval.verify[0]"]) == ("success", "success")
    assert events(Asset("compacted"))[before:] == [{"as_of": "2026-01-01T07:00:00Z", "topics": ["a/b"]}] * 2
    assert {(call["plan_id"], call["work"]) for call in stage.named("verify")} == {(None, "compaction"), ("p0", "compaction")}


def events(asset: Any) -> list[dict[str, Any]]:
    """What was told to the asset so far, oldest first."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    of_asset = select(AssetEvent).join(AssetModel, AssetModel.id == AssetEvent.asset_id).where(AssetModel.uri == asset.uri)
    with create_session() as session:
        return [dict(event.extra) for event in session.scalars(of_asset.order_by(AssetEvent.id))]
