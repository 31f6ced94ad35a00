"""The zip for executors: importable, without caches, equal for equal code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from message_lifecycle.local.layout import Layout
from message_lifecycle.local.spark import build_py_files


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "message_lifecycle"
    (folder / "model" / "__pycache__").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "model" / "__init__.py").write_text("FOUND = 'in the zip'\n")
    (folder / "model" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (folder / "model" / "defaults.toml").write_text("")
    return folder


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = Layout(project=tmp_path, state=tmp_path / "state")
    found.prepare()
    return found


def test_the_package_is_the_top_level(layout: Layout, package: Path) -> None:
    with ZipFile(build_py_files(layout, package)) as archive:
        assert archive.namelist() == [
            "message_lifecycle/__init__.py",
            "message_lifecycle/model/__init__.py",
            "message_lifecycle/model/defaults.toml",
        ]


def test_python_imports_from_it(layout: Layout, package: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(build_py_files(layout, package))!r}); from message_lifecycle.model import FOUND; print(FOUND)"
    )
    answer = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True, cwd=layout.state)
    assert answer.stdout.strip() == "in the zip"


def test_equal_code_gives_equal_bytes(layout: Layout, package: Path) -> None:
    first = build_py_files(layout, package)
    content, written = first.read_bytes(), first.stat().st_ino
    os.utime(package / "__init__.py", (0, 0))
    assert build_py_files(layout, package).stat().st_ino == written
    (package / "model" / "__init__.py").write_text("FOUND = 'changed'\n")
    assert build_py_files(layout, package).read_bytes() != content


def test_the_real_package_goes_in(layout: Layout) -> None:
    with ZipFile(build_py_files(layout)) as archive:
        assert "message_lifecycle/local/spark.py" in archive.namelist()
