"""One state folder, private, where the user wants it, and only where it can work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from message_lifecycle.local.errors import UnusablePlace
from message_lifecycle.local.layout import Layout, find_layout, project_root


def layout_in(folder: Path) -> Layout:
    return Layout(project=folder, state=folder / "state")


def test_the_state_lies_in_the_clone_unless_named(tmp_path: Path) -> None:
    assert find_layout({}).state == project_root() / ".lifecycle"
    assert find_layout({"LIFECYCLE_HOME": str(tmp_path)}).state == tmp_path
    assert find_layout({"LIFECYCLE_HOME": "~/elsewhere"}).state == Path.home() / "elsewhere"


def test_several_states_share_their_tools_where_somebody_says_so(tmp_path: Path) -> None:
    assert find_layout({}).tools == project_root() / ".lifecycle"
    one, two = (
        find_layout({"LIFECYCLE_HOME": str(tmp_path / name), "LIFECYCLE_TOOLS": str(tmp_path / "both" / "tools")})
        for name in ("one", "two")
    )
    one.prepare()
    two.prepare()
    assert (one.jars, one.class_archives) == (two.jars, two.class_archives)
    assert one.jars.is_relative_to(tmp_path / "both" / "tools")
    for of_one, of_two in ((one.warehouse, two.warehouse), (one.spark_conf, two.spark_conf), (one.java, two.java), (one.ivy, two.ivy)):
        assert of_one != of_two
    assert one.jars.stat().st_mode & 0o777 == 0o700


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    layout.prepare()
    layout.prepare()
    assert layout.state.stat().st_mode & 0o777 == (0o711 if os.geteuid() == 0 else 0o700)
    for folder in (layout.secrets, layout.warehouse, layout.logs, layout.spark_conf, layout.results):
        assert folder.stat().st_mode & 0o777 == 0o700, folder


def test_a_path_that_java_cannot_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusablePlace, match="colon"):
        layout_in(tmp_path / "a:b").prepare()
    assert not (tmp_path / "a:b").exists()


def test_a_state_that_was_moved_is_refused(tmp_path: Path) -> None:
    layout_in(tmp_path).prepare()
    (tmp_path / "state").rename(tmp_path / "moved")
    with pytest.raises(UnusablePlace, match="made at") as refused:
        Layout(project=tmp_path, state=tmp_path / "moved").prepare()
    assert refused.value.exit_code == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_state_of_another_user_is_refused(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    layout.prepare()
    os.chown(layout.state, 65534, 65534)
    with pytest.raises(UnusablePlace, match="belongs to user id 65534"):
        layout.prepare()
