"""Airflow's api-server, scheduler, dag-processor and triggerer: migrated, started, waited for until healthy, stopped whole; and its REST API."""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from lifecycle_local import processes
from lifecycle_local.layout import AirflowRefused, Layout, component_failed, last_lines, run_not_finished, venv_bin
from lifecycle_local.processes import LOOPBACK, Component, last_port, log_file
from lifecycle_local.progress import Progress
from message_lifecycle.app.private_files import secret, write_private

# Logs are files of this machine: serving them too would open a port, the same one for every clone and on every interface.
_API_SERVER = "api-server"
_NO_LOG_SERVER = ("--skip-serve-logs",)
COMPONENTS: Mapping[str, tuple[str, ...]] = {
    _API_SERVER: (),
    "scheduler": _NO_LOG_SERVER,
    "dag-processor": (),
    "triggerer": _NO_LOG_SERVER,
}
# Bounds how many Spark applications run at once; order and safety are the table's own business.
POOL, POOL_SLOTS = "lifecycle", 2
# `start` restarts a component that runs with another value of one of these variables.
MATTERS = ("LIFECYCLE_AIRFLOW_DB_URL", "LIFECYCLE_AIRFLOW_PORT", "LIFECYCLE_LEDGER_URL", "JAVA_HOME", "SPARK_HOME")
HEALTHY_SECONDS = 240.0
# A running task is not waited for to its end: every step can be repeated.
STOP_SECONDS = 15.0
HEALTH_POLL_SECONDS = 0.5
# Name in the health report -> whose heartbeat it is.
HEARTBEATS = {"scheduler": "scheduler", "dag_processor": "dag-processor", "triggerer": "triggerer"}
# As in airflow.cfg: the role decides what the user may do.
USERS = ("admin", "viewer")
PASSWORD_BYTES = 12
FERNET_BYTES = 32
SERVICE = "airflow"
API = "/api/v2"
ANSWER_SECONDS = 60.0
POLL_SECONDS = 1.0
ENDED = ("success", "failed")
PARKED = ("awaiting_input", "deferred")
"""A task that waits for a person, by Airflow 3.3 and before."""
SETTLED = timedelta(seconds=3)
"""From the question until the executor is sure to have told that its task parks."""
UNAUTHORIZED, NOT_FOUND, CONFLICT = 401, 404, 409
# A proxy of the user's environment must not get to see, or refuse, calls to this machine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def components_running(layout: Layout) -> Mapping[str, bool]:
    """Return whether each component runs."""
    return {name: processes.find_component(layout, name) is not None for name in COMPONENTS}


def any_running(layout: Layout) -> bool:
    """True if any component runs."""
    return any(components_running(layout).values())


def _database_version(environment: Mapping[str, str]) -> str | None:
    """The migration that the database is at, None when it has none of Airflow's tables."""
    # psycopg knows no drivers in an URL, SQLAlchemy's notation does.
    url = environment["LIFECYCLE_AIRFLOW_DB_URL"].replace("postgresql+psycopg://", "postgresql://")
    with psycopg.connect(url, connect_timeout=5) as connection:
        there = connection.execute("select to_regclass('alembic_version')").fetchone()
        row = connection.execute("select version_num from alembic_version").fetchone() if there and there[0] else None
    return str(row[0]) if row else None


def _migrate(layout: Layout, environment: Mapping[str, str], progress: Progress) -> None:
    """Bring the database to this version of Airflow; asking Airflow itself costs seconds, so what it said last is kept."""
    done = layout.state / "airflow-migrated"
    wanted = f"{version('apache-airflow')} {_database_version(environment)}\n"
    if done.is_file() and done.read_text(encoding="utf-8") == wanted:
        return
    log = log_file(layout, "migration")
    with progress.step("Airflow's tables"), log.open("w", encoding="utf-8") as output:
        command = [str(venv_bin() / "airflow"), "db", "migrate"]
        status = subprocess.run(
            command, env=dict(environment), cwd=layout.project, stdout=output, stderr=output, timeout=HEALTHY_SECONDS, check=False
        ).returncode
    if status != 0:
        raise component_failed("migration", f"status {status}", log, last_lines(log, 3))
    write_private(done, f"{version('apache-airflow')} {_database_version(environment)}\n")


