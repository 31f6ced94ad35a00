"""Lakes for tests, in addition to the embedded default's. A lake has a catalog of its own, and tables on this machine's disk or in an
object store of this machine.

A REST catalog (Iceberg's own handlers) alone has the keys for the store, and gives out a key for each table in its answers. A catalog in
PostgreSQL gives out no keys, so its configuration has the key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, Self

import pytest
from py4j import java_gateway, protocol
from pyspark import SparkContext
from pyspark.sql import SparkSession

from lifecycle_local import postgres
from lifecycle_local.cluster import Key, store_settings
from lifecycle_local.environment import LAST
from lifecycle_local.java import STORE_JARS, ensure_jars, find_java
from lifecycle_local.lake_server import GivesKeys
from lifecycle_local.layout import Layout
from lifecycle_local.postgres import Address
from lifecycle_local.processes import hold_file_lock
from lifecycle_local.rest_server import RestCatalog, serve_catalog
from lifecycle_local.s3_server import S3Server
from message_lifecycle.app.private_files import write_private
from message_lifecycle.stores.iceberg import engine, java, session
from message_lifecycle.stores.iceberg.java import PROPERTIES
from message_lifecycle.stores.iceberg.layout import CATALOG

_BUCKET, _CLASS_PATH = "lake", "spark.driver.extraClassPath"
# Iceberg waits two seconds before it asks the store again, and then twice as long each time.
_IO = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.retry.min-wait-ms": "10", "s3.retry.max-wait-ms": "100"}


@dataclass(slots=True, kw_only=True)
class Lake:
    """A lake for tests.

    `environment`: the variables that name the lake to Java and to PyIceberg. `s3`: the store of its files, None: on disk. `engines`: Java
    and Spark of its clients, kept from one test to the next."""

    environment: Mapping[str, str]
    s3: S3Server | None
    engines: dict[str, object] = field(default_factory=dict)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make this lake the process's lake during the block. Hide Java and Spark of other lakes, because they know only their own lake."""
        with pytest.MonkeyPatch.context() as patched:
            for name, value in self.environment.items():
                patched.setenv(name, value)
            for place, name in _ENGINES:
                patched.setattr(place, name, self.engines.get(_named(place, name)))
            for name in (session.SUBMITTED, session.ARGUMENTS):
                patched.delenv(name, raising=False)
            # If an earlier test has started Spark, PySpark asks Spark's Java about each error, also about an error of another Java.
            patched.setattr(java_gateway, "get_return_value", protocol.get_return_value)
            yield
            self.engines = {_named(place, name): getattr(place, name) for place, name in _ENGINES}

    def files(self, location: str) -> list[str]:
        """Return every file below a table's location."""
        if self.s3 is not None:
            return self.s3.objects(location.removeprefix("s3://"))
        return [str(path) for path in Path(location).rglob("*") if path.is_file()]

    def on_cluster(self, folder: Path, settings: Mapping[str, str]) -> Self:
        """The same lake for a client of its own, whose tasks run where Spark's settings say. `folder`: of its configuration, empty."""
        # Leave out settings that hold for this machine alone.
        return self.configured(folder, settings, without=("spark.local.dir", "spark.python.daemon.module", "spark.executor.extraClassPath"))

    def configured(self, folder: Path, settings: Mapping[str, str], *, without: Sequence[str] = ()) -> Self:
        """The same lake for a client of its own. `folder`: of its configuration, empty."""
        found = dict(java._settings_in((Path(self.environment["SPARK_CONF_DIR"]) / "spark-defaults.conf").read_text(encoding="utf-8")))
        _write_settings(folder, {**{name: value for name, value in found.items() if name not in without}, **settings})
        return replace(self, environment={**self.environment, "SPARK_CONF_DIR": str(folder)}, engines={})

    def end(self) -> None:
        """Java and Spark of its own."""
        with self.entered():
            engine.end_engine()
            if SparkContext._active_spark_context is not None:
                SparkContext._active_spark_context.stop()
            if SparkContext._gateway is not None:
                SparkContext._gateway.shutdown()
        self.engines = {}


@dataclass(slots=True, kw_only=True)
class RestLake(Lake):
    catalog: RestCatalog


# Attributes that hold the Java and the Spark of a process.
_ENGINES: tuple[tuple[Any, str], ...] = (
    (engine, "_of_process"),
    (session, "_of_process"),
    (session, "_watch"),
    *((SparkContext, name) for name in ("_gateway", "_jvm", "_active_spark_context")),
    *((SparkSession, name) for name in ("_instantiatedSession", "_activeSession")),
)


