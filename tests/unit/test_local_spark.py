"""What Spark is given: its files and PyIceberg's, and one class archive for all who share a folder."""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event
from zipfile import ZipFile

import pytest

from lifecycle_local import spark_settings
from lifecycle_local.java import Java
from lifecycle_local.layout import Layout
from lifecycle_local.postgres import Address
from lifecycle_local.processes import hold_file_lock
from lifecycle_local.spark_settings import (
    DURABLE_FILES,
    LOG_SETTINGS,
    Lake,
    find_archive,
    lake_on_disk,
    record_archive,
    training_conf,
    write_pyiceberg_conf,
    write_spark_conf,
)

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
    write_spark_conf(layout, lake_on_disk(layout, ADDRESS), (layout.jars / "a.jar", layout.jars / "b.jar"), layout.class_archives / "x.jsa")
    return properties((layout.spark_conf / "spark-defaults.conf").read_text())


def test_the_files_are_private(layout: Layout, conf: dict[str, str]) -> None:
    write_pyiceberg_conf(layout, lake_on_disk(layout, ADDRESS))
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
    assert conf["spark.driver.extraClassPath"] == f"{layout.jars / 'a.jar'}:{layout.jars / 'b.jar'}:{DURABLE_FILES}"


def test_the_password_stands_in_the_catalogs_settings_and_nowhere_else(conf: dict[str, str]) -> None:
    assert [key for key, value in conf.items() if "not-shown" in value] == ["spark.sql.catalog.lake.jdbc.password"]


def test_a_driver_asks_for_a_secret_which_stands_nowhere(layout: Layout, conf: dict[str, str]) -> None:
    """Spark makes it, at random, where the master is this machine."""
    assert conf["spark.master"].startswith("local[")
    recorded = properties(training_conf(layout, lake_on_disk(layout, ADDRESS), (), layout.state / "r.jsa", layout.state / "w"))
    for settings in (conf, recorded):
        assert settings["spark.authenticate"] == "true"
        assert "spark.authenticate.secret" not in settings


def test_without_an_archive_no_option_names_one(layout: Layout) -> None:
    write_spark_conf(layout, lake_on_disk(layout, ADDRESS), (), None)
    assert "SharedArchiveFile" not in (layout.spark_conf / "spark-defaults.conf").read_text()


def test_the_recorded_run_leaves_the_users_catalog_alone(layout: Layout) -> None:
    found = properties(training_conf(layout, lake_on_disk(layout, ADDRESS), (), layout.state / "r.jsa", layout.state / "w"))
    assert not [key for key in found if key.startswith("spark.sql.catalog.lake")]


def test_pyiceberg_has_the_same_catalog(layout: Layout) -> None:
    write_pyiceberg_conf(layout, lake_on_disk(layout, ADDRESS))
    assert (layout.state / ".pyiceberg.yaml").read_text() == (
        "catalog:\n  lake:\n"
        '    type: "sql"\n'
        '    uri: "postgresql+psycopg://lifecycle:not-shown@127.0.0.1:20001/lake"\n'
        f'    warehouse: "{layout.warehouse}"\n'
    )


