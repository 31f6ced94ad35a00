"""The doctor puts Airflow's connection together as Airflow does, whose provider it does not import."""

from __future__ import annotations

import pytest
from airflow.models.connection import Connection
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from message_lifecycle.app.doctor import _master_of


@pytest.mark.parametrize(
    ("kind", "host", "port", "master"),
    [
        ("spark", "local[2]", None, "local[2]"),
        ("spark", "spark://master", 7077, "spark://master:7077"),
        ("spark", "master", 7077, "spark://master:7077"),
        ("spark", "spark://one:7077,other:7077", None, "spark://one:7077,other:7077"),
        ("spark", "yarn", None, "yarn"),
    ],
)
def test_its_master_is_what_the_provider_makes_of_it(
    kind: str, host: str, port: int | None, master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = Connection(conn_type=kind, host=host, port=port)
    monkeypatch.setattr(SparkSubmitHook, "get_connection", lambda *_: connection)
    assert SparkSubmitHook()._connection["master"] == master
    assert _master_of({"conn_type": kind, "host": host, "port": port}) == master