def _named(place: Any, name: str) -> str:
    return f"{place.__name__}.{name}"


@contextmanager
def rest_lake(layout: Layout, folder: Path, s3: S3Server | None = None) -> Iterator[RestLake]:
    """`layout`: the embedded default, whose PostgreSQL runs and keeps what the catalog says; `folder`: of the lake and its settings, empty."""
    with _database(layout) as (address, database):
        found, of_files = _settings(layout), {} if s3 is None else _IO
        jars = "" if s3 is None else _store_jars(layout)
        of_server = {**found, _CLASS_PATH: ":".join(filter(None, (found[_CLASS_PATH], jars)))}
        own = {"warehouse": str(folder / "lake")} if s3 is None else {**_bucket(s3), **store_settings(s3.uri, s3.root), **_IO}
        jvm = java.Jvm({**of_server, **_of_catalog({"uri": address.jdbc(database), **own})})
        try:
            door = RestCatalog if s3 is None else partial(GivesKeys, s3=s3)
            token = token_hex(16)
            catalog = door(jvm, token=token, database=partial(address.connect, database))
            with serve_catalog(catalog) as uri:
                told = {"type": "rest", "uri": uri, "token": token}
                others = {name: value for name, value in found.items() if not name.startswith(f"{PROPERTIES}.")}
                named = _named_by(folder, {**others, **_of_catalog({**told, **of_files})}, told, last=jars)
                made = RestLake(environment=named, s3=s3, catalog=catalog)
                yield made
                made.end()
        finally:
            jvm.end()


@contextmanager
def postgres_lake(layout: Layout, folder: Path, s3: S3Server) -> Iterator[Lake]:
    """`layout`: as `rest_lake`; `folder`: of the settings, empty. The key in them opens the bucket and no other."""
    with _database(layout) as (address, database):
        found, place = _settings(layout), _bucket(s3)
        key = Key(below=f"/{_BUCKET}/")
        s3.keys[key.name] = key
        own = {**place, **store_settings(s3.uri, key)}
        of_java = {**found, **_of_catalog({"uri": address.jdbc(database), **own, **_IO})}
        of_python = {"type": "sql", "uri": address.url(database), **own}
        made = Lake(environment=_named_by(folder, of_java, of_python, last=_store_jars(layout)), s3=s3)
        yield made
        made.end()


@contextmanager
def _database(layout: Layout) -> Iterator[tuple[Address, str]]:
    """One more of the embedded PostgreSQL, for a catalog."""
    address, database = postgres.find_running(layout), f"catalog_{token_hex(6)}"
    assert address is not None
    with address.connect("postgres") as connection:
        connection.execute(f"CREATE DATABASE {database}".encode())
    try:
        yield address, database
    finally:
        with address.connect("postgres") as connection:
            connection.execute(f"DROP DATABASE {database} WITH (FORCE)".encode())


def _settings(layout: Layout) -> dict[str, str]:
    """Spark's, of the embedded default."""
    return dict(java._settings_in((layout.spark_conf / "spark-defaults.conf").read_text(encoding="utf-8")))


def _store_jars(layout: Layout) -> str:
    with hold_file_lock(layout.jars / "lock"):
        return ":".join(map(str, ensure_jars(layout, find_java(layout), jars=STORE_JARS)))


def _bucket(s3: S3Server) -> dict[str, str]:
    """A place of its own in the bucket, which is made."""
    s3.files.create_dir(_BUCKET)
    return {"warehouse": f"s3://{_BUCKET}/{token_hex(4)}"}


def _named_by(folder: Path, of_java: Mapping[str, str], of_python: Mapping[str, str], *, last: str) -> dict[str, str]:
    """The variables that name a lake, once its settings stand in files of the folder. `last`: jars of its own."""
    conf = folder / "spark"
    conf.mkdir()
    _write_settings(conf, of_java)
    lines = ["catalog:", f"  {CATALOG}:", *(f"    {name}: {json.dumps(value)}" for name, value in of_python.items())]
    write_private(folder / ".pyiceberg.yaml", "\n".join(lines) + "\n")
    return {"PYICEBERG_HOME": str(folder), "SPARK_CONF_DIR": str(conf), **({LAST: last} if last else {})}


def _of_catalog(settings: Mapping[str, str]) -> dict[str, str]:
    return {f"{PROPERTIES}.{name}": value for name, value in settings.items()}


def _write_settings(folder: Path, settings: Mapping[str, str]) -> None:
    lines = [f"{name} {value.replace(chr(92), chr(92) * 2)}\n" for name, value in settings.items()]
    write_private(folder / "spark-defaults.conf", "".join(lines))
