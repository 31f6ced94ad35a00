"""The wheel is the product alone, and works where the embedded default is not installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.packaging.files import ROOT

HOLDS = {
    "id": "holds",
    "config": {"message_expiry": 1},
    "steps": [
        {"append": [{"append_time": 1000000, "segment": 0}, {"append_time": 9000000, "segment": 1}]},
        {"run": {"operation": "message_cleaner", "as_of": 2000000}},
        {"expect": {"outcome": "published", "kept": [1]}},
    ],
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because setuptools writes beside its sources."""
    tree = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "README.md"):
        shutil.copyfile(ROOT / name, tree / name)
    shutil.copytree(ROOT / "include", tree / "include", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    program = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", program], cwd=tree, capture_output=True, text=True, check=True)
    return tree / done.stdout.splitlines()[-1]


def lifecycle(wheel: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command from the wheel and the installed packages; without `site`, the project's own path is not among them."""
    paths = [str(wheel), sysconfig.get_path("purelib")]
    program = f"import sys; sys.path[:0] = {paths!r}; from message_lifecycle.app.cli import program; sys.exit(program())"
    command = [sys.executable, "-I", "-S", "-c", program, *arguments]
    return subprocess.run(command, cwd=wheel.parent, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"})


def test_it_has_the_product_and_its_pages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"message_lifecycle"}
    pages = {path.name for path in (ROOT / "include/message_lifecycle/app/pages").iterdir() if path.suffix in (".html", ".css")}
    assert {Path(name).name for name in names if "/pages/" in name} >= pages


def test_it_has_no_commands_that_start_servers(wheel: Path) -> None:
    told = lifecycle(wheel, "--help")
    assert told.returncode == 0, told.stderr
    assert "quarantine" in told.stdout
    assert "Start here" not in told.stdout
    assert "No such command 'up'" in lifecycle(wheel, "up").stderr


def test_a_scenario_runs(wheel: Path) -> None:
    file = wheel.with_name("holds.json")
    file.write_text(json.dumps(HOLDS), encoding="utf-8")
    told = lifecycle(wheel, "scenario", "run", str(file))
    assert (told.returncode, told.stderr) == (0, "")
    assert "1 of 1 scenarios passed" in told.stdout


def test_servers_are_named_by_the_environment_alone(wheel: Path) -> None:
    assert "MissingConfiguration: no ledger is configured" in lifecycle(wheel, "status").stderr
    told = lifecycle(wheel, "scenario", "run", str(wheel.with_name("holds.json")), "--store", "redis_streams")
    assert "set LIFECYCLE_REDIS_URL" in told.stdout