def test_whoever_is_told_to_be_quiet_is_there() -> None:
    """A class that has moved with a new Spark would be loud again, in the middle of what a person reads."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    quiet = {line.split(" = ")[1].replace(".", "/") for line in LOG_SETTINGS.splitlines() if ".name = org." in line}
    assert quiet
    for jar in (Path(found.origin).parent / "jars").glob("*.jar"):
        if jar.name.startswith(("spark-", "hadoop-client-api")):
            with ZipFile(jar) as packed:
                quiet -= {name for name in quiet if f"{name}.class" in packed.NameToInfo}
    assert quiet == set()


WHOLE = "a whole archive"
# As a JVM does: it starts with an archive that is whole, and crashes with another.
JAVA = f"""#!/bin/sh
for a do case $a in -XX:SharedArchiveFile=*) [ "$(cat "${{a#*=}}")" = "{WHOLE}" ] || exit 1;; esac; done
"""
SUBMIT = """#!/bin/sh
echo "recorded with ${{SPARK_DIST_CLASSPATH-no jars}} last" >> {folder}/runs
recording=$(sed -n 's/.*ArchiveClassesAtExit=\\([^"]*\\)".*/\\1/p' "$2")
printf '%s' '{content}' > "$recording"
exit {status}
"""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


Submit = Callable[..., None]


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """Makes a `spark-submit` that records this, and ends so."""
    monkeypatch.setattr(spark_settings, "spark_home", lambda: tmp_path / "spark")

    def make(content: str = WHOLE, status: int = 0) -> None:
        program(tmp_path / "spark" / "bin" / "spark-submit", SUBMIT.format(folder=tmp_path, content=content, status=status))

    make()
    return make


@pytest.fixture
def java(tmp_path: Path) -> Java:
    server = tmp_path / "runtime" / "lib" / "server"
    server.mkdir(parents=True)
    (server / "classes.jsa").touch()
    program(tmp_path / "java" / "bin" / "java", JAVA)
    return Java(home=tmp_path / "java", runtime=tmp_path / "runtime", version="17")


def sharing(folder: Path, name: str) -> Layout:
    found = Layout(project=folder, state=folder / name, shared_tools=folder / "tools")
    found.prepare()
    return found


def recorded(layout: Layout, java: Java, cancelled: Event | None = None, *, last: tuple[Path, ...] = ()) -> Path | None:
    return record_archive(layout, java, (layout.jars / "a.jar",), last, lake_on_disk(layout, ADDRESS), os.environ, cancelled or Event())


def runs(folder: Path) -> int:
    file = folder / "runs"
    return len(file.read_text().splitlines()) if file.is_file() else 0


def test_of_several_at_once_one_records_it_for_all(tmp_path: Path, java: Java, submit: Submit) -> None:
    layouts = [sharing(tmp_path, name) for name in ("one", "two", "three")]
    together = Barrier(len(layouts))

    def record(layout: Layout) -> Path | None:
        together.wait()
        return recorded(layout, java)

    with ThreadPoolExecutor(len(layouts)) as threads:
        (found,) = set(threads.map(record, layouts))
    assert found is not None
    assert found.read_text() == WHOLE
    assert runs(tmp_path) == 1
    assert {find_archive(layout, java, (layout.jars / "a.jar",)) for layout in layouts} == {found}


def test_a_lake_with_jars_of_its_own_has_its_own_archive(
    tmp_path: Path, java: Java, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where those lack, an archive that has them is of no use; the one without them is, before there is another."""
    monkeypatch.setenv("SPARK_DIST_CLASSPATH", "/jars/another.jar")
    layout, last = sharing(tmp_path, "a"), (Path("/jars/store.jar"),)
    jars = (layout.jars / "a.jar",)
    disk = recorded(layout, java)
    assert (tmp_path / "runs").read_text() == "recorded with no jars last\n"
    assert disk is not None
    assert find_archive(layout, java, jars, last) == disk
    store = recorded(layout, java, last=last)
    assert (tmp_path / "runs").read_text().splitlines()[1:] == ["recorded with /jars/store.jar last"]
    assert (find_archive(layout, java, jars), find_archive(layout, java, jars, last)) == (disk, store)
    assert disk.is_file()
    assert store != disk


def test_the_recorded_run_is_in_the_lake_that_it_is_for(layout: Layout) -> None:
    """Under another name; a server puts its tables where it likes."""
    served = {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "rest",
        "spark.cores.max": "2",
    }
    found = properties(training_conf(layout, Lake(java=served, python={}), (), layout.state / "r.jsa", layout.state / "w"))
    assert {key: value for key, value in found.items() if "catalog" in key} == {
        "spark.sql.catalog.warm_up": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.warm_up.type": "rest",
    }
    assert found["spark.master"].startswith("local["), "tasks of the run are recorded, too"
    on_disk = properties(training_conf(layout, lake_on_disk(layout, ADDRESS), (), layout.state / "r.jsa", layout.state / "w"))
    assert on_disk["spark.sql.catalog.warm_up.warehouse"] == str(layout.state / "w")


@pytest.mark.parametrize(("content", "status"), [("a whole arch", 0), (WHOLE, 1)], ids=["cut off", "failed"])
def test_what_is_not_whole_gets_no_name(tmp_path: Path, java: Java, submit: Submit, content: str, status: int) -> None:
    layout = sharing(tmp_path, "one")
    submit(content, status)
    assert recorded(layout, java) is None
    assert find_archive(layout, java, (layout.jars / "a.jar",)) is None
    assert [entry.name for entry in layout.class_archives.iterdir()] == ["lock"]
    submit()
    assert recorded(layout, java) is not None


def test_who_is_cancelled_does_not_wait_for_another(tmp_path: Path, java: Java, submit: Submit) -> None:
    layout, cancelled = sharing(tmp_path, "one"), Event()
    cancelled.set()
    with hold_file_lock(layout.class_archives / "lock"):
        assert recorded(layout, java, cancelled) is None
    assert runs(tmp_path) == 0


def test_it_replaces_those_of_other_jars(tmp_path: Path, java: Java, submit: Submit) -> None:
    layout = sharing(tmp_path, "one")
    old = layout.class_archives / "old.jsa"
    old.touch()
    assert recorded(layout, java) is not None
    assert not old.exists()
