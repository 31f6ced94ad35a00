"""One class archive for all who share a folder: recorded once, whole or not there, and nobody waits for one in vain."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import pytest

from message_lifecycle.local import spark
from message_lifecycle.local.java import Java
from message_lifecycle.local.layout import Layout
from message_lifecycle.local.postgres import Address
from message_lifecycle.local.processes import only_one
from message_lifecycle.local.spark import find_archive, record_archive

ADDRESS = Address(port=20001, password="not-shown")
WHOLE = "a whole archive"
# As a JVM does: it starts with an archive that is whole, and crashes with another.
JAVA = f"""#!/bin/sh
for a do case $a in -XX:SharedArchiveFile=*) [ "$(cat "${{a#*=}}")" = "{WHOLE}" ] || exit 1;; esac; done
"""
SUBMIT = """#!/bin/sh
echo recorded >> {folder}/runs
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
    monkeypatch.setattr(spark, "spark_home", lambda: tmp_path / "spark")

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


def recorded(layout: Layout, java: Java, cancelled: Event | None = None) -> Path | None:
    return record_archive(layout, java, (layout.jars / "a.jar",), ADDRESS, os.environ, cancelled or Event())


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
    with only_one(layout.class_archives / "lock"):
        assert recorded(layout, java, cancelled) is None
    assert runs(tmp_path) == 0


def test_it_replaces_those_of_other_jars(tmp_path: Path, java: Java, submit: Submit) -> None:
    layout = sharing(tmp_path, "one")
    old = layout.class_archives / "old.jsa"
    old.touch()
    assert recorded(layout, java) is not None
    assert not old.exists()
