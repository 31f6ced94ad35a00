"""The REST client against a server that answers as Airflow does: tokens run out, ids hold odd characters, errors carry bodies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from lifecycle_local.airflow import AirflowApi, Approval
from lifecycle_local.layout import AirflowRefused
from tests.errors import raises

RUN = "manual__2026-11-21T00:00:00+00:00"
RUN_PATH = "/api/v2/dags/d/dagRuns/manual__2026-11-21T00%3A00%3A00%2B00%3A00"


class FakeAirflow(ThreadingHTTPServer):
    """Answers from a table and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[tuple[str, str], list[tuple[int, Any]]] = {}
        self.asked: list[tuple[str, str, Any, str | None]] = []
        self.tokens = 0


class Handler(BaseHTTPRequestHandler):
    server: FakeAirflow

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.server.asked.append((self.command, self.path, body, self.headers.get("Authorization")))
        if self.path == "/auth/token":
            self.server.tokens += 1
            status, answer = 201, {"access_token": f"token {self.server.tokens}"}
        else:
            queue = self.server.answers[(self.command, self.path)]
            status, answer = queue.pop(0) if len(queue) > 1 else queue[0]
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = _answer

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def airflow() -> Iterator[FakeAirflow]:
    with FakeAirflow() as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def api(airflow: FakeAirflow) -> AirflowApi:
    return AirflowApi(address=f"http://127.0.0.1:{airflow.server_port}", user="admin", password="not-shown")


def test_a_token_is_asked_for_once_and_again_when_it_has_run_out(airflow: FakeAirflow, api: AirflowApi) -> None:
    airflow.answers[("GET", "/api/v2/x")] = [(200, 1), (401, {}), (200, 2)]
    assert (api.request("GET", "/api/v2/x"), api.request("GET", "/api/v2/x")) == (1, 2)
    assert [asked[3] for asked in airflow.asked] == [None, "Bearer token 1", "Bearer token 1", None, "Bearer token 2"]
    assert "not-shown" not in repr(api)


def test_trigger_unpause_and_wait(airflow: FakeAirflow, api: AirflowApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lifecycle_local.airflow.POLL_SECONDS", 0.01)
    airflow.answers[("PATCH", "/api/v2/dags/d")] = [(200, {})]
    airflow.answers[("POST", "/api/v2/dags/d/dagRuns")] = [(200, {"dag_run_id": RUN})]
    airflow.answers[("GET", RUN_PATH)] = [(200, {"state": "queued"}), (200, {"state": "running"}), (200, {"state": "success"})]
    api.set_paused("d", False)
    assert api.trigger("d", conf={"topics": ["a"]}) == RUN
    assert airflow.asked[-1][2] == {"logical_date": None, "conf": {"topics": ["a"]}}
    assert api.wait_for_run("d", RUN, seconds=10) == "success"


def test_a_run_that_does_not_end_is_named(airflow: FakeAirflow, api: AirflowApi) -> None:
    airflow.answers[("GET", RUN_PATH)] = [(200, {"state": "running"})]
    with raises("RunNotFinished", match=rf"run {re.escape(RUN)} of d is running after 0 s"):
        api.wait_for_run("d", RUN, seconds=0)


def test_approvals_are_listed_and_answered(airflow: FakeAirflow, api: AirflowApi) -> None:
    asked = {"subject": "s", "body": None, "options": ["Approve", "Reject"]}
    long_ago, not_long_ago = "2026-01-01T00:00:00.000001Z", (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    heard = datetime.now(UTC)
    just_heard = (heard - timedelta(seconds=1)).isoformat()
    airflow.answers[("GET", "/api/v2/monitor/health")] = [(200, {"scheduler": {"latest_scheduler_heartbeat": heard.isoformat()}})]
    # The first four are still on their way to wait: an answer would meet them half way. Of the fourth the scheduler has not heard.
    tasks = (
        ("running", long_ago, long_ago),
        ("awaiting_input", not_long_ago, long_ago),
        ("awaiting_input", long_ago, not_long_ago),
        ("awaiting_input", long_ago, just_heard),
        ("awaiting_input", long_ago, long_ago),
    )
    found = [
        asked | {"created_at": at, "task_instance": {"task_id": "ask", "map_index": index, "state": state, "start_date": start}}
        for index, (state, start, at) in enumerate(tasks)
    ]
    airflow.answers[("GET", f"{RUN_PATH}/hitlDetails?response_received=false&limit=1000")] = [(200, {"hitl_details": found})]
    airflow.answers[("PATCH", f"{RUN_PATH}/taskInstances/ask/4/hitlDetails")] = [(200, {})]
    (approval,) = api.approvals("d", RUN)
    assert approval == Approval(dag_id="d", run_id=RUN, task_id="ask", map_index=4, subject="s", body="", options=("Approve", "Reject"))
    api.answer(approval, "Approve", {"reason": "asked for"})
    assert airflow.asked[-1][2] == {"chosen_options": ["Approve"], "params_input": {"reason": "asked for"}}


def test_a_pool_that_is_there_is_left_alone(airflow: FakeAirflow, api: AirflowApi) -> None:
    airflow.answers[("POST", "/api/v2/pools")] = [(409, {"detail": "exists"})]
    api.ensure_pool("lifecycle", 2, "text")
    assert [entry[:2] for entry in airflow.asked[1:]] == [("POST", "/api/v2/pools")], "asked for, and nothing after it"


def test_an_error_carries_what_airflow_said(airflow: FakeAirflow, api: AirflowApi) -> None:
    airflow.answers[("GET", "/api/v2/dags/d")] = [(404, {"detail": "no such DAG"})]
    with pytest.raises(AirflowRefused, match=r"404 to GET .*no such DAG") as error:
        api.request("GET", "/api/v2/dags/d")
    assert (error.value.status, error.value.exit_code) == (404, 4)


def test_no_server_is_an_error_of_the_same_kind() -> None:
    with pytest.raises(AirflowRefused, match="no answer"):
        AirflowApi(address="http://127.0.0.1:9", user="admin", password="x").health()
