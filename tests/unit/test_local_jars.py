"""No jar gets a name in our folder unless it is the pinned one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lifecycle_local import java
from lifecycle_local.java import Jar, Java, ensure_jars
from lifecycle_local.layout import JarMismatch, Layout

CONTENT = b"not really a jar"
JAVA = Java(home=Path("/nowhere"), runtime=Path("/nowhere"), version="17")


@pytest.fixture
def jar() -> Jar:
    return Jar(group="org.example", artifact="example", version="1", sha256=hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = Layout(project=tmp_path, state=tmp_path / "state")
    found.prepare()
    return found


def test_a_jar_that_was_placed_there_is_taken(layout: Layout, jar: Jar) -> None:
    (layout.jars / jar.file_name).write_bytes(CONTENT)
    assert ensure_jars(layout, JAVA, {}, jars=(jar,)) == (layout.jars / "example-1.jar",)


def test_a_jar_from_a_folder_of_the_users_is_copied(layout: Layout, jar: Jar, tmp_path: Path) -> None:
    (tmp_path / jar.file_name).write_bytes(CONTENT)
    found = ensure_jars(layout, JAVA, {"LIFECYCLE_JARS": str(tmp_path)}, jars=(jar,))
    assert found[0].read_bytes() == CONTENT


def test_another_file_by_that_name_is_refused(layout: Layout, jar: Jar) -> None:
    (layout.jars / jar.file_name).write_bytes(b"something else")
    with pytest.raises(JarMismatch) as refused:
        ensure_jars(layout, JAVA, {}, jars=(jar,))
    assert refused.value.expected == jar.sha256
    assert refused.value.found == hashlib.sha256(b"something else").hexdigest()


def test_a_wrong_offer_is_not_copied(layout: Layout, jar: Jar, tmp_path: Path) -> None:
    (tmp_path / jar.file_name).write_bytes(b"something else")
    with pytest.raises(JarMismatch, match=str(tmp_path / jar.file_name)):
        ensure_jars(layout, JAVA, {"LIFECYCLE_JARS": str(tmp_path)}, jars=(jar,))
    assert list(layout.jars.iterdir()) == []


def test_the_resolvers_report_is_boiled_down_to_its_cause(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\t\tmodule not found: a#b;1\n:::: ERRORS\n\tServer access error at url x (Connection refused)\nException: unresolved\n")
    assert java._reason(log) == "Server access error at url x (Connection refused)"
    log.write_text("\t\tmodule not found: a#b;1\nException: unresolved\n")
    assert java._reason(log) == "module not found: a#b;1"


def test_the_pins_are_whole() -> None:
    assert [len(jar.sha256) for jar in (*java.JARS, *java.STORE_JARS)] == [64, 64, 64, 64]
    assert java.JARS[0].coordinate == "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
