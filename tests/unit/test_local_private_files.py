"""Secrets: mode 0600 whatever the umask, made once, replaced whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from message_lifecycle.local.layout import last_lines, secret, write_private


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
