"""The first step of `make`: pins out of the lock, and one configuration for pip and uv."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lifecycle_local import install
from lifecycle_local.install import count_packages, extract_pins, fetch_suites, pip_settings, uv_environment

LOCK = """\
# made by a program
uv==0.13.9 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via -r requirements.in
uvicorn==0.54.0 \\
    --hash=sha256:cc
setuptools==84.2.1 ; python_version > '3' \\
    --hash=sha256:dd
"""


def test_only_the_asked_for_blocks_and_all_their_hashes() -> None:
    assert extract_pins(LOCK, ["uv", "setuptools"]) == (
        "uv==0.13.9 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\nsetuptools==84.2.1 ; python_version > '3' \\\n    --hash=sha256:dd\n"
    )


def test_pips_configuration_by_rank() -> None:
    listing = ":env:.index-url='from-env'\nglobal.cert='/c'\nglobal.index-url='from-file'\ninstall.timeout='9'\nnot a setting\n"
    assert pip_settings(listing) == {"cert": "/c", "index-url": "from-env", "timeout": "9"}


def test_uv_is_told_what_pip_was_told(tmp_path: Path) -> None:
    found = uv_environment(
        {"index-url": "mirror", "extra-index-url": "more", "cert": "/c", "find-links": f"{tmp_path} /not/there", "quiet": "1"},
        {"HOME": "/h"},
    )
    assert found == {
        "UV_DEFAULT_INDEX": "mirror",
        "UV_INDEX": "more",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/c",
        "UV_FIND_LINKS": str(tmp_path),
        "HOME": "/h",
    }


def test_what_the_user_told_uv_itself_stays() -> None:
    assert uv_environment({"index-url": "pips"}, {"UV_DEFAULT_INDEX": "mine"}) == {"UV_DEFAULT_INDEX": "mine"}


def test_folders_that_are_not_there_leave_no_empty_setting() -> None:
    assert uv_environment({"find-links": "/not/there"}, {}) == {}


def npm(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    (folder / "npm").write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_suites_are_fetched_by_the_lock_and_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm(tmp_path, monkeypatch, f'echo "$@" > {tmp_path}/said; pwd >> {tmp_path}/said')
    assert fetch_suites(tmp_path) is None
    said, where = (tmp_path / "said").read_text(encoding="utf-8").splitlines()
    assert said.split()[:2] == ["ci", "--ignore-scripts"]
    assert Path(where) == tmp_path.resolve()


def test_without_npm_or_with_one_that_fails_set_up_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm(tmp_path, monkeypatch, "exit 7")
    assert fetch_suites(tmp_path) == "npm ended with status 7"
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert fetch_suites(tmp_path) == "there is no npm on this machine"


def test_each_step_is_said_before_it_begins(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    begun: list[tuple[str, str]] = []

    def ran(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        begun.append((" ".join(command[1:5]), capsys.readouterr().out.strip()))
        return subprocess.CompletedProcess(command, 0, stdout="")

    monkeypatch.setattr(install.subprocess, "run", ran)
    monkeypatch.setattr(install, "compile_dir", lambda *_, **__: True)
    monkeypatch.setattr(install, "fetch_suites", lambda _folder: None)
    assert install.main() == 0
    said = dict(begun)
    assert said["-m pip install --quiet"] == "1/4  pip brings uv and setuptools ..."
    assert said["-m uv pip sync"].startswith(f"2/4  uv brings up to {count_packages(Path('requirements.txt').read_text())} packages")
    assert said["-m uv pip install"] == "3/4  the project itself ..."
    assert capsys.readouterr().out.strip().startswith("4/4  npm")


def test_packages_are_counted_by_their_pins() -> None:
    assert count_packages(LOCK) == 3
