"""A lake behind a REST catalog, for tests: Iceberg's own handlers over a database of their own, tables on this machine's disk or in an object
store of this machine, which nobody but the catalog has keys for: it gives out one for each table that it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from py4j import java_gateway, protocol
from pyspark import SparkContext
from pyspark.sql import SparkSession

from message_lifecycle.app.lake_server import GivesKeys
from message_lifecycle.local import postgres
from message_lifecycle.local.cluster import store_settings
from message_lifecycle.local.environment import LAST
from message_lifecycle.local.java import STORE_JARS, ensure_jars, find_java
from message_lifecycle.local.layout import Layout, write_private
from message_lifecycle.local.processes import only_one
from message_lifecycle.local.s3_server import S3Server
from message_lifecycle.stores.iceberg import java, session
from message_lifecycle.stores.iceberg.java import PROPERTIES
from message_lifecycle.stores.iceberg.layout import CATALOG
from message_lifecycle.stores.iceberg.rest_server import RestCatalog, serving

_BUCKET, _CLASS_PATH = "lake", "spark.driver.extraClassPath"


@dataclass(slots=True)
class RestLake:
    """`environment`: what names it to Java and to PyIceberg. `s3`: where its files are, None: on disk. `engines`: those of its clients, kept
    from one test to the next."""

    catalog: RestCatalog
    environment: Mapping[str, str]
    s3: S3Server | None
    engines: dict[str, object] = field(default_factory=dict)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """It is this process's lake meanwhile. Java and Spark that were started know their own lake, and nobody sees them here."""
        with pytest.MonkeyPatch.context() as patched:
            for name, value in self.environment.items():
                patched.setenv(name, value)
            for place, name in _ENGINES:
                patched.setattr(place, name, self.engines.get(_named(place, name)))
            for name in (session._SUBMITTED, session._ARGUMENTS):
                patched.delenv(name, raising=False)
            # Where a test before has started Spark, PySpark asks Spark's Java about each error, also about one of another Java.
            patched.setattr(java_gateway, "get_return_value", protocol.get_return_value)
            yield
            self.engines = {_named(place, name): getattr(place, name) for place, name in _ENGINES}

    def files(self, location: str) -> list[str]:
        """All below a table's location."""
        if self.s3 is not None:
            return self.s3.objects(location.removeprefix("s3://"))
        return [str(path) for path in Path(location).rglob("*") if path.is_file()]

    def on_cluster(self, folder: Path, settings: Mapping[str, str]) -> RestLake:
        """The same lake for a client of its own, whose tasks run where Spark's settings say. `folder`: of its configuration, empty."""
        # What is of this machine alone.
        return self.configured(folder, settings, without=("spark.local.dir", "spark.python.daemon.module", "spark.executor.extraClassPath"))

    def configured(self, folder: Path, settings: Mapping[str, str], *, without: Sequence[str] = ()) -> RestLake:
        """The same lake for a client of its own. `folder`: of its configuration, empty."""
        found = dict(java._settings_in((Path(self.environment["SPARK_CONF_DIR"]) / "spark-defaults.conf").read_text(encoding="utf-8")))
        _write_settings(folder, {**{name: value for name, value in found.items() if name not in without}, **settings})
        return replace(self, environment={**self.environment, "SPARK_CONF_DIR": str(folder)}, engines={})

    def end(self) -> None:
        """Java and Spark of its own."""
        with self.entered():
            java.end()
            if SparkContext._active_spark_context is not None:
                SparkContext._active_spark_context.stop()
            if SparkContext._gateway is not None:
                SparkContext._gateway.shutdown()
        self.engines = {}


# Where a process keeps the Java, and the Spark, that it has started.
_ENGINES: tuple[tuple[Any, str], ...] = (
    (java, "_of_process"),
    (session, "_of_process"),
    *((SparkContext, name) for name in ("_gateway", "_jvm", "_active_spark_context")),
    *((SparkSession, name) for name in ("_instantiatedSession", "_activeSession")),
)


def _named(place: Any, name: str) -> str:
    return f"{place.__name__}.{name}"


@contextmanager
def rest_lake(layout: Layout, folder: Path, s3: S3Server | None = None) -> Iterator[RestLake]:
    """`layout`: the embedded default, whose PostgreSQL runs and keeps what the catalog says; `folder`: of the lake and its settings, empty."""
    address, database, token = postgres.running(layout), f"rest_{token_hex(6)}", token_hex(16)
    assert address is not None
    with address.connect("postgres") as connection:
        connection.execute(f"CREATE DATABASE {database}".encode())
    found = dict(java._settings_in((layout.spark_conf / "spark-defaults.conf").read_text(encoding="utf-8")))
    of_files, jars = dict[str, str](), ""
    if s3 is not None:
        s3.files.create_dir(_BUCKET)
        with only_one(layout.jars / "lock"):
            jars = ":".join(map(str, ensure_jars(layout, find_java(layout), jars=STORE_JARS)))
        # Iceberg waits two seconds before it asks again, and then twice as long each time.
        waits = {"s3.retry.min-wait-ms": "10", "s3.retry.max-wait-ms": "100"}
        of_files = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **waits}
    own = of_files if s3 is None else {**of_files, **store_settings(s3.uri, s3.root)}
    warehouse = str(folder / "lake") if s3 is None else f"s3://{_BUCKET}/{token_hex(4)}"
    of_server = {"uri": address.jdbc(database), "warehouse": warehouse, **own}
    jvm = java._start({**found, **_of_catalog(of_server), _CLASS_PATH: ":".join(filter(None, (found[_CLASS_PATH], jars)))})
    try:
        door = RestCatalog if s3 is None else partial(GivesKeys, s3=s3)
        catalog = door(jvm, token=token, database=partial(address.connect, database))
        with serving(catalog) as uri:
            told = {"type": "rest", "uri": uri, "token": token}
            others = {name: value for name, value in found.items() if not name.startswith(f"{PROPERTIES}.")}
            conf = folder / "spark"
            conf.mkdir()
            _write_settings(conf, {**others, **_of_catalog({**told, **of_files})})
            lines = ["catalog:", f"  {CATALOG}:", *(f"    {name}: {json.dumps(value)}" for name, value in told.items())]
            (folder / ".pyiceberg.yaml").write_text("\n".join(lines) + "\n")
            environment = {"PYICEBERG_HOME": str(folder), "SPARK_CONF_DIR": str(conf), **({LAST: jars} if jars else {})}
            made = RestLake(catalog, environment, s3)
            yield made
            made.end()
    finally:
        jvm.end()
        with address.connect("postgres") as connection:
            connection.execute(f"DROP DATABASE {database} WITH (FORCE)".encode())


def _of_catalog(settings: Mapping[str, str]) -> dict[str, str]:
    return {f"{PROPERTIES}.{name}": value for name, value in settings.items()}


def _write_settings(folder: Path, settings: Mapping[str, str]) -> None:
    lines = [f"{name} {value.replace(chr(92), chr(92) * 2)}\n" for name, value in settings.items()]
    write_private(folder / "spark-defaults.conf", "".join(lines))