def start(layout: Layout, environment: Mapping[str, str], progress: Progress) -> None:
    """Start missing components, restart components that run with other settings, and wait until all are healthy."""
    ensure_files(layout)
    identity = processes.digest({name: environment[name] for name in MATTERS})
    running = [component for name in COMPONENTS if (component := processes.find_component(layout, name))]
    if any(component.environment != identity for component in running):
        with progress.step("Stopping Airflow, its settings have changed"):
            stop(layout)
        running = []
    _migrate(layout, environment, progress)
    with progress.step("Airflow's processes"):
        names = {component.name for component in running}
        started = [
            processes.launch(layout, name, [venv_bin() / "airflow", name, *options], environment, identity=identity)
            for name, options in COMPONENTS.items()
            if name not in names
        ]
        api = connect_to_airflow(layout)
        _wait_until_healthy(layout, api, [*running, *started])
        api.ensure_pool(POOL, POOL_SLOTS, "Spark applications of the message lifecycle at one time")


def _wait_until_healthy(layout: Layout, api: AirflowApi, all_components: list[Component]) -> None:
    deadline = time.monotonic() + HEALTHY_SECONDS
    started_at = {component.name: component.started_at for component in all_components}
    while not _healthy(api, started_at):
        for component in all_components:
            log = log_file(layout, component.name)
            if not component.process.is_alive():
                raise component_failed(component.name, "ended", log, last_lines(log))
            if time.monotonic() > deadline:
                raise component_failed(component.name, f"not healthy after {HEALTHY_SECONDS:.0f} s", log, last_lines(log))
        time.sleep(HEALTH_POLL_SECONDS)  # a component sends no signal when it is healthy


def _healthy(api: AirflowApi, started_at: Mapping[str, datetime]) -> bool:
    """True if every component has sent a heartbeat since its start. A heartbeat of an earlier run does not count."""
    try:
        report = api.health()
    except AirflowRefused:
        return False
    for key, component in HEARTBEATS.items():
        part = report.get(key) or {}
        beat = part.get(f"latest_{key}_heartbeat")
        if part.get("status") != "healthy" or beat is None or datetime.fromisoformat(beat) < started_at[component]:
            return False
    return (report.get("metadatabase") or {}).get("status") == "healthy"


def stop(layout: Layout) -> None:
    """End every process of Airflow's, running tasks and their Spark drivers included."""
    # Stop the api-server last: a task that must end reports to the api-server, and would otherwise try until the kill.
    processes.stop(layout, [name for name in COMPONENTS if name != _API_SERVER], polite_seconds=STOP_SECONDS)
    processes.stop(layout, [_API_SERVER], polite_seconds=STOP_SECONDS)


def logins_file(layout: Layout) -> Path:
    """User names and passwords of the UI, as JSON."""
    return layout.secrets / "airflow-logins.json"


def password_of(layout: Layout, user: str) -> str:
    """The password of one user of the UI."""
    return str(json.loads(logins_file(layout).read_text(encoding="utf-8"))[user])


