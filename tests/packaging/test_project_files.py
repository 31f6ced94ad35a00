"""No file names a machine, a download address or a secret; nothing that is made at run time is a file of the project."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch

from tests.packaging.files import ROOT, project_files, project_texts

# Put together here, so that this file is not the one that is found.
HOSTS = [
    ".".join(parts)
    for parts in (("pypi", "org"), ("pythonhosted", "org"), ("maven", "org"), ("maven", "apache", "org"), ("spark-packages", "org"))
]
MACHINE_PATH = re.compile("|".join(re.escape(f"/{folder}/") + r"\w" for folder in ("home", "root", "Users", "work")))
PRIVATE_KEY = re.compile("-----BEGIN [A-Z ]*" + "PRIVATE KEY-----")
MADE_AT_RUN_TIME = (".lifecycle", ".venv", "logs", "__pycache__")


def test_what_is_no_code_is_packed_with_the_package() -> None:
    """An installed package has its pages."""
    packed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["message_lifecycle"]
    package = ROOT / "include" / "message_lifecycle"
    files = [str(path.relative_to(package)) for path in project_files() if path.is_relative_to(package) and path.suffix != ".py"]
    assert any(path.endswith(".html") for path in files)
    assert [path for path in files if not any(fnmatch(path, pattern.removeprefix("**/")) for pattern in packed)] == []


def found(pattern: re.Pattern[str]) -> list[str]:
    """File, line and text of each match."""
    return [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in project_texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_download_address() -> None:
    assert found(re.compile("|".join(map(re.escape, HOSTS)))) == []


def test_no_path_of_one_machine() -> None:
    assert found(MACHINE_PATH) == []


def test_no_private_key() -> None:
    assert found(PRIVATE_KEY) == []


def test_nothing_made_at_run_time() -> None:
    assert [path for path in project_files() if set(path.relative_to(ROOT).parts) & set(MADE_AT_RUN_TIME)] == []


def test_the_usual_files_are_there() -> None:
    names = {str(path.relative_to(ROOT)) for path in project_files()}
    assert {"Makefile", "pyproject.toml", "requirements.in", "requirements.txt", "airflow.cfg", ".ci/run"} <= names
