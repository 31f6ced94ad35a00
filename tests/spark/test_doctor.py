"""`lifecycle doctor`: each part that does not work is named, hides no other, and nothing is left of what it made."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.spark.lake import tables

from lifecycle_local.environment import LEDGER
from message_lifecycle.app import doctor
from message_lifecycle.app.cli import main
from message_lifecycle.app.doctor import Finding, examine
from message_lifecycle.app.scenario import World
from message_lifecycle.app.wiring import iceberg_world
from message_lifecycle.model.setting_list import Value
from message_lifecycle.model.topic import NO_OPTIONS, StoreOptions
from message_lifecycle.stores.iceberg import catalog, reach, view_file

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


@pytest.fixture(autouse=True)
def airflow_answers(embedded: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """As its own command does; `host` and `port` of its connection."""
    told = SimpleNamespace(host="local[2]", port=None, status=0, said="Connection not found.")

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[-3:] == ["spark_default", "--output", "json"]
        answer = json.dumps([{"conn_type": "spark", "host": told.host, "port": told.port}])
        return subprocess.CompletedProcess(command, told.status, f"a warning\n{answer}\n", f"{told.said}\n")

    monkeypatch.setenv("AIRFLOW_HOME", "here")
    monkeypatch.setattr(doctor.subprocess, "run", run)
    return told


def looked() -> dict[str, Finding]:
    return {one.part: one for one in examine(iceberg_world)}


def test_all_is_well_and_nothing_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    before = tables().catalog.list_namespaces()
    assert main(["doctor", "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["part"] for one in found] == ["settings", "ledger", "catalog", "tables", "tasks", "cleanup", "Airflow"]
    assert all(one["ok"] for one in found)
    assert tables().catalog.list_namespaces() == before


def test_what_one_part_lacks_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, airflow_answers: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(LEDGER, "postgresql+psycopg://lifecycle:secret@127.0.0.1:1/ledger")
    monkeypatch.setattr(tables().catalog, "namespace_exists", lambda _: False)
    monkeypatch.setattr(catalog, "Tables", tables)
    airflow_answers.host, airflow_answers.port = "master", 7077
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "LedgerUnavailable" in said
    assert "secret" not in said
    found = looked()
    assert found["catalog"].ok is False
    assert "the files name two catalogs" in found["catalog"].found
    assert found["tables"].ok is found["tasks"].ok is found["cleanup"].ok is None
    assert found["Airflow"].ok is False
    assert "names spark://master:7077, but the command line's spark.master is local[2]" in found["Airflow"].found


def test_an_airflow_without_the_connection_is_told(airflow_answers: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    airflow_answers.status = 1
    monkeypatch.setattr(doctor, "_catalog", lambda: (_ for _ in ()).throw(ValueError("not of this test")))
    found = looked()
    assert "no connection spark_default: create one" in found["Airflow"].found
    assert found["catalog"].found.startswith("ValueError: not of this test")
    airflow_answers.said = "it has no database"
    assert "did not answer: it has no database" in looked()["Airflow"].found
    monkeypatch.delenv("AIRFLOW_HOME")
    assert looked()["Airflow"].ok is None


def test_files_that_stay_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where keys may write and not delete."""
    kept: list[Path] = []
    with monkeypatch.context() as patched:
        patched.setattr(view_file.shutil, "rmtree", lambda path, **_: kept.append(path))
        found = looked()["cleanup"]
    for folder in kept:
        shutil.rmtree(folder)
    assert found.ok is False
    assert "files are left below" in found.found


def test_a_ledger_whose_password_is_an_option_is_told_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEDGER, f"{os.environ[LEDGER]}{'&' if '?' in os.environ[LEDGER] else '?'}password=secret-one")
    told = doctor._check_part("ledger", doctor._ledger).found
    assert "secret-one" not in told
    assert "127.0.0.1" in told or "local socket" in told


def test_what_was_made_goes_where_the_tables_do_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("the stage fell over")

    before = tables().catalog.list_namespaces()
    monkeypatch.setattr(doctor.steps, "run", broken)
    found = looked()
    assert found["tables"].found.startswith("ValueError: the stage fell over")
    assert found["cleanup"].ok
    assert tables().catalog.list_namespaces() == before


def test_a_scratch_topic_that_cannot_go_is_told_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def world(server: Mapping[str, Value], options: StoreOptions = NO_OPTIONS) -> World:
        made = iceberg_world(server, options)

        def close() -> None:
            made.close()
            raise ValueError("not mine to delete")

        return replace(made, close=close)

    found = {one.part: one for one in examine(world)}
    assert found["tables"].ok
    assert found["cleanup"].found.startswith("ValueError: not mine to delete")
    assert found["Airflow"].ok


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("[PYTHON_VERSION_MISMATCH] Python in worker", "another Python than 3.11"),
        ("ModuleNotFoundError: No module named 'duckdb'", "no duckdb: make an archive with `lifecycle cluster pack`"),
        ('java.io.IOException: Cannot run program "/no/python": error=2', "no /no/python: set LIFECYCLE_PYTHON there"),
        ("./env/bin/python: 4: exec: python3.11: not found", "no python3.11: set LIFECYCLE_PYTHON there"),
        ("Job aborted\nand more", "a task failed: Job aborted"),
    ],
)
def test_what_spark_says_of_a_python_is_told_with_what_to_do(said: str, told: str) -> None:
    assert told in doctor._with_advice(said, "3.11")
    assert "\n" not in doctor._with_advice(said, "3.11")


def test_machines_that_differ_are_told_apart() -> None:
    own = reach.Machine(name="here", python="3.11", versions={"duckdb": "2.0.0"})
    told = [
        doctor._describe_difference(own, reach.Machine(name="a", python="3.12", versions={})),
        doctor._describe_difference(own, reach.Machine(name="b", python="3.11", versions={"duckdb": "not installed"})),
        doctor._describe_difference(own, reach.Machine(name="c", python="3.11", versions=own.versions, refused="OSError: no route")),
        doctor._describe_difference(own, reach.Machine(name="d", python="3.11", versions=own.versions)),
    ]
    assert told[0].startswith("a has Python 3.12, here it is 3.11")
    assert "b has duckdb not installed (here 2.0.0)" in told[1]
    assert "lifecycle cluster pack" in told[1]
    assert told[2:] == ["c cannot read the store: OSError: no route", ""]
