"""One stack for all tests here: PostgreSQL, Airflow and a lake of their own, beside the user's and never the user's."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from lifecycle_local.airflow import connect_to_airflow
from lifecycle_local.environment import merge_environment, read_environment
from lifecycle_local.guard import stop_at_exit
from lifecycle_local.layout import CLUSTER, DISK, STACK, Layout, find_layout, venv_bin, venv_python
from lifecycle_local.postgres import find_place
from lifecycle_local.stack import down
from tests.e2e.stack import DAG, EVENTS, KEPT, Agent, Days, Stack
from tests.effort import hunt

# Topics whose runs start no Spark: most of each is over a limit, but for the last.
FILES = """
[backends.files]
kind = "json_file"
root = "{root}"
[backends.files.topics]
"files/approved" = {{ max_records = 2 }}
"files/refused" = {{ max_records = 2 }}
"files/other" = {{ max_records = 5 }}
"""
OTHER_STACKS = ("LIFECYCLE_", "AIRFLOW_", "SPARK_", "PYSPARK_", "PYICEBERG_")


@pytest.fixture(scope="package", params=[DISK, pytest.param(CLUSTER, marks=hunt)])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """With an empty lake and the DAG still paused; everything that was started is stopped, all data go.

    After the last test here, not of the session: an idle Airflow parses and polls, and takes its share of the other tests' time.
    """
    users, kind = find_layout(), request.param
    users.prepare()
    state = users.state / ("e2e" if kind == DISK else f"e2e-{kind}")
    layout = Layout(project=users.project, state=state, shared_tools=users.tools, is_cluster=kind == CLUSTER)
    layout.prepare()
    config = layout.state / "lifecycle.toml"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OTHER_STACKS)} | {
        "LIFECYCLE_HOME": str(layout.state),
        "LIFECYCLE_TOOLS": str(layout.tools),
        "LIFECYCLE_CONFIG": str(config),
        STACK: kind,
    }
    with (users.state / "e2e.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # two test runs at once would stop each other's stack
        _clear(layout, environ)
        # Unpausing starts one run at once, for the newest day, and no other one gets between the tests.
        days = Days.at(int(time.time()))
        config.write_text(f"[message_cleaner]\ninterval = {days.length}\n{FILES.format(root=layout.state / 'files')}")
        try:
            with stop_at_exit(down, layout):
                _lifecycle("up", environ)
                settings = read_environment(layout)
                assert settings is not None
                _log_events(layout)
                yield from _running(layout, merge_environment(settings, environ), days)
        finally:
            _clear(layout, environ)


def _log_events(layout: Layout) -> None:
    """Let every Spark application keep its event log, as many do in production. Spark 4 compresses the log by default, which hides its text."""
    folder = layout.state / EVENTS
    folder.mkdir(exist_ok=True)
    with (layout.spark_conf / "spark-defaults.conf").open("a") as conf:
        conf.write(f"\nspark.eventLog.enabled true\nspark.eventLog.compress false\nspark.eventLog.dir file://{folder}\n")


def _lifecycle(verb: str, environ: dict[str, str]) -> None:
    subprocess.run([str(venv_bin() / "lifecycle"), verb], env=environ, check=True, timeout=400)


def _clear(layout: Layout, environ: dict[str, str]) -> None:
    if not layout.environment_file.is_file():
        return
    _lifecycle("down", environ)
    shutil.rmtree(find_place(layout).folder, ignore_errors=True)
    for entry in layout.state.iterdir():
        if entry.name in KEPT:
            continue
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    layout.prepare()


def _running(layout: Layout, environment: dict[str, str], days: Days) -> Iterator[Stack]:
    command = [str(venv_python()), "-m", "tests.e2e.agent"]
    errors = layout.logs / "agent.log"
    with (
        errors.open("w") as log,
        subprocess.Popen(
            command, env=environment, cwd=layout.project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        agent = Agent(process=process)
        api = connect_to_airflow(layout)
        try:
            agent.answer()
            api.wait_for_dag(DAG, seconds=120)
            yield Stack(
                layout=layout,
                environment=environment,
                api=api,
                viewer=connect_to_airflow(layout, "viewer"),
                agent=agent,
                days=days,
            )
        except BaseException:
            print(errors.read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            process.kill()
