"""The stack under test as the tests drive it: Airflow by its REST API and its command, the lake by the agent."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

from lifecycle_local.airflow import API, CONFLICT, AirflowApi, Approval
from lifecycle_local.layout import AirflowRefused, Layout, venv_bin

DAG = "message_cleaner"
DAY = 86_400
# What is found or made by looking for Java, and what the machines of a cluster have; the jars and the class archive are the clone's.
KEPT = ("java", "ivy", "machines")
EVENTS = "events"
"""The folder of Spark's event logs, which hold the settings, plans and queries of each application."""
# Generous: the machine may be busy with other tests; each task is given up much earlier by Airflow itself.
RUN_SECONDS = 420.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Days:
    """Intervals of about a day. `length` in seconds; `end`: of the newest one, seconds since 1970.

    Airflow counts intervals from 1970 by the machine's clock. With days of exactly 24 hours one would end at midnight, perhaps amid the tests."""

    length: int
    end: int

    @classmethod
    def at(cls, now: int) -> Days:
        """Of such a length that the newest one has ended within the last six hours: the next one ends no sooner than in eighteen."""
        number = now // DAY
        length = now // number
        return cls(length=length, end=number * length)


@dataclass(slots=True, kw_only=True)
class Agent:
    """`agent.do(...)`: see tests/e2e/agent.py."""

    process: subprocess.Popen[str]

    def __call__(self, do: str, *args: object, **options: object) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, "with": args, "and": options}) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the agent has ended; its standard error says why"
        told = json.loads(line)
        assert "error" not in told, told["error"]
        return told["answer"]


@dataclass(slots=True, kw_only=True)
class Stack:
    """`before`: how topics looked, for tests to come."""

    layout: Layout
    environment: Mapping[str, str]
    api: AirflowApi
    viewer: AirflowApi
    agent: Agent
    days: Days
    before: dict[str, Any] = field(default_factory=dict)

    def airflow(self, *command: str) -> str:
        """The `airflow` command's output."""
        done = subprocess.run(
            [str(venv_bin() / "airflow"), *command],
            env=dict(self.environment),
            cwd=self.layout.project,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def lifecycle(self, *command: str, stdin: bytes = b"") -> Any:
        """What the `lifecycle` command tells programs. A key goes to its standard input."""
        done = subprocess.run(
            [str(venv_bin() / "lifecycle"), *command, "--output", "json"],
            env=dict(self.environment),
            input=stdin,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    def page(self, path: str) -> str:
        """One of our own pages, as whoever is logged in sees it."""
        token = self.api.request("POST", "/auth/token", {"username": self.api.user, "password": self.api.password})["access_token"]
        asked = Request(f"{self.api.address}/lifecycle{path}", headers={"Authorization": f"Bearer {token}"})
        with build_opener(ProxyHandler({})).open(asked, timeout=60) as answer:
            return str(answer.read().decode())

    def states(self, run_id: str, dag: str = DAG) -> dict[str, str | None]:
        """Task -> state; mapped ones as `task[0]`."""
        return {
            f"{task.task_id}[{task.map_index}]" if task.map_index >= 0 else task.task_id: task.state for task in self.api.tasks(dag, run_id)
        }

    def finished(self, run_id: str, dag: str = DAG) -> str:
        """Wait for the run; its state."""
        return self.api.wait_for_run(dag, run_id, seconds=RUN_SECONDS)

    def questions(self, run_id: str, number: int, dag: str = DAG) -> tuple[Approval, ...]:
        """The run's open questions, once that many are asked: mapped tasks start one after the other."""
        deadline = time.monotonic() + RUN_SECONDS
        while time.monotonic() < deadline:
            found = self.api.approvals(dag, run_id)
            if len(found) == number:
                return found
            time.sleep(1)
        raise AssertionError(self.states(run_id, dag))

    def answered(self, run_id: str, words: Mapping[str, tuple[str, str]], dag: str = DAG) -> str:
        """Answer every question by its topic, as (option, why), also one that is asked again, until the run has ended; its state."""
        deadline = time.monotonic() + RUN_SECONDS
        while (state := self.api.run_state(dag, run_id)) not in ("success", "failed"):
            assert time.monotonic() < deadline, self.states(run_id, dag)
            for question in self.api.approvals(dag, run_id):
                option, why = words[question.subject.split(":")[0]]
                self.api.answer(question, option, {"text": why})
            time.sleep(1)  # between two looks; the deadline ends it
        return state

    def run_of(self, run_type: str) -> str:
        """The first run of that type, as soon as there is one."""
        deadline = time.monotonic() + RUN_SECONDS
        while time.monotonic() < deadline:
            runs = self.api.request("GET", f"{API}/dags/{DAG}/dagRuns?run_type={run_type}&limit=1")["dag_runs"]
            if runs:
                return str(runs[0]["dag_run_id"])
            time.sleep(1)
        raise AssertionError(f"no {run_type} run")

    def wait_for_task(self, run_id: str, task_id: str, *states: str) -> str | None:
        """Until the task is in one of the states, or the run has ended."""
        deadline = time.monotonic() + RUN_SECONDS
        while time.monotonic() < deadline:
            state = self.states(run_id).get(task_id)
            if state in states or self.api.run_state(DAG, run_id) in ("success", "failed"):
                return state
            time.sleep(1)
        raise AssertionError(f"{task_id} of {run_id} is {self.states(run_id).get(task_id)}")

    def runs_between(self, first: str, last: str, dag: str = DAG) -> list[dict[str, Any]]:
        """Runs by logical date, both ends included."""
        path = f"{API}/dags/{dag}/dagRuns?logical_date_gte={quote(first)}&logical_date_lte={quote(last)}&limit=100"
        return list(self.api.request("GET", path)["dag_runs"])

    def wait_for_backfill(self, *, first: str, last: str, runs: int) -> None:
        """Until that many runs have ended."""
        deadline = time.monotonic() + RUN_SECONDS
        while time.monotonic() < deadline:
            found = self.runs_between(first, last)
            if len(found) == runs and all(run["state"] in ("success", "failed") for run in found):
                return
            time.sleep(1)
        raise AssertionError([(run["dag_run_id"], run["state"]) for run in self.runs_between(first, last)])

    def backfill_when_free(self, *, first: str, last: str, conf: Mapping[str, object], reprocess: str, runs: int) -> None:
        """As the UI's dialog does it. Airflow closes the backfill before up to half a minute after its last run."""
        body = {
            "dag_id": DAG,
            "from_date": first,
            "to_date": last,
            "dag_run_conf": conf,
            "reprocess_behavior": reprocess,
            "max_active_runs": 4,
        }
        deadline = time.monotonic() + 90
        while True:
            try:
                self.api.request("POST", f"{API}/backfills", body)
                break
            except AirflowRefused as refused:
                if refused.status != CONFLICT or time.monotonic() > deadline:
                    raise
                time.sleep(2)
        # Runs that are done again are taken back first: without this, their old end would look like the new one.
        while all(run["state"] == "success" for run in self.runs_between(first, last)):
            time.sleep(0.2)
        self.wait_for_backfill(first=first, last=last, runs=runs)
