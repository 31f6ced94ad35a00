"""What executors are given: the package as a zip, and an archive of packages of others by which their own Python finds them."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from message_lifecycle.app.cli import main
from message_lifecycle.stores.iceberg.executors import NEEDED, pack, zip_package
from tests.errors import raises

SMALL = ("jsonpatch",)
BARE_PYTHON = Path(sys.executable).resolve()
"""Without the packages of this installation."""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "message_lifecycle"
    (folder / "model" / "__pycache__").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "model" / "__init__.py").write_text("FOUND = 'in the zip'\n")
    (folder / "model" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (folder / "model" / "defaults.toml").write_text("")
    return folder


def test_the_package_is_the_top_level(tmp_path: Path, package: Path) -> None:
    with ZipFile(zip_package(tmp_path, package)) as archive:
        assert archive.namelist() == [
            "message_lifecycle/__init__.py",
            "message_lifecycle/model/__init__.py",
            "message_lifecycle/model/defaults.toml",
        ]


def test_python_imports_from_it(tmp_path: Path, package: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(zip_package(tmp_path, package))!r}); from message_lifecycle.model import FOUND; print(FOUND)"
    )
    answer = subprocess.run([BARE_PYTHON, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "in the zip"


def test_equal_code_gives_equal_bytes(tmp_path: Path, package: Path) -> None:
    content = zip_package(tmp_path, package).read_bytes()
    os.utime(package / "__init__.py", (0, 0))
    assert zip_package(tmp_path, package).read_bytes() == content
    (package / "model" / "__init__.py").write_text("FOUND = 'changed'\n")
    assert zip_package(tmp_path, package).read_bytes() != content


def test_the_real_package_goes_in(tmp_path: Path) -> None:
    with ZipFile(zip_package(tmp_path)) as archive:
        assert "message_lifecycle/stores/iceberg/tasks.py" in archive.namelist()


def test_a_bare_python_has_what_was_packed(tmp_path: Path) -> None:
    archive = tmp_path / "packages.tar.gz"
    version = importlib.metadata.version("jsonpatch")
    assert pack(archive, SMALL) == [f"jsonpatch {version}", f"jsonpointer {importlib.metadata.version('jsonpointer')}"]
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "env", filter="data")
    program = "import jsonpatch, importlib.metadata; print(jsonpatch.__file__, importlib.metadata.version('jsonpatch'))"
    # From another folder, as an executor does, whose own Python Spark gives its path.
    answer = subprocess.run(
        ["../env/bin/python", "-c", program],
        cwd=(tmp_path / "work").mkdir() or tmp_path / "work",
        env={"PATH": "/usr/bin:/bin", "LIFECYCLE_PYTHON": str(BARE_PYTHON), "PYTHONPATH": "/of/spark"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.split() == [str(tmp_path / "env" / "packages" / "jsonpatch.py"), version]


def test_equal_packages_give_equal_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "one.tar.gz", tmp_path / "other.tgz"
    assert pack(one, SMALL) == pack(other, SMALL)
    assert one.read_bytes() == other.read_bytes()


def test_all_that_tasks_need_is_installed() -> None:
    assert all(importlib.metadata.version(name) for name in NEEDED)


@pytest.mark.parametrize("name", ["packages.zip", "no/such/folder/packages.tar.gz", "folder.tar.gz"])
def test_a_place_that_cannot_be_the_archive_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.tar.gz").mkdir()
    with raises("UnusableArchive", match=r"ends in \.tar\.gz, in a folder that is there"):
        pack(tmp_path / name, SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.tar.gz"]


def test_a_full_disk_leaves_no_half_of_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: tarfile.TarFile, *_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    with raises("StorageFull"):
        pack(tmp_path / "packages.tar.gz", SMALL)
    assert list(tmp_path.iterdir()) == []


def test_the_command_refuses_it_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "pack", str(tmp_path / "packages.zip")]) == 2
    assert "UnusableArchive" in capsys.readouterr().err
