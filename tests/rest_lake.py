"""A lake behind a REST catalog, for tests: Iceberg's own handlers over a database of their own, tables on this machine's disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import pytest
from py4j import java_gateway, protocol

from message_lifecycle.local import postgres
from message_lifecycle.local.layout import Layout
from message_lifecycle.stores.iceberg import java, session
from message_lifecycle.stores.iceberg.java import PROPERTIES, Jvm
from message_lifecycle.stores.iceberg.layout import CATALOG
from tests.rest_catalog import RestCatalog, serving


@dataclass(slots=True)
class RestLake:
    """`environment`: what names it to Java and to PyIceberg. `jvm`: that of its clients, kept from one test to the next."""

    catalog: RestCatalog
    environment: Mapping[str, str]
    jvm: tuple[int, Mapping[str, str], Jvm] | None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """It is this process's lake meanwhile, and nobody has started Spark, which would know another."""
        with pytest.MonkeyPatch.context() as patched:
            for name, value in self.environment.items():
                patched.setenv(name, value)
            patched.setattr(session, "_of_process", None)
            patched.setattr(java, "_of_process", self.jvm)
            for name in (session._SUBMITTED, session._ARGUMENTS):
                patched.delenv(name, raising=False)
            # Where a test before has started Spark, PySpark asks Spark's Java about each error, also about one of another Java.
            patched.setattr(java_gateway, "get_return_value", protocol.get_return_value)
            yield
            self.jvm = java._of_process


@contextmanager
def rest_lake(layout: Layout, folder: Path) -> Iterator[RestLake]:
    """`layout`: the embedded default, whose PostgreSQL runs and keeps what the catalog says; `folder`: of the lake and its settings, empty."""
    address, database, token = postgres.running(layout), f"rest_{token_hex(6)}", token_hex(16)
    assert address is not None
    with address.connect("postgres") as connection:
        connection.execute(f"CREATE DATABASE {database}".encode())
    found = dict(java._settings_in((layout.spark_conf / "spark-defaults.conf").read_text(encoding="utf-8")))
    of_server = {**found, f"{PROPERTIES}.uri": address.jdbc(database), f"{PROPERTIES}.warehouse": str(folder / "lake")}
    jvm = java._start(of_server)
    try:
        catalog = RestCatalog(jvm, token=token)
        with serving(catalog) as uri:
            told = {"type": "rest", "uri": uri, "token": token}
            others = {name: value for name, value in found.items() if not name.startswith(f"{PROPERTIES}.")}
            of_spark = {**others, **{f"{PROPERTIES}.{name}": value for name, value in told.items()}}
            conf = folder / "spark"
            conf.mkdir()
            (conf / "spark-defaults.conf").write_text("".join(f"{name} {_escaped(value)}\n" for name, value in of_spark.items()))
            lines = ["catalog:", f"  {CATALOG}:", *(f"    {name}: {json.dumps(value)}" for name, value in told.items())]
            (folder / ".pyiceberg.yaml").write_text("\n".join(lines) + "\n")
            made = RestLake(catalog, {"PYICEBERG_HOME": str(folder), "SPARK_CONF_DIR": str(conf)})
            yield made
            if made.jvm is not None:
                made.jvm[2].end()
    finally:
        jvm.end()
        with address.connect("postgres") as connection:
            connection.execute(f"DROP DATABASE {database} WITH (FORCE)".encode())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\")
