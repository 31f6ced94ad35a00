"""Airflow's api-server, scheduler and dag-processor: migrated, started, waited for until healthy, and stopped whole.

No triggerer: nothing here defers, and approvals wait in the scheduler. The UI shows it as missing, which is true.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import version

import psycopg

from message_lifecycle.local import components
from message_lifecycle.local.airflow_api import AirflowApi, connect
from message_lifecycle.local.airflow_files import ensure_files
from message_lifecycle.local.components import Component, log_file
from message_lifecycle.local.errors import AirflowRefused, ComponentFailed
from message_lifecycle.local.layout import Layout
from message_lifecycle.local.private_files import last_lines, write_private
from message_lifecycle.local.progress import Progress
from message_lifecycle.local.python_home import venv_bin

# Logs are files of this machine: serving them too would open a port, the same one for every clone and on every interface.
COMPONENTS: Mapping[str, tuple[str, ...]] = {"api-server": (), "scheduler": ("--skip-serve-logs",), "dag-processor": ()}
# Bounds how many Spark applications run at once; order and safety are the table's own business.
POOL, POOL_SLOTS = "lifecycle", 2
# A component that was started with another value of one of these is started anew.
MATTERS = ("LIFECYCLE_AIRFLOW_DB_URL", "LIFECYCLE_AIRFLOW_PORT", "LIFECYCLE_LEDGER_URL", "JAVA_HOME", "SPARK_HOME")
HEALTHY_SECONDS = 240.0
# A running task is not waited for to its end: every step can be repeated.
STOP_SECONDS = 15.0
POLL_SECONDS = 0.5
# Name in the health report -> whose heartbeat it is.
HEARTBEATS = {"scheduler": "scheduler", "dag_processor": "dag-processor"}


def components_running(layout: Layout) -> Mapping[str, bool]:
    """Each component and whether it runs."""
    return {name: components.find(layout, name) is not None for name in COMPONENTS}


def any_running(layout: Layout) -> bool:
    """Whether a component runs."""
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
        raise ComponentFailed("migration", f"status {status}", log, last_lines(log, 3))
    write_private(done, f"{version('apache-airflow')} {_database_version(environment)}\n")


def start(layout: Layout, environment: Mapping[str, str], progress: Progress) -> None:
    """Start the components that do not run, restart those that run with other settings, and wait until all are healthy."""
    ensure_files(layout)
    identity = components.digest({name: environment[name] for name in MATTERS})
    running = [component for name in COMPONENTS if (component := components.find(layout, name))]
    if any(component.environment != identity for component in running):
        with progress.step("Stopping Airflow, its settings have changed"):
            stop(layout)
        running = []
    _migrate(layout, environment, progress)
    with progress.step("Airflow's processes"):
        names = {component.name for component in running}
        started = [
            components.launch(layout, name, [venv_bin() / "airflow", name, *options], environment, identity=identity)
            for name, options in COMPONENTS.items()
            if name not in names
        ]
        api = connect(layout)
        _wait_until_healthy(layout, api, [*running, *started])
        api.ensure_pool(POOL, POOL_SLOTS, "Spark applications of the message lifecycle at one time")


def _wait_until_healthy(layout: Layout, api: AirflowApi, all_components: list[Component]) -> None:
    deadline = time.monotonic() + HEALTHY_SECONDS
    started_at = {component.name: component.started_at for component in all_components}
    while not _healthy(api, started_at):
        for component in all_components:
            log = log_file(layout, component.name)
            if not component.process.alive():
                raise ComponentFailed(component.name, "ended", log, last_lines(log))
            if time.monotonic() > deadline:
                raise ComponentFailed(component.name, f"not healthy after {HEALTHY_SECONDS:.0f} s", log, last_lines(log))
        time.sleep(POLL_SECONDS)


def _healthy(api: AirflowApi, started_at: Mapping[str, datetime]) -> bool:
    """Whether every component has given a sign of life since it was started: one from the run before counts for nothing."""
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
    # The api-server last: a task that is told to end reports to it, and would otherwise try until it is killed.
    components.stop(layout, ["scheduler", "dag-processor"], polite_seconds=STOP_SECONDS)
    components.stop(layout, ["api-server"], polite_seconds=STOP_SECONDS)
