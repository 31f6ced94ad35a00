"""The deliberate breakages do not rot: every patch still fits the tree, and every test that is to notice one is there."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from bench.breakages import FOLDER, PAGE, Breakage, applies, index

from tests.packaging.files import ROOT

PROMISES, BREAKAGES = index(ROOT)
each = pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)


def functions(file: str) -> set[str]:
    """Names of the tests of a file, those of a class by themselves."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_promise_is_broken_more_than_once_and_every_patch_is_listed() -> None:
    of_promise = Counter(breakage.promise for breakage in BREAKAGES)
    assert of_promise.keys() == PROMISES.keys()
    assert min(of_promise.values()) >= 2
    assert len(BREAKAGES) >= 40
    names = sorted(breakage.name for breakage in BREAKAGES)
    assert names == sorted(path.stem for path in (ROOT / FOLDER).glob("*.patch"))


@pytest.mark.skipif(shutil.which("git") is None, reason="git alone reads a patch as git does")
@each
def test_a_patch_still_fits(breakage: Breakage) -> None:
    """Code that has moved: make it anew at the new place, from what the index says that it breaks (`git diff -U2` of the change)."""
    assert applies(ROOT, breakage, check=True) == ""


@pytest.mark.skipif(shutil.which("git") is None, reason="git alone reads a patch as git does")
@each
def test_a_broken_module_has_every_name_that_it_uses(breakage: Breakage, tmp_path: Path) -> None:
    """A module that cannot be imported fails every test. The test that is to notice the breakage would then notice nothing."""
    broken_files = re.findall(r"^--- a/(.+)$", (ROOT / breakage.patch).read_text(encoding="utf-8"), re.MULTILINE)
    for name in [breakage.patch, *broken_files]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    assert applies(tmp_path, breakage, check=False) == ""
    assert [missing for broken in tmp_path.rglob("*.py") for missing in missing_imports(broken)] == []
    subprocess.run([sys.executable, "-m", "ruff", "check", "--isolated", "--quiet", "--select", "F821", tmp_path], check=True)


def missing_imports(file: Path) -> list[str]:
    """Names that the file imports from our modules although they do not have them."""
    found = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
    ours = [(str(node.module), alias.name) for node in found for alias in node.names if str(node.module).startswith("message_lifecycle.")]
    return [
        f"{module}.{name}" for module, name in ours if not hasattr(import_module(module), name) and find_spec(f"{module}.{name}") is None
    ]


@each
def test_the_tests_that_are_to_notice_it_are_there(breakage: Breakage) -> None:
    for test in breakage.selection.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), test
        assert not name or name.rpartition("::")[2].partition("[")[0] in functions(file), test


def test_the_page_tells_of_all_of_them() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert [breakage.name for breakage in BREAKAGES if f"| {breakage.name} | {breakage.breaks} |" not in text] == []
