"""One run of the DAG `message_cleaner` over many topics: seconds until each task has ended, and the greatest memory of an application.

Most of the due topics need nobody. Some lose more than `max_removed_fraction` and ask a person. No topic may wait for the answer on another
topic, so the run publishes and verifies the others while the questions are open. Then a person approves all of them.

The run is a real one: PostgreSQL, Airflow's scheduler and its tasks, in a state folder of its own. Run by name only, because making 1,000
topics takes minutes: `python -m bench dag_run [--topics 1000 --due 200 --asking 10]`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex

from bench import size
from bench.process_tree import watching
from lifecycle_local import airflow, embedded, stack
from lifecycle_local.airflow import API, AirflowApi
from lifecycle_local.layout import Layout, find_layout, project_root
from message_lifecycle.app.services import policy_of
from message_lifecycle.app.topics import create_topic
from message_lifecycle.app.wiring import lake
from message_lifecycle.model.instants import Instant
from message_lifecycle.model.message import NewMessage
from message_lifecycle.model.names import TopicName
from message_lifecycle.stores.iceberg.engine import engine_of_process
from message_lifecycle.stores.iceberg.writer import IcebergWriter

DAG = "message_cleaner"
MOST_SECONDS, MOST_MEMORY_MB = 600.0, 2_048.0
MESSAGES, OLD, OLD_ASKING = 20, 4, 15
"""Messages of a due topic, and how many of them are past their age."""
_HOUR = 3_600
_RUN_SECONDS = 3_600.0
_APPLICATIONS = ("message_cleaner", "marker_generation", "quality_gate", "publish")


def main() -> int:
    """Print the seconds of the run and the memory of its applications. Return 1 if a bound was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--due", type=int, default=200)
    parser.add_argument("--asking", type=int, default=10)
    given = parser.parse_args()
    os.environ["LIFECYCLE_HOME"] = str(project_root() / ".lifecycle" / "dag_run")
    os.environ.setdefault("LIFECYCLE_TOOLS", str(project_root() / ".lifecycle"))
    layout = find_layout()
    try:
        embedded.up(layout)
        fill(given.topics, given.due, given.asking)
        return measured(layout, given.due, given.asking)
    finally:
        stack.down(layout)
        stack.remove_scratch(layout)


def fill(topics: int, due: int, asking: int) -> None:
    """Make the topics. The first `due` of them have messages past their age, and the first `asking` lose most of their messages."""
    s, writer, stream, began = lake(), IcebergWriter(engine_of_process), f"bench-{token_hex(3)}", time.monotonic()
    now = time.time_ns() // 1_000
    for number in range(topics):
        name = TopicName(stream=stream, topic=f"t{number}")
        create_topic(s, name, partitions=1, settings={"max_age_seconds": _HOUR})
        if number < due:
            old = OLD_ASKING if number < asking else OLD
            ages = [2 * _HOUR] * old + [0] * (MESSAGES - old)
            new = [NewMessage(append_time=Instant(now - age * 1_000_000), key=b"k%d" % at, value=b"v" * 100) for at, age in enumerate(ages)]
            writer.append(name, new, policy_of(s, name))
    print(f"{topics} topics made in {time.monotonic() - began:.0f} s, {due} due, {asking} of these ask", flush=True)


def measured(layout: Layout, due: int, asking: int) -> int:
    api = airflow.connect_to_airflow(layout)
    api.wait_for_dag(DAG, seconds=120)
    print(f"load average {os.getloadavg()[0]:.1f}", flush=True)
    began, ends = time.monotonic(), dict[str, float]()
    with watching(applications, interval=0.5, looks=2) as used:
        run_id = scheduled_run(api)
        while not ended(api, run_id, ends, began, ("verify", "waiting")):
            _in_time(began)
        without_person = time.monotonic() - began
        asked = 0
        while asked < asking:
            for question in api.approvals(DAG, run_id):
                api.answer(question, "Approve", {"text": "measured"})
                asked += 1
            _in_time(began)
        state = api.wait_for_run(DAG, run_id, seconds=_RUN_SECONDS)
    whole = time.monotonic() - began
    for task, seconds in ends.items():
        print(f"  {task} ended after {seconds:.0f} s")
    memory = max((one.memory_mb for one in used.values()), default=0.0)
    states = [task.state for task in api.tasks(DAG, run_id) if task.task_id == "approval.verify"]
    print(f"{due - asking} topics verified while {asking} questions were open: {without_person:.0f} s; "
          f"whole run with the answers: {whole:.0f} s, {state}; {sum(one.cpu for one in used.values()):.0f} CPU s in applications, "
          f"the largest takes {memory:,.0f} MB (bounds: {MOST_SECONDS:.0f} s, {MOST_MEMORY_MB:,.0f} MB)")  # fmt: skip
    correct = state == "success" and states == ["success"] * asking
    return size.status(kept=correct and whole <= MOST_SECONDS and memory <= MOST_MEMORY_MB)


def scheduled_run(api: AirflowApi) -> str:
    """Unpause the DAG. Airflow then starts one run, for the newest interval."""
    api.set_paused(DAG, False)
    for _ in range(60):
        runs = api.request("GET", f"{API}/dags/{DAG}/dagRuns?run_type=scheduled&limit=1")["dag_runs"]
        if runs:
            return str(runs[0]["dag_run_id"])
        time.sleep(1)  # the scheduler is only asked
    raise RuntimeError(f"Airflow has started no run of {DAG} within a minute")


def ended(api: AirflowApi, run_id: str, ends: dict[str, float], began: float, last: Sequence[str]) -> bool:
    """Note the tasks that have ended, and return True when all of `last` have ended."""
    for task in api.tasks(DAG, run_id):
        if task.map_index < 0 and task.state in ("success", "failed", "skipped", "upstream_failed"):
            ends.setdefault(f"{task.task_id} ({task.state})", time.monotonic() - began)
    return all(any(name.startswith(f"{task} (") for name in ends) for task in last)


def _in_time(began: float) -> None:
    if time.monotonic() - began > _RUN_SECONDS:
        raise RuntimeError(f"the run did not end in {_RUN_SECONDS:.0f} s")
    time.sleep(1)  # Airflow is only asked


def applications() -> Mapping[str, Sequence[int]]:
    """Return the processes that carry out an application of `spark_apps/`, by the application's name."""
    found: dict[str, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:  # the process has ended
                continue
            for name in _APPLICATIONS:
                if any(part.endswith(f"spark_apps/{name}.py".encode()) for part in command) and b"java" in command[0]:
                    found.setdefault(name, []).append(int(folder.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
