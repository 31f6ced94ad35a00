"""What executors are given: the package as a zip, and an archive of packages of others by which their own Python finds them."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile
from zipimport import zipimporter

import pytest
from packaging.utils import canonicalize_name

from message_lifecycle.app.cli import main
from message_lifecycle.stores.iceberg import executors, session
from message_lifecycle.stores.iceberg.executors import NEEDED, _with_theirs, pack, zip_package
from message_lifecycle.stores.iceberg.java import PROPERTIES
from message_lifecycle.stores.iceberg.shares import Resources, done_by_worker
from tests.errors import raises

SMALL = ("jsonpatch",)
BARE_PYTHON = Path(sys.executable).resolve()
# What an executor unpickles for a task of ours, with all that it imports by itself.
TASKS = (
    "compaction.kernel",
    "data_files",
    "documents.stage",
    "due_rows",
    "erasure.looking",
    "evidence_limits",
    "evidence_rows",
    "reach",
    "tasks",
)
# Spark brings its own Python part to each executor, each run this package.
OF_EXECUTORS = ("message-lifecycle", "py4j", "pyspark")
REFUSING = """
import importlib, importlib.abc, sys
lacking = set({lacking!r})

class Bare(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in lacking:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Bare())
for name in {tasks!r}:
    importlib.import_module(f"message_lifecycle.stores.iceberg.{{name}}")
"""


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


def test_a_task_leaves_no_finder_of_a_zip_to_the_next_one(tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark invalidates all finders before each task, and a zip's finder then reads the zip again."""
    name = f"package_{tmp_path.name}"
    moved = package.rename(tmp_path / name)
    (moved / "model" / "later.py").write_text("FOUND = 'later'\n")
    path = str(zip_package(tmp_path, moved))
    monkeypatch.syspath_prepend(path)

    def work(module: str, _share: Resources) -> str:
        found: str = importlib.import_module(module).FOUND
        assert isinstance(sys.path_importer_cache[path], zipimporter)
        return found

    assert done_by_worker(work, Resources(spill_folder="/unused"), f"{name}.model") == "in the zip"
    assert not any(isinstance(finder, zipimporter) for finder in sys.path_importer_cache.values())
    assert sys.path_importer_cache
    assert importlib.import_module(f"{name}.model.later").FOUND == "later", "a finder comes back if an import needs one"


def test_equal_code_gives_equal_bytes(tmp_path: Path, package: Path) -> None:
    first = zip_package(tmp_path, package)
    content = first.read_bytes()
    os.utime(package / "__init__.py", (0, 0))
    assert zip_package(tmp_path, package) == first
    assert first.read_bytes() == content
    (package / "model" / "__init__.py").write_text("FOUND = 'changed'\n")
    assert zip_package(tmp_path, package) != first


def test_the_real_package_goes_in(tmp_path: Path) -> None:
    with ZipFile(zip_package(tmp_path)) as archive:
        assert "message_lifecycle/stores/iceberg/tasks.py" in archive.namelist()


def test_tasks_import_nothing_that_is_not_packed() -> None:
    packed = {canonicalize_name(one.name) for one in _with_theirs(NEEDED)} | set(OF_EXECUTORS)
    names = importlib.metadata.packages_distributions()
    lacking = [name for name, of in names.items() if not packed & {canonicalize_name(one) for one in of}]
    assert {"packaging", "sqlalchemy", "airflow"} <= set(lacking)
    subprocess.run([sys.executable, "-c", REFUSING.format(lacking=lacking, tasks=TASKS)], check=True)


def test_a_bare_python_has_what_was_packed(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {BARE_PYTHON} -S "$@"\n')  # not those that lie beside it either
    bare.chmod(0o755)
    assert subprocess.run([bare, "-c", "import jsonpointer"], capture_output=True, check=False).returncode == 1
    archive = tmp_path / "packages.tar.gz"
    version = importlib.metadata.version("jsonpatch")
    assert pack(archive, SMALL) == [f"jsonpatch {version}", f"jsonpointer {importlib.metadata.version('jsonpointer')}"]
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "env", filter="data")
    program = (
        "import jsonpatch, jsonpointer, importlib.metadata as m; print(jsonpatch.__file__, jsonpointer.__file__, m.version('jsonpatch'))"
    )
    # From another folder, as an executor does, whose own Python Spark gives its path.
    answer = subprocess.run(
        ["../env/bin/python", "-c", program],
        cwd=(tmp_path / "work").mkdir() or tmp_path / "work",
        env={"PATH": "/usr/bin:/bin", "LIFECYCLE_PYTHON": str(bare), "PYTHONPATH": "/of/spark"},
        capture_output=True,
        text=True,
        check=True,
    )
    packages = tmp_path / "env" / "packages"
    assert answer.stdout.split() == [str(packages / "jsonpatch.py"), str(packages / "jsonpointer.py"), version]


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


def test_a_context_whose_executors_cannot_have_the_package_is_no_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks next would take it for whole."""
    from pyspark.sql import SparkSession

    stopped = []
    conf = SimpleNamespace(getAll=lambda: [("spark.master", "spark://a-cluster:7077"), (PROPERTIES, "a.b.Catalog")])
    half = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf), stop=lambda: stopped.append(True))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(session, "_start_java", lambda: None)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _: half)
    monkeypatch.setattr(executors, "give_package", full)
    with raises("SparkUnavailable", match="cannot be given this package: .*No space left"):
        session._start_session("tests")
    assert stopped


def test_the_command_refuses_it_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "pack", str(tmp_path / "packages.zip")]) == 2
    assert "UnusableArchive" in capsys.readouterr().err
