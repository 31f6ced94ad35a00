"""The message cleaner for real: PostgreSQL, scheduler, dag-processor and api-server, Spark, Great Expectations, a person.

The tests build on each other, in order: starting a stack costs as much as several of them.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from html import unescape
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from lifecycle_local.airflow import API
from lifecycle_local.layout import AirflowRefused
from tests.e2e.stack import DAG, DAY, Stack

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.postgres]

HOUR = 3_600
QUIET = "quarantine"
EXPIRY = {"message_expiry": 2 * DAY}
"""What is fresh when the newest day ends stays so for as long as the tests run."""
# Error -> the configuration of a run that ends with it, and whether the run has a logical date.
WRONG: dict[str, tuple[dict[str, object], bool]] = {
    "NoWindow": ({}, False),
    "UnknownTopic": ({"topics": ["e2e/nowhere"]}, True),
}


def _segments(end: int, *, old: int, fresh: int) -> list[dict[str, Any]]:
    """`old` messages that are expired when the day ends, and `fresh` ones in a segment that takes more."""
    return [
        {"base": 0, "times": [end - 3 * DAY] * old},
        {"base": old, "times": [end - HOUR] * fresh},
    ]


def _ends(stack: Stack, days: float) -> str:
    return datetime.fromtimestamp(stack.days.end + days * stack.days.length, UTC).isoformat().replace("+00:00", "Z")


def _now() -> str:
    return datetime.now(UTC).isoformat()


@pytest.fixture(scope="module")
def scheduled(stack: Stack) -> str:
    """The scheduled run over topics that end in every way; returns when its questions are asked."""
    for topic, old, fresh in (("plain", 4, 6), ("granted", 8, 2), ("refused", 7, 3), ("quiet", 0, 5)):
        stack.agent("create", f"e2e/{topic}", **EXPIRY)
        stack.agent("append", f"e2e/{topic}", _segments(stack.days.end, old=old, fresh=fresh)[0 if old else 1 :])
    stack.agent("create", "e2e/blocked", **EXPIRY)
    young = stack.days.end - HOUR
    stack.agent("append", "e2e/blocked", [{"base": 0, "times": [young] * 3}, {"base": 3, "times": [young] * 5}])
    stack.agent("misstate", "e2e/blocked", 0, stack.days.end - 3 * DAY)
    stack.before = {topic: stack.agent("look", f"e2e/{topic}") for topic in ("blocked", "refused", "quiet")}
    stack.api.set_paused(DAG, False)
    run_id = stack.run_of("scheduled")
    stack.wait_for_task(run_id, "verify", "success", "failed")
    stack.questions(run_id, 2)
    return run_id


# Runs that have nothing to do with each other are started at once: Airflow takes seconds from each task to the next.


@pytest.fixture(scope="module", autouse=True)
def daily(stack: Stack, scheduled: str) -> None:
    """A topic and, begun before other tests, the backfill of three of its days."""
    stack.agent("create", "e2e/daily", message_expiry=DAY)
    # Two segments are expired on different days; the others keep their bytes below half of the log's, too.
    ages = {0: -5.5, 3: -4.5, 6: -0.3, 9: -0.2}
    segments = [{"base": base, "times": [stack.days.end + days * DAY] * 3} for base, days in ages.items()]
    stack.agent("append", "e2e/daily", segments)
    # By the command, whose default of ten runs at a time would let later intervals overtake.
    dates = ["--from-date", _ends(stack, -5), "--to-date", _ends(stack, -3)]
    conf = json.dumps({"topics": ["e2e/daily"]})
    stack.airflow("backfill", "create", "--dag-id", DAG, *dates, "--max-active-runs", "1", "--dag-run-conf", conf)


@pytest.fixture(scope="module")
def wrong(stack: Stack, scheduled: str) -> dict[str, str]:
    """Error -> the run that is to end with it."""
    return {told: stack.api.trigger(DAG, conf=conf, logical_date=_now() if dated else None) for told, (conf, dated) in WRONG.items()}


def test_a_scheduled_run_publishes_what_passed_its_gate(stack: Stack, scheduled: str) -> None:
    seen = stack.agent("look", "e2e/plain")
    assert seen["offsets"] == [4, 5, 6, 7, 8, 9]
    assert seen["end_offset"] == 10
    (outcome,) = stack.agent("history", "e2e/plain")
    assert outcome["outcome"] == "published"
    assert outcome["removed"] == {"expiry": 4}
    assert outcome["as_of"] == _ends(stack, 0), "the end of the data interval"
    assert seen["branches"] == ["main"]


def test_a_gate_that_blocks_leaves_the_table_byte_for_byte(stack: Stack, scheduled: str) -> None:
    assert stack.agent("look", "e2e/blocked") == stack.before["blocked"]
    (outcome,) = stack.agent("history", "e2e/blocked")
    assert outcome["outcome"] == "blocked"
    assert stack.states(scheduled)["verify"] == "failed", "a person must see it"
    assert "e2e/blocked: blocked" in stack.api.task_log(DAG, scheduled, "verify")


def test_a_viewer_can_look_at_a_question_and_not_answer_it(stack: Stack, scheduled: str) -> None:
    questions = stack.viewer.approvals(DAG, scheduled)
    assert len(questions) == 2
    with pytest.raises(AirflowRefused) as refused:
        stack.viewer.answer(questions[0], "Approve", {"text": "me too"})
    assert refused.value.status == 403
    assert len(stack.api.approvals(DAG, scheduled)) == 2


def test_a_page_of_another_origin_cannot_answer_for_whoever_is_logged_in(stack: Stack) -> None:
    """Without leave of the server a browser sends a form or plain text to another origin, and nothing else. Neither is an answer."""
    token = stack.api.request("POST", "/auth/token", {"username": stack.api.user, "password": stack.api.password})["access_token"]
    question, runs = f"/api/v2/dags/{DAG}/dagRuns/r/taskInstances/approval.wait/0/hitlDetails", "/api/v2/dags/erasure/dagRuns"

    def sent(method: str, path: str, cookie: str | None, **headers: str) -> tuple[int, list[str]]:
        logged_in = {} if cookie is None else {"Cookie": f"_token={cookie}"}
        body = b'{"chosen_options": ["Approve"], "params_input": {}}' if method != "OPTIONS" else None
        asked = Request(stack.api.address + path, body, {"Origin": "http://127.0.0.1:9", **logged_in, **headers}, method=method)
        with pytest.raises(HTTPError) as refused:
            build_opener(ProxyHandler({})).open(asked, timeout=60)
        return refused.value.code, [name for name in refused.value.headers if name.lower().startswith("access-control-")]

    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        headers = {"Content-Type": kind, "X-HTTP-Method-Override": "PATCH"}
        assert sent("POST", question, token, **headers) == (405, [])
        assert sent("PATCH", question, token, **headers) == (422, []), "only JSON is an answer"
        assert sent("POST", runs, token, **headers) == (422, []), "and only JSON starts a run"
        assert sent("POST", "/lifecycle/", token, **headers) == (405, [])
    for path in (question, runs, "/lifecycle/"):
        leave = {"Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "content-type"}
        assert sent("OPTIONS", path, token, **leave) == (405, []), "a browser asks for leave first"
    assert sent("PATCH", question, None, **{"Content-Type": "application/json"})[0] == 401


def test_the_word_of_a_person_is_carried_out_and_recorded(stack: Stack, scheduled: str) -> None:
    questions = {question.subject.split(":")[0]: question for question in stack.api.approvals(DAG, scheduled)}
    assert "8 of 10 messages" in questions["e2e/granted"].subject
    assert _ends(stack, 0) in questions["e2e/granted"].body, "the resolved window"
    words = {"e2e/granted": ("Approve", "the old half may go"), "e2e/refused": ("Reject", "not before the audit")}
    assert stack.answered(scheduled, words) == "failed", "because of the blocked topic alone"

    states = stack.states(scheduled)
    granted, refused = questions["e2e/granted"].map_index, questions["e2e/refused"].map_index
    assert states[f"approval.publish[{granted}]"] == states[f"approval.verify[{granted}]"] == "success", states
    assert states[f"approval.publish[{refused}]"] == "skipped", states
    assert states[f"approval.verify[{refused}]"] == "success"

    (outcome,) = stack.agent("history", "e2e/granted")
    assert (outcome["outcome"], outcome["removed"]) == ("published", {"expiry": 8})
    approval = stack.agent("plan", outcome["plan_id"])["approval"]
    assert (approval["granted"], approval["by"], approval["text"]) == (True, "admin", "the old half may go")
    assert stack.agent("look", "e2e/granted")["offsets"] == [8, 9]

    (outcome,) = stack.agent("history", "e2e/refused")
    assert outcome["outcome"] == "refused"
    approval = stack.agent("plan", outcome["plan_id"])["approval"]
    assert (approval["granted"], approval["by"], approval["text"]) == (False, "admin", "not before the audit")
    assert stack.agent("look", "e2e/refused") == stack.before["refused"]


def test_nothing_due_skips_and_is_recorded(stack: Stack, scheduled: str) -> None:
    run_id = stack.api.trigger(DAG, conf={"topics": ["e2e/quiet"]}, logical_date=_now())
    assert stack.finished(run_id) == "success"
    assert set(stack.states(run_id).values()) == {"skipped"}
    idle = stack.agent("idle", f"{DAG}/{run_id}")
    assert idle["entries"] == 0
    assert "e2e/quiet" in idle["detail"]
    assert stack.agent("look", "e2e/quiet") == stack.before["quiet"]


@pytest.mark.parametrize("told", WRONG)
def test_what_is_wrong_is_refused_by_name_before_anything_starts(stack: Stack, wrong: dict[str, str], told: str) -> None:
    run_id = wrong[told]
    assert stack.finished(run_id) == "failed"
    states = {task: state for task, state in stack.states(run_id).items() if task not in ("copies", "topic_copy", "copied")}
    assert states.pop("due") == "failed"
    assert set(states.values()) == {"upstream_failed"}
    assert told in stack.api.task_log(DAG, run_id, "due")


def test_a_preview_shows_the_plan_on_a_page_and_changes_nothing(stack: Stack, scheduled: str) -> None:
    stack.agent("create", "e2e/named", **EXPIRY)
    stack.agent("append", "e2e/named", _segments(stack.days.end, old=3, fresh=5))
    before = stack.agent("look", "e2e/named")
    assert not stack.api.request("GET", f"{API}/dags/preview")["is_paused"], "nobody has unpaused it"
    conf = {"operation": "message_cleaner", "topics": ["e2e/named"], "as_of": _ends(stack, 0)}
    run_id = stack.api.trigger("preview", conf=conf)
    assert stack.finished(run_id, "preview") == "success"
    assert stack.states(run_id, "preview") == {"would_go": "success"}
    page = unescape(stack.page(f"/runs?dag_id=preview&run_id={quote(run_id)}"))
    printed = page.partition("<pre>")[2].partition("</pre>")[0]
    assert "3 of 8 messages" in printed
    told = stack.lifecycle("plan", "e2e/named", "--dry-run", "--as-of", _ends(stack, 0))
    assert told["plan_id"] in printed, "the plan that the command shows"
    assert stack.agent("look", "e2e/named") == before
    assert stack.agent("history", "e2e/named") == []
    with pytest.raises(AssertionError, match="UnknownPlan"):
        stack.agent("plan", told["plan_id"])


@pytest.fixture(scope="module")
def refused(stack: Stack, scheduled: str) -> dict[str, str]:
    """How it was started -> the run that was given a word that no form has. Of a DAG whose runs find nothing due."""
    stack.api.wait_for_dag(QUIET, seconds=120)
    runs = {}
    # As the trigger dialog sends it, which unpauses the DAG before; for the runs to come it stays unpaused.
    stack.api.set_paused(QUIET, False)
    form = {"topics": ["e2e/quiet"], "as_of": None, "keep_schedule_running": True, "dry_run": True}
    sent = {"conf": form, "dag_run_id": None, "logical_date": _now(), "data_interval_start": None, "data_interval_end": None, "note": ""}
    runs["UI"] = str(stack.api.request("POST", f"{API}/dags/{QUIET}/dagRuns", sent)["dag_run_id"])
    dates = ["--from-date", _ends(stack, -5), "--to-date", _ends(stack, -5)]
    stack.airflow("backfill", "create", "--dag-id", QUIET, *dates, "--dag-run-conf", json.dumps({"dry_run": True}))
    runs["command"] = "by_command"
    stack.airflow("dags", "trigger", QUIET, "--run-id", runs["command"], "--logical-date", _now(), "--conf", json.dumps({"dry_run": True}))
    (of_backfill,) = stack.runs_between(_ends(stack, -5), _ends(stack, -5), QUIET)
    runs["backfill"] = str(of_backfill["dag_run_id"])
    return runs


@pytest.mark.parametrize("way", ["UI", "command", "backfill"])
def test_a_dry_run_is_refused_by_name_before_anything_is_looked_at(stack: Stack, refused: dict[str, str], way: str) -> None:
    run_id = refused[way]
    assert stack.finished(run_id, QUIET) == "failed"
    states = stack.states(run_id, QUIET)
    assert states.pop("due") == "failed"
    assert set(states.values()) == {"upstream_failed"}
    log = stack.api.task_log(QUIET, run_id, "due")
    assert "InvalidSetting: configuration of this run: dry_run = " in log
    assert "The DAG `preview` shows what would go." in log
    assert stack.agent("outcomes", f"{QUIET}/{run_id}") == []
    assert stack.agent("idle", f"{QUIET}/{run_id}") is None, "the ledger never heard of it"


def test_a_triggered_run_takes_the_named_topics_alone(stack: Stack, scheduled: str) -> None:
    stack.agent("create", "e2e/unnamed", **EXPIRY)
    stack.agent("append", "e2e/unnamed", _segments(stack.days.end, old=3, fresh=5))
    before = stack.agent("look", "e2e/unnamed")
    logical_date = _now()
    run_id = stack.api.trigger(DAG, conf={"topics": ["e2e/named"]}, logical_date=logical_date)
    assert stack.finished(run_id) == "success"
    states = stack.states(run_id)
    assert states["verify"] == "success"
    assert states["approval.ask"] == "skipped", "no task waits when nobody is asked"
    (outcome,) = stack.agent("outcomes", f"{DAG}/{run_id}")
    assert (outcome["topic"], outcome["outcome"], outcome["removed"]) == ("e2e/named", "published", {"expiry": 3})
    assert datetime.fromisoformat(outcome["as_of"]) == datetime.fromisoformat(logical_date)
    assert stack.agent("look", "e2e/unnamed") == before
    assert not stack.api.request("GET", f"{API}/dags/{DAG}")["is_paused"], "a person unpaused it, not this run"


def test_a_backfill_plans_each_interval_at_its_own_end(stack: Stack, daily: None) -> None:
    stack.wait_for_backfill(first=_ends(stack, -5), last=_ends(stack, -3), runs=3)
    runs = _intervals(stack, first=-5, last=-3)
    assert len(runs) == 3

    published = {outcome["as_of"]: outcome for outcome in stack.agent("history", "e2e/daily")}
    assert {as_of: outcome["removed"] for as_of, outcome in published.items()} == {
        _ends(stack, -4): {"expiry": 3},
        _ends(stack, -3): {"expiry": 3},
    }
    assert stack.agent("look", "e2e/daily")["offsets"] == [6, 7, 8, 9, 10, 11]
    idle = [run for run in runs if stack.states(run["dag_run_id"])["due"] == "skipped"]
    assert len(idle) == 1


def test_an_overlapping_backfill_reports_the_first_result(stack: Stack, scheduled: str) -> None:
    before = stack.agent("look", "e2e/daily")
    first = {outcome["as_of"]: outcome["plan_id"] for outcome in stack.agent("history", "e2e/daily")}
    # Overlaps the first in two intervals, which are run again, and adds one.
    stack.backfill_when_free(first=_ends(stack, -4), last=_ends(stack, -2), conf={"topics": ["e2e/daily"]}, reprocess="completed", runs=3)
    runs = {run["data_interval_end"]: run["dag_run_id"] for run in _intervals(stack, first=-4, last=-2)}
    assert len(runs) == 3
    assert all(stack.states(run_id)["due"] == "skipped" for run_id in runs.values())
    again = stack.agent("idle", f"{DAG}/{runs[_ends(stack, -3)]}")
    assert first[_ends(stack, -3)] in again["detail"]
    assert stack.agent("look", "e2e/daily") == before
    assert len(stack.agent("history", "e2e/daily")) == 2


def _intervals(stack: Stack, *, first: int, last: int) -> list[dict[str, Any]]:
    return stack.runs_between(_ends(stack, first), _ends(stack, last))