def ensure_files(layout: Layout) -> None:
    """Create what is missing; what is there stays, so that sessions and tokens outlive a restart."""
    secret(layout.secrets / "airflow-jwt")
    secret(layout.secrets / "airflow-session")
    fernet = layout.secrets / "airflow-fernet"
    if not fernet.is_file():
        write_private(fernet, base64.urlsafe_b64encode(secrets.token_bytes(FERNET_BYTES)).decode())
    if not logins_file(layout).is_file():
        passwords = {user: secrets.token_urlsafe(PASSWORD_BYTES) for user in USERS}
        write_private(logins_file(layout), json.dumps(passwords, indent=2) + "\n")


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
        """Return the decoded answer to a path, for example /api/v2/dags. `AirflowRefused` carries the status of a failed request."""
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
        """Make the pool if it is missing. A pool whose slots a person has changed stays as it is."""
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
        if not _wait_until(lambda: dag_id in self.dag_ids(), seconds):
            said = "; ".join(f"{file}: {trace.strip().splitlines()[-1]}" for file, trace in self.import_errors().items())
            raise AirflowRefused("GET", f"{API}/dags/{dag_id}", NOT_FOUND, said or f"not parsed within {seconds:.0f} s")

    def set_paused(self, dag_id: str, paused: bool) -> None:
        """Runs of a paused DAG wait for ever, triggered ones too."""
        self.request("PATCH", f"{API}/dags/{quote(dag_id)}", {"is_paused": paused})

    def trigger(self, dag_id: str, *, conf: Mapping[str, object] | None = None, logical_date: str | None = None) -> str:
        """Start a run and return its id; `logical_date` is ISO 8601 with a zone, None for a run without one."""
        body = {"logical_date": logical_date, "conf": dict(conf or {})}
        return str(self.request("POST", f"{API}/dags/{quote(dag_id)}/dagRuns", body)["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """queued, running, success or failed."""
        return str(self.request("GET", _run_path(dag_id, run_id))["state"])

    def wait_for_run(self, dag_id: str, run_id: str, *, seconds: float) -> str:
        """Wait for the end of the run, and return its final state. Raises RunNotFinished."""
        if not _wait_until(lambda: self.run_state(dag_id, run_id) in ENDED, seconds):
            raise run_not_finished(dag_id, run_id, self.run_state(dag_id, run_id), seconds)
        return self.run_state(dag_id, run_id)

    def tasks(self, dag_id: str, run_id: str) -> tuple[TaskState, ...]:
        """Every task of the run, mapped ones by index."""
        found = self.request("GET", f"{_run_path(dag_id, run_id)}/taskInstances?limit=1000")["task_instances"]
        return tuple(TaskState(task_id=task["task_id"], map_index=task["map_index"], state=task["state"]) for task in found)

    def task_log(self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1, attempt: int = 1) -> str:
        """The log of one attempt, as text."""
        path = f"{_run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/logs/{attempt}?map_index={map_index}&full_content=true"
        lines = self.request("GET", path)["content"]
        return "\n".join(str(line.get("event", "")) if isinstance(line, dict) else str(line) for line in lines)

    def approvals(self, dag_id: str, run_id: str) -> tuple[Approval, ...]:
        """Return the run's open questions, without questions that are too new to be answered.

        Airflow 3.3 loses an answer that comes before the asking task waits. Airflow also fails the task if the answer comes before the
        scheduler knows that the asking half of the task has ended. The scheduler learns that from the executor before its next heartbeat.
        """
        found = self.request("GET", f"{_run_path(dag_id, run_id)}/hitlDetails?response_received=false&limit=1000")["hitl_details"]
        beat = (self.health().get("scheduler") or {}).get("latest_scheduler_heartbeat")
        heard = datetime.min.replace(tzinfo=UTC) if beat is None else datetime.fromisoformat(beat)
        return tuple(
            Approval(
                dag_id=dag_id, run_id=run_id, task_id=detail["task_instance"]["task_id"], map_index=detail["task_instance"]["map_index"],
                subject=detail["subject"], body=detail["body"] or "", options=tuple(detail["options"]),
            )
            for detail in found
            if _has_settled(detail, heard)
        )  # fmt: skip

    def answer(self, approval: Approval, option: str, params: Mapping[str, object] | None = None) -> None:
        """Answer as this client's user; Airflow keeps the name and the time."""
        path = f"{_run_path(approval.dag_id, approval.run_id)}/taskInstances/{quote(approval.task_id)}/{approval.map_index}/hitlDetails"
        self.request("PATCH", path, {"chosen_options": [option], "params_input": dict(params or {})})


def connect_to_airflow(layout: Layout, user: str = "admin") -> AirflowApi:
    """A client of this clone's Airflow."""
    return AirflowApi(address=f"http://{LOOPBACK}:{last_port(layout.ports_file, SERVICE)}", user=user, password=password_of(layout, user))


def _has_settled(detail: Mapping[str, Any], heard: datetime) -> bool:
    """True if the task now waits for its answer, and the scheduler knows.

    A task parses its DAG, asks, and then waits. A task on a second try keeps the time of its first question, so its start counts too.
    `heard`: the scheduler's last heartbeat.
    """
    task = detail["task_instance"]
    since = max(datetime.fromisoformat(at) for at in (task["start_date"], detail["created_at"]))
    return task["state"] in PARKED and heard - since > SETTLED


def _run_path(dag_id: str, run_id: str) -> str:
    # Run ids hold colons and a plus sign.
    return f"{API}/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def _wait_until(happened: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)  # the API is only asked
    return True
