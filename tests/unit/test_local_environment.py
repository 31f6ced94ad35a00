"""One environment: ours over the caller's, nothing misleading in between, and a caller's own ledger left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lifecycle_local.environment import LAST, LEDGER, environment, load_environment, merge_environment, read_environment, write_environment
from lifecycle_local.java import Java
from lifecycle_local.layout import Layout
from lifecycle_local.postgres import Address
from message_lifecycle.stores.iceberg.java import command

ADDRESS = Address(port=20001, password="not-shown")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = Layout(project=tmp_path, state=tmp_path / "a state")
    found.prepare()
    return found


@pytest.fixture
def settings(layout: Layout) -> dict[str, str]:
    java = Java(home=layout.java, runtime=Path("/usr/lib/java"), version="17")
    return environment(layout, java=java, address=ADDRESS, airflow_port=20002)


def test_what_is_promised_is_there(layout: Layout, settings: dict[str, str]) -> None:
    assert settings["LIFECYCLE_HOME"] == settings["PYICEBERG_HOME"] == str(layout.state)
    assert settings[LEDGER] == "postgresql+psycopg://lifecycle:not-shown@127.0.0.1:20001/ledger"
    assert json.loads(settings["AIRFLOW_CONN_SPARK_DEFAULT"]) == {"conn_type": "spark", "host": "local[2]"}
    assert settings["TZ"] == "UTC"
    assert (Path(settings["SPARK_HOME"]) / "bin" / "spark-submit").is_file()


def test_jars_of_a_lake_alone_come_last_in_spark_and_in_java_without_it(
    layout: Layout, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between those that every lake has they would end the class archive, without a word."""
    java = Java(home=layout.java, runtime=Path("/usr/lib/java"), version="17")
    jars = [layout.jars / "store.jar", layout.jars / "more.jar"]
    told = environment(layout, java=java, address=ADDRESS, airflow_port=20002, last=jars)
    assert LAST not in settings
    assert told == settings | {LAST: f"{jars[0]}:{jars[1]}"}
    monkeypatch.delenv(LAST, raising=False)
    whole = command({"spark.driver.extraClassPath": "/jars/own.jar", "spark.jars": "/jars/named.jar"})[2].split(":")
    monkeypatch.setenv(LAST, told[LAST])
    assert command({"spark.driver.extraClassPath": "/jars/own.jar"})[2].split(":") == [*whole[:-1], *map(str, jars)]


def test_the_file_is_private_and_reads_back(layout: Layout, settings: dict[str, str]) -> None:
    assert read_environment(layout) is None
    write_environment(layout, settings)
    assert layout.environment_file.stat().st_mode & 0o777 == 0o600
    assert read_environment(layout) == settings


def test_a_child_gets_the_callers_environment_without_what_misleads(settings: dict[str, str]) -> None:
    whole = merge_environment(
        settings, {"PATH": "/usr/bin", "HOME": "/h", "SPARK_HOME": "/opt/spark", "PYTHONPATH": "/x", "AIRFLOW__CORE__EXECUTOR": "Y"}
    )
    assert whole["HOME"] == "/h"
    assert whole["SPARK_HOME"] == settings["SPARK_HOME"]
    assert "PYTHONPATH" not in whole
    assert "AIRFLOW__CORE__EXECUTOR" not in whole
    assert whole["PATH"] == f"{settings['PATH']}:/usr/bin"


def test_applying_twice_changes_nothing(settings: dict[str, str]) -> None:
    once = merge_environment(settings, {"PATH": "/usr/bin"})
    assert merge_environment(settings, once) == once


def test_the_loopback_is_never_asked_of_a_proxy(settings: dict[str, str]) -> None:
    assert merge_environment(settings, {"no_proxy": "intranet"})["no_proxy"] == "intranet,127.0.0.1,localhost"
    assert merge_environment(settings, {})["NO_PROXY"] == "127.0.0.1,localhost"


def test_loading(layout: Layout, settings: dict[str, str]) -> None:
    environ = {"LIFECYCLE_HOME": str(layout.state), "PATH": "/usr/bin"}
    assert not load_environment(environ), "nothing was set up yet"
    write_environment(layout, settings)
    assert load_environment(environ)
    assert environ[LEDGER] == settings[LEDGER]
    assert not load_environment(environ), "the second time it is the caller's own"


def test_a_ledger_of_the_callers_own_is_left_alone(layout: Layout, settings: dict[str, str]) -> None:
    write_environment(layout, settings)
    environ = {"LIFECYCLE_HOME": str(layout.state), LEDGER: "postgresql://elsewhere/ledger"}
    before = dict(environ)
    assert not load_environment(environ)
    assert environ == before


def test_no_password_shows_in_a_representation() -> None:
    assert "not-shown" not in repr(ADDRESS)
    assert os.environ.get(LEDGER) != ADDRESS.url("ledger")
