"""`up` without Airflow leaves Java's class archive to a process of its own; `down` ends it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lifecycle_local import processes, stack
from lifecycle_local.java import Java
from lifecycle_local.layout import Layout


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A state folder in which a database is said to have started."""
    java = Java(home=tmp_path / "shim", runtime=tmp_path / "java", version="17")
    started = SimpleNamespace(
        tools=stack._Tools(java=java, jars=(), store_jars=()), address=None, lake=stack.Lake(java={}, python={}), settings={"PATH": "/bin"}
    )
    monkeypatch.setattr(stack, "_start_database", lambda *_: started)
    return Layout(project=tmp_path, state=tmp_path / "state")


def test_where_nobody_is_to_wait_the_archive_is_left_to_a_process(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[tuple[str, Sequence[object], Mapping[str, str]]] = []

    def launch(_layout: Layout, name: str, command: Sequence[object], environment: Mapping[str, str], **_: Any) -> None:
        launched.append((name, command, environment))

    monkeypatch.setattr(processes, "launch", launch)
    monkeypatch.setattr(stack, "record_archive", lambda *_: pytest.fail("it was waited for"))
    stack.up(layout, with_airflow=False, archive_later=True)
    ((name, command, environment),) = launched
    assert list(command[1:]) == ["-m", "lifecycle_local", "class-archive"]
    assert environment["JAVA_HOME"] == str(layout.project / "java"), "the runtime that was chosen, not the shim before it"
    monkeypatch.setattr(processes, "find_component", lambda _layout, other: other if other == name else None)
    stack.up(layout, with_airflow=False, archive_later=True)
    assert len(launched) == 1, "one at a time"


def test_else_it_is_made_before_up_returns(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(processes, "launch", lambda *_, **__: pytest.fail("nothing is left behind"))
    monkeypatch.setattr(stack, "record_archive", lambda _layout, java, *_: made.append(java))
    stack.up(layout, with_airflow=False)
    assert len(made) == 1


def test_down_ends_it_before_the_database(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []
    layout.prepare()
    monkeypatch.setattr(processes, "stop", lambda _layout, names, **_: stopped.extend(names))
    monkeypatch.setattr(stack.postgres, "stop", lambda _layout: stopped.append("postgres"))
    stack.down(layout)
    assert stopped.index("class-archive") < stopped.index("postgres")


def test_without_a_database_there_is_nothing_to_make(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "record_archive", lambda *_: pytest.fail("there is no database"))
    layout.prepare()
    stack.archive(layout)
    assert not list(layout.class_archives.glob("*.jsa"))


def test_a_scratch_folder_may_lose_files_while_it_is_removed(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "14").mkdir(parents=True)
    removed: list[str] = []

    def remove_first(path: str, *, dir_fd: int | None = None) -> None:
        removed.append(path)
        raise FileNotFoundError(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rmdir", remove_first)  # a driver that ends has removed it
        shutil.rmtree(scratch, onerror=stack._raise_unless_gone)
    assert removed
    with pytest.raises(PermissionError):
        stack._raise_unless_gone(os.rmdir, "14", (PermissionError, PermissionError("14"), None))
