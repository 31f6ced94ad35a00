"""The embedded Airflow: healthy when `start` returns, open to those with a password, gone when `stop` returns."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from lifecycle_local import airflow, postgres
from lifecycle_local.airflow import SERVICE, connect_to_airflow, logins_file
from lifecycle_local.environment import environment, merge_environment
from lifecycle_local.java import Java
from lifecycle_local.layout import AirflowRefused, Layout
from lifecycle_local.processes import choose_port, find_process
from lifecycle_local.progress import QUIET

pytestmark = [pytest.mark.airflow, pytest.mark.postgres]


@pytest.fixture(scope="module")
def settings(layout: Layout) -> dict[str, str]:
    """The environment of a stack whose Java is not asked for."""
    java = Java(home=layout.java, runtime=Path("/"), version="17")
    port = choose_port(layout.ports_file, SERVICE)
    return merge_environment(environment(layout, java=java, address=postgres.start(layout), airflow_port=port))


@pytest.fixture(scope="module")
def running(layout: Layout, settings: dict[str, str]) -> Layout:
    """The same, with Airflow healthy."""
    airflow.start(layout, settings, QUIET)
    return layout


def test_all_is_healthy_and_starting_again_changes_nothing(running: Layout, settings: dict[str, str]) -> None:
    before = {name: (running.processes / f"{name}.json").read_text() for name in airflow.COMPONENTS}
    assert all(airflow.components_running(running).values())
    airflow.start(running, settings, QUIET)
    assert {name: (running.processes / f"{name}.json").read_text() for name in airflow.COMPONENTS} == before


def test_the_home_page_shows_no_component_in_red(running: Layout) -> None:
    report = connect_to_airflow(running).health()
    assert {name: part["status"] for name, part in report.items()} == dict.fromkeys(
        ("metadatabase", "scheduler", "triggerer", "dag_processor"), "healthy"
    )


def test_a_viewer_looks_and_triggers_nothing(running: Layout) -> None:
    viewer = connect_to_airflow(running, "viewer")
    assert isinstance(viewer.dag_ids(), tuple)
    with pytest.raises(AirflowRefused) as refused:
        viewer.ensure_pool("other", 1, "not mine to make")
    assert refused.value.status == 403


def test_a_wrong_password_opens_nothing(running: Layout) -> None:
    stranger = connect_to_airflow(running)
    stranger.password = "wrong"
    with pytest.raises(AirflowRefused) as refused:
        stranger.dag_ids()
    assert refused.value.status == 401


def test_the_pool_is_there(running: Layout) -> None:
    assert connect_to_airflow(running).request("GET", f"/api/v2/pools/{airflow.POOL}")["slots"] == airflow.POOL_SLOTS


def test_the_dags_and_plugins_of_the_project_load(running: Layout) -> None:
    api = connect_to_airflow(running)
    for dag in sorted((running.project / "dags").glob("*.py")):
        api.wait_for_dag(dag.stem, seconds=90)
    assert api.import_errors() == {}
    assert api.request("GET", "/api/v2/plugins/importErrors")["import_errors"] == []


def test_every_secret_is_private(running: Layout) -> None:
    assert logins_file(running).is_file()
    modes = {path.name: path.stat().st_mode & 0o777 for path in running.secrets.iterdir()}
    assert set(modes.values()) == {0o600}, modes


def test_stopping_leaves_no_process(running: Layout) -> None:
    airflow.stop(running)
    assert not airflow.any_running(running)
    left = []
    for entry in Path("/proc").iterdir():
        # Those of other users cannot be read, and are not ours.
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            if b"airflow" in command and str(running.state).encode() in (entry / "environ").read_bytes() and find_process(int(entry.name)):
                left.append(command)
    assert left == []
