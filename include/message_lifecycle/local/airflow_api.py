"""Airflow's REST API as far as we drive it: trigger, wait, look, approve; every wait has a deadline."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from message_lifecycle.local.airflow_files import password_of
from message_lifecycle.local.errors import AirflowRefused, RunNotFinished
from message_lifecycle.local.layout import Layout
from message_lifecycle.local.ports import LOOPBACK, kept_port

SERVICE = "airflow"
API = "/api/v2"
ANSWER_SECONDS = 60.0
POLL_SECONDS = 1.0
ENDED = ("success", "failed")
PARKED = ("awaiting_input", "deferred")
"""A task that waits for a person, by Airflow 3.3 and before."""
SETTLED = timedelta(seconds=5)
UNAUTHORIZED, NOT_FOUND, CONFLICT = 401, 404, 409
# A proxy of the user's environment must not get to see, or refuse, calls to this machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """One task of a run; `state` is None while it has not been scheduled. `map_index` is -1 unless the task is mapped."""

    task_id: str
    map_index: int
    state: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A question that a run asks a person, with the options to choose from."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    subject: str
    body: str
    options: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class AirflowApi:
    """A client logged in as one user; logs in again by itself when the token has run out."""

    address: str
    user: str
    password: str = field(repr=False)
    _token: str | None = field(default=None, repr=False)

    def request(self, method: str, path: str, body: object | None = None) -> Any:
        """The decoded answer to a path such as /api/v2/dags; `AirflowRefused` carries the status of any answer that is not a success."""
        if self._token is None:
            answer = self._send("POST", "/auth/token", {"username": self.user, "password": self.password})
            self._token = str(answer["access_token"])
        try:
            return self._send(method, path, body)
        except AirflowRefused as refused:
            if refused.status != UNAUTHORIZED:
                raise
        self._token = None
        return self.request(method, path, body)

    def _send(self, method: str, path: str, body: object | None) -> Any:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None if body is None else json.dumps(body).encode()
        try:
            with _OPENER.open(urllib.request.Request(self.address + path, data, headers, method=method), timeout=ANSWER_SECONDS) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise AirflowRefused(method, path, error.code, error.read().decode(errors="replace")) from error
        except OSError as error:
            raise AirflowRefused(method, path, 0, f"no answer from {self.address}: {error}") from error
        return json.loads(text) if text else None

    def health(self) -> Mapping[str, Mapping[str, str | None]]:
        """State and last heartbeat of each component; asks without logging in."""
        found: Mapping[str, Mapping[str, str | None]] = self._send("GET", f"{API}/monitor/health", None)
        return found

    def ensure_pool(self, name: str, slots: int, description: str) -> None:
        """Make the pool if there is none; one whose slots a person has changed stays as it is."""
        try:
            self.request("POST", f"{API}/pools", {"name": name, "slots": slots, "description": description})
        except AirflowRefused as refused:
            if refused.status != CONFLICT:
                raise

    def dag_ids(self) -> tuple[str, ...]:
        """The DAGs that have been parsed so far."""
        return tuple(dag["dag_id"] for dag in self.request("GET", f"{API}/dags?limit=1000")["dags"])

    def import_errors(self) -> Mapping[str, str]:
        """DAG file -> what its import said."""
        return {error["filename"]: error["stack_trace"] for error in self.request("GET", f"{API}/importErrors?limit=1000")["import_errors"]}

    def wait_for_dag(self, dag_id: str, *, seconds: float) -> None:
        """Return as soon as the DAG has been parsed."""
        if not _until(lambda: dag_id in self.dag_ids(), seconds):
            said = "; ".join(f"{file}: {trace.strip().splitlines()[-1]}" for file, trace in self.import_errors().items())
            raise AirflowRefused("GET", f"{API}/dags/{dag_id}", NOT_FOUND, said or f"not parsed within {seconds:.0f} s")

    def set_paused(self, dag_id: str, paused: bool) -> None:
        """Runs of a paused DAG wait for ever, triggered ones too."""
        self.request("PATCH", f"{API}/dags/{quote(dag_id)}", {"is_paused": paused})

    def trigger(
        self, dag_id: str, *, conf: Mapping[str, object] | None = None, logical_date: str | None = None, run_id: str | None = None
    ) -> str:
        """Start a run and return its id; `logical_date` is ISO 8601 with a zone, None for a run without one."""
        body: dict[str, object] = {"logical_date": logical_date, "conf": dict(conf or {})}
        if run_id:
            body["dag_run_id"] = run_id
        return str(self.request("POST", f"{API}/dags/{quote(dag_id)}/dagRuns", body)["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """queued, running, success or failed."""
        return str(self.request("GET", _run(dag_id, run_id))["state"])

    def wait_for_run(self, dag_id: str, run_id: str, *, seconds: float) -> str:
        """The state in which the run ended; `RunNotFinished` when it has not."""
        if not _until(lambda: self.run_state(dag_id, run_id) in ENDED, seconds):
            raise RunNotFinished(dag_id, run_id, self.run_state(dag_id, run_id), seconds)
        return self.run_state(dag_id, run_id)

    def tasks(self, dag_id: str, run_id: str) -> tuple[TaskState, ...]:
        """Every task of the run, mapped ones by index."""
        found = self.request("GET", f"{_run(dag_id, run_id)}/taskInstances?limit=1000")["task_instances"]
        return tuple(TaskState(task_id=task["task_id"], map_index=task["map_index"], state=task["state"]) for task in found)

    def task_log(self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1, attempt: int = 1) -> str:
        """The log of one attempt, as text."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{quote(task_id)}/logs/{attempt}?map_index={map_index}&full_content=true"
        lines = self.request("GET", path)["content"]
        return "\n".join(str(line.get("event", "")) if isinstance(line, dict) else str(line) for line in lines)

    def xcom(self, dag_id: str, run_id: str, task_id: str, *, key: str = "return_value", map_index: int = -1) -> Any:
        """What a task handed on."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries/{quote(key)}?map_index={map_index}&deserialize=true"
        return self.request("GET", path)["value"]

    def approvals(self, dag_id: str, run_id: str) -> tuple[Approval, ...]:
        """The questions of a run that nobody has answered yet and that may be answered: not one of these moments.

        Airflow 3.3 loses an answer that comes before its task waits, and fails the task where it comes before the executor has told
        that the half which asked has ended.
        """
        found = self.request("GET", f"{_run(dag_id, run_id)}/hitlDetails?response_received=false&limit=1000")["hitl_details"]
        return tuple(
            Approval(
                dag_id=dag_id, run_id=run_id, task_id=detail["task_instance"]["task_id"], map_index=detail["task_instance"]["map_index"],
                subject=detail["subject"], body=detail["body"] or "", options=tuple(detail["options"]),
            )
            for detail in found
            if _has_settled(detail)
        )  # fmt: skip

    def wait_for_approvals(self, dag_id: str, run_id: str, *, seconds: float) -> tuple[Approval, ...]:
        """The first open questions, or none if the run ended without one."""
        if not _until(lambda: bool(self.approvals(dag_id, run_id)) or self.run_state(dag_id, run_id) in ENDED, seconds):
            raise RunNotFinished(dag_id, run_id, self.run_state(dag_id, run_id), seconds)
        return self.approvals(dag_id, run_id)

    def answer(self, approval: Approval, option: str, params: Mapping[str, object] | None = None) -> None:
        """Answer as this client's user; Airflow keeps the name and the time."""
        path = f"{_run(approval.dag_id, approval.run_id)}/taskInstances/{quote(approval.task_id)}/{approval.map_index}/hitlDetails"
        self.request("PATCH", path, {"chosen_options": [option], "params_input": dict(params or {})})


def connect(layout: Layout, user: str = "admin") -> AirflowApi:
    """A client of this clone's Airflow."""
    return AirflowApi(address=f"http://{LOOPBACK}:{kept_port(layout.ports_file, SERVICE)}", user=user, password=password_of(layout, user))


def _has_settled(detail: Mapping[str, Any]) -> bool:
    """A task parses its DAG before it asks, and then parks; one that is tried again keeps the time of its first question."""
    task = detail["task_instance"]
    since = max(datetime.fromisoformat(at) for at in (task["start_date"], detail["created_at"]))
    # Airflow's clock and ours are one: it runs on this machine.
    return task["state"] in PARKED and datetime.now(UTC) - since > SETTLED


def _run(dag_id: str, run_id: str) -> str:
    # Run ids hold colons and a plus sign.
    return f"{API}/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def _until(happened: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
