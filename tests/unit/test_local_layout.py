"""One state folder, private, where the user wants it, and only where it can work; secrets in it are made once and replaced whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lifecycle_local import stack
from lifecycle_local.layout import Layout, find_layout, last_lines, project_root
from message_lifecycle.app.private_files import secret, write_private
from tests.errors import raises


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


def test_the_clusters_state_lies_beside_the_other_and_has_its_tools(tmp_path: Path) -> None:
    found, usual = find_layout({"LIFECYCLE_STACK": "cluster"}), find_layout({})
    assert found.is_cluster
    assert not usual.is_cluster
    assert (found.state, found.jars, found.class_archives) == (usual.state / "cluster", usual.jars, usual.class_archives)
    named = find_layout({"LIFECYCLE_STACK": "cluster", "LIFECYCLE_HOME": str(tmp_path)})
    assert (named.state, named.tools, named.is_cluster) == (tmp_path, tmp_path, True)
    with raises("UnknownStack", match="'clouds'. Allowed: disk .*, cluster"):
        find_layout({"LIFECYCLE_STACK": "clouds"})


@pytest.mark.parametrize("is_cluster", [True, False])
def test_a_state_of_the_other_stack_is_refused_before_anything_is_touched(tmp_path: Path, is_cluster: bool) -> None:
    """A cluster begins anew where its store is gone: it would take the database of a stack on disk away."""
    layout = Layout(project=tmp_path, state=tmp_path / "state", is_cluster=is_cluster)
    layout.prepare()
    kept = layout.state / ("postgres" if is_cluster else "machines") / "kept"
    kept.parent.mkdir()
    kept.touch()
    with raises("UnusablePlace", match="it was made"):
        stack.up(layout)
    assert kept.exists()


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    layout.prepare()
    layout.prepare()
    assert layout.state.stat().st_mode & 0o777 == (0o711 if os.geteuid() == 0 else 0o700)
    for folder in (layout.secrets, layout.warehouse, layout.logs, layout.spark_conf, layout.results):
        assert folder.stat().st_mode & 0o777 == 0o700, folder


def test_a_path_that_java_cannot_take_is_refused(tmp_path: Path) -> None:
    with raises("UnusablePlace", match="colon"):
        layout_in(tmp_path / "a:b").prepare()
    assert not (tmp_path / "a:b").exists()


def test_a_state_that_was_moved_is_refused(tmp_path: Path) -> None:
    layout_in(tmp_path).prepare()
    (tmp_path / "state").rename(tmp_path / "moved")
    with raises("UnusablePlace", match="made at") as refused:
        Layout(project=tmp_path, state=tmp_path / "moved").prepare()
    assert refused.value.exit_code == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_state_of_another_user_is_refused(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    layout.prepare()
    os.chown(layout.state, 65534, 65534)
    with raises("UnusablePlace", match="belongs to user id 65534"):
        layout.prepare()


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert write_private(tmp_path / "file", "text")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_a_loose_mode_is_tightened_even_when_the_text_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    file.chmod(0o644)
    assert write_private(file, "text")
    assert file.stat().st_mode & 0o777 == 0o600
    assert not write_private(file, "text")


def test_a_secret_is_made_once_and_long(tmp_path: Path) -> None:
    made = secret(tmp_path / "one")
    assert secret(tmp_path / "one") == made
    assert len(made) == 64
    assert secret(tmp_path / "two") != made
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log) == ""
    log.write_text("one\n\ntwo\nthree\n")
    assert last_lines(log, 2) == "two | three"


def test_of_two_who_make_a_secret_at_once_the_first_ones_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "one"
    first = secret(file)
    monkeypatch.setattr(Path, "is_file", lambda _: False)  # both have looked before either wrote
    assert secret(file) == first
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
