"""Airflow in this process, without a server: settings before anything of it is imported, a scratch database for the runs that need one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lifecycle_local.layout import project_root

ROOT = project_root()
_HOME = tempfile.mkdtemp(prefix="airflow-home-")


def settings(home: str) -> dict[str, str]:
    """Variables under which this process, or one it starts, finds our DAGs and no others."""
    # A bundle for each file: `DAG.test` parses and stores the whole bundle of its DAG before each run.
    bundles = [
        {"name": file.stem, "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {"path": str(file)}}
        for file in sorted((ROOT / "dags").glob("*.py"))
    ]
    return {
        "AIRFLOW_HOME": home,
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "120",  # as in airflow.cfg
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
    }


# While tests are collected: Airflow reads its settings when it is first imported.
os.environ.update(settings(_HOME))


@pytest.fixture(scope="session", autouse=True)
def airflow_of_these_tests() -> None:
    """Once more when the first of them runs: the embedded default, started for tests before, names its own Airflow."""
    os.environ.update(settings(_HOME))


@pytest.fixture(scope="session")
def home() -> Iterator[Path]:
    yield Path(_HOME)


@pytest.fixture(scope="session")
def database(home: Path) -> None:
    """Airflow's tables, in a file of these tests."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture(scope="session")
def plugins() -> None:
    """What stands in plugins/ can be imported, as Airflow makes it."""
    from airflow import settings as of_airflow

    of_airflow.prepare_syspath_for_config_and_plugins()


@pytest.fixture(scope="session")
def bag() -> Any:
    """All DAGs, as Airflow parses them."""
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(dag_folder=str(ROOT / "dags"))


def parse(dag_id: str) -> Any:
    """Return one DAG, parsed again: a test run changes the DAG."""
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(dag_folder=str(ROOT / "dags" / f"{dag_id}.py")).dags[dag_id]
