"""What the import rules of pyproject.toml cannot say: the core knows only the standard library, DAG files no heavy package."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.packaging.files import ROOT

PACKAGE = ROOT / "include" / "message_lifecycle"
CORE = ("model", "operations", "folds", "wire", "ports")
# A fold is a library's where a well-kept one is right, each in the module of its name.
LIBRARIES = {"folds/json_patch.py": {"jsonpatch", "jsonpointer"}, "folds/yjs.py": {"pycrdt"}}
HEAVY = {"pyspark", "great_expectations", "pandas", "pyarrow", "pyiceberg"}
# The clock and the environment reach the core as arguments.
AMBIENT = {
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
    ("time", "time"),
    ("time", "time_ns"),
    ("os", "environ"),
    ("os", "getenv"),
}


def modules(*places: Path) -> list[Path]:
    return sorted(file for place in places for file in ([place] if place.is_file() else place.rglob("*.py")))


def test_each_part_of_the_core_is_looked_at() -> None:
    assert all(modules(PACKAGE / part) for part in CORE)


def imported(tree: ast.AST) -> set[str]:
    """Top-level names of everything that is imported, wherever in the file."""
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("module", modules(*(PACKAGE / name for name in CORE)), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_core_knows_only_the_standard_library(module: Path) -> None:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    known = {"message_lifecycle"} | LIBRARIES.get(module.relative_to(PACKAGE).as_posix(), set())
    assert imported(tree) - set(sys.stdlib_module_names) - known == set()
    ambient = {
        (node.value.id, node.attr) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    } & AMBIENT
    assert ambient == set()


@pytest.mark.parametrize("module", modules(ROOT / "dags", ROOT / "plugins"), ids=lambda path: path.name)
def test_dag_files_import_no_engine(module: Path) -> None:
    assert imported(ast.parse(module.read_text(encoding="utf-8"))) & HEAVY == set()


@pytest.mark.parametrize("module", modules(ROOT / "dags"), ids=lambda path: path.name)
def test_a_dag_file_is_short(module: Path) -> None:
    assert len(module.read_text(encoding="utf-8").splitlines()) <= 60
