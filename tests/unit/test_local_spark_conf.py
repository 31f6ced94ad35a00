"""Spark's and PyIceberg's files: private, the same catalog in both, and whole for a path with spaces."""

from __future__ import annotations

import importlib.util
import shlex
import zipfile
from pathlib import Path

import pytest

from message_lifecycle.local.layout import Layout
from message_lifecycle.local.postgres import Address
from message_lifecycle.local.spark import LOG_SETTINGS, training_conf, write_pyiceberg_conf, write_spark_conf

ADDRESS = Address(port=20001, password="not-shown")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = Layout(project=tmp_path, state=tmp_path / "a state")
    found.prepare()
    return found


def properties(text: str) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in text.splitlines())


@pytest.fixture
def conf(layout: Layout) -> dict[str, str]:
    write_spark_conf(layout, ADDRESS, (layout.jars / "a.jar", layout.jars / "b.jar"), layout.class_archives / "x.jsa")
    return properties((layout.spark_conf / "spark-defaults.conf").read_text())


def test_the_files_are_private(layout: Layout, conf: dict[str, str]) -> None:
    write_pyiceberg_conf(layout, ADDRESS)
    for file in (layout.spark_conf / "spark-defaults.conf", layout.spark_conf / "log4j2.properties", layout.state / ".pyiceberg.yaml"):
        assert file.stat().st_mode & 0o777 == 0o600, file


def test_the_catalog(layout: Layout, conf: dict[str, str]) -> None:
    assert conf["spark.sql.catalog.lake.uri"] == "jdbc:postgresql://127.0.0.1:20001/lake"
    assert conf["spark.sql.catalog.lake.jdbc.schema-version"] == "V1"
    assert conf["spark.sql.catalog.lake.warehouse"] == str(layout.warehouse)
    assert conf["spark.sql.session.timeZone"] == "UTC"


def test_options_survive_a_path_with_spaces(layout: Layout, conf: dict[str, str]) -> None:
    options = shlex.split(conf["spark.driver.extraJavaOptions"])
    assert f"-XX:SharedArchiveFile={layout.class_archives / 'x.jsa'}" in options
    assert any(option.startswith("-Dlog4j2.configurationFile=file:///") and "%20" in option for option in options)
    assert conf["spark.driver.extraClassPath"] == f"{layout.jars / 'a.jar'}:{layout.jars / 'b.jar'}"


def test_the_password_stands_in_the_catalogs_settings_and_nowhere_else(conf: dict[str, str]) -> None:
    assert [key for key, value in conf.items() if "not-shown" in value] == ["spark.sql.catalog.lake.jdbc.password"]


def test_without_an_archive_no_option_names_one(layout: Layout) -> None:
    write_spark_conf(layout, ADDRESS, (), None)
    assert "SharedArchiveFile" not in (layout.spark_conf / "spark-defaults.conf").read_text()


def test_the_recorded_run_leaves_the_users_catalog_alone(layout: Layout) -> None:
    found = properties(training_conf(layout, ADDRESS, (), layout.state / "r.jsa", layout.state / "w"))
    assert not [key for key in found if key.startswith("spark.sql.catalog.lake")]


def test_pyiceberg_has_the_same_catalog(layout: Layout) -> None:
    write_pyiceberg_conf(layout, ADDRESS)
    assert (layout.state / ".pyiceberg.yaml").read_text() == (
        "catalog:\n  lake:\n"
        '    type: "sql"\n'
        '    uri: "postgresql+psycopg://lifecycle:not-shown@127.0.0.1:20001/lake"\n'
        f'    warehouse: "{layout.warehouse}"\n'
    )


def test_whoever_is_told_to_be_quiet_is_there() -> None:
    """A class that has moved with a new Spark would be loud again, in the middle of what a person reads."""
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    quiet = {line.split(" = ")[1].replace(".", "/") for line in LOG_SETTINGS.splitlines() if ".name = org." in line}
    assert quiet
    for jar in (Path(spark.origin).parent / "jars").glob("*.jar"):
        if jar.name.startswith(("spark-", "hadoop-client-api")):
            with zipfile.ZipFile(jar) as packed:
                quiet -= {name for name in quiet if f"{name}.class" in packed.NameToInfo}
    assert quiet == set()
